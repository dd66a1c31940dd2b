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
from sla.tasks.classifier.anytime import MOST_BYTES, calibrate


@dataclass(frozen=True)
class Outputs:
    """Class logits (n, N) by inference, classes (n,), and the images' content keys (n,), on the CPU.

    `views` (n,) is how many views anytime inference took of each image. `by_view` (m, M, N) has the class
    logits of every view, for all images or, where that would be too large, for every n-th.
    """

    logits: dict[str, Tensor]
    targets: Tensor
    keys: np.ndarray | None = None
    views: Tensor | None = None
    by_view: Tensor | None = None

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
    pipeline: Pipeline,
    *,
    inferences: tuple[str, ...] | None = None,
    by_view: bool = False,
    fast: bool = False,
    **passing: Any,
) -> Outputs:
    """The class logits of a whole dataset; all kinds share one pass over the views unless some are named.

    `by_view`: also the class logits of every view, if the model aggregates view by view. `fast`: by the
    fastest copy of the model, whose logits differ by rounding. `passing`: batch_size, workers, progress and
    what, as `iterate_eval` has them.
    """
    found: dict[str, list[Tensor]] = {inference: [] for inference in inferences or model.inferences}
    keys, views, parts = [np.empty(0, np.uint64)], list[Tensor](), list[Tensor]()
    each = len(model.method.views) * model.num_classes * 4 * len(dataset) // MOST_BYTES + 1
    aggregates, by_view = "aggregated" in model.method.inferences, by_view and model.aggregates_by_view
    engine = Engine(model, len(dataset), fast)
    for batch in iterate_eval(model, dataset, **passing):
        images = pipeline(batch.images, batch.draws, batch.aspect)
        keys.append(content_keys(batch.images))
        with engine.on(images) as used:
            if inferences is not None:
                logits = {name: used.logits(images, name) for name in inferences if name != "anytime"}
                if "anytime" in inferences:
                    logits["anytime"], taken = used.anytime(images)
                    views.append(taken.cpu())
            else:
                features = used.view_features(images) if aggregates else used.features(images)
                logits = used.logits_of_features(features)
                rule = model.anytime_rule if "anytime" in found else None
                if by_view or rule is not None:
                    own = used.view_logits(features)
                if by_view:
                    parts.append(own[batch.indices % each == 0].float().cpu())
                if rule is not None:
                    logits["anytime"], taken = settle(own, rule)
                    views.append(taken.cpu())
        for inference, values in logits.items():
            found[inference].append(values.float().cpu())
    logits = {inference: _finite(torch.cat(values), inference) for inference, values in found.items()}
    return Outputs(
        logits,
        torch.as_tensor(dataset.targets),
        np.concatenate(keys),
        torch.cat(views) if views else None,
        torch.cat(parts) if parts else None,
    )


def find_rules(outputs: Outputs) -> list[AnytimeRule]:
    """Anytime rules from held-out images; none if the method does not aggregate view by view."""
    if outputs.by_view is None:
        return []
    if len(outputs.by_view) == len(outputs.targets):  # a method of one's own may aggregate otherwise
        ours, answers = outputs.by_view.mean(1), outputs.logits["aggregated"]
        if not torch.allclose(ours, answers, rtol=1e-3, atol=1e-3 * float(answers.abs().max())):
            return []
    return calibrate(outputs.by_view)


@torch.inference_mode()
def infer_crops(
    model: Classifier,
    dataset: Dataset,
    pipelines: Sequence[Callable[[Tensor, Draws, Tensor], Tensor]],
    inference: str,
    **passing: Any,
) -> Tensor:
    """Class logits (n, N), the mean over what the pipelines make of each image (ten-crop, flips)."""
    found: list[Tensor] = []
    for batch in iterate_eval(model, dataset, **passing):
        crops = (pipeline(batch.images, batch.draws, batch.aspect) for pipeline in pipelines)
        found.append(torch.stack([model.logits(crop, inference) for crop in crops]).mean(0).float().cpu())
    return _finite(torch.cat(found), inference)


def _finite(logits: Tensor, inference: str) -> Tensor:
    """The logits (n, N), refused where one is no finite number."""
    bad = int((~logits.isfinite()).any(1).sum())
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
    passing = {"progress": progress, "what": "evaluating held-out images", "group": group}
    for batch in iterate_eval(model, dataset, batch_size, workers, **passing):  # type: ignore[arg-type]
        logits = model.logits_by_inference(pipeline(batch.images, batch.draws, batch.aspect))
        right += torch.stack(
            [(logits[inference].argmax(1) == batch.targets).sum() for inference in inferences]
        )
    shares = [100 * hits / len(dataset) for hits in group.sum(right).tolist()]
    return dict(zip(inferences, shares, strict=True))
