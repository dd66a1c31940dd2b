"""The confusion matrix, the most frequent confusions and the accuracy of each class."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from sla.stats import Interval, share

MOST_IN_TABLE = 25  # classes; more are drawn as a picture
MOST_PIXELS = 400  # of the picture's edge; with more classes, neighbours share a pixel
CORRECT, WRONG = (46, 160, 67), (218, 54, 51)  # visible on light and on dark


class Confusion(NamedTuple):
    """How many images of one class were predicted as another, and their share of the class in percent."""

    true: int
    predicted: int
    images: int
    share: float


class ClassAccuracy(NamedTuple):
    """One class: its images, how many were correct, and the class it is most often confused with."""

    name: str
    images: int
    correct: int
    accuracy: Interval
    confused: Confusion | None


class Matrix(NamedTuple):
    """The counts as numbers, or for many classes as an RGBA picture with `together` classes to a pixel."""

    counts: list[list[int]]
    picture: Tensor | None
    together: int


def confusion_matrix(targets: Tensor, predicted: Tensor, num_classes: int) -> Matrix:
    """Counts by true class (row) and predicted class (column)."""
    together = -(-num_classes // MOST_PIXELS)
    size = -(-num_classes // together)
    places = targets // together * size + predicted // together
    counts = torch.bincount(places, minlength=size * size).view(size, size)
    if size <= MOST_IN_TABLE:
        return Matrix(counts.tolist(), None, 1)
    shares = counts / counts.sum(1, keepdim=True).clamp(min=1)
    # A single mistake must be visible: opacity starts at a quarter.
    opacity = torch.where(counts > 0, 0.25 + 0.75 * shares.sqrt(), torch.zeros(()))
    colours = torch.tensor(WRONG).repeat(size, size, 1)
    colours[range(size), range(size)] = torch.tensor(CORRECT)
    pixels = torch.cat([colours, (255 * opacity).round().long().unsqueeze(2)], 2).permute(2, 0, 1)
    return Matrix([], pixels, together)


def confusions(targets: Tensor, predicted: Tensor) -> list[Confusion]:
    """Every pair of a class and a wrong prediction, most frequent first."""
    wrong = torch.stack([targets, predicted], 1)[predicted != targets]
    pairs, counts = wrong.unique(dim=0, return_counts=True)
    totals = torch.bincount(targets).tolist()
    order = counts.argsort(descending=True, stable=True)  # the pairs come sorted
    found = zip(pairs[order].tolist(), counts[order].tolist(), strict=True)
    return [Confusion(true, other, n, 100 * n / totals[true]) for (true, other), n in found]


def class_accuracies(targets: Tensor, predicted: Tensor, classes: Sequence[str]) -> list[ClassAccuracy]:
    """The accuracy of every class, worst first; classes without images come last."""
    totals = torch.bincount(targets, minlength=len(classes)).tolist()
    hits = torch.bincount(targets[targets == predicted], minlength=len(classes)).tolist()
    worst = {one.true: one for one in reversed(confusions(targets, predicted))}
    order = sorted(range(len(classes)), key=lambda c: (not totals[c], hits[c] / max(totals[c], 1), c))
    shares = [share(*pair) for pair in zip(hits, totals, strict=True)]
    return [ClassAccuracy(classes[c], totals[c], hits[c], shares[c], worst.get(c)) for c in order]
