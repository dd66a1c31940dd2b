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


class Group(NamedTuple):
    """Classes with about as many training images, by number."""

    name: str
    classes: list[int]


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
    range: str
    equal: bool  # classes are about equally frequent
    thirds: bool  # groups are of equal size, not by number of training images
    balanced: dict[str, float]
    rows: list[GroupAccuracy]


def shot_groups(counts: Sequence[int]) -> list[Group]:
    """Many-, medium- and few-shot classes; thirds by frequency if one of these would be empty."""
    numbers = range(len(counts))
    groups = [
        Group(f"many-shot, over {MANY}", [c for c in numbers if counts[c] > MANY]),
        Group(f"medium-shot, {FEW} to {MANY}", [c for c in numbers if FEW <= counts[c] <= MANY]),
        Group(f"few-shot, below {FEW}", [c for c in numbers if counts[c] < FEW]),
    ]
    if all(group.classes for group in groups):
        return groups
    order = sorted(numbers, key=lambda c: (-counts[c], c))
    names = PARTS[min(len(order), 3)]
    pieces = torch.tensor(order).tensor_split(len(names))
    return [Group(name, sorted(piece.tolist())) for name, piece in zip(names, pieces, strict=True)]


def train_counts(result: dict[str, Any], num_classes: int) -> list[int] | None:
    """The training images of each class as a result has them; None if missing or damaged."""
    counts = result.get("train_counts")
    if not isinstance(counts, list) or len(counts) != num_classes:
        return None
    return counts if all(type(n) is int and n >= 0 for n in counts) else None


def frequencies(
    result: dict[str, Any], outputs: Outputs, headline: str, classes: Sequence[str]
) -> Frequencies:
    """Accuracy by inference for frequent and rare classes, and balanced over all of them."""
    counts = train_counts(result, len(classes))
    balanced = {name: balanced_accuracy(logits, outputs.targets) for name, logits in outputs.logits.items()}
    present, images = len(outputs.targets.unique()), len(outputs.targets)
    reach = _range(counts) if counts else ""
    overall = GroupAccuracy(
        "balanced (mean over classes)", present, reach, images, list(balanced.values()), None
    )
    if counts is None:
        return Frequencies(None, reach, False, False, balanced, [overall])
    groups, order = shot_groups(counts), sorted(range(len(counts)), key=lambda c: (-counts[c], c))
    return Frequencies(
        [(classes[c], counts[c]) for c in order],
        reach,
        max(counts) <= EQUAL * min(counts),
        groups[0].name in PARTS[min(len(classes), 3)],
        balanced,
        [*(_accuracy(group, counts, outputs, headline) for group in groups), overall],
    )


def _accuracy(group: Group, counts: Sequence[int], outputs: Outputs, headline: str) -> GroupAccuracy:
    own = torch.isin(outputs.targets, torch.tensor(group.classes))
    images, targets = int(own.sum()), outputs.targets[own]
    hits = {name: int((logits[own].argmax(1) == targets).sum()) for name, logits in outputs.logits.items()}
    return GroupAccuracy(
        group.name,
        len(group.classes),
        _range([counts[c] for c in group.classes]),
        images,
        [100 * n / images if images else None for n in hits.values()],
        share(hits[headline], images) if images else None,
    )


def _range(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
