"""Every kind of inference over a dataset, side by side."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

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
        """Of a model that has grown: accuracy in percent on images of the first, `old`, and of `new` classes.

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
    """The class logits of a whole dataset; all kinds share one pass over the views unless some are named.

    `by_view`: also the class logits of every view, if the model aggregates view by view. `fast`: by the
    fastest copy of the model, whose logits differ by rounding. `means` (N, D): also how far each image's
    features are from the nearest of them. `passing`: batch_size, workers, progress and what, as in
    `iterate_eval`.
    """
    # One tensor from the start: parts and their whole would be twice as large.
    shape, done = (len(dataset), model.num_classes), 0
    found = {inference: torch.empty(shape) for inference in inferences or model.inferences}
    keys, views, parts = [np.empty(0, np.uint64)], list[Tensor](), list[Tensor]()
    distances = list[Tensor]()
    each = len(model.method.views) * model.num_classes * 4 * len(dataset) // MOST_BYTES + 1
    aggregates, by_view = "aggregated" in model.method.inferences, by_view and model.aggregates_by_view
    engine = Engine(model, len(dataset), fast)
    for batch in iterate_eval(model, dataset, **passing):
        images = pipeline(batch.images, batch.draws, batch.aspect)
        keys.append(content_keys(batch.images))
        with engine.on(images) as used:
            if inferences is not None:
                logits, taken, plain = _infer_named(used, images, inferences, means is not None)
                if taken is not None:
                    views.append(taken.cpu())
            else:
                features = used.view_features(images) if aggregates else used.features(images)
                plain = features[:: len(features) // len(images)]
                logits = used.logits_of_features(features)
                rule = model.anytime_rule if "anytime" in found else None
                if by_view or rule is not None:
                    own = used.view_logits(features)
                if by_view:
                    parts.append(own[batch.indices % each == 0].float().cpu())
                if rule is not None:
                    logits["anytime"], taken = settle(own, rule)
                    views.append(taken.cpu())
        if means is not None:
            assert plain is not None
            distances.append(distances_to(means, plain.float()).cpu())
        for inference, values in logits.items():
            found[inference][done : done + len(values)] = values
        done += len(images)
    return Outputs(
        {inference: check_finite(logits, inference) for inference, logits in found.items()},
        torch.as_tensor(dataset.targets),
        np.concatenate(keys),
        torch.cat(views) if views else None,
        torch.cat(parts) if parts else None,
        torch.cat(distances) if distances else None,
    )


def _infer_named(
    model: Classifier, images: Tensor, inferences: tuple[str, ...], featured: bool
) -> tuple[dict[str, Tensor], Tensor | None, Tensor | None]:
    """Class logits by inference, the views that anytime took, and the unchanged images' features (B, D).

    No view goes through the network twice; the features are None unless something needs them, or `featured`.
    """
    for name in inferences:
        check_inference(name, model.inferences)
    every = model.view_features(images) if "aggregated" in inferences else None
    one_pass = any(name not in ("aggregated", "anytime") for name in inferences)
    plain, taken, logits = None, None, dict[str, Tensor]()
    if every is not None:
        plain = every[:: len(model.method.views)]
    elif one_pass or featured:
        plain = model.features(images)
    for name in inferences:
        if name == "anytime":
            logits[name], taken = model.anytime(images, plain)
        elif name == "aggregated":
            assert every is not None
            logits[name] = model.method.aggregate(model.heads, every, "logits")
        else:
            assert plain is not None
            logits[name] = model.classify(plain, name)
    return logits, taken, plain


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
    """The same logits (n, N), refused where one is no finite number."""
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
