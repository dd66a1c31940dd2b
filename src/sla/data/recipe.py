"""Label-keeping augmentation as text: `crop(4), flip` or `resized(0.35), flip, jitter(0.4)`."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sla.data.augment import (
    CenterCrop,
    CenterWindow,
    ColorJitter,
    Flip,
    Normalize,
    Op,
    Pipeline,
    RandomCrop,
    RandomResizedCrop,
    Resize,
)
from sla.data.draws import Draws
from sla.data.transforms import LUMA
from sla.errors import InputError, nearest

ANY_SIZE = 1 << 30  # stands for a size that is not known yet, so that any padding fits


@dataclass(frozen=True)
class Channels:
    """Grey pictures for a model of one channel, three equal channels for one of three."""

    count: int
    stage: ClassVar[str] = "policy"

    def __call__(self, images: Tensor, draws: Draws, aspect: Tensor) -> Tensor:
        """uint8 (B, C, H, W) -> (B, count, H, W)."""
        if images.shape[1] == self.count:
            return images
        if images.shape[1] == 1:
            return images.expand(-1, self.count, -1, -1)
        if self.count != 1:
            raise InputError(f"images of {images.shape[1]} channels for a model of {self.count}")
        grey = images.float() * torch.tensor(LUMA, device=images.device)[:, None, None]
        return grey.sum(1, keepdim=True).round().to(torch.uint8)


def _whole(number: float) -> int:
    if number != int(number):
        raise InputError(f"padding is a whole number of pixels, not {number:g}")
    return int(number)


KNOWN: dict[str, tuple[int, Callable[..., Op]]] = {  # most numbers each takes; the first is always the size
    "crop": (1, lambda size, padding=4: RandomCrop(size, _whole(padding))),
    "resized": (2, lambda size, low=0.08, high=1.0: RandomResizedCrop(size, (low, high))),
    "flip": (1, lambda size, probability=0.5: Flip(probability)),
    "jitter": (
        4,
        lambda size, *strengths: ColorJitter(*(strengths if len(strengths) > 1 else strengths * 3)),
    ),
}


def train_pipeline(text: str, size: int, mean: tuple[float, ...], std: tuple[float, ...]) -> Pipeline:
    """What a training batch goes through: the ops of the text in their fixed order, then normalisation.

    `crop(padding)`, `resized(smallest share of the area, largest)`, `flip(probability)` and
    `jitter(brightness, contrast, saturation, hue)`, one number serving the first three; `none` is nothing.
    The result is size x size: without `crop` and `resized`, whole images of another size are resampled.
    """
    ops: list[Op] = [Channels(len(mean)), Normalize(mean, std)]
    for name, numbers in _calls(text):
        try:
            ops.append(KNOWN[name][1](size, *numbers))
        except InputError as error:
            raise InputError(f"augmentation {name!r} in {text!r}: {error}") from None
    if not any(op.stage == "crop" for op in ops):
        ops.append(Resize(size))
    return Pipeline(tuple(ops))


def eval_pipeline(text: str, size: int, mean: tuple[float, ...], std: tuple[float, ...]) -> Pipeline:
    """What a test image goes through, to the size x size that training saw, each thing at the same scale.

    After `resized` the centre of the picture as `CenterCrop` takes it, after `crop` the window in the middle,
    else the whole image, resampled. Of an image that is already size x size the last two change nothing.
    """
    names = [name for name, _ in _calls(text)]
    middle: Op = Resize(size)
    if "resized" in names:
        middle = CenterCrop(size)
    elif "crop" in names:
        middle = CenterWindow(size)
    return Pipeline((Channels(len(mean)), middle, Normalize(mean, std)))


def check_augment(text: str) -> None:
    """Refuse a text that is no augmentation of images of any size."""
    train_pipeline(text, ANY_SIZE, (0.0,), (1.0,))


def _calls(text: str) -> list[tuple[str, list[float]]]:
    """`a, b(1, 2)` -> [("a", []), ("b", [1, 2])]; each name once."""
    found: list[tuple[str, list[float]]] = []
    parts = re.findall(r"[^,()]+(?:\([^()]*\))?|[()]", text)
    for part in (part.strip() for part in parts):
        call = re.fullmatch(r"(\w+)\s*(?:\(([^()]*)\))?", part)
        if call is None or call[1] not in (*KNOWN, "none"):
            name = call[1] if call else part
            raise InputError(f"unknown augmentation {name!r} in {text!r}{nearest(name, (*KNOWN, 'none'))}")
        name = call[1]
        try:
            numbers = [float(number) for number in (call[2] or "").split(",") if number.strip()]
            if not all(map(math.isfinite, numbers)):
                raise ValueError
        except ValueError:
            raise InputError(f"augmentation {part!r} in {text!r}: only numbers go between brackets") from None
        if name == "none":
            continue
        if any(name == other for other, _ in found):
            raise InputError(f"augmentation {name!r} is named twice in {text!r}")
        if len(numbers) > KNOWN[name][0] or (name == "jitter" and not numbers):
            raise InputError(
                f"augmentation {part!r} in {text!r}: {name} takes up to {KNOWN[name][0]} numbers"
            )
        found.append((name, numbers))
    return found
