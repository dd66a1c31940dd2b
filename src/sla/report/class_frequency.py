"""Accuracy of frequent and rare classes, and how many training images each class had."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from sla.runs.metrics import balanced_accuracy
from sla.stats import Interval, share
from sla.tasks.classifier.evaluation import Outputs

EQUAL = 1.2  # largest / smallest class, up to which classes count as equally frequent
MANY, FEW = 100, 20  # training images: above MANY is many-shot, below FEW is few-shot
PARTS = {
    1: ("all classes",),
    2: ("more frequent half", "rarer half"),
    3: ("most frequent third", "middle third", "rarest third"),
}


class GroupAccuracy(NamedTuple):
    """Accuracies in percent by inference on the images of a group; `interval` is that of the headline."""

    name: str
    classes: int
    train_images: str
    images: int
    accuracies: list[float | None]
    interval: Interval | None


class Frequencies(NamedTuple):
    """Accuracy by class frequency; counts are None where the result has none."""

    counts: list[tuple[str, int]] | None  # by class name, most frequent first
    equal: bool  # classes are about equally frequent
    thirds: bool  # groups are of equal size, not by number of training images
    groups: list[GroupAccuracy]
    balanced: GroupAccuracy


def shot_groups(counts: Sequence[int]) -> dict[str, list[int]]:
    """Many-, medium- and few-shot classes by name; thirds by frequency if one of these would be empty."""
    numbers = range(len(counts))
    groups = {
        f"many-shot, over {MANY}": [c for c in numbers if counts[c] > MANY],
        f"medium-shot, {FEW} to {MANY}": [c for c in numbers if FEW <= counts[c] <= MANY],
        f"few-shot, below {FEW}": [c for c in numbers if counts[c] < FEW],
    }
    if all(groups.values()):
        return groups
    order = sorted(numbers, key=lambda c: (-counts[c], c))
    names = PARTS[min(len(order), 3)]
    pieces = torch.tensor(order).tensor_split(len(names))
    return {name: sorted(piece.tolist()) for name, piece in zip(names, pieces, strict=True)}


def train_counts(result: dict[str, Any], num_classes: int) -> list[int] | None:
    """The training images of each class as a result has them; None if missing or damaged."""
    counts = result.get("train_counts")
    if not isinstance(counts, list) or len(counts) != num_classes:
        return None
    return counts if all(type(n) is int and n >= 0 for n in counts) else None


def frequencies(result: dict, outputs: Outputs, headline: str, classes: Sequence[str]) -> Frequencies:
    """Accuracy by inference for frequent and rare classes, and balanced over all of them."""
    counts, targets = train_counts(result, len(classes)), outputs.targets
    means: list[float | None] = [balanced_accuracy(logits, targets) for logits in outputs.logits.values()]
    numbers, present = _range(counts or []), len(targets.unique())
    balanced = GroupAccuracy("balanced (mean over classes)", present, numbers, len(targets), means, None)
    if counts is None:
        return Frequencies(None, False, False, [], balanced)
    order, groups = sorted(range(len(counts)), key=lambda c: (-counts[c], c)), shot_groups(counts)
    return Frequencies(
        [(classes[c], counts[c]) for c in order],
        max(counts) <= EQUAL * min(counts),
        next(iter(groups)) in PARTS[min(len(classes), 3)],
        [_accuracy(name, own, counts, outputs, headline) for name, own in groups.items()],
        balanced,
    )


def _accuracy(
    name: str, classes: list[int], counts: list[int], outputs: Outputs, headline: str
) -> GroupAccuracy:
    own = torch.isin(outputs.targets, torch.tensor(classes))
    images, targets = int(own.sum()), outputs.targets[own]
    hits = {key: int((logits[own].argmax(1) == targets).sum()) for key, logits in outputs.logits.items()}
    accuracies = [100 * n / images if images else None for n in hits.values()]
    interval = share(hits[headline], images) if images else None
    numbers = _range([counts[c] for c in classes])
    return GroupAccuracy(name, len(classes), numbers, images, accuracies, interval)


def _range(numbers: Sequence[int]) -> str:
    return " to ".join(f"{n:,}" for n in sorted({min(numbers), max(numbers)})) if numbers else ""
