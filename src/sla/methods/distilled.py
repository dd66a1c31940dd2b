"""A student in one pass, distilled from a trained teacher: the method of a run's last stage."""

import math
from dataclasses import dataclass, field

from torch import Tensor, nn

from sla.criteria import Criterion, cross_entropy
from sla.errors import InputError
from sla.imbalance import check_head
from sla.labels import Target
from sla.losses import apply_criterion, teacher_loss
from sla.methods.base import NO_CONTEXT, Method, StepContext, option, register_method
from sla.views import Identity, Views


@register_method("distilled")
@dataclass(frozen=True)
class Distilled(Method):
    """A plain head that learns the class logits of a teacher, `context.teacher`.

    L = (1 - c) * T^2 * KL(sigma(teacher / T) || sigma(z_0; u / T)) + c * CE(sigma(z_0; u), y)

    Args:
        temperature: T.
        label_share: c, the share of the labels' own loss.
        criterion: for the labels.
        head: "linear" or "cosine".
    """

    temperature: float = option(1.0, "temperature of the distillation", gt=0)
    label_share: float = option(
        0.0, "distilled: share of the labels in the loss, beside the teacher", ge=0, le=1
    )
    criterion: Criterion = cross_entropy
    head: str = "linear"
    views: Views = field(default=Identity(), init=False, repr=False)

    inferences = ("distilled",)
    parts = ("distillation", "student")
    one_pass = "distilled"

    def __post_init__(self) -> None:
        check_head(self.head, self.criterion)
        if not (0 < self.temperature < math.inf and 0 <= self.label_share <= 1):
            given = f"{self.temperature} and {self.label_share}"
            raise InputError(f"temperature must be above 0 and label_share from 0 to 1, not {given}")

    @property
    def headline(self) -> str:
        """The only one: distilled."""
        return "distilled"

    def losses(
        self, heads: nn.ModuleDict, features: Tensor, target: Target, context: StepContext = NO_CONTEXT
    ) -> dict[str, Tensor]:
        """`loss`, its parts `distillation` and `student`, and `output`."""
        if context.teacher is None:
            raise InputError(
                "distilled learns from a teacher: `sla distill RUN`, or StepContext(teacher=...)"
            )
        logits = heads["plain"](features)
        distillation = teacher_loss(context.teacher, logits, self.temperature)
        student = apply_criterion(self.criterion, logits, target)
        return {
            "loss": (1 - self.label_share) * distillation + self.label_share * student,
            "distillation": distillation.detach(),
            "student": student.detach(),
            "output": logits.detach(),
        }
