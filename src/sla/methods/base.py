"""The interface of methods, and their declaration: `register_method` names one, fields are its options."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, NamedTuple, TypeVar, get_type_hints

from torch import Tensor, nn

from sla.criteria import Criterion
from sla.errors import InputError, nearest
from sla.heads import JointHead, PlainHead
from sla.inference import average_views
from sla.labels import Target
from sla.methods.removed import refuse_removed
from sla.plugins import import_plugin, is_plugin_name
from sla.views import Rotation, Views, check_views, expand_views, take_views


class Unlabelled(NamedTuple):
    """Images without labels that a training step learns from beside its labelled ones.

    Attributes:
        images: (U, ...), augmented; the method makes their views.
        views: (U, k) view numbers, if only k views of each image are used; None for all.
        answers: (U, N) class logits of the same images, augmented weakly, where the method asks for them.
        share: what their loss is multiplied by, where a step's images go through the model in parts.
        trust: what the loss of the answers is multiplied by, a number or a tensor (): see `rising_trust`.
    """

    images: Tensor
    views: Tensor | None = None
    answers: Tensor | None = None
    share: float = 1.0
    trust: Tensor | float = 1.0


class Before(NamedTuple):
    """What a model answered before classes were added to it, on the rows of a step.

    Attributes:
        logits: (rows, L) of each class head, by name.
        weight: of the loss that keeps these answers.
        temperature: of that loss.
    """

    logits: dict[str, Tensor]
    weight: float = 1.0
    temperature: float = 1.0


@dataclass(frozen=True)
class StepContext:
    """What a training step knows besides its images and targets.

    Attributes:
        views: (B, k) view numbers, if only k views of each image are used; None for all.
        indices: (B,) indices of the images in the training set; None if unknown.
        step: the number of this step, from 0.
        steps: the number of steps of the run; 0 if unknown.
        memory: what the method's `build_memory` returned.
        teacher: (B, N) class logits of a teacher, for methods that learn from one; no gradient flows into it.
        unlabelled: images without labels, for methods that learn from them.
        before: the answers to keep, of a model that has grown.
    """

    views: Tensor | None = None
    indices: Tensor | None = None
    step: int = 0
    steps: int = 0
    memory: nn.Module | None = None
    teacher: Tensor | None = None
    unlabelled: Unlabelled | None = None
    before: Before | None = None


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
    usual_views: int | None = None  # views per image and step by default; None for all
    one_pass: str = "single"  # the best inference with one pass per image
    unlabelled_parts: tuple[str, ...] = ()  # of the loss of images without labels; none: it cannot use them
    wants_answers: bool = False  # whether that loss needs `Unlabelled.answers`

    @property
    def headline(self) -> str:
        """The inference that the method is evaluated by."""
        return "single"

    @property
    def teaching(self) -> tuple[str, int]:
        """The inference that a student learns from a model of this method, and its passes per image."""
        return ("aggregated", len(self.views)) if "aggregated" in self.inferences else ("single", 1)

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

    def unlabelled_losses(
        self, heads: nn.ModuleDict, features: Tensor, context: StepContext
    ) -> dict[str, Tensor]:
        """`loss` of images without labels, and its parts, which are named by `unlabelled_parts`.

        features: (U*M, D) of `expand(context.unlabelled.images, context.unlabelled.views)`.
        """
        raise InputError(f"{type(self).__name__} learns nothing from images without labels")

    def growing_logits(self, heads: nn.ModuleDict, features: Tensor) -> dict[str, Tensor]:
        """Logits (rows, L) of every head that grows with the classes, by name: old labels come first."""
        return {name: head(features) for name, head in heads.items() if isinstance(head, JointHead)}

    def classify(self, heads: nn.ModuleDict, features: Tensor, inference: str) -> Tensor:
        """Class logits (B, N) from features (B, D) of unchanged images, for inference in one pass."""
        return heads["plain"](features)

    def classify_view(self, heads: nn.ModuleDict, features: Tensor, view: int) -> Tensor:
        """Class logits (B, N) from features (B, D) of one view; their mean over the views is `aggregate`."""
        return heads["plain"](features)

    def aggregate(self, heads: nn.ModuleDict, features: Tensor, average: str) -> Tensor:
        """Class logits (B, N) from features (B*M, D) of all views."""
        return average_views(heads["plain"](features).unflatten(0, (-1, len(self.views))), average)

    def classify_views(self, heads: nn.ModuleDict, features: Tensor, views: Tensor) -> Tensor:
        """Class logits (B, k, N) of images in known views (B, k), from their features (B*k, D)."""
        return heads["plain"](features).unflatten(0, views.shape)

    def label_logits(self, heads: nn.ModuleDict, features: Tensor) -> Tensor:
        """Logits of the labels that the method learns: (B, N) of classes, or (B, N*M) of joint labels."""
        return heads["plain"](features)

    def predict_view(self, heads: nn.ModuleDict, features: Tensor) -> Tensor | None:
        """Logits (B, M) of the view of each image; None if the method does not learn it."""
        return None

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


def takes_views(name: str) -> bool:
    """Whether the method of this name has views to set."""
    return any(each.name == "views" for each in _arguments(find_method(name).make))


def check_method(method: object) -> None:
    """Raise an error unless this is a `Method` object."""
    if isinstance(method, str):
        raise InputError(f"a method is an object such as SLA(), not text: create_method({method!r})")
    if not isinstance(method, Method):
        raise InputError(f"a method is an object such as SLA(), not {method!r}")
    kind = type(method).__name__
    for name in ("views", "criterion", "head"):
        if not hasattr(method, name):
            raise InputError(f"{kind} has no {name}: a method has fields views, criterion and head")
    check_views(method.views)
    for which in ("one_pass", "headline"):
        if getattr(method, which) not in method.inferences:
            known = ", ".join(method.inferences) or "nothing"
            raise InputError(f"{kind}.{which} is {getattr(method, which)!r}, but its inferences are {known}")


def find_method(name: str) -> Declared:
    """The class behind a name: a registered one, or your own `package.module:Class`."""
    if name in METHODS:
        return METHODS[name]
    refuse_removed(name)
    if not is_plugin_name(name):
        raise InputError(f"unknown method {name!r}{nearest(name, tuple(METHODS))}, or package.module:Class")
    found = import_plugin(name)
    if isinstance(found, Method):  # passed from Python
        kind = type(found)
        return Declared(kind, {each.name: getattr(found, each.name) for each in _arguments(kind)})
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise InputError(f"{name}: not a class of methods: it must be a subclass of sla.Method")
    return Declared(found, {})


def create_method(name: str, views: Views | None = None, **options: Any) -> Method:
    """A registered method by its name, or one by `package.module:Class`; rotation by default."""
    kind, preset = find_method(name)
    known = [each.name for each in _arguments(kind)]
    for given, value in options.items():
        if given not in known:
            raise InputError(f"method {name!r} has no option {given!r}{nearest(given, known)}")
        if get_type_hints(kind).get(given) in (int, float) and not isinstance(value, int | float):
            raise InputError(f"method {name!r}: option {given!r} is a number, not {value!r}")
    if "views" in known:
        options["views"] = Rotation() if views is None else views
    try:
        return kind(**preset | options)
    except TypeError as error:
        raise InputError(
            f"method {name!r} cannot be made from its fields {', '.join(known)}: {error}"
        ) from error


def _arguments(kind: type[Method]) -> list[Any]:
    """The fields of a method's class that are set when it is created."""
    if not is_dataclass(kind):
        raise InputError(f"{kind.__name__}: a method's class must be a frozen dataclass")
    return [each for each in fields(kind) if each.init]
