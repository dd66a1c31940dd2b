"""SLA whose student learns from a memory of each image's latest scores in its other views."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sla.criteria import log_probabilities
from sla.errors import InputError
from sla.inference import select_view
from sla.labels import MixedTarget, Target
from sla.losses import apply_criterion, sla_loss, teacher_loss
from sla.methods.base import NO_CONTEXT, StepContext, register_method
from sla.methods.paper import SLA

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
class RememberedSLA(SLA):
    """L_SLA + KL(teacher || sigma(z_0; u)) + beta * CE(sigma(z_0; u), y), the last two of view 0.

    Any view may be drawn, one is enough: the student learns where view 0, the unchanged image, is among those
    of a step. Its teacher is the mean over the views of an image seen so far, by their latest scores. A score
    is of the step that drew the view: of its augmentation and its weights. Until an image was seen in other
    views, its teacher is the block of view 0 alone.
    """

    distill: bool = True

    @property
    def least_views(self) -> int:  # type: ignore[override]
        """Any one."""
        return 1

    @property
    def _teaches_unlabelled(self) -> bool:
        return False  # it has a teacher for labelled images alone

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

    def losses(
        self, heads: nn.ModuleDict, features: Tensor, target: Target, context: StepContext = NO_CONTEXT
    ) -> dict[str, Tensor]:
        """`loss`, its parts `joint`, `distillation` and `student`, and `output`."""
        num_views, count, views = len(self.views), self._per_image(context), context.views
        joint_logits = heads["joint"](features)
        joint = sla_loss(joint_logits, target, num_views, self.criterion, self.view_reduction, views)
        if views is None:
            views = torch.arange(num_views, device=features.device).expand(len(features) // num_views, -1)
        teacher = self.answers(joint_logits.detach(), views, context)
        images, places = (views == 0).nonzero(as_tuple=True)
        student_logits = heads["plain"](features[images * count + places])
        if len(images):
            distillation = teacher_loss(teacher[images], student_logits, self.temperature)
            student = apply_criterion(self.criterion, student_logits, _take(target, images))
        else:
            distillation = student = student_logits.sum()  # 0, with the head in the graph
        return {
            "loss": joint + (distillation + self.beta * student),
            "joint": joint.detach(),
            "distillation": distillation.detach(),
            "student": student.detach(),
            "output": select_view(joint_logits[::count].detach(), views[:, 0], num_views),
        }


def _take(target: Target, images: Tensor) -> Target:
    if not isinstance(target, MixedTarget):
        return target[images]
    lam = target.lam
    alike = not isinstance(lam, Tensor) or lam.ndim == 0
    return MixedTarget(target.a[images], target.b[images], lam if alike else lam[images])  # type: ignore[index]
