"""Every kind of inference over a dataset, side by side."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sla.augment.ops import Pipeline
from sla.classifier import Classifier
from sla.errors import SLAError
from sla.images.content import content_keys
from sla.images.store import Dataset
from sla.runs.distributed import Group
from sla.runs.evaluation import iterate_eval
from sla.runs.metrics import (
    balanced_accuracy,
    calibration_error,
    negative_log_likelihood,
    top_k_accuracy,
)
from sla.sampling.draws import Draws


@dataclass(frozen=True)
class Outputs:
    """Class logits (n, N) by inference, classes (n,), and the images' content keys (n,), on the CPU."""

    logits: dict[str, Tensor]
    targets: Tensor
    keys: np.ndarray | None = None

    def scores(self, temperatures: dict[str, float] | None = None) -> dict[str, dict[str, float]]:
        """For each kind: top1, top5, balanced (the mean over classes) and ece in percent, and nll.

        The last two are calibrated where a temperature is given.
        """
        temperatures = temperatures or {}
        return {
            inference: {
                "top1": top_k_accuracy(logits, self.targets),
                "top5": top_k_accuracy(logits, self.targets, 5),
                "balanced": balanced_accuracy(logits, self.targets),
                "ece": calibration_error(logits, self.targets, temperatures.get(inference, 1.0)),
                "nll": negative_log_likelihood(logits, self.targets, temperatures.get(inference, 1.0)),
            }
            for inference, logits in self.logits.items()
        }


@torch.inference_mode()
def infer(
    model: Classifier,
    dataset: Dataset,
    pipeline: Pipeline,
    *,
    inferences: tuple[str, ...] | None = None,
    **passing: Any,
) -> Outputs:
    """The class logits of a whole dataset; all kinds share one pass over the views unless some are named.

    `passing`: batch_size, workers, progress and what, as `iterate_eval` has them.
    """
    found: dict[str, list[Tensor]] = {inference: [] for inference in inferences or model.method.inferences}
    keys = [np.empty(0, np.uint64)]
    for batch in iterate_eval(model, dataset, **passing):
        images = pipeline(batch.images, batch.draws, batch.aspect)
        keys.append(content_keys(batch.images))
        if inferences is None:
            logits = model.logits_by_inference(images)
        else:
            logits = {inference: model.logits(images, inference) for inference in inferences}
        for inference, values in logits.items():
            found[inference].append(values.float().cpu())
    logits = {inference: _finite(torch.cat(parts), inference) for inference, parts in found.items()}
    return Outputs(logits, torch.as_tensor(dataset.targets), np.concatenate(keys))


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
    model: Classifier, dataset: Dataset, pipeline: Pipeline, batch_size: int, workers: int, group: Group
) -> dict[str, float]:
    """Accuracy in percent by kind of inference; every process takes its share of the images."""
    inferences = model.method.inferences
    right = torch.zeros(len(inferences), device=next(model.parameters()).device)
    for batch in iterate_eval(model, dataset, batch_size, workers, group=group):
        logits = model.logits_by_inference(pipeline(batch.images, batch.draws, batch.aspect))
        right += torch.stack(
            [(logits[inference].argmax(1) == batch.targets).sum() for inference in inferences]
        )
    shares = [100 * hits / len(dataset) for hits in group.sum(right).tolist()]
    return dict(zip(inferences, shares, strict=True))
