"""Every kind of inference over a dataset, side by side."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sla.accelerate import Engine
from sla.anytime import AnytimeRule, settle
from sla.augment.ops import Pipeline
from sla.classifier import Classifier
from sla.errors import SLAError
from sla.images.content import content_keys
from sla.images.store import Dataset
from sla.inference import check_inference
from sla.progress import QUIET, Progress
from sla.runs.distributed import Group
from sla.runs.evaluation import iterate_eval
from sla.runs.metrics import (
    balanced_accuracy,
    calibration_error,
    negative_log_likelihood,
    top_k_accuracy,
)
from sla.sampling.draws import Draws
from sla.tasks.classifier.unlike import distances_to

MOST_BYTES = 256 << 20  # of class logits by view: with more, only every n-th image is used

Prepare = Callable[[Tensor, Draws, Tensor], Tensor]  # uint8 images, draws, aspect -> what the network sees


@dataclass(frozen=True)
class Outputs:
    """Class logits (n, N) by inference, classes (n,), and the images' content keys (n,), on the CPU.

    `views` (n,) is how many views anytime inference took of each image. `by_view` (m, M, N) has the class
    logits of every view, for all images or, where that would be too large, for every n-th. `distances` (n,)
    are those of the unchanged images' features to the nearest of some class means.
    """

    logits: dict[str, Tensor]
    targets: Tensor
    keys: np.ndarray | None = None
    views: Tensor | None = None
    by_view: Tensor | None = None
    distances: Tensor | None = None

    def scores(self, temperatures: dict[str, float] | None = None) -> dict[str, dict[str, float]]:
        """For each kind: top1, top5, balanced (the mean over classes) and ece in percent, and nll.

        The last two are calibrated where a temperature is given. Anytime inference also has the mean number
        of `views`, and `changed`: how many answers differ from those of aggregation, where that is known.
        """
        temperatures = temperatures or {}
        found = {
            inference: {
                "top1": top_k_accuracy(logits, self.targets),
                "top5": top_k_accuracy(logits, self.targets, 5),
                "balanced": balanced_accuracy(logits, self.targets),
                "ece": calibration_error(logits, self.targets, temperatures.get(inference, 1.0)),
                "nll": negative_log_likelihood(logits, self.targets, temperatures.get(inference, 1.0)),
            }
            for inference, logits in self.logits.items()
        }
        if "anytime" in found and self.views is not None:
            found["anytime"]["views"] = self.views.double().mean().item()
        if {"anytime", "aggregated"} <= found.keys():
            found["anytime"]["changed"] = self.changed
        return found

    def group_scores(self, old_classes: int) -> dict[str, dict[str, float]]:
        """Accuracy in percent on images of the first, `old`, and of `new` classes, of a model that has grown.

        Answers are among all classes. By kind of inference; a group without images is left out.
        """
        found: dict[str, dict[str, float]] = {}
        is_old = self.targets < old_classes
        for inference, logits in self.logits.items():
            right = (logits.argmax(1) == self.targets).double()
            groups = {"old": right[is_old], "new": right[~is_old]}
            found[inference] = {name: 100 * hits.mean().item() for name, hits in groups.items() if len(hits)}
        return found

    @property
    def changed(self) -> int:
        """How many answers of anytime inference differ from those of aggregation."""
        return int((self.logits["anytime"].argmax(1) != self.logits["aggregated"].argmax(1)).sum())

    def add_anytime(self, rule: AnytimeRule) -> "Outputs":
        """With what a rule answers, from the class logits of every view; the same where those are not all."""
        if self.by_view is None or len(self.by_view) != len(self.targets):
            return self
        settled = settle(self.by_view, rule)
        return replace(self, logits=self.logits | {"anytime": settled.logits}, views=settled.views)


@torch.inference_mode()
def infer(
    model: Classifier,
    dataset: Dataset,
    pipeline: Prepare,
    *,
    inferences: tuple[str, ...] | None = None,
    by_view: bool = False,
    fast: bool = False,
    means: Tensor | None = None,
    **passing: Any,
) -> Outputs:
    """The class logits of a whole dataset, of every kind unless some are named.

    `by_view`: also the class logits of every view, if the model aggregates view by view. `fast`: by the
    fastest copy of the model, whose logits differ by rounding. `means` (N, D): also how far each image's
    features are from the nearest of them. `passing`: batch_size, workers, progress and what, as in
    `iterate_eval`.
    """
    # One tensor from the start: parts and their whole would be twice as large.
    shape, done = (len(dataset), model.num_classes), 0
    names = inferences or model.inferences
    logits = {inference: torch.empty(shape) for inference in names}
    keys, views, parts = [np.empty(0, np.uint64)], list[Tensor](), list[Tensor]()
    distances = list[Tensor]()
    each = len(model.method.views) * model.num_classes * 4 * len(dataset) // MOST_BYTES + 1
    by_view = by_view and model.aggregates_by_view
    engine = Engine(model, len(dataset), fast)
    for batch in iterate_eval(model, dataset, **passing):
        images = pipeline(batch.images, batch.draws, batch.aspect)
        keys.append(content_keys(batch.images))
        with engine.on(images) as used:
            found = infer_batch(used, images, names, by_view, plain=means is not None)
        if by_view and found.by_view is not None:
            parts.append(found.by_view[batch.indices % each == 0].float().cpu())
        if found.views is not None:
            views.append(found.views.cpu())
        if means is not None and found.plain is not None:
            distances.append(distances_to(means, found.plain.float()).cpu())
        for inference, values in found.logits.items():
            logits[inference][done : done + len(values)] = values
        done += len(images)
    return Outputs(
        {inference: check_finite(values, inference) for inference, values in logits.items()},
        torch.as_tensor(dataset.targets),
        np.concatenate(keys),
        torch.cat(views) if views else None,
        torch.cat(parts) if parts else None,
        torch.cat(distances) if distances else None,
    )


class BatchOutputs(NamedTuple):
    """Class logits (B, N) by inference, and what else a batch gives; None where nothing needs it.

    `views` (B,): how many anytime inference took. `by_view` (B, M, N): class logits of every view. `plain`
    (B, D): features of the unchanged images.
    """

    logits: dict[str, Tensor]
    views: Tensor | None
    by_view: Tensor | None
    plain: Tensor | None


def infer_batch(
    model: Classifier,
    images: Tensor,
    inferences: Sequence[str],
    by_view: bool = False,
    plain: bool = False,
) -> BatchOutputs:
    """Some inferences of a batch; where they take all views, each goes through the network once.

    `by_view`, `plain`: with these outputs, also where no inference needs them.
    """
    for name in inferences:
        check_inference(name, model.inferences)
    answers, logits = dict[str, Tensor](), dict[str, Tensor]()
    features = own = taken = None
    if by_view or "aggregated" in inferences:
        every = model.view_features(images)
        features, answers = every[:: len(model.method.views)], model.logits_of_features(every)
        own = model.view_logits(every) if by_view or "anytime" in inferences else None
    elif plain or set(inferences) - {"anytime"}:
        features = model.features(images)
    for name in inferences:
        if name != "anytime":
            assert features is not None
            logits[name] = answers[name] if answers else model.classify(features, name)
        elif own is None:
            logits[name], taken = model.anytime(images, features)
        else:
            assert model.anytime_rule is not None
            logits[name], taken = settle(own, model.anytime_rule)
    return BatchOutputs(logits, taken, own, features)


@torch.inference_mode()
def infer_averaged(
    name: str,
    model: Classifier,
    dataset: Dataset,
    pipelines: Sequence[Prepare],
    inference: str | None = None,
    **passing: Any,
) -> Outputs:
    """Under this name, the mean of the logits over what the pipelines make of each image (ten-crop, flips).

    inference: by default the best of those with one pass.
    """
    inference = inference or model.best_inference
    found: list[Tensor] = []
    for batch in iterate_eval(model, dataset, **passing):
        crops = (pipeline(batch.images, batch.draws, batch.aspect) for pipeline in pipelines)
        found.append(torch.stack([model.logits(crop, inference) for crop in crops]).mean(0).float().cpu())
    logits = check_finite(torch.cat(found), inference)
    return Outputs({name: logits}, torch.as_tensor(dataset.targets))


def check_finite(logits: Tensor, inference: str) -> Tensor:
    """The logits (n, N) as they are; raises if any is NaN or infinite."""
    bad = int((~(logits.amax(1) - logits.amin(1)).isfinite()).sum())  # no copy of all logits
    if bad:
        raise SLAError(
            f"the {inference} scores of {bad:,} of {len(logits):,} images are NaN or infinite: the weights "
            "are damaged, or training diverged"
        )
    return logits


@torch.inference_mode()
def accuracies(
    model: Classifier,
    dataset: Dataset,
    pipeline: Pipeline,
    batch_size: int,
    workers: int,
    group: Group,
    progress: Progress = QUIET,
) -> dict[str, float]:
    """Accuracy in percent by kind of inference; every process takes its share of the images."""
    inferences = model.inferences
    right = torch.zeros(len(inferences), device=next(model.parameters()).device)
    for batch in iterate_eval(
        model, dataset, batch_size, workers, progress, "evaluating held-out images", group
    ):
        logits = model.logits_by_inference(pipeline(batch.images, batch.draws, batch.aspect))
        right += torch.stack(
            [(logits[inference].argmax(1) == batch.targets).sum() for inference in inferences]
        )
    shares = [100 * hits / len(dataset) for hits in group.sum(right).tolist()]
    return dict(zip(inferences, shares, strict=True))
