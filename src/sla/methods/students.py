"""SLA with a student whose teacher is not the step's own aggregation: any view may be drawn, one is enough.

The student learns where the unchanged image is among the views of a step. A subclass says what the teacher
answers; each is a file of its own.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sla.inference import select_view
from sla.labels import MixedTarget, Target
from sla.losses import apply_criterion, sla_loss, teacher_loss
from sla.methods.base import NO_CONTEXT, StepContext
from sla.methods.paper import SLA


@dataclass(frozen=True)
class TaughtSLA(SLA, ABC):
    """L_SLA + KL(teacher || sigma(z_0; u)) + beta * CE(sigma(z_0; u), y), the last two of view 0."""

    distill: bool = True

    @property
    def least_views(self) -> int:  # type: ignore[override]
        """Any one."""
        return 1

    @property
    def _teaches_unlabelled(self) -> bool:
        return False  # it has a teacher for labelled images alone

    @abstractmethod
    def answers(self, joint_logits: Tensor, views: Tensor, context: StepContext) -> Tensor:
        """The teacher's class logits (B, N); `views` (B, k) are those of the joint logits (B*k, N*M)."""

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
