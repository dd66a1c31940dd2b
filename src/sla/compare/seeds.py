"""Runs that differ in their seed, side by side: the mean over seeds, and two methods paired by seed."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sla.errors import InputError, shown
from sla.runs.config import differing_keys
from sla.stats import TINY, Interval, interval, paired
from sla.tasks.classifier.run import Run

CHOSEN = "as chosen"


@dataclass(frozen=True)
class SeedRow:
    """One inference of a method: accuracies in percent, by seed."""

    method: str
    inference: str
    values: dict[int, float]

    @property
    def mean(self) -> Interval:
        """Over the seeds, with its 95% interval by Student's t; unknown (nan) where all are equal."""
        return _known(interval(list(self.values.values())))


@dataclass(frozen=True)
class SeedTable:
    """Every inference of every method, on the images of one split; the others are compared with the first."""

    split: str  # test, or val where there are no test images
    images: int
    seeds: list[int]
    rows: list[SeedRow]
    headlines: dict[str, str]  # by method

    def headline(self, method: str) -> SeedRow:
        """The row by which a method is judged."""
        wanted = method, self.headlines[method]
        return next(row for row in self.rows if (row.method, row.inference) == wanted)

    def differences(self) -> list[tuple[SeedRow, SeedRow, Interval]]:
        """The first method against each other one, paired by seed, by their headline inference."""
        first, *others = [self.headline(method) for method in self.headlines]
        return [
            (
                first,
                other,
                _known(paired([first.values[s] for s in self.seeds], [other.values[s] for s in self.seeds])),
            )
            for other in others
        ]


def _known(found: Interval) -> Interval:
    """Few seeds that happen to agree say nothing about how far others would differ."""
    equal = found.high - found.low < TINY
    return Interval(found.mean, math.nan, math.nan) if equal else found


def compare_seeds(runs: Sequence[Run]) -> SeedTable:
    """The table of finished runs: the same data, methods and seeds, every method with every seed.

    Accuracies are those of their results: on all test images, else on all held-out ones, which do not depend
    on the seed. The last checkpoint is taken, and what the run itself chose where that is another.
    """
    first = runs[0]
    for run in runs[1:]:
        if other := [line for line in differing_keys(run.config, first.config) if line.startswith("data.")]:
            raise InputError(f"{shown(run.folder)}: other data than {shown(first.folder)}: {other[0]}")
        if any(run.result["images"][part] != first.result["images"][part] for part in ("val", "test")):
            raise InputError(f"{shown(run.folder)}: not as many images as {shown(first.folder)} is judged on")
    split = "test" if first.result["images"]["test"] else "val"
    found: dict[tuple[str, str], dict[int, float]] = {}
    headlines = {}
    for run in runs:
        method, seed, accuracies = run.config.method.name, run.config.run.seed, run.result["accuracies"]
        headlines[method] = run.result["headline"]
        for inference, scores in accuracies["last"][split].items():
            found.setdefault((method, inference), {})[seed] = scores["top1"]
        chosen = run.result.get("chosen")
        if chosen is not None:
            top1 = accuracies[chosen["checkpoint"]][split][chosen["inference"]]["top1"]
            found.setdefault((method, CHOSEN), {})[seed] = top1
    seeds = sorted({run.config.run.seed for run in runs})
    for method in headlines:
        if len(found.get((method, CHOSEN), {})) == len(seeds):
            headlines[method] = CHOSEN
    rows = [SeedRow(*key, values) for key, values in found.items() if len(values) == len(seeds)]
    return SeedTable(split, first.result["images"][split], seeds, rows, headlines)
