"""SLA whose student learns from a memory of each image's latest scores in its other views."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sla.criteria import log_probabilities
from sla.errors import InputError
from sla.inference import select_view
from sla.methods.base import StepContext, register_method
from sla.methods.students import TaughtSLA

LOWEST = -6e4  # what float16 can hold


class Scores(nn.Module):
    """log P(class | image, view) when each training image was last drawn in each view; 2 bytes each."""

    log_prob: Tensor
    seen: Tensor

    def __init__(self, num_images: int, num_views: int, num_classes: int) -> None:
        super().__init__()
        shape = (num_images, num_views, num_classes)
        self.register_buffer("log_prob", torch.zeros(shape, dtype=torch.float16))
        self.register_buffer("seen", torch.zeros(num_images, num_views, dtype=torch.bool))


@register_method("sla+memory")
@dataclass(frozen=True)
class RememberedSLA(TaughtSLA):
    """The teacher is the mean over the views of an image seen so far, by their latest scores.

    A score is of the step that drew the view: of its augmentation and its weights. Until an image was seen in
    other views, its teacher is the block of view 0 alone.
    """

    def build_memory(self, num_images: int, num_classes: int) -> nn.Module | None:
        """Scores for each image, view and class."""
        return Scores(num_images, len(self.views), num_classes)

    def answers(self, joint_logits: Tensor, views: Tensor, context: StepContext) -> Tensor:
        """Remember the scores of this step, then average over what is remembered, (B, N)."""
        memory, indices = context.memory, context.indices
        if not isinstance(memory, Scores) or indices is None:
            raise InputError(
                "sla+memory needs StepContext(indices=..., memory=method.build_memory(images, classes))"
            )
        own = log_probabilities(select_view(joint_logits, views.flatten(), len(self.views)))
        rows = indices.unsqueeze(1).expand_as(views)
        memory.log_prob[rows, views] = own.unflatten(0, views.shape).clamp(min=LOWEST).half()
        memory.seen[rows, views] = True
        seen = memory.seen[indices].unsqueeze(2)  # (B, M, 1)
        return (memory.log_prob[indices].float() * seen).sum(1) / seen.sum(1)
