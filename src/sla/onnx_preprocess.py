"""The preprocessing of evaluation as one module that an exporter can trace.

`images.decode` resizes with Pillow and the pipeline crops image by image; here all images of a batch have one
size, any size, and both steps are matrix products whose weights follow from it.
"""

import PIL
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sla.augment.ops import CenterCrop, CenterWindow, Pipeline, Resize
from sla.augment.transforms import center_box, pixel_weights
from sla.images.channels import LUMA
from sla.images.decode import REDUCING_GAP

FIXED = 1 << 22  # Pillow's filter weights are multiples of 1 / FIXED
SHARE = 1 << 24  # and its box means are products with multiples of 1 / SHARE
TALL_FIRST = int(PIL.__version__.split(".")[0]) >= 13  # which resizes rows first if they shrink most


class Preprocess(nn.Module):
    """uint8 (B, H, W, C) of any one size -> the output of the evaluation pipeline, float32 (B, C', S, S).

    C is 3 for a model of one channel too, because images from files have three.
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, pipeline: Pipeline, stored_size: int, mean: Tensor, std: Tensor) -> None:
        super().__init__()
        (self.crop,) = (op for op in pipeline.ops if op.stage == "crop")
        self.stored = stored_size
        self.register_buffer("scale", (1 / (255 * std.double())).float()[:, None, None])
        self.register_buffer("shift", (mean.double() / std.double()).float()[:, None, None])

    def forward(self, images: Tensor) -> Tensor:
        """Resized to the stored square ignoring aspect ratio, made grey if needed, cropped, normalised."""
        height, width = images.shape[1], images.shape[2]
        levels = resize(images.permute(0, 3, 1, 2), self.stored)
        if levels.shape[1] == 3 and self.scale.shape[0] == 1:
            grey = levels * torch.tensor(LUMA)[:, None, None]
            levels = grey.sum(1, keepdim=True).round()
        aspect = (_number(width) / _number(height)).float().reshape(1)
        return self._cropped(levels, aspect) * self.scale - self.shift

    def _cropped(self, levels: Tensor, aspect: Tensor) -> Tensor:
        size = self.crop.size  # type: ignore[attr-defined]
        if isinstance(self.crop, CenterWindow):
            before = (size - self.stored) // 2
            return F.pad(levels, [before, size - self.stored - before] * 2)
        if isinstance(self.crop, Resize):
            if size == self.stored:
                return levels
            box = torch.tensor([[0.0, 0.0, 1.0, 1.0]])
        else:
            assert isinstance(self.crop, CenterCrop)
            box = center_box(aspect, self.crop.share)
        top, left, high, wide = box.unbind(1)
        rows = pixel_weights(top, high, self.stored, size)
        columns = pixel_weights(left, wide, self.stored, size)
        return (rows @ (levels @ columns.mT) + 0.5).floor()


def resize(images: Tensor, size: int) -> Tensor:
    """Pillow's `resize((size, size), BICUBIC, reducing_gap=REDUCING_GAP)` of uint8 (B, C, H, W), as float32.

    Bit for bit: where a side is at least twice REDUCING_GAP times the size, box means first; then columns,
    then rows, each rounded to 255 levels.
    """
    height, width = images.shape[2], images.shape[3]
    gap = int(REDUCING_GAP * size)
    down, across = torch.sym_max(height // gap, 1), torch.sym_max(width // gap, 1)
    levels = _box_means(images.float(), down, across).double()
    high, wide = levels.shape[2], levels.shape[3]
    columns = _cubic_weights(_number(width) / across, wide, size).mT
    rows = _cubic_weights(_number(height) / down, high, size)
    flat = _rounded(rows @ _rounded(levels @ columns))
    if TALL_FIRST:
        tall = _number(high) - size > (2 * (_number(wide) - size)).clamp(min=0)
        flat = torch.where(tall, _rounded(_rounded(rows @ levels) @ columns), flat)
    return flat.float()


def _box_means(images: Tensor, down: int, across: int) -> Tensor:
    """Means over boxes of down x across pixels, rounded as Pillow's: (B, C, H / down, W / across), up."""
    height, width = images.shape[2], images.shape[3]
    high, wide = (height + down - 1) // down, (width + across - 1) // across
    padded = F.pad(images, [0, wide * across - width, 0, high * down - height])
    sums = padded.reshape(images.shape[0], images.shape[1], high, down, wide, across).sum((3, 5))
    tall = (height - torch.arange(high) * down).clamp(max=down)  # the last box may have fewer pixels
    broad = (width - torch.arange(wide) * across).clamp(max=across)
    count = tall[:, None] * broad
    share = ((256 * SHARE) / (256 * count).float()).floor().double()
    return ((sums.double() + count // 2) * share / SHARE).floor().float()


def _cubic_weights(length: Tensor, source: int, size: int) -> Tensor:
    """(size, source): the weight of each source pixel in each output pixel, FIXED in total."""
    scale = length / size
    centre = (torch.arange(size, dtype=torch.float64)[:, None] + 0.5) * scale
    away = ((torch.arange(source, dtype=torch.float64) + 0.5 - centre) / scale.clamp(min=1)).abs()
    near = (1.5 * away - 2.5) * away * away + 1  # the cubic with a = -1/2
    far = -0.5 * (((away - 5) * away + 8) * away - 4)
    weight = torch.where(away < 1, near, torch.where(away < 2, far, 0.0))
    weight = weight / weight.sum(1, keepdim=True) * FIXED
    return weight.sign() * (weight.abs() + 0.5).floor()


def _rounded(sums: Tensor) -> Tensor:
    return ((sums + FIXED // 2) / FIXED).floor().clamp(0, 255)


def _number(value: int) -> Tensor:
    return torch.scalar_tensor(value, dtype=torch.float64)
