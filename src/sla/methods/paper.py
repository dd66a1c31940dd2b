"""The paper's methods: baseline, data augmentation, multi-task, and SLA with or without self-distillation."""

import math
import warnings
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn

from sla.criteria import Criterion, cross_entropy
from sla.errors import InputError, SLAWarning, nearest
from sla.heads import JointHead, PlainHead
from sla.imbalance import check_head
from sla.inference import aggregate_views, average_views, marginal_over_classes, select_view
from sla.labels import Target, is_readable
from sla.losses import (
    VIEW_REDUCTIONS,
    apply_criterion,
    data_augmentation_loss,
    distillation_loss,
    first_logits,
    head_logits,
    multi_task_parts,
    sla_loss,
    teacher_loss,
)
from sla.methods.base import NO_CONTEXT, Method, StepContext, option, register_method
from sla.methods.unlabelled import JointUnlabelled
from sla.views import Identity, Rotation, Views, check_views


@register_method("baseline")
@dataclass(frozen=True)
class Baseline(Method):
    """Cross entropy on the unchanged images."""

    criterion: Criterion = cross_entropy
    head: str = "linear"
    views: Views = field(default=Identity(), init=False, repr=False)

    def __post_init__(self) -> None:
        check_head(self.head, self.criterion)

    def losses(
        self, heads: nn.ModuleDict, features: Tensor, target: Target, context: StepContext = NO_CONTEXT
    ) -> dict[str, Tensor]:
        """`loss` and `output`."""
        logits = head_logits(heads["plain"], features, target, self.criterion)
        loss = apply_criterion(self.criterion, logits, target)
        return {"loss": loss, "output": first_logits(logits)}


@register_method("da")
@dataclass(frozen=True)
class DataAugmentation(Method):
    """L_DA: every view has the label of its class. Enforces invariance to the views."""

    views: Views = field(default_factory=Rotation)
    criterion: Criterion = cross_entropy
    head: str = "linear"

    inferences = ("single", "aggregated")

    def __post_init__(self) -> None:
        check_views(self.views)
        check_head(self.head, self.criterion)

    def losses(
        self, heads: nn.ModuleDict, features: Tensor, target: Target, context: StepContext = NO_CONTEXT
    ) -> dict[str, Tensor]:
        """`loss` and `output`."""
        count = self._per_image(context)
        logits = head_logits(heads["plain"], features, target, self.criterion)
        loss = data_augmentation_loss(logits, target, count, self.criterion)
        return {"loss": loss, "output": first_logits(logits, count=count)}


@register_method("mt")
@dataclass(frozen=True)
class MultiTask(DataAugmentation):
    """L_MT: class and view, each with its own head. Also enforces invariance."""

    parts = ("class", "view")

    def build_heads(self, in_features: int, num_classes: int) -> nn.ModuleDict:
        """A plain head for the class and one for the view."""
        heads = super().build_heads(in_features, num_classes)
        heads["view"] = nn.Linear(in_features, len(self.views))
        return heads

    def losses(
        self, heads: nn.ModuleDict, features: Tensor, target: Target, context: StepContext = NO_CONTEXT
    ) -> dict[str, Tensor]:
        """`loss`, its parts `class` and `view`, and `output`."""
        logits = head_logits(heads["plain"], features, target, self.criterion)
        of_class, of_view = multi_task_parts(
            logits, heads["view"](features), target, len(self.views), self.criterion, context.views
        )
        return {
            "loss": of_class + of_view,
            "class": of_class.detach(),
            "view": of_view.detach(),
            "output": first_logits(logits, count=self._per_image(context)),
        }

    def predict_view(self, heads: nn.ModuleDict, features: Tensor) -> Tensor | None:
        """The logits of the view head."""
        return heads["view"](features)


@register_method("sla+sd", distill=True)
@register_method("sla")
@dataclass(frozen=True)
class SLA(JointUnlabelled):
    """Self-supervised label augmentation: one joint head over (class, view); with `distill`, a plain student.

    L = L_SLA [+ KL(P_aggregated || sigma(z_0; u)) + beta * CE(sigma(z_0; u), y)]

    Args:
        views: their index becomes part of the label.
        distill: train a student on the aggregated prediction, for inference in one pass.
        beta: weight of the student's own cross entropy.
        temperature: of the distillation.
        view_reduction: "mean" over the views of an image, or their "sum".
        criterion: `(logits, target) -> loss`, for the joint labels and for the student.
        head: "linear" or "cosine".
        view_weight, consistency_weight, confidence: for images without labels, as in `JointUnlabelled`.
    """

    views: Views = field(default_factory=Rotation)
    distill: bool = False
    beta: float = option(1.0, "weight of the student's own cross entropy", ge=0)
    temperature: float = option(1.0, "temperature of the distillation", gt=0)
    view_reduction: Literal["mean", "sum"] = option("mean", "joint loss over the views: mean or sum")
    criterion: Criterion = cross_entropy
    head: str = "linear"

    def __post_init__(self) -> None:
        check_views(self.views)
        check_head(self.head, self.criterion)
        if len(self.views) == 1:
            warnings.warn("SLA with one view augments no label: it is the baseline", SLAWarning)
        if self.view_reduction not in VIEW_REDUCTIONS:
            hint = nearest(self.view_reduction, VIEW_REDUCTIONS)
            raise InputError(f"unknown view_reduction {self.view_reduction!r}{hint}")
        if not (0 < self.temperature < math.inf and 0 <= self.beta < math.inf):
            given = f"{self.temperature} and {self.beta}"
            raise InputError(f"temperature must be above 0 and beta at least 0, not {given}")
        self.check_unlabelled()

    @property
    def inferences(self) -> tuple[str, ...]:  # type: ignore[override]
        """Single and aggregated; distilled if there is a student."""
        return ("single", "aggregated", "distilled") if self.distill else ("single", "aggregated")

    @property
    def parts(self) -> tuple[str, ...]:  # type: ignore[override]
        """The joint loss; with distillation, the two terms of the student."""
        return ("joint", "distillation", "student") if self.distill else ("joint",)

    @property
    def unlabelled_parts(self) -> tuple[str, ...]:  # type: ignore[override]
        """Those of the joint head; that of the student, if it learns from them."""
        student = ("unlabelled_distillation",) if self._teaches_unlabelled else ()
        return (*super().unlabelled_parts, *student)

    @property
    def least_views(self) -> int:  # type: ignore[override]
        """The student needs the unchanged image, its teacher one more view."""
        return 2 if self.distill else 1

    @property
    def finetuning_views(self) -> int | None:  # type: ignore[override]
        """With pretrained weights, more epochs with fewer views beat fewer epochs with all, at equal cost."""
        return self.least_views

    @property
    def one_pass(self) -> str:  # type: ignore[override]
        """Distilled if there is a student."""
        return "distilled" if self.distill else "single"

    @property
    def headline(self) -> str:
        """Aggregated, or distilled if there is a student."""
        return self.inferences[-1]

    def build_heads(self, in_features: int, num_classes: int) -> nn.ModuleDict:
        """The joint head; with distillation, also the student's plain head."""
        heads = nn.ModuleDict({"joint": JointHead(in_features, num_classes, len(self.views), self.head)})
        if self.distill:
            heads["plain"] = PlainHead(in_features, num_classes, self.head)
        return heads

    def losses(
        self, heads: nn.ModuleDict, features: Tensor, target: Target, context: StepContext = NO_CONTEXT
    ) -> dict[str, Tensor]:
        """`loss`, its parts `joint`, `distillation` and `student`, and `output`."""
        num_views, count, views = len(self.views), self._per_image(context), context.views
        logits = head_logits(heads["joint"], features, target, self.criterion)
        joint = sla_loss(logits, target, num_views, self.criterion, self.view_reduction, views)
        if not self.distill:
            output = first_logits(logits, num_views, count, views)
            return {"loss": joint, "joint": joint.detach(), "output": output}
        if views is not None and is_readable(views) and views[:, 0].any():
            raise InputError("distillation needs the plain image: view 0 first among the views of each image")
        student_logits = heads["plain"](features[::count])
        distillation = distillation_loss(logits, student_logits, num_views, self.temperature, views)
        student = apply_criterion(self.criterion, student_logits, target)
        return {
            "loss": joint + distillation + self.beta * student,
            "joint": joint.detach(),
            "distillation": distillation.detach(),
            "student": student.detach(),
            "output": student_logits.detach(),
        }

    def unlabelled_losses(
        self, heads: nn.ModuleDict, features: Tensor, context: StepContext
    ) -> dict[str, Tensor]:
        """As `JointUnlabelled`; a student learns their aggregated answer, `unlabelled_distillation`."""
        losses, more = super().unlabelled_losses(heads, features, context), context.unlabelled
        if not self._teaches_unlabelled or more is None:
            return losses
        with torch.no_grad():
            answers = (
                self.aggregate(heads, features, "logits")
                if more.views is None
                else self.classify_views(heads, features, more.views).mean(1)
            )
        student_logits = heads["plain"](features[:: len(features) // len(more.images)])
        distillation = teacher_loss(answers, student_logits, self.temperature)
        return losses | {
            "loss": losses["loss"] + distillation,
            "unlabelled_distillation": distillation.detach(),
        }

    @property
    def _teaches_unlabelled(self) -> bool:
        return self.distill

    def classify(self, heads: nn.ModuleDict, features: Tensor, inference: str) -> Tensor:
        """The student's logits, or the joint head's block of view 0."""
        if inference == "distilled":
            return heads["plain"](features)
        return heads["joint"].block(features, 0)  # type: ignore[operator]

    def classify_view(self, heads: nn.ModuleDict, features: Tensor, view: int) -> Tensor:
        """The view's own block of the joint head."""
        return heads["joint"].block(features, view)  # type: ignore[operator]

    def aggregate(self, heads: nn.ModuleDict, features: Tensor, average: str) -> Tensor:
        """The average of each view's own block; the other blocks are computed only for the marginal."""
        if average == "marginal":
            return aggregate_views(heads["joint"](features), len(self.views), average)
        return average_views(heads["joint"].own_blocks(features), average)  # type: ignore[operator]

    def classify_views(self, heads: nn.ModuleDict, features: Tensor, views: Tensor) -> Tensor:
        """Each view's own block of the joint head."""
        own = select_view(heads["joint"](features), views.flatten(), len(self.views))
        return own.unflatten(0, views.shape)

    def label_logits(self, heads: nn.ModuleDict, features: Tensor) -> Tensor:
        """Those of the joint labels."""
        return heads["joint"](features)

    def predict_view(self, heads: nn.ModuleDict, features: Tensor) -> Tensor | None:
        """The joint head's logits of the view, summed over the classes."""
        return marginal_over_classes(heads["joint"](features), len(self.views))
