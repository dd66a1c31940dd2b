"""Mixup and CutMix: every image of a batch is mixed with another one.

Partners come from the same process: the only draw that depends on the number of processes.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from sla.augment.syntax import Argument, parse_calls
from sla.augment.transforms import box_mask
from sla.errors import InputError
from sla.sampling.draws import Draws, generator


class Mixed(NamedTuple):
    """Images (B, C, H, W); image b is `lam` itself and `1 - lam` image partner[b] of the batch."""

    images: Tensor
    partner: Tensor  # int64 (B,)
    lam: Tensor  # float32, () where the whole batch shares it, else (B,)


class Mix(Protocol):
    """A way to mix a finished batch: after the pipeline, before the views."""

    def __call__(self, images: Tensor, draws: Draws) -> Mixed:
        """Float images (B, C, H, W) and their random draws."""


@dataclass(frozen=True)
class Mixup:
    """lam * image + (1 - lam) * partner, lam from Beta(alpha, alpha): per batch, or per image with `each`."""

    alpha: float = 1.0
    probability: float = 1.0
    each: bool = False

    def __post_init__(self) -> None:
        _check("alpha", self.alpha, self.probability)

    def __call__(self, images: Tensor, draws: Draws) -> Mixed:
        """Mix a batch."""
        lam = _draw_shares(draws, self.alpha, self.probability, self.each).to(images.device)
        partner = _draw_partners(draws, len(images)).to(images.device)
        return Mixed(blend(images, images[partner], lam), partner, lam)


@dataclass(frozen=True)
class CutMix:
    """A box of each image comes from its partner: one box per batch, or per image with `each`.

    The box has 1 - lam of the area, lam from Beta(beta, beta), and its centre may be any pixel; what lies
    beyond the border is cut off, and lam becomes the exact share of the image's own pixels.
    """

    beta: float = 1.0
    probability: float = 1.0
    each: bool = False

    def __post_init__(self) -> None:
        _check("beta", self.beta, self.probability)

    def __call__(self, images: Tensor, draws: Draws) -> Mixed:
        """Mix a batch."""
        lam = _draw_shares(draws, self.beta, self.probability, self.each)
        place = (
            draws.uniform("mix.place", 2)
            if self.each
            else torch.rand(1, 2, generator=draws.batch("mix.place"))
        )
        boxes, exact = cut_boxes(lam.view(-1), place, images.shape[2], images.shape[3])
        partner = _draw_partners(draws, len(images)).to(images.device)
        if self.each:
            return Mixed(paste_each(images, images[partner], boxes), partner, exact.to(images.device))
        top, left, bottom, right = boxes[0].tolist()
        mixed = images.clone()
        mixed[:, :, top:bottom, left:right] = images[partner, :, top:bottom, left:right]
        return Mixed(mixed, partner, exact[0].to(images.device))


def blend(images: Tensor, others: Tensor, lam: Tensor) -> Tensor:
    """lam * images + (1 - lam) * others; lam () or (B,)."""
    return torch.lerp(others, images, lam.to(images).view(-1, 1, 1, 1))


def cut_boxes(lam: Tensor, place: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
    """Boxes of 1 - lam of the area centred at `place`, and the share of pixels outside each.

    lam (n,) in [0, 1]; place (n, 2) in [0, 1). Returns int64 (n, 4), top, left, bottom and right within the
    picture, the last two exclusive, and float32 (n,).
    """
    sides = torch.tensor([height, width])
    cut = ((1 - lam).sqrt()[:, None] * sides).long()
    centre = (place * sides).long()  # half the side to each side of it, rounded down, as public code has it
    start, end = (centre - cut // 2).clamp(min=0), (centre + cut // 2).minimum(sides)
    area = (end - start).prod(1)
    return torch.cat([start, end], 1), (1 - area.double() / (height * width)).float()


def paste_each(images: Tensor, others: Tensor, boxes: Tensor) -> Tensor:
    """The images with a box of `others` in each; boxes (B, 4) as `cut_boxes` returns them."""
    return torch.where(box_mask(boxes[:, :2], boxes[:, 2:], images), others, images)


def _draw_shares(draws: Draws, alpha: float, probability: float, each: bool) -> Tensor:
    """float32 () or (b,): lam from Beta(alpha, alpha), 1 where nothing is mixed."""
    stream = np.random.default_rng(draws.batch("mix.share").initial_seed())
    count = draws.batch_size if each else 1
    mixes = stream.random(count) < probability
    lam = torch.from_numpy(np.where(mixes, stream.beta(alpha, alpha, count), 1.0)).float()
    return lam[draws.start : draws.stop] if each else lam[0]


def _draw_partners(draws: Draws, count: int) -> Tensor:
    return torch.randperm(count, generator=generator(draws.seed, draws.step, "mix.partner", draws.start))


def parse_mix(text: str | None) -> Mix | None:
    """`cutmix(beta, probability)` or `mixup(alpha, probability)`, maybe with `each` last; None for `none`."""
    calls = parse_calls(text or "none", {"mixup": 3, "cutmix": 3}, "mixing", words=("mixup", "cutmix"))
    if len(calls) > 1:
        raise InputError(f"mix: only one kind of mixing, not {len(calls)}: {text!r}")
    if not calls:
        return None
    name, given = calls[0]
    numbers, words = _numbers_and_words(given)
    if words not in ([], ["each"]) or len(numbers) > 2 or given[: len(numbers)] != numbers:
        raise InputError(f"mix: {name} takes up to two numbers and then perhaps the word each, not {text!r}")
    parameter, probability = [*numbers, *(1.0, 1.0)[len(numbers) :]]
    try:
        if name == "mixup":
            return Mixup(parameter, probability, bool(words))
        return CutMix(parameter, probability, bool(words))
    except InputError as error:
        raise InputError(f"mix: {text!r}: {error}") from None


def _numbers_and_words(given: list[Argument]) -> tuple[list[float], list[str]]:
    numbers = [argument for argument in given if isinstance(argument, float)]
    return numbers, [argument for argument in given if isinstance(argument, str)]


def _check(name: str, parameter: float, probability: float) -> None:
    if not 1e-3 <= parameter <= 1e3:  # outside, every share is 0, 1/2 or 1 after rounding
        raise InputError(f"{name} must be from 0.001 to 1000, not {parameter:g}")
    if not 0 <= probability <= 1:
        raise InputError(f"the probability of mixing must be from 0 to 1, not {probability:g}")
