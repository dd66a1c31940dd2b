"""How good features are, by labelled images: nearest neighbours, and a linear classifier on top of them."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sla.augment.ops import Pipeline
from sla.errors import SLAError
from sla.images.store import Dataset
from sla.runs.evaluation import iterate_eval
from sla.tasks.classifier.linear_fit import cross_validate, fit_reduced, reduce
from sla.tasks.simclr.model import SimCLRModel

KNN, LINEAR = "knn", "linear"
NEIGHBOURS = 20
SHARPNESS = 0.1  # a neighbour with cosine similarity s has exp(s / 0.1) of a vote
PART = 1024  # images that are compared with all others at a time


@torch.inference_mode()
def embed(model: SimCLRModel, dataset: Dataset, pipeline: Pipeline, **passing: Any) -> Tensor:
    """The features of every image at length 1, float32 (n, D), on the CPU.

    `passing`: batch_size, workers, progress and what, as `iterate_eval` has them.
    """
    found = []
    for batch in iterate_eval(model, dataset, **passing):
        images = pipeline(batch.images, batch.draws, batch.aspect)
        features = model.features(images.contiguous(memory_format=torch.channels_last))
        found.append(F.normalize(features.float(), dim=1).cpu())
    whole = torch.cat(found)
    if bad := int((~whole.isfinite().all(1)).sum()):
        raise SLAError(
            f"the features of {bad:,} of {len(whole):,} images are NaN or infinite: the weights are damaged, "
            "or training diverged"
        )
    return whole


def neighbour_votes(
    known: Tensor, targets: Tensor, asked: Tensor, num_classes: int, *, itself: bool = False
) -> Tensor:
    """(m, N) votes for the classes of `asked` (m, D) by their nearest neighbours among `known` (n, D).

    `itself`: both are the same images, and none votes for itself.
    """
    votes, count = [], min(NEIGHBOURS, len(known) - int(itself))
    for start in range(0, len(asked), PART):
        similar = asked[start : start + PART] @ known.T
        if itself:
            similar.diagonal(start).fill_(-torch.inf)
        nearest = similar.topk(count, dim=1)
        weight = (nearest.values / SHARPNESS).exp()
        blank = weight.new_zeros(len(similar), num_classes)
        votes.append(blank.scatter_add(1, targets[nearest.indices], weight))
    return torch.cat(votes)


def score_within(features: Tensor, targets: Tensor, num_classes: int) -> dict[str, float]:
    """Accuracies in percent on labelled images (n, D), each judged by the others.

    By neighbours, every image is left out in turn; the linear classifier is cross-validated, and missing
    where no class has two images.
    """
    scores = {KNN: _percent(neighbour_votes(features, targets, features, num_classes, itself=True), targets)}
    found = cross_validate(reduce(features.unsqueeze(1)), targets, num_classes)
    if len(found.logits):
        scores[LINEAR] = _percent(found.logits, targets[found.held])
    return scores


def score_between(
    known: Tensor, targets: Tensor, asked: Tensor, wanted: Tensor, num_classes: int
) -> dict[str, float]:
    """Accuracies in percent on `asked` (m, D), by neighbours and a classifier of `known` (n, D)."""
    reduced = reduce(known.unsqueeze(1))
    penalty = cross_validate(reduced, targets, num_classes).penalty
    linear = reduced.restore(fit_reduced(reduced, targets, num_classes, penalty))
    votes = neighbour_votes(known, targets, asked, num_classes)
    return {KNN: _percent(votes, wanted), LINEAR: _percent(linear.logits(asked.double()), wanted)}


def _percent(scores: Tensor, targets: Tensor) -> float:
    return 100 * (scores.argmax(1) == targets).double().mean().item()
