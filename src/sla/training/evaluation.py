"""Every kind of inference over a dataset, side by side."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from sla.classifier import Classifier
from sla.data.augment import Pipeline
from sla.data.loader import EvalLoader
from sla.data.store import Dataset
from sla.training.distributed import Group
from sla.training.metrics import calibration_error, negative_log_likelihood, top_k_accuracy

Tick = Callable[[int, int], None]  # images done, images in all


@dataclass(frozen=True)
class Outputs:
    """Class logits (n, N) by kind of inference, and the classes (n,), on the CPU."""

    logits: dict[str, Tensor]
    targets: Tensor

    def scores(self, temperatures: dict[str, float] | None = None) -> dict[str, dict[str, float]]:
        """For each kind: top1, top5 and ece in percent, and nll; calibrated where a temperature is given."""
        temperatures = temperatures or {}
        return {
            how: {
                "top1": top_k_accuracy(logits, self.targets),
                "top5": top_k_accuracy(logits, self.targets, 5),
                "ece": calibration_error(logits, self.targets, temperatures.get(how, 1.0)),
                "nll": negative_log_likelihood(logits, self.targets, temperatures.get(how, 1.0)),
            }
            for how, logits in self.logits.items()
        }


@torch.inference_mode()
def infer(
    model: Classifier,
    dataset: Dataset,
    pipeline: Pipeline,
    *,
    batch_size: int = 128,
    workers: int = 0,
    kinds: tuple[str, ...] | None = None,
    tick: Tick | None = None,
) -> Outputs:
    """The class logits of a whole dataset; all kinds share one look at each view unless some are named."""
    was_training, device = model.training, next(model.parameters()).device
    model.eval()
    found: dict[str, list[Tensor]] = {}
    done = 0
    for batch in EvalLoader(dataset, batch_size, workers=workers, device=device):
        images = pipeline(batch.images, batch.draws, batch.aspect)
        if kinds is None:
            logits = model.logits_by_kind(images)
        else:
            logits = {how: model.logits(images, how) for how in kinds}
        for how, values in logits.items():
            found.setdefault(how, []).append(values.float().cpu())
        done += len(images)
        if tick is not None:
            tick(done, len(dataset))
    model.train(was_training)
    return Outputs({how: torch.cat(parts) for how, parts in found.items()}, torch.as_tensor(dataset.targets))


@torch.inference_mode()
def accuracies(
    model: Classifier, dataset: Dataset, pipeline: Pipeline, batch_size: int, workers: int, group: Group
) -> dict[str, float]:
    """Accuracy in percent by kind of inference; every process looks at its share of the images."""
    was_training, device = model.training, next(model.parameters()).device
    model.eval()
    kinds = model.method.kinds
    right = torch.zeros(len(kinds), dtype=torch.float64, device=device)
    loader = EvalLoader(
        dataset, batch_size, rank=group.rank, world_size=group.world_size, workers=workers, device=device
    )
    for batch in loader:
        logits = model.logits_by_kind(pipeline(batch.images, batch.draws, batch.aspect))
        for place, how in enumerate(kinds):
            right[place] += (logits[how].argmax(1) == batch.targets).sum()
    model.train(was_training)
    return dict(zip(kinds, (100 * group.sum(right) / len(dataset)).tolist(), strict=True))
