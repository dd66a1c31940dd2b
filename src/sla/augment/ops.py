"""Label-keeping augmentation of whole batches on their device: each image has its own random parameters.

An op draws the parameters for the pure functions of `transforms`; a pipeline applies ops in their fixed
order. Images are uint8 (B, C, H, W) until `Normalize`.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from sla.augment import transforms
from sla.errors import InputError, nearest
from sla.sampling.draws import Draws

MIRRORED, UPSIDE_DOWN = "horizontal flip", "vertical flip"  # elements of views; together a rotation by 180
# The order in which ops are applied.
STAGES = ("policy", "crop", "flip", "color", "grey", "blur", "normalize", "cutout")


class Op(Protocol):
    """One augmentation of a batch; `stage` is its place among STAGES.

    An op that may turn an image into another view of it says so by a property `reaches`: the elements it
    may produce (as in `Views.elements`), each with the reason.
    """

    stage: ClassVar[str]

    def __call__(self, images: Tensor, draws: Draws, aspect: Tensor) -> Tensor:
        """Images (B, C, H, W), their random draws, and width / height of the originals (B,)."""


@dataclass(frozen=True)
class RandomCrop:
    """A size x size window at random, from the image with `padding` black pixels on every side."""

    size: int
    padding: int = 0
    stage: ClassVar[str] = "crop"

    def __post_init__(self) -> None:
        if not 0 <= self.padding <= self.size:  # with more, a window could miss the image
            raise InputError(f"padding must be from 0 to the crop's size {self.size}, not {self.padding}")

    def __call__(self, images: Tensor, draws: Draws, aspect: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C, size, size)."""
        height, width = (side + 2 * self.padding - self.size + 1 for side in images.shape[2:])
        if height < 1 or width < 1:
            what = f"{images.shape[2]} x {images.shape[3]} images with padding {self.padding}"
            raise InputError(f"a crop of {self.size} does not fit into {what}")
        top = draws.integers("crop.top", height)[:, 0].to(images.device)
        left = draws.integers("crop.left", width)[:, 0].to(images.device)
        return transforms.pad_crop(images, top, left, self.size, self.padding)


@dataclass(frozen=True)
class RandomResizedCrop:
    """A box of random area and shape, in the proportions of the original image, resampled to size x size."""

    size: int
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    stage: ClassVar[str] = "crop"

    def __post_init__(self) -> None:
        if not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise InputError(f"scale must be 0 < low <= high <= 1, not {self.scale}")
        if not 0 < self.ratio[0] <= self.ratio[1] < math.inf:
            raise InputError(f"ratio must be 0 < low <= high, not {self.ratio}")

    def __call__(self, images: Tensor, draws: Draws, aspect: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C, size, size)."""
        uniform = draws.uniform("resized_crop", 2 * transforms.TRIES + 2)
        boxes = transforms.random_boxes(uniform.to(aspect.device), aspect, self.scale, self.ratio)
        return transforms.resized_crop(images, boxes.to(images.device), self.size)


@dataclass(frozen=True)
class CenterCrop:
    """For evaluation: the shorter side of the original is resized to size / share, the centre is kept."""

    size: int
    share: float = 7 / 8
    stage: ClassVar[str] = "crop"

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise InputError(f"share must be above 0 and at most 1, not {self.share}")

    def __call__(self, images: Tensor, draws: Draws, aspect: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C, size, size)."""
        boxes = transforms.center_box(aspect, self.share).to(images.device)
        return transforms.resized_crop(images, boxes, self.size)


@dataclass(frozen=True)
class CenterWindow:
    """For evaluation: the size x size window in the middle; a smaller image gets a black border."""

    size: int
    stage: ClassVar[str] = "crop"

    def __call__(self, images: Tensor, draws: Draws, aspect: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C, size, size)."""
        above, left = ((self.size - side) // 2 for side in images.shape[2:])
        below, right = self.size - images.shape[2] - above, self.size - images.shape[3] - left
        return F.pad(images, [left, right, above, below])  # a negative border cuts off


@dataclass(frozen=True)
class Resize:
    """The whole image, resampled to size x size."""

    size: int
    stage: ClassVar[str] = "crop"

    def __call__(self, images: Tensor, draws: Draws, aspect: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C, size, size)."""
        if images.shape[2:] == (self.size, self.size):
            return images
        whole = torch.tensor([0.0, 0.0, 1.0, 1.0], device=images.device)
        return transforms.resized_crop(images, whole.expand(len(images), 4), self.size)


@dataclass(frozen=True)
class Flip:
    """Mirror left and right, with the given probability."""

    probability: float = 0.5
    stage: ClassVar[str] = "flip"

    def __post_init__(self) -> None:
        check_probability("a flip", self.probability)

    @property
    def reaches(self) -> dict[str, str]:
        """A mirror image."""
        return {MIRRORED: "flip"} if self.probability else {}

    def __call__(self, images: Tensor, draws: Draws, aspect: Tensor) -> Tensor:
        """(B, C, H, W) -> the same shape."""
        which = draws.uniform("flip")[:, 0] < self.probability
        return transforms.flip(images, which.to(images.device))


@dataclass(frozen=True)
class VerticalFlip(Flip):
    """Mirror top and bottom, with the given probability."""

    @property
    def reaches(self) -> dict[str, str]:
        """An image upside down and mirrored."""
        return {UPSIDE_DOWN: "vflip"} if self.probability else {}

    def __call__(self, images: Tensor, draws: Draws, aspect: Tensor) -> Tensor:
        """(B, C, H, W) -> the same shape."""
        which = draws.uniform("vflip")[:, 0] < self.probability
        return transforms.flip(images.mT, which.to(images.device)).mT


@dataclass(frozen=True)
class ColorJitter:
    """Factors in 1 +- strength (not below 0) and a hue shift in +- hue, in random order for each image.

    With a `probability` below 1 the other images stay as they are.
    """

    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0
    probability: float = 1.0
    stage: ClassVar[str] = "color"

    def __post_init__(self) -> None:
        if min(self.brightness, self.contrast, self.saturation) < 0 or not 0 <= self.hue <= 0.5:
            raise InputError(f"strengths must not be negative, and hue at most 0.5: {self}")
        check_probability("a colour jitter", self.probability)

    @property
    def reaches(self) -> dict[str, str]:
        """A third of the colour circle is a channel permutation."""
        reason = f"jitter with hue {self.hue:g} shifts colours by a third of the colour circle or more"
        reached = self.hue >= 1 / 3 and self.probability > 0
        return {"channels GBR": reason, "channels BRG": reason} if reached else {}

    def __call__(self, images: Tensor, draws: Draws, aspect: Tensor) -> Tensor:
        """(B, C, H, W) -> the same shape."""
        strength = torch.tensor([self.brightness, self.contrast, self.saturation, self.hue])
        middle = torch.tensor([1.0, 1.0, 1.0, 0.0])
        lowest = (middle - strength).clamp(min=torch.tensor([0.0, 0.0, 0.0, -0.5]))
        uniform = draws.uniform("color_jitter", 8)
        factors = torch.lerp(lowest, middle + strength, uniform[:, :4])
        order = uniform[:, 4:].argsort(1)
        order = torch.where(strength[order] > 0, order, -1)  # a factor of 1 changes nothing: skip it
        if self.probability < 1:
            order = torch.where(draws.uniform("color_jitter.which") < self.probability, order, -1)
        return transforms.color_jitter(images, factors, order)


@dataclass(frozen=True)
class Normalize:
    """(x - mean) / std per channel, of pixels in [0, 1]; uint8 becomes float32."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    stage: ClassVar[str] = "normalize"

    def __post_init__(self) -> None:
        if not all(0 < value < math.inf for value in self.std) or not all(map(math.isfinite, self.mean)):
            raise InputError(f"mean must be finite and std above 0, not {self.mean} and {self.std}")

    def __call__(self, images: Tensor, draws: Draws, aspect: Tensor) -> Tensor:
        """(B, C, H, W) -> the same shape, float32."""
        return transforms.normalize(images, self.mean, self.std)


@dataclass(frozen=True)
class Cutout:
    """A size x size box of zeros, which is the mean after `Normalize`; centred at any pixel."""

    size: int
    probability: float = 1.0
    stage: ClassVar[str] = "cutout"

    def __post_init__(self) -> None:
        if self.size < 1:
            raise InputError(f"a box needs at least 1 pixel a side, not {self.size}")
        check_probability("a box", self.probability)

    def __call__(self, images: Tensor, draws: Draws, aspect: Tensor) -> Tensor:
        """(B, C, H, W) -> the same shape."""
        uniform = draws.uniform("cutout", 3)
        centre = (uniform[:, :2] * torch.tensor(images.shape[2:])).long()
        start = centre - self.size // 2  # what lies beyond the border is ignored
        sides = torch.where(uniform[:, 2:] < self.probability, self.size, 0)
        return transforms.erase(images, start, start + sides)


@dataclass(frozen=True)
class RandomErasing:
    """A box of zeros of random area and shape inside the image, with the given probability."""

    probability: float = 0.5
    scale: tuple[float, float] = (0.02, 1 / 3)
    ratio: tuple[float, float] = (0.3, 1 / 0.3)
    stage: ClassVar[str] = "cutout"

    def __post_init__(self) -> None:
        check_probability("a box", self.probability)
        if not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise InputError(f"shares of the area must be 0 < low <= high <= 1, not {self.scale}")

    def __call__(self, images: Tensor, draws: Draws, aspect: Tensor) -> Tensor:
        """(B, C, H, W) -> the same shape."""
        uniform = draws.uniform("erasing", 2 * transforms.TRIES + 3)
        sides = torch.tensor(images.shape[2:])
        shape = (sides[1] / sides[0]).expand(len(images))
        boxes = transforms.random_boxes(uniform[:, 1:], shape, self.scale, self.ratio)
        start = (boxes[:, :2] * sides).round()
        size = (boxes[:, 2:] * sides).round() * (uniform[:, :1] < self.probability)
        return transforms.erase(images, start, start + size)


@dataclass(frozen=True)
class Pipeline:
    """Ops, applied in the order of STAGES whatever order they are given in; the result is float32."""

    ops: tuple[Op, ...]

    def __post_init__(self) -> None:
        for op in self.ops:
            if op.stage not in STAGES:
                hint = nearest(op.stage, STAGES)
                raise InputError(f"{type(op).__name__} has unknown stage {op.stage!r}{hint}")
        object.__setattr__(self, "ops", tuple(sorted(self.ops, key=lambda op: STAGES.index(op.stage))))

    def __call__(self, images: Tensor, draws: Draws, aspect: Tensor) -> Tensor:
        """uint8 (B, C, H, W) -> float32 (B, C, h, w); without a Normalize, in [0, 1]."""
        for op in self.ops:
            images = op(images, draws, aspect)
        return transforms.to_float(images) if images.dtype == torch.uint8 else images


def check_probability(what: str, probability: float) -> None:
    """Refuse what is not from 0 to 1."""
    if not 0 <= probability <= 1:
        raise InputError(f"the probability of {what} must be from 0 to 1, not {probability}")
