"""The methods: each is one loss and one set of heads. They work on features, never on the backbone.

A method is declared once, here: `register_method` names it, and its fields are its options. The
configuration, the command line, plans, model files and costs are derived from that.
"""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Literal, NamedTuple, TypeVar, get_type_hints

import torch
from torch import Tensor, nn

from sla.criteria import Criterion, cross_entropy
from sla.errors import InputError, SLAWarning, nearest
from sla.heads import JointHead, PlainHead
from sla.imbalance import check_head
from sla.inference import aggregate_views, average_views, marginal_over_classes, select_view
from sla.labels import Target
from sla.losses import (
    VIEW_REDUCTIONS,
    data_augmentation_loss,
    distillation_loss,
    multi_task_loss,
    sla_loss,
    view_loss,
)
from sla.plugins import import_plugin, is_plugin_name
from sla.renamed import warn_renamed
from sla.views import Identity, Rotation, Views, check_views, expand_views, take_views


@dataclass(frozen=True)
class StepContext:
    """What a training step knows besides its images and targets.

    Attributes:
        views: (B, k) view numbers, if only k views of each image are used; None for all.
        indices: (B,) indices of the images in the training set; None if unknown.
        step: the number of this step, from 0.
        steps: the number of steps of the run; 0 if unknown.
        memory: what the method's `build_memory` returned.
    """

    views: Tensor | None = None
    indices: Tensor | None = None
    step: int = 0
    steps: int = 0
    memory: nn.Module | None = None


NO_CONTEXT = StepContext()


class Method:
    """The interface of a method; a subclass defines its heads, losses and inference.

    A subclass is a frozen dataclass. The configuration sets its fields `views`, `criterion` and `head`, and
    has a key for each other field made with `option` (`method.beta`).
    """

    views: Views
    criterion: Criterion
    head: str
    inferences: tuple[str, ...] = ("single",)
    parts: tuple[str, ...] = ()  # names of the parts of the loss, as in the dict of `losses`
    least_views: int = 1  # views per image and step, at least; from 2 on, the first is the unchanged image
    finetuning_views: int | None = None  # views per image and step with pretrained weights; None for all
    one_pass: str = "single"  # the best inference with one pass per image

    @property
    def headline(self) -> str:
        """The inference that the method is evaluated by."""
        return "single"

    def build_heads(self, in_features: int, num_classes: int) -> nn.ModuleDict:
        """New heads for features of this width; one plain head by default."""
        return nn.ModuleDict({"plain": PlainHead(in_features, num_classes, self.head)})

    def build_memory(self, num_images: int, num_classes: int) -> nn.Module | None:
        """State per training image that `losses` keeps between steps; None if there is none.

        Its buffers are saved in checkpoints, not in model files; `losses` gets it as `context.memory` and
        updates it in place.
        """
        return None

    def expand(self, input: Tensor, views: Tensor | None = None) -> Tensor:
        """The backbone's input: (B, ...) -> (B*M, ...), interleaved; (B*k, ...) with `views` (B, k)."""
        return expand_views(input, self.views) if views is None else take_views(input, self.views, views)

    def losses(
        self, heads: nn.ModuleDict, features: Tensor, target: Target, context: StepContext = NO_CONTEXT
    ) -> dict[str, Tensor]:
        """`loss`, its named parts, and `output`: class logits (B, N) of each image's first view, detached.

        features: (B*M, D) of `expand(input, context.views)`; with `context.views` (B, k), M is k.
        """
        raise InputError(f"{type(self).__name__} has no loss")

    def classify(self, heads: nn.ModuleDict, features: Tensor, inference: str) -> Tensor:
        """Class logits (B, N) from features (B, D) of unchanged images, for inference in one pass."""
        return heads["plain"](features)

    def aggregate(self, heads: nn.ModuleDict, features: Tensor, average: str) -> Tensor:
        """Class logits (B, N) from features (B*M, D) of all views."""
        return average_views(heads["plain"](features).unflatten(0, (-1, len(self.views))), average)

    def predict_view(self, heads: nn.ModuleDict, features: Tensor) -> Tensor | None:
        """Logits (B, M) of the view of each image; None if the method does not learn it."""
        return None

    @property
    def kinds(self) -> tuple[str, ...]:
        """The old name of `inferences`."""
        warn_renamed("Method.kinds", "inferences")
        return self.inferences

    def _per_image(self, context: StepContext) -> int:
        return len(self.views) if context.views is None else context.views.shape[1]


class Declared(NamedTuple):
    """A method's class, and the field values that its name implies."""

    make: type[Method]
    preset: dict[str, Any]


METHODS: dict[str, Declared] = {}
Kind = TypeVar("Kind", bound=type[Method])


def register_method(name: str, **preset: Any) -> Callable[[Kind], Kind]:
    """Decorate a method's class: `name` creates it with these field values."""

    def add(kind: Kind) -> Kind:
        if name in METHODS:
            raise InputError(f"method {name!r} is registered twice")
        METHODS[name] = Declared(kind, preset)
        return kind

    return add


def option(default: Any, description: str, **limits: Any) -> Any:
    """An option of a method: its default, its description, and limits as in pydantic (`ge=0`)."""
    return field(default=default, metadata={"description": description, "limits": limits})


def method_options(kind: type[Method]) -> dict[str, Any]:
    """The options of a method's class by name; each has `type`, `default` and `metadata`."""
    return {each.name: each for each in fields(kind) if "description" in each.metadata}  # type: ignore[arg-type]


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
        logits = heads["plain"](features)
        return {"loss": self.criterion(logits, target), "output": logits.detach()}


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
        logits = heads["plain"](features)
        loss = data_augmentation_loss(logits, target, count, self.criterion)
        return {"loss": loss, "output": logits[::count].detach()}


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
        count, num_views, views = self._per_image(context), len(self.views), context.views
        logits, view_logits = heads["plain"](features), heads["view"](features)
        loss = multi_task_loss(logits, view_logits, target, num_views, self.criterion, views)
        return {
            "loss": loss,
            "class": data_augmentation_loss(logits.detach(), target, count, self.criterion),
            "view": view_loss(view_logits.detach(), views),
            "output": logits[::count].detach(),
        }

    def predict_view(self, heads: nn.ModuleDict, features: Tensor) -> Tensor | None:
        """The logits of the view head."""
        return heads["view"](features)


@register_method("sla+sd", distill=True)
@register_method("sla")
@dataclass(frozen=True)
class SLA(Method):
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

    @property
    def inferences(self) -> tuple[str, ...]:  # type: ignore[override]
        """Single and aggregated; distilled if there is a student."""
        return ("single", "aggregated", "distilled") if self.distill else ("single", "aggregated")

    @property
    def parts(self) -> tuple[str, ...]:  # type: ignore[override]
        """The joint loss; with distillation, the two terms of the student."""
        return ("joint", "distillation", "student") if self.distill else ("joint",)

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
        if inference == "distilled":
            return heads["plain"](features)
        return heads["joint"].block(features, 0)  # type: ignore[operator]

    def aggregate(self, heads: nn.ModuleDict, features: Tensor, average: str) -> Tensor:
        """The average of each view's own block; the other blocks are computed only for the marginal."""
        if average == "marginal":
            return aggregate_views(heads["joint"](features), len(self.views), average)
        return average_views(heads["joint"].own_blocks(features), average)  # type: ignore[operator]

    def predict_view(self, heads: nn.ModuleDict, features: Tensor) -> Tensor | None:
        """The joint head's logits of the view, summed over the classes."""
        return marginal_over_classes(heads["joint"](features), len(self.views))


def takes_views(name: str) -> bool:
    """Whether the method of this name has views to set."""
    return any(each.name == "views" for each in _arguments(find_method(name).make))


def check_method(method: object) -> None:
    """Raise an error unless this is a `Method` object."""
    if isinstance(method, str):
        raise InputError(f"a method is an object such as SLA(), not text: create_method({method!r})")
    if not isinstance(method, Method):
        raise InputError(f"a method is an object such as SLA(), not {method!r}")


def find_method(name: str) -> Declared:
    """The class behind a name: one from the paper's tables, or your own `package.module:Class`."""
    if name in METHODS:
        return METHODS[name]
    if not is_plugin_name(name):
        raise InputError(f"unknown method {name!r}{nearest(name, tuple(METHODS))}, or package.module:Class")
    found = import_plugin(name)
    if isinstance(found, Method):  # passed from Python
        return Declared(
            type(found), {each.name: getattr(found, each.name) for each in _arguments(type(found))}
        )
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise InputError(f"{name}: not a class of methods: it must be a subclass of sla.Method")
    return Declared(found, {})


def create_method(name: str, views: Views | None = None, **options: Any) -> Method:
    """A method by its name in the paper's tables or by `package.module:Class`; rotation by default."""
    kind, preset = find_method(name)
    known = [each.name for each in _arguments(kind)]
    for given, value in options.items():
        if given not in known:
            raise InputError(f"method {name!r} has no option {given!r}{nearest(given, known)}")
        if get_type_hints(kind).get(given) in (int, float) and not isinstance(value, int | float):
            raise InputError(f"method {name!r}: option {given!r} is a number, not {value!r}")
    if "views" in known:
        options["views"] = Rotation() if views is None else views
    return kind(**preset | options)


def _arguments(kind: type[Method]) -> list[Any]:
    """The fields of a method's class that are set when it is created."""
    if not is_dataclass(kind):
        raise InputError(f"{kind.__name__}: a method's class must be a frozen dataclass")
    return [each for each in fields(kind) if each.init]
