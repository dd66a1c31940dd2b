"""Greyscale and blur, with which contrastive learning hides what two views of an image have in common."""

from dataclasses import dataclass
from itertools import permutations
from typing import ClassVar

from torch import Tensor

from sla.augment import transforms
from sla.augment.ops import check_probability
from sla.errors import InputError
from sla.sampling.draws import Draws


@dataclass(frozen=True)
class Greyscale:
    """The grey of the image in all its channels, with the given probability."""

    probability: float = 0.2
    stage: ClassVar[str] = "grey"

    def __post_init__(self) -> None:
        check_probability("greyscale", self.probability)

    @property
    def reaches(self) -> dict[str, str]:
        """Every order of the channels: of a grey image all are the same."""
        orders = ("".join(order) for order in permutations("RGB"))
        reason = "grey makes all channels alike"
        return {f"channels {order}": reason for order in orders if order != "RGB" and self.probability}

    def __call__(self, images: Tensor, draws: Draws, aspect: Tensor) -> Tensor:
        """(B, C, H, W) -> the same shape."""
        return transforms.greyscale(images, draws.uniform("grey")[:, 0] < self.probability)


@dataclass(frozen=True)
class Blur:
    """A Gaussian blur with sigma in the given range of pixels, over a tenth of the side."""

    probability: float = 0.5
    sigma: tuple[float, float] = (0.1, 2.0)
    stage: ClassVar[str] = "blur"

    def __post_init__(self) -> None:
        check_probability("a blur", self.probability)
        if not 0 < self.sigma[0] <= self.sigma[1] < float("inf"):
            raise InputError(f"sigma must be 0 < low <= high, not {self.sigma}")

    def __call__(self, images: Tensor, draws: Draws, aspect: Tensor) -> Tensor:
        """(B, C, H, W) -> the same shape; an image of one pixel per side stays as it is."""
        uniform = draws.uniform("blur", 2)
        chosen = (uniform[:, 0] < self.probability).nonzero()[:, 0]
        reach = min(max(min(images.shape[2:]) // 20, 1), min(images.shape[2:]) - 1)
        if not len(chosen) or not reach:
            return images
        low, high = self.sigma
        sigma = low + (high - low) * uniform[chosen, 1]
        chosen = chosen.to(images.device)
        blurred = transforms.gaussian_blur(images.index_select(0, chosen), sigma, reach)
        return images.index_copy(0, chosen, blurred)
