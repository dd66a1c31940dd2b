"""Flips: an image and its mirror image, as two pipelines to average over."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from sla.augment.ops import MIRRORED, Pipeline
from sla.sampling.draws import Draws

FLIPS = "flips"  # the kind of inference


@dataclass(frozen=True)
class Mirrored:
    """What a pipeline makes of images, mirrored left to right."""

    pipeline: Pipeline

    def __call__(self, images: Tensor, draws: Draws, aspect: Tensor) -> Tensor:
        """uint8 (B, C, H, W) -> float (B, C, S, S)."""
        return self.pipeline(images, draws, aspect).flip(-1)


def makes_mirror_images(training: Pipeline) -> bool:
    """Whether the network saw mirror images in training."""
    return any(MIRRORED in getattr(op, "reaches", {}) for op in training.ops)


def flip_pipelines(evaluation: Pipeline) -> list[Callable[[Tensor, Draws, Tensor], Tensor]]:
    """The pipeline of evaluation, and the same mirrored."""
    return [evaluation, Mirrored(evaluation)]
