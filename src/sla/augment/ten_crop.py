"""Ten-crop: the corners and the centre of an image, each also mirrored, as ten pipelines to average over."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from sla.augment.ops import CenterCrop, Pipeline
from sla.augment.transforms import center_box, resized_crop
from sla.sampling.draws import Draws

SHARE = 7 / 8  # of the image's side: 28 of 32 pixels, 224 of 256
PLACES = ((0.0, 0.0), (0.0, 1.0), (1.0, 0.0), (1.0, 1.0), (0.5, 0.5))  # (down, across)


@dataclass(frozen=True)
class PlacedCrop:
    """A square of the image, its side `share` of the shorter one, at a position from 0 to 1 down and across.

    With `whole` it is a square of the stored image, else of the original, before it was resized.
    """

    size: int
    share: float
    down: float
    across: float
    mirrored: bool
    whole: bool
    stage: ClassVar[str] = "crop"

    def __call__(self, images: Tensor, draws: Draws, aspect: Tensor) -> Tensor:
        """uint8 (B, C, H, W) -> (B, C, size, size)."""
        aspect = torch.ones_like(aspect) if self.whole else aspect
        boxes = center_box(aspect, self.share, self.down, self.across)
        cut = resized_crop(images, boxes.to(images.device), self.size)
        return cut.flip(3) if self.mirrored else cut


def ten_crop_pipelines(evaluation: Pipeline, size: int) -> list[Pipeline]:
    """The ten pipelines that replace the one of evaluation at `size` x `size`.

    If that one crops the centre of a photograph, each crops a square of the same size at its own position.
    Else each crops 7/8 of the side without resampling: the network sees smaller images than in training.
    """
    centre = next((op for op in evaluation.ops if isinstance(op, CenterCrop)), None)
    share = centre.share if centre else SHARE
    crop_size = size if centre else max(round(SHARE * size), 1)
    crops = [
        PlacedCrop(crop_size, share, down, across, mirrored, whole=centre is None)
        for mirrored in (False, True)
        for down, across in PLACES
    ]
    others = tuple(op for op in evaluation.ops if op.stage != "crop")
    return [replace(evaluation, ops=(*others, crop)) for crop in crops]
