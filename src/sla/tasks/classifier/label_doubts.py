"""Labels worth checking: those that a model doubts which has not learnt from them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from sla.images.store import Dataset
from sla.stats import Interval, share


class Judged(NamedTuple):
    """Pictures of a split with their labels, and the class logits (n, N) of a model that did not learn those.

    The logits are calibrated: their softmax is the probability of each class.
    """

    split: str
    dataset: Dataset
    logits: Tensor


class Doubt(NamedTuple):
    """A picture whose label is not the most probable class.

    `odds`: the logarithm of how many times more probable the suggested class is than the label.
    """

    split: str
    dataset: Dataset
    place: int
    label: int
    suggested: int
    label_probability: float
    probability: float
    odds: float

    @property
    def name(self) -> str:
        """The file of the picture."""
        return self.dataset.name(self.place)


@dataclass(frozen=True)
class LabelCheck:
    """Pictures that were judged, by which model, and notes on those that were not."""

    classes: tuple[str, ...]
    judged: Sequence[Judged]
    by: str
    notes: tuple[str, ...] = ()

    @property
    def images(self) -> int:
        """How many pictures were judged."""
        return sum(len(part.dataset) for part in self.judged)

    @property
    def agreement(self) -> Interval:
        """The share of them whose label is the most probable class, in percent."""
        return share(self.images - len(self.doubts), self.images)

    @cached_property
    def doubts(self) -> list[Doubt]:
        """The pictures whose label is doubted, the most doubted first."""
        found = [doubt for part in self.judged for doubt in _doubts(part)]
        return sorted(found, key=lambda doubt: -doubt.odds)


def label_odds(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """log p(suggested) / p(label) (n,) and the suggested class (n,): the most probable but for the label.

    It is above 0 where the label is doubted. Among other rules it was chosen on labels that were flipped to
    any and to a similar class: the probability of the label alone is worse for the latter, and the difference
    of both probabilities for the former.
    """
    own = logits.gather(1, targets.unsqueeze(1))
    best = logits.scatter(1, targets.unsqueeze(1), -torch.inf).max(1)
    return best.values - own.squeeze(1), best.indices


def _doubts(part: Judged) -> list[Doubt]:
    targets = torch.from_numpy(part.dataset.targets)
    odds, suggested = label_odds(part.logits, targets)
    found = []
    for place in (odds > 0).nonzero().squeeze(1).tolist():
        label, other = int(targets[place]), int(suggested[place])
        probabilities = part.logits[place].double().softmax(0)
        values = float(probabilities[label]), float(probabilities[other]), float(odds[place])
        found.append(Doubt(part.split, part.dataset, place, label, other, *values))
    return found
