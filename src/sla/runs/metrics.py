"""What is measured of predictions: accuracy, calibration, and the table of a run's metrics."""

import csv
import io
import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from sla.disk import replacing
from sla.errors import InputError, SLAWarning, shown
from sla.labels import MixedTarget, Target, shares
from sla.runs.distributed import Group

BINS = 15  # of confidence, for the calibration error
HOTTEST = 20.0  # temperature; the coldest is 1 / 20
PART = 1 << 17  # logits that are processed at a time
SAMPLE = 1 << 20  # logits on which a first temperature is fitted


def top_k_accuracy(logits: Tensor, targets: Tensor, k: int = 1) -> float:
    """The share of images whose class is among the k best, in percent."""
    best = logits.topk(min(k, logits.shape[1]), dim=1).indices
    return 100 * (best == targets.unsqueeze(1)).any(1).double().mean().item()


def balanced_accuracy(logits: Tensor, targets: Tensor) -> float:
    """The mean of the classes' accuracies, in percent; classes without images are left out."""
    counts = targets.bincount(minlength=logits.shape[1])
    hits = targets[logits.argmax(1) == targets].bincount(minlength=logits.shape[1])
    return 100 * (hits[counts > 0].double() / counts[counts > 0]).mean().item()


def calibration_error(logits: Tensor, targets: Tensor, temperature: float = 1.0) -> float:
    """ECE: the mean gap between confidence and accuracy over 15 equal bins of confidence, in percent."""
    confidence, predicted = (logits.double() / temperature).softmax(1).max(1)
    right = (predicted == targets).double()
    bins = (confidence * BINS).long().clamp(max=BINS - 1)
    gaps = torch.zeros(BINS, dtype=torch.float64).index_add(0, bins, right - confidence)
    return 100 * gaps.abs().sum().item() / len(targets)


def negative_log_likelihood(logits: Tensor, targets: Tensor, temperature: float = 1.0) -> float:
    """The mean cross entropy of the probabilities at this temperature."""
    return _losses(logits, targets, temperature).mean().item()


def fit_temperature(logits: Tensor, targets: Tensor) -> float:
    """The temperature of best likelihood on held-out images, between 1/20 and 20.

    The likelihood is convex in 1/T, so a golden-section search over it ends at the best one. Newton's method
    finds that beforehand. Nearly all comparisons of the search are then known: from where the mean loss falls
    and rises, from its Taylor series, or, far from the best, from some of the images.
    """
    shrink = (math.sqrt(5) - 1) / 2
    low, high = 1 / HOTTEST, HOTTEST
    every = max(logits.numel() // SAMPLE, 1)
    some = (logits[::every], targets[::every])
    start = _find_best(*some, 1.0).place if every > 1 else 1.0
    best = _find_best(logits, targets, start)
    while high - low > 1e-4 * low:
        left, right = high - shrink * (high - low), low + shrink * (high - low)
        sooner = best.is_lower(left, right)
        if sooner is None and every > 1:
            gain = _losses(*some, 1 / right) - _losses(*some, 1 / left)
            if abs(gain.mean()) > 10 * gain.std() / math.sqrt(len(gain)):  # ten standard errors: no chance
                sooner = bool(gain.mean() > 0)
        if sooner is None:
            one, other = (negative_log_likelihood(logits, targets, 1 / x) for x in (left, right))
            sooner = one < other
        if sooner:
            high = right
        else:
            low = left
    return 2 / (low + high)


def _losses(logits: Tensor, targets: Tensor, temperature: float) -> Tensor:
    """The cross entropy of each image, float64."""
    parts = [
        (some.double() / temperature).log_softmax(1).gather(1, own.unsqueeze(1))
        for some, own in _parts(logits, targets)
    ]
    return -torch.cat(parts)


def at_limit(temperature: float) -> bool:
    """Whether no temperature between the limits of `fit_temperature` was best: calibration failed."""
    return not 1.001 / HOTTEST < temperature < HOTTEST / 1.001


class _Best(NamedTuple):
    """The 1/T of least mean loss: where that still falls, where it rises, its Taylor series at `place`."""

    falls: float
    rises: float
    place: float
    bend: float
    third: float

    def is_lower(self, left: float, right: float) -> bool | None:
        """Whether the loss is lower at `left` than at `right`; None if that has to be computed."""
        if left >= self.rises or right <= self.falls:
            return left >= self.rises
        before, after = left - self.place, right - self.place
        if not before < 0 < after < 0.03 * self.place or -before > 0.03 * self.place:
            return None
        gain = self.bend / 2 * (after**2 - before**2) + self.third / 6 * (after**3 - before**3)
        clear = abs(gain) > 0.05 * self.bend / 2 * (after**2 + before**2)
        return gain > 0 if clear else None


def _find_best(logits: Tensor, targets: Tensor, place: float) -> _Best:
    """By Newton's method from `place`, kept between where the loss falls and where it rises."""
    low, high = 1 / HOTTEST, HOTTEST
    falls, rises = -math.inf, math.inf
    for _ in range(60):
        slope, bend, third = _derivatives(logits, targets, place)
        if slope < 0:
            falls = max(falls, place)
        elif slope > 0:
            rises = min(rises, place)
        if falls >= high or rises <= low or not bend > 0 or slope == 0:
            return _Best(falls, rises, place, math.nan, math.nan)  # at a limit, or flat: nothing to expand
        if abs(slope / bend) < 1e-5 * place:
            return _Best(falls, rises, place - slope / bend, bend, third)
        following = min(max(place - slope / bend, place / 8, low), place * 8, high)
        place = following if falls < following < rises else math.sqrt(max(falls, low) * min(rises, high))
    return _Best(falls, rises, place, math.nan, math.nan)


def _derivatives(logits: Tensor, targets: Tensor, scale: float) -> tuple[float, float, float]:
    """The first three derivatives of the mean loss by 1/T, at 1/T = scale: cumulants of the logits."""
    sums = [0.0, 0.0, 0.0]
    for some, own in _parts(logits, targets):
        values = some.double()
        values = values - values.amax(1, keepdim=True)  # a right answer's is 0: no rounding turns the slope
        probability = (scale * values).softmax(1)
        mean = torch.linalg.vecdot(probability, values)
        slope = mean - values.gather(1, own.unsqueeze(1)).squeeze(1)
        values.sub_(mean.unsqueeze(1))
        square = probability.mul_(values).mul_(values)
        for number, term in enumerate((slope, square.sum(1), torch.linalg.vecdot(square, values))):
            sums[number] += term.sum().item()
    slope_sum, bend, third = (total / len(targets) for total in sums)
    return slope_sum, bend, third


def _parts(logits: Tensor, targets: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Some images at a time, so that their values stay in the cache."""
    some = max(PART // logits.shape[1], 1)
    return zip(logits.split(some), targets.split(some), strict=True)


def cautious_temperature(logits: Tensor, targets: Tensor) -> float:
    """The temperature of best likelihood, as if one more image had been taken for its second choice.

    Without that one, a few images that are all right would make the model certain of everything.
    """
    best = logits.topk(2, 1)
    typical = (best.values[:, 0] - best.values[:, 1]).argsort()[len(logits) // 2]
    more = torch.cat([logits, logits[typical : typical + 1]])
    return fit_temperature(more, torch.cat([targets, best.indices[typical, 1:]]))


class Meter:
    """Sums of losses and hits since the last row, kept on the device: nothing waits until they are read."""

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}

    def add(self, losses: dict[str, Tensor], target: Target, share: float) -> None:
        """Take in `share` of a step's images: their mean losses and, from `output`, how many were right.

        Of a mixed image, the share that belongs to the predicted class is right.
        """
        right = 100 * _hits(losses["output"].argmax(1), target).mean()
        values = {name: value.detach().float() for name, value in losses.items() if name != "output"}
        for name, value in (values | {"train": right, "steps": torch.ones_like(right)}).items():
            self.sums[name] = self.sums.get(name, 0) + value * share

    @property
    def finite(self) -> bool:
        """Whether every loss so far was a number."""
        return bool(self.sums["loss"].isfinite()) if "loss" in self.sums else True

    def gather(self, group: Group) -> None:
        """The leading process takes over the sums of all."""
        if group.world_size > 1 and self.sums:
            names = sorted(self.sums)
            totals = group.sum(torch.stack([self.sums[name] for name in names]))
            kept = totals if group.leads else torch.zeros_like(totals)
            self.sums = dict(zip(names, kept, strict=True))

    def close(self, group: Group) -> dict[str, float]:
        """The means over all processes, for a row; then it starts anew."""
        names = sorted(self.sums)
        totals = group.sum(torch.stack([self.sums[name] for name in names])).tolist()
        self.sums = {}
        means = dict(zip(names, totals, strict=True))
        steps = means.pop("steps")
        return {name: value / steps for name, value in means.items()}


def _hits(predicted: Tensor, target: Target) -> Tensor:
    if not isinstance(target, MixedTarget):
        return (predicted == target).float()
    lam = shares(target)
    return lam * (predicted == target.a) + (1 - lam) * (predicted == target.b)


class MetricsFile:
    """metrics.csv: a row now and then, nothing in it that two equal runs could differ in."""

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self.path, self.columns = path, ["step", *columns]

    def start(self, step: int, expected: Iterable[int] = ()) -> None:
        """Begin the file, or cut away what a stopped run wrote after `step`, and rows that are damaged.

        Where rows of the `expected` steps up to there are missing, it says so.
        """
        kept = [row for row in self._complete_rows() if int(row["step"]) <= step]
        wanted = {one for one in expected if one <= step}
        if missing := wanted - {int(row["step"]) for row in kept}:
            warnings.warn(
                f"{shown(self.path)}: {len(missing):,} of {len(wanted):,} rows up to step {step:,} are "
                "missing or damaged; the run continues without them",
                SLAWarning,
            )
        with replacing(self.path) as file:
            file.write((self._text(self.columns) + "".join(map(self._row, kept))).encode())

    def add(self, step: int, values: dict[str, float]) -> None:
        """Append a row; columns that it has no value for stay empty."""
        row = {"step": str(step), **{name: f"{value:.6g}" for name, value in values.items()}}
        with open(self.path, "a", encoding="utf-8", newline="") as file:
            file.write(self._row(row))

    def read(self) -> list[dict[str, str]]:
        """Every row as a dictionary of texts; a last line that was not written to its end is none."""
        if not self.path.exists():
            return []
        try:
            text = self.path.read_text(encoding="utf-8")
            lines = csv.DictReader(io.StringIO(text[: text.rfind("\n") + 1], newline=""))
            return [row for row in lines if (row.get("step") or "").isdecimal()]
        except (UnicodeDecodeError, csv.Error):
            raise InputError(f"{self.path}: not a table of metrics: remove it to continue without") from None

    def _complete_rows(self) -> list[dict[str, str]]:
        """The rows that were written to their end under these columns, each step once, in order."""
        found: list[dict[str, str]] = []
        for row in self.read():
            complete = list(row) == self.columns and all(_is_cell(cell) for cell in row.values())
            if complete and (not found or int(row["step"]) > int(found[-1]["step"])):
                found.append(row)
        return found

    def _row(self, row: dict[str, str]) -> str:
        return self._text([row.get(column, "") for column in self.columns])

    @staticmethod
    def _text(cells: Sequence[str]) -> str:
        line = io.StringIO(newline="")
        csv.writer(line, lineterminator="\n").writerow(cells)
        return line.getvalue()


def _is_cell(text: str | None) -> bool:
    """A number, or nothing: a row that was cut has no text at all in its last columns."""
    try:
        return text == "" or (text is not None and math.isfinite(float(text)))
    except ValueError:
        return False
