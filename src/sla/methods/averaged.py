"""SLA whose student learns from the moving average of the weights, over all views."""

from dataclasses import dataclass

from torch import Tensor

from sla.errors import InputError
from sla.methods.base import StepContext, register_method
from sla.methods.students import TaughtSLA


@register_method("sla+ema")
@dataclass(frozen=True)
class AveragedSLA(TaughtSLA):
    """The teacher is the aggregated answer of the run's averaged weights (`optimizer.ema`), in eval mode.

    It costs M more forward passes per image and step.
    """

    averaged_teacher = True

    def answers(self, joint_logits: Tensor, views: Tensor, context: StepContext) -> Tensor:
        """What the trainer computed."""
        if context.teacher is None:
            raise InputError("sla+ema needs a teacher: set optimizer.ema, or StepContext(teacher=...)")
        return context.teacher
