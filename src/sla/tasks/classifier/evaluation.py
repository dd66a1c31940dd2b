"""Every kind of inference over a dataset, side by side."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sla.augment.ops import Pipeline
from sla.classifier import Classifier
from sla.images.files import Tick
from sla.images.store import Dataset
from sla.runs.distributed import Group
from sla.runs.metrics import (
    balanced_accuracy,
    calibration_error,
    negative_log_likelihood,
    top_k_accuracy,
)
from sla.sampling.loader import Batch, EvalLoader

ALONE = Group()


@dataclass(frozen=True)
class Outputs:
    """Class logits (n, N) by kind of inference, and the classes (n,), on the CPU."""

    logits: dict[str, Tensor]
    targets: Tensor

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


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model in eval mode, inside the block; each of its modules returns to its own mode after it."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


def iterate_eval(
    model: nn.Module,
    dataset: Dataset,
    batch_size: int = 128,
    workers: int = 0,
    tick: Tick | None = None,
    group: Group = ALONE,
) -> Iterator[Batch]:
    """The images of a dataset on the model's device, while the model is in eval mode."""
    device, done = next(model.parameters()).device, 0
    part = {"rank": group.rank, "world_size": group.world_size}
    with evaluating(model):
        for batch in EvalLoader(dataset, batch_size, workers=workers, device=device, **part):
            yield batch
            done += len(batch.images)
            if tick is not None:
                tick(done, len(dataset))


@torch.inference_mode()
def infer(
    model: Classifier,
    dataset: Dataset,
    pipeline: Pipeline,
    *,
    inferences: tuple[str, ...] | None = None,
    **looking: Any,
) -> Outputs:
    """The class logits of a whole dataset; all kinds share one look at each view unless some are named.

    `looking`: batch_size, workers and tick, as `look_at` has them.
    """
    found: dict[str, list[Tensor]] = {inference: [] for inference in inferences or model.method.inferences}
    for batch in iterate_eval(model, dataset, **looking):
        images = pipeline(batch.images, batch.draws, batch.aspect)
        if inferences is None:
            logits = model.logits_by_inference(images)
        else:
            logits = {inference: model.logits(images, inference) for inference in inferences}
        for inference, values in logits.items():
            found[inference].append(values.float().cpu())
    return Outputs(
        {inference: torch.cat(parts) for inference, parts in found.items()}, torch.as_tensor(dataset.targets)
    )


@torch.inference_mode()
def infer_crops(
    model: Classifier, dataset: Dataset, pipelines: Sequence[Pipeline], inference: str, **looking: Any
) -> Tensor:
    """Class logits (n, N), the mean over what the pipelines make of each image (ten-crop)."""
    found: list[Tensor] = []
    for batch in iterate_eval(model, dataset, **looking):
        crops = (pipeline(batch.images, batch.draws, batch.aspect) for pipeline in pipelines)
        found.append(torch.stack([model.logits(crop, inference) for crop in crops]).mean(0).float().cpu())
    return torch.cat(found)


@torch.inference_mode()
def accuracies(
    model: Classifier, dataset: Dataset, pipeline: Pipeline, batch_size: int, workers: int, group: Group
) -> dict[str, float]:
    """Accuracy in percent by kind of inference; every process looks at its share of the images."""
    inferences = model.method.inferences
    right = torch.zeros(len(inferences), device=next(model.parameters()).device)
    for batch in iterate_eval(model, dataset, batch_size, workers, group=group):
        logits = model.logits_by_inference(pipeline(batch.images, batch.draws, batch.aspect))
        right += torch.stack(
            [(logits[inference].argmax(1) == batch.targets).sum() for inference in inferences]
        )
    shares = [100 * hits / len(dataset) for hits in group.sum(right).tolist()]
    return dict(zip(inferences, shares, strict=True))
