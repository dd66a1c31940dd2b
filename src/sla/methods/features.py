"""Frozen features and a linear classifier on them: the method of a run's first stage, or of a quick run."""

from dataclasses import dataclass, field

import torch.nn.functional as F
from torch import Tensor, nn

from sla.criteria import Criterion, cross_entropy
from sla.errors import InputError
from sla.inference import average_views
from sla.labels import Target
from sla.methods.base import NO_CONTEXT, Method, StepContext, register_method
from sla.views import Identity, Views


@register_method("features")
@dataclass(frozen=True)
class Features(Method):
    """A linear head on features of length 1: u(z) = W z / |z| + b.

    A run with this method does not train step by step: it computes the features of every picture once and
    fits W and b to them (`sla.tasks.classifier.linear_fit`).
    """

    criterion: Criterion = cross_entropy
    head: str = "linear"
    views: Views = field(default=Identity(), init=False, repr=False)

    def __post_init__(self) -> None:
        if self.head != "linear":
            raise InputError(f"method features has a linear head, not {self.head!r}")

    def losses(
        self, heads: nn.ModuleDict, features: Tensor, target: Target, context: StepContext = NO_CONTEXT
    ) -> dict[str, Tensor]:
        """`loss` and `output`."""
        logits = self.classify(heads, features, "single")
        return {"loss": self.criterion(logits, target), "output": logits.detach()}

    def classify(self, heads: nn.ModuleDict, features: Tensor, inference: str) -> Tensor:
        """Class logits (B, N) from features (B, D)."""
        return heads["plain"](F.normalize(features, dim=-1))

    def label_logits(self, heads: nn.ModuleDict, features: Tensor) -> Tensor:
        """Those of the classes."""
        return self.classify(heads, features, "single")

    def classify_view(self, heads: nn.ModuleDict, features: Tensor, view: int) -> Tensor:
        """The only view, so the same as `classify`."""
        return self.classify(heads, features, "single")

    def aggregate(self, heads: nn.ModuleDict, features: Tensor, average: str) -> Tensor:
        """The only view, so the same as `classify`."""
        return average_views(self.classify(heads, features, "single").unsqueeze(1), average)

    def classify_views(self, heads: nn.ModuleDict, features: Tensor, views: Tensor) -> Tensor:
        """Class logits (B, k, N)."""
        return self.classify(heads, features, "single").unflatten(0, views.shape)
