"""Frequent and rare classes: accuracy by training images, balanced accuracy, the counts themselves."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from sla.report import html
from sla.runs.metrics import balanced_accuracy
from sla.stats import share
from sla.tasks.classifier.evaluation import Outputs
from sla.tasks.classifier.run import Run

EQUAL = 1.2  # the largest class has at most so many times the images of the smallest: nothing to tell apart
MANY, FEW = 100, 20  # training images: above MANY is many-shot, below FEW is few-shot
PARTS = {
    1: ("all classes",),
    2: ("more frequent half", "rarer half"),
    3: ("most frequent third", "middle third", "rarest third"),
}


class Shots(NamedTuple):
    """Classes with about as many training images, by number."""

    name: str
    classes: list[int]


def shot_groups(counts: Sequence[int]) -> list[Shots]:
    """Many-, medium- and few-shot classes; thirds by frequency where one of these would be empty."""
    numbers = range(len(counts))
    groups = [
        Shots(f"many-shot, over {MANY}", [c for c in numbers if counts[c] > MANY]),
        Shots(f"medium-shot, {FEW} to {MANY}", [c for c in numbers if FEW <= counts[c] <= MANY]),
        Shots(f"few-shot, below {FEW}", [c for c in numbers if counts[c] < FEW]),
    ]
    if all(group.classes for group in groups):
        return groups
    order = sorted(numbers, key=lambda c: (-counts[c], c))
    names = PARTS[min(len(order), 3)]
    pieces = torch.tensor(order).tensor_split(len(names))
    return [Shots(name, sorted(piece.tolist())) for name, piece in zip(names, pieces, strict=True)]


def train_counts(result: dict[str, Any], num_classes: int) -> list[int] | None:
    """The training images of each class as a result has them; None where it does not say."""
    counts = result.get("train_counts")
    if not isinstance(counts, list) or len(counts) != num_classes:
        return None
    return counts if all(type(n) is int and n >= 0 for n in counts) else None


def frequency_part(run: Run, outputs: Outputs, classes: Sequence[str]) -> str:
    """Accuracy by kind of inference for frequent and rare classes, and how many images each had."""
    counts = train_counts(run.result, len(classes))
    groups: list[Shots] = []
    if counts is None:
        words = "How many training images each class had is not known: the run has no whole result.json."
    elif max(counts) <= EQUAL * min(counts):
        reached = (f"{inference} {value}" for inference, value in _balanced(outputs).items())
        words = (
            f"Every class has {_range(counts)} training images. Balanced accuracy, the mean over classes: "
        )
        return html.paragraph(words + ", ".join(reached) + ".", "soft")
    else:
        groups = shot_groups(counts)
        words = f"Classes have {min(counts):,} to {max(counts):,} training images. "
        words += (
            f"A group's accuracy is that of its images; method.imbalance is {run.config.method.imbalance}."
        )
        if groups[0].name in PARTS[min(len(classes), 3)]:
            words += f" Not all of over {MANY}, {FEW} to {MANY} and below {FEW} occur: parts of equal size."
    headline, kinds = run.model.method.headline, list(outputs.logits)
    rows = [_row(group, counts or [], outputs, headline) for group in groups]
    present = len(outputs.targets.unique())
    each = _range(counts) if counts else ""
    count = f"{len(outputs.targets):,}"
    rows.append(
        ["balanced: mean over classes", f"{present:,}", each, count, *_balanced(outputs).values(), ""]
    )
    names = [inference + (" *" if inference == headline else "") for inference in kinds]
    header = ("classes", "number", "training images", "images here", *names, "95% interval *")
    table = html.table(header, rows, "Accuracy by frequency")
    return html.paragraph(words, "soft") + table + (_all_counts(counts, classes) if counts else "")


def _balanced(outputs: Outputs) -> dict[str, str]:
    """Of each kind of inference, as it is shown."""
    found = outputs.logits.items()
    return {inference: f"{balanced_accuracy(logits, outputs.targets):.2f}%" for inference, logits in found}


def _row(group: Shots, counts: Sequence[int], outputs: Outputs, headline: str) -> list[str]:
    own = torch.isin(outputs.targets, torch.tensor(group.classes))
    numbers, images = [counts[c] for c in group.classes], int(own.sum())
    hits = {
        inference: int((logits[own].argmax(1) == outputs.targets[own]).sum())
        for inference, logits in outputs.logits.items()
    }
    reached = [f"{100 * n / images:.2f}%" if images else "" for n in hits.values()]
    _, low, high = share(hits[headline], images)
    return [
        group.name,
        f"{len(group.classes):,}",
        _range(numbers),
        f"{images:,}",
        *reached,
        f"{low:.1f} to {high:.1f}" if images else "",
    ]


def _range(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _all_counts(counts: Sequence[int], classes: Sequence[str]) -> str:
    order = sorted(range(len(counts)), key=lambda c: (-counts[c], c))
    rows: list[list[str | html.Shaded]] = []
    for c in order:
        rows.append([classes[c], html.Shaded(f"{counts[c]:,}", counts[c] / max(max(counts), 1))])
    table = html.table(("class", "training images"), rows, "Training images of each class", "scroll tall")
    return html.details(f"Training images of all {len(counts):,} classes, the most first", table)
