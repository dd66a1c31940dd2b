"""Classifier: a backbone, the heads of a method, and the method itself."""

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from sla.anytime import AnytimeRule, Settled, check_views, classify_until_settled, settle
from sla.errors import InputError, SLAWarning
from sla.heads import JointHead, is_whole
from sla.inference import check_average, check_inference
from sla.labels import Target, check_target
from sla.losses import growth_loss
from sla.methods import NO_CONTEXT, Method, StepContext, check_method
from sla.methods.checks import check_logits, check_losses, compute_losses
from sla.views import apply_view

PIXELS = 1 << 22  # of a pass without gradients: 83 images of 224 pixels a side


class _LabelsAndProbabilities(NamedTuple):
    labels: Tensor
    probabilities: Tensor


class Prediction(_LabelsAndProbabilities):
    """The result of `predict`: a pair, class numbers and probabilities, that knows the names of the classes.

    Attributes:
        labels: (B,) class numbers.
        probabilities: (B, N).
        classes: the names of the N classes, in their order; empty if the classifier has none.
        unlike: bool (B,), which images are unlike all that a run was trained on; None where that is unknown.
    """

    classes: Sequence[str] = ()
    unlike: Tensor | None = None

    @property
    def names(self) -> list[str]:
        """The name of the class of each image; its number as text if classes have no names."""
        numbers = self.labels.tolist()
        return [self.classes[number] if self.classes else str(number) for number in numbers]


class Classifier(nn.Module):
    """Any backbone with the heads of a method.

    Args:
        backbone: maps a batch to features (B, D), or to a feature map (B, D, H, W), which is averaged.
        num_classes: N, at least 2.
        method: `Baseline()`, `SLA(Rotation(), distill=True)`, ...
        num_features: D, if the backbone has no attribute `num_features`.
        check_input: check for NaN and infinite pixels before every forward pass (costs a synchronisation).
    """

    def __init__(
        self,
        backbone: nn.Module,
        num_classes: int,
        method: Method,
        *,
        num_features: int | None = None,
        check_input: bool = False,
    ) -> None:
        super().__init__()
        check_method(method)
        if not is_whole(num_classes, 2):
            raise InputError(f"a classifier needs at least two classes, not {num_classes!r}")
        if not isinstance(backbone, nn.Module):
            raise InputError(f"a backbone is a module, not {backbone!r}; sla.create takes names too")
        width = num_features or getattr(backbone, "num_features", None)
        if not isinstance(width, int):
            kind = type(backbone).__name__
            raise InputError(
                f"{kind} does not say how many features it gives: Classifier(..., num_features=...)"
            )
        self.backbone, self.num_classes, self.num_features = backbone, int(num_classes), width
        self.method, self.check_input = method, check_input
        self.spec: dict[str, Any] = {}  # how to rebuild the backbone, if it has a name
        self.class_names: list[str] | None = None
        self.about: dict[str, Any] = {}  # further data from the file it was loaded from
        self.anytime_rule: AnytimeRule | None = None  # calibrated on held-out images
        self._warned = False
        self._check_class_weights()
        self.heads = method.build_heads(width, self.num_classes)
        if not isinstance(self.heads, nn.ModuleDict):
            found = type(self.heads).__name__
            raise InputError(f"{type(method).__name__}.build_heads returned a {found}, not an nn.ModuleDict")
        _unshare_elements(backbone)
        # A criterion with tensors (class weights) moves to a device with the model.
        self.criterion = method.criterion if isinstance(method.criterion, nn.Module) else None

    @property
    def inferences(self) -> tuple[str, ...]:
        """Those of the method; after aggregated, anytime if there is a rule for it."""
        found = list(self.method.inferences)
        if self.anytime_rule is not None and "aggregated" in found:
            found.insert(found.index("aggregated") + 1, "anytime")
        return tuple(found)

    @property
    def aggregates_by_view(self) -> bool:
        """Whether aggregation is an average of what each view says alone, as anytime inference needs it."""
        kind = type(self.method)
        own = kind.aggregate is not Method.aggregate and kind.classify_view is Method.classify_view
        return "aggregated" in self.method.inferences and not own

    @property
    def best_inference(self) -> str:
        """The best inference in one pass: distilled if there is a student, else single."""
        return self.method.one_pass

    def features(self, input: Tensor) -> Tensor:
        """(B, ...) -> (B, D)."""
        _check_tensor(input)
        if self.check_input and not bool(torch.isfinite(input).all()):
            raise InputError("the input has pixels that are NaN or infinite")
        parts = self._parts(input)
        features = (
            self._pooled(input) if len(parts) < 2 else torch.cat([self._pooled(part) for part in parts])
        )
        if features.shape != (input.shape[0], self.num_features):
            wanted, found = (input.shape[0], self.num_features), tuple(features.shape)
            raise InputError(f"the backbone gave features of shape {found}, not {wanted}")
        return features

    def forward(self, input: Tensor, target: Target | None = None, context: StepContext = NO_CONTEXT) -> Any:
        """With a target, the dict of losses to train on; without, the best class logits in one pass, (B, N).

        DDP and `torch.compile` can wrap the model itself: `DDP(model)(images, targets)["loss"].backward()`.
        The dict has the method's `loss`, its named parts, and `output` (class logits, detached), as in timm's
        training tasks.

        Args:
            input: the base batch (B, ...); the method makes its views.
            target: (B,) class numbers, or a `MixedTarget`.
            context: the views to train on, the images' indices in the training set, step and memory.
        """
        return self.logits(input) if target is None else self._losses(input, target, context)

    def losses(self, input: Tensor, target: Target, views: Tensor | None = None) -> dict[str, Tensor]:
        """The same as `model(input, target)`, for one process: a call of this method bypasses DDP."""
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1 and not self._warned:
            self._warned = True
            warnings.warn(
                "losses() bypasses DistributedDataParallel, so gradients stay unsynchronised: call the "
                "wrapped model instead, model(images, targets)",
                SLAWarning,
            )
        return self._losses(input, target, StepContext(views))

    def _losses(self, input: Tensor, target: Target, context: StepContext) -> dict[str, Tensor]:
        _check_tensor(input)
        if input.shape[0] == 0:
            raise InputError("the batch is empty: there is no loss without images")
        self._check_class_weights()
        target = check_target(target, self.num_classes, input.shape[0])
        seen, more = self.method.expand(input, context.views), context.unlabelled
        if more is None:
            features = self.features(seen)
            losses = compute_losses(self.method, self.heads, features, target, context, self.num_classes)
        else:  # in one pass: batch norm sees both, and DDP and torch.compile one call
            unlabelled = self.method.expand(more.images, more.views)
            features, others = self.features(torch.cat([seen, unlabelled])).split(
                [seen.shape[0], unlabelled.shape[0]]
            )
            losses = compute_losses(self.method, self.heads, features, target, context, self.num_classes)
            found = self.method.unlabelled_losses(self.heads, others, context)
            check_losses(found, f"{type(self.method).__name__}.unlabelled_losses", "loss")
            losses |= found | {"loss": losses["loss"] + more.share * found["loss"]}
        if context.before is not None:
            before, weight, temperature = context.before
            kept = growth_loss(before, self.method.growing_logits(self.heads, features), temperature)
            losses |= {"loss": losses["loss"] + weight * kept, "kept": kept.detach()}
        return losses

    def classify(self, features: Tensor, inference: str | None = None) -> Tensor:
        """Class logits (B, N) from features (B, D) of unchanged images, in one pass: single or distilled."""
        inference = inference or self.best_inference
        check_inference(inference, tuple(name for name in self.method.inferences if name != "aggregated"))
        return self._answer(features, inference)

    def logits(self, input: Tensor, inference: str | None = None, average: str = "logits") -> Tensor:
        """Class logits (B, N); `inference` is one of `inferences` (default: best in one pass).

        `average` is what aggregation averages: logits, probabilities, or the marginal over views.
        """
        inference = inference or self.best_inference
        check_inference(inference, self.inferences)
        check_average(average)
        if inference == "anytime":
            if average != "logits":
                raise InputError(f"anytime inference averages logits, not {average}")
            return self.anytime(input).logits
        features = self.view_features(input) if inference == "aggregated" else self.features(input)
        return self._answer(features, inference, average)

    def _answer(self, features: Tensor, inference: str, average: str = "logits") -> Tensor:
        """Class logits (B, N) from features (B, D), or (B*M, D) for aggregated inference."""
        if inference == "aggregated":
            name, found = "aggregate", self.method.aggregate(self.heads, features, average)
        else:
            name, found = "classify", self.method.classify(self.heads, features, inference)
        check_logits(found, f"{type(self.method).__name__}.{name}", self.num_classes)
        return found

    def anytime(self, input: Tensor, plain: Tensor | None = None) -> Settled:
        """Class logits (B, N) from as many views as each image needs, and their numbers (B,).

        A rule that takes all views gives exactly the aggregated logits. `plain`: the features (B, D) of the
        unchanged images where they are known, which saves that pass if the rule begins with them.
        """
        check_inference("anytime", self.inferences)
        rule = self.anytime_rule
        assert rule is not None
        check_views(rule, len(self.method.views))
        if rule.takes_all:
            logits = self.logits(input, "aggregated")
            return Settled(logits, torch.full((len(logits),), len(rule.order), device=logits.device))
        if not input.shape[0]:
            return settle(self.view_logits(self.view_features(input)), rule)

        def classify(images: Tensor, view: int) -> Tensor:
            if view == 0 and plain is not None and len(images) == len(plain):
                return self.method.classify_view(self.heads, plain, view)
            seen = apply_view(images, self.method.views, view)
            return self.method.classify_view(self.heads, self.features(seen), view)

        return classify_until_settled(classify, input, rule)

    def _pooled(self, input: Tensor) -> Tensor:
        features = self.backbone(input) if input.is_floating_point() else self._of_integers(input)
        return features.mean((2, 3)) if features.ndim == 4 else features

    def _of_integers(self, input: Tensor) -> Tensor:
        """Features of pixels that are no floats, which a backbone of your own may take."""
        try:
            return self.backbone(input)
        except RuntimeError as error:
            raise InputError(
                f"the backbone does not take images of {input.dtype}: scale them to float, images / 255"
            ) from error

    def _parts(self, input: Tensor) -> Sequence[Tensor]:
        """The rows of a batch, a few at a time where only answers are wanted: all views of photographs at
        once would take gigabytes."""
        whole = self.training or torch.is_grad_enabled() or torch.compiler.is_compiling()
        if whole or torch.jit.is_tracing() or input.ndim != 4:
            return (input,)
        rows = max(PIXELS // max(input.shape[-1] * input.shape[-2], 1), 1)
        return input.split(rows) if input.shape[0] > rows else (input,)

    def view_features(self, input: Tensor) -> Tensor:
        """Features of all views, interleaved: (B, ...) -> (B*M, D)."""
        _check_tensor(input)
        return self.features(self.method.expand(input))

    def view_logits(self, features: Tensor) -> Tensor:
        """Class logits of each view from the features of all views, interleaved: (B*M, D) -> (B, M, N)."""
        count = len(self.method.views)
        found = [self.method.classify_view(self.heads, features[j::count], j) for j in range(count)]
        return torch.stack(found, 1)

    def logits_by_inference(self, input: Tensor) -> dict[str, Tensor]:
        """Class logits (B, N) for every inference of the model, with one pass per view."""
        aggregates = "aggregated" in self.method.inferences
        features = self.view_features(input) if aggregates else self.features(input)
        found = self.logits_of_features(features)
        if aggregates and self.anytime_rule is not None:
            found["anytime"] = settle(self.view_logits(features), self.anytime_rule).logits
        return {inference: found[inference] for inference in self.inferences}

    def logits_of_features(self, features: Tensor) -> dict[str, Tensor]:
        """The same without anytime inference, from `view_features` (B*M, D).

        If no inference aggregates, from features (B, D).
        """
        inferences, found = self.method.inferences, {}
        plain = features[:: len(self.method.views)] if "aggregated" in inferences else features
        for inference in inferences:
            found[inference] = self._answer(features if inference == "aggregated" else plain, inference)
        return found

    @torch.inference_mode()
    def predict(self, input: Tensor, inference: str | None = None, average: str = "logits") -> Prediction:
        """Class numbers, their names and probabilities, in evaluation mode; training mode comes back."""
        training = self.training
        try:
            probabilities = self.eval().logits(input, inference, average).softmax(-1)
        finally:
            self.train(training)
        found = Prediction(probabilities.argmax(-1), probabilities)
        found.classes = tuple(self.class_names or ())
        return found

    def grow(self, num_new: int, names: Sequence[str] | None = None) -> None:
        """Append classes to every class head; the logits of old classes do not change.

        If classes have names, `names` are those of the new ones ("class 5" by default). A criterion with
        class weights needs weights for the new classes before the next loss: `model.criterion.weight = ...`.
        """
        if names is not None and len(names) != num_new:
            raise InputError(f"{num_new} new classes need {num_new} names, not {len(names)}")
        for head in self.heads.modules():
            if isinstance(head, JointHead):
                head.grow(num_new)
        numbered = [f"class {number}" for number in range(self.num_classes + num_new)]
        if names is not None or self.class_names is not None:
            old = self.class_names or numbered[: self.num_classes]
            self.class_names = [*old, *(names or numbered[self.num_classes :])]
        self.num_classes += int(num_new)

    def _check_class_weights(self) -> None:
        criterion = self.method.criterion
        for name, meaning in getattr(criterion, "per_class", {"weight": "class weights"}).items():
            values = getattr(criterion, name, None)
            if isinstance(values, Tensor) and values.ndim == 1 and len(values) != self.num_classes:
                raise InputError(f"{len(values)} {meaning} do not fit {self.num_classes} classes")


def _check_tensor(input: object) -> None:
    if not isinstance(input, Tensor):
        kind = type(input).__name__
        raise InputError(f"a classifier takes a tensor of images, not a {kind}; a run takes files")


def _unshare_elements(module: nn.Module) -> None:
    """Give each element of an expanded tensor a place of its own: otherwise no weights can be loaded."""
    for value in (*module.parameters(), *module.buffers()):
        if not is_lazy(value) and value.layout is torch.strided and 0 in value.stride():
            value.data = value.data.clone(memory_format=torch.contiguous_format)
