"""The methods: each is one loss and one set of heads. They see features, never the backbone."""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sla.criteria import Criterion, cross_entropy
from sla.errors import InputError, SLAWarning, nearest
from sla.heads import JointHead, PlainHead
from sla.imbalance import check_head
from sla.inference import aggregate_views, average_views, marginal_over_classes, select_view
from sla.labels import Target
from sla.losses import VIEW_REDUCTIONS, data_augmentation_loss, distillation_loss, sla_loss, view_loss
from sla.views import Identity, Rotation, Views, check_views, expand_views, take_views


class Method:
    """What a classifier asks of a method; a subclass fills in the heads, the losses and the inference.

    In training, `losses` gets the features (B*M, D) of `expand(input)`. With `views` (B, k), each image is
    seen through these k views only, and M becomes k.
    """

    views: Views
    criterion: Criterion
    inferences: tuple[str, ...] = ("single",)  # of inference
    parts: tuple[str, ...] = ()  # of the loss, as `losses` names them
    needs_plain: bool = False  # whether view 0 must be among the views of a step

    @property
    def headline(self) -> str:
        """The kind of inference the method is judged by."""
        return "single"

    @property
    def criteria(self) -> tuple[Criterion, ...]:
        """Every criterion it trains by."""
        return (self.criterion,)

    def build_heads(self, in_features: int, num_classes: int) -> nn.ModuleDict:
        """New heads for features of this width."""
        raise InputError(f"{type(self).__name__} does not say which heads it needs")

    def expand(self, input: Tensor, views: Tensor | None = None) -> Tensor:
        """The images that go forward: (B, ...) -> (B*M, ...), interleaved."""
        return expand_views(input, self.views) if views is None else take_views(input, self.views, views)

    def losses(
        self, heads: nn.ModuleDict, features: Tensor, target: Target, views: Tensor | None = None
    ) -> dict[str, Tensor]:
        """`loss`, its named parts, and `output`: class logits (B, N) of each image's first view, detached."""
        raise InputError(f"{type(self).__name__} has no loss")

    def classify(self, heads: nn.ModuleDict, features: Tensor, inference: str) -> Tensor:
        """Class logits (B, N) from features (B, D) of plain images, for a one-pass kind of inference."""
        return heads["plain"](features)

    def aggregate(self, heads: nn.ModuleDict, features: Tensor, average: str) -> Tensor:
        """Class logits (B, N) from features (B*M, D) of all views."""
        return average_views(heads["plain"](features).unflatten(0, (-1, len(self.views))), average)

    def predict_view(self, heads: nn.ModuleDict, features: Tensor) -> Tensor | None:
        """Logits (B, M) of the view that each image was seen through; None where nothing learns to tell."""
        return None

    def _per_image(self, views: Tensor | None) -> int:
        return len(self.views) if views is None else views.shape[1]


@dataclass(frozen=True)
class Baseline(Method):
    """Cross entropy on the images as they are."""

    criterion: Criterion = cross_entropy
    head: str = "linear"
    views: Views = field(default=Identity(), init=False, repr=False)

    def __post_init__(self) -> None:
        check_head(self.head, self.criterion)

    def build_heads(self, in_features: int, num_classes: int) -> nn.ModuleDict:
        """One plain head."""
        return nn.ModuleDict({"plain": PlainHead(in_features, num_classes, self.head)})

    def losses(
        self, heads: nn.ModuleDict, features: Tensor, target: Target, views: Tensor | None = None
    ) -> dict[str, Tensor]:
        """`loss` and `output`."""
        logits = heads["plain"](features)
        return {"loss": self.criterion(logits, target), "output": logits.detach()}


@dataclass(frozen=True)
class DataAugmentation(Method):
    """L_DA: every view with the label of its class. Forces invariance to the views."""

    views: Views = field(default_factory=Rotation)
    criterion: Criterion = cross_entropy
    head: str = "linear"

    inferences = ("single", "aggregated")

    def __post_init__(self) -> None:
        check_views(self.views)
        check_head(self.head, self.criterion)

    def build_heads(self, in_features: int, num_classes: int) -> nn.ModuleDict:
        """One plain head."""
        return nn.ModuleDict({"plain": PlainHead(in_features, num_classes, self.head)})

    def losses(
        self, heads: nn.ModuleDict, features: Tensor, target: Target, views: Tensor | None = None
    ) -> dict[str, Tensor]:
        """`loss` and `output`."""
        count = self._per_image(views)
        logits = heads["plain"](features)
        loss = data_augmentation_loss(logits, target, count, self.criterion)
        return {"loss": loss, "output": logits[::count].detach()}


@dataclass(frozen=True)
class MultiTask(DataAugmentation):
    """L_MT: the class and the view, each by a head of its own. Forces invariance too."""

    parts = ("class", "view")

    def build_heads(self, in_features: int, num_classes: int) -> nn.ModuleDict:
        """A plain head for the class and one for the view."""
        heads = super().build_heads(in_features, num_classes)
        heads["view"] = nn.Linear(in_features, len(self.views))
        return heads

    def losses(
        self, heads: nn.ModuleDict, features: Tensor, target: Target, views: Tensor | None = None
    ) -> dict[str, Tensor]:
        """`loss`, its parts `class` and `view`, and `output`."""
        by_class = super().losses(heads, features, target, views)
        view_logits = heads["view"](features)
        by_view = view_loss(view_logits) if views is None else cross_entropy(view_logits, views.flatten())
        return {
            "loss": by_class["loss"] + by_view,
            "class": by_class["loss"].detach(),
            "view": by_view.detach(),
            "output": by_class["output"],
        }

    def predict_view(self, heads: nn.ModuleDict, features: Tensor) -> Tensor | None:
        """What the view's own head says."""
        return heads["view"](features)


@dataclass(frozen=True)
class SLA(Method):
    """Self-supervised label augmentation: one joint head over (class, view); with `distill`, a plain student.

    L = L_SLA [+ KL(P_aggregated || sigma(z_0; u)) + beta * CE(sigma(z_0; u), y)]
    """

    views: Views = field(default_factory=Rotation)
    distill: bool = False
    beta: float = 1.0
    temperature: float = 1.0
    view_reduction: str = "mean"
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

    @property
    def inferences(self) -> tuple[str, ...]:  # type: ignore[override]
        """Single and aggregated; distilled when it was trained for."""
        return ("single", "aggregated", "distilled") if self.distill else ("single", "aggregated")

    @property
    def parts(self) -> tuple[str, ...]:  # type: ignore[override]
        """The joint loss; distilling, the student's two terms."""
        return ("joint", "distillation", "student") if self.distill else ("joint",)

    @property
    def needs_plain(self) -> bool:  # type: ignore[override]
        """The student sees the plain image."""
        return self.distill

    @property
    def headline(self) -> str:
        """What SLA is for: aggregated, or distilled where there is a student."""
        return self.inferences[-1]

    def build_heads(self, in_features: int, num_classes: int) -> nn.ModuleDict:
        """The joint head, and the student's plain head when distilling."""
        heads = nn.ModuleDict({"joint": JointHead(in_features, num_classes, len(self.views), self.head)})
        if self.distill:
            heads["plain"] = PlainHead(in_features, num_classes, self.head)
        return heads

    def losses(
        self, heads: nn.ModuleDict, features: Tensor, target: Target, views: Tensor | None = None
    ) -> dict[str, Tensor]:
        """`loss`, its parts `joint`, `distillation` and `student`, and `output`."""
        num_views, count = len(self.views), self._per_image(views)
        joint_logits = heads["joint"](features)
        joint = sla_loss(joint_logits, target, num_views, self.criterion, self.view_reduction, views)
        if not self.distill:
            first = 0 if views is None else views[:, 0]
            output = select_view(joint_logits[::count].detach(), first, num_views)
            return {"loss": joint, "joint": joint.detach(), "output": output}
        if views is not None and not torch.compiler.is_compiling() and views[:, 0].any():
            raise InputError("distillation needs the plain image: view 0 first among the views of each image")
        student_logits = heads["plain"](features[::count])
        distillation = distillation_loss(joint_logits, student_logits, num_views, self.temperature, views)
        student = self.criterion(student_logits, target)
        return {
            "loss": joint + distillation + self.beta * student,
            "joint": joint.detach(),
            "distillation": distillation.detach(),
            "student": student.detach(),
            "output": student_logits.detach(),
        }

    def classify(self, heads: nn.ModuleDict, features: Tensor, inference: str) -> Tensor:
        """The student's logits, or the joint head's block of view 0."""
        return heads["plain"](features) if inference == "distilled" else heads["joint"].block(features, 0)  # type: ignore[operator]

    def aggregate(self, heads: nn.ModuleDict, features: Tensor, average: str) -> Tensor:
        """Each view's own block, averaged; logits of other views are computed only for the marginal."""
        if average == "marginal":
            return aggregate_views(heads["joint"](features), len(self.views), average)
        return average_views(heads["joint"].own_blocks(features), average)  # type: ignore[operator]

    def predict_view(self, heads: nn.ModuleDict, features: Tensor) -> Tensor | None:
        """The joint head's answer, whatever the class."""
        return marginal_over_classes(heads["joint"](features), len(self.views))


class Several(Method):
    """Several methods on one backbone, each with heads of its own: losses add up, class logits average."""

    def __init__(self, *methods: Method) -> None:
        if not methods:
            raise InputError("Several needs at least one method")
        for method in methods:
            check_method(method)
            if isinstance(method, Several):
                raise InputError("Several takes no Several: name all their methods in one")
        self.methods = methods
        self.views, self.criterion = methods[0].views, methods[0].criterion
        others = [method.inferences for method in methods[1:]]
        self.inferences = tuple(
            kind for kind in methods[0].inferences if all(kind in other for other in others)
        )

    @property
    def headline(self) -> str:
        """The first method's, where all have it."""
        return self.methods[0].headline if self.methods[0].headline in self.inferences else "single"

    @property
    def criteria(self) -> tuple[Criterion, ...]:
        """Those of all methods."""
        return tuple(criterion for method in self.methods for criterion in method.criteria)

    def build_heads(self, in_features: int, num_classes: int) -> nn.ModuleDict:
        """The heads of each method under its number."""
        heads = (method.build_heads(in_features, num_classes) for method in self.methods)
        return nn.ModuleDict({str(number): each for number, each in enumerate(heads)})

    def expand(self, input: Tensor, views: Tensor | None = None) -> Tensor:
        """The images of each method, one method after the other."""
        if views is not None:
            raise InputError("a choice of views for each image fits one method, not several")
        return torch.cat([method.expand(input) for method in self.methods])

    def losses(
        self, heads: nn.ModuleDict, features: Tensor, target: Target, views: Tensor | None = None
    ) -> dict[str, Tensor]:
        """The sum of the losses, each method's own as `0.loss`, `0.joint`, ..., and the mean `output`."""
        parts = [m.losses(h, f, target) for m, h, f in self._each(heads, features)]
        result = {"loss": torch.stack([part["loss"] for part in parts]).sum()}
        for number, part in enumerate(parts):
            result |= {f"{number}.{name}": value.detach() for name, value in part.items() if name != "output"}
        return result | {"output": torch.stack([part["output"] for part in parts]).mean(0)}

    def classify(self, heads: nn.ModuleDict, features: Tensor, inference: str) -> Tensor:
        """The mean of the methods' class logits."""
        each = [m.classify(heads[str(i)], features, inference) for i, m in enumerate(self.methods)]  # type: ignore[arg-type]
        return torch.stack(each).mean(0)

    def aggregate(self, heads: nn.ModuleDict, features: Tensor, average: str) -> Tensor:
        """The mean of the methods' aggregated class logits."""
        return torch.stack([m.aggregate(h, f, average) for m, h, f in self._each(heads, features)]).mean(0)

    def _each(self, heads: nn.ModuleDict, features: Tensor) -> list[tuple[Method, nn.ModuleDict, Tensor]]:
        counts = [len(method.views) for method in self.methods]
        batch = features.shape[0] // sum(counts)
        pieces = features.split([batch * count for count in counts])
        return [(m, heads[str(i)], f) for i, (m, f) in enumerate(zip(self.methods, pieces, strict=True))]  # type: ignore[misc]


METHODS: dict[str, Callable[..., Method]] = {  # by their names in the paper's tables
    "baseline": lambda views, **options: Baseline(**options),
    "da": DataAugmentation,
    "mt": MultiTask,
    "sla": SLA,
    "sla+sd": partial(SLA, distill=True),
}


def check_method(method: object) -> None:
    """Refuse what is no `Method`."""
    if isinstance(method, str):
        raise InputError(f"a method is an object such as SLA(), not text: create_method({method!r})")
    if not isinstance(method, Method):
        raise InputError(f"a method is an object such as SLA(), not {method!r}")


def create_method(name: str, views: Views | None = None, **options: Any) -> Method:
    """A method by the name the paper's tables give it; rotation unless other views are named."""
    if name not in METHODS:
        raise InputError(f"unknown method {name!r}{nearest(name, tuple(METHODS))}")
    return METHODS[name](views=Rotation() if views is None else views, **options)
