"""What is measured of predictions: accuracy, calibration, and the table of a run's metrics."""

import csv
import io
import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import NormalDist

import torch
from torch import Tensor

from sla.disk import replacing
from sla.errors import InputError, SLAWarning, shown
from sla.labels import MixedTarget, Target, shares
from sla.runs.distributed import Group

BINS = 15  # of confidence, for the calibration error
HOTTEST = 20.0  # temperature; the coldest is 1 / 20
MEASURES = (  # for whoever reads a table of them
    "ECE: how far confidence and accuracy are apart, on average; NLL: high if true classes get low "
    "probabilities; lower is better for both"
)
PART = 1 << 17  # logits that are processed at a time


def top_k_accuracy(logits: Tensor, targets: Tensor, k: int = 1) -> float:
    """The share of images whose class is among the k best, in percent."""
    best = logits.topk(min(k, logits.shape[1]), dim=1).indices
    return 100 * (best == targets.unsqueeze(1)).any(1).double().mean().item()


def balanced_accuracy(logits: Tensor, targets: Tensor) -> float:
    """The mean of the classes' accuracies, in percent; classes without images are left out."""
    counts = targets.bincount(minlength=logits.shape[1])
    hits = targets[logits.argmax(1) == targets].bincount(minlength=logits.shape[1])
    return 100 * (hits[counts > 0].double() / counts[counts > 0]).mean().item()


def confidences(logits: Tensor, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """The largest probability of each image at this temperature, float64 (n,), and its class (n,)."""
    found = [(some.double() / temperature).softmax(1).max(1) for some in logits.split(_part(logits))]
    return torch.cat([best.values for best in found]), torch.cat([best.indices for best in found])


def calibration_error(logits: Tensor, targets: Tensor, temperature: float = 1.0) -> float:
    """ECE: the mean gap between confidence and accuracy over 15 equal bins of confidence, in percent."""
    confidence, predicted = confidences(logits, temperature)
    right = (predicted == targets).double()
    bins = (confidence * BINS).long().clamp(max=BINS - 1)
    gaps = torch.zeros(BINS, dtype=torch.float64).index_add(0, bins, right - confidence)
    return 100 * gaps.abs().sum().item() / len(targets)


def negative_log_likelihood(logits: Tensor, targets: Tensor, temperature: float = 1.0) -> float:
    """The mean cross entropy of the probabilities at this temperature."""
    parts = [
        (some.double() / temperature).log_softmax(1).gather(1, own.unsqueeze(1))
        for some, own in _parts(logits, targets)
    ]
    return -torch.cat(parts).mean().item()


def fit_temperature(logits: Tensor, targets: Tensor) -> float:
    """The temperature of best likelihood on held-out images, between 1/20 and 20.

    The mean loss is convex in 1/T. Newton's method finds where its slope is 0, with bisection (of log T)
    where a step leaves the interval in which the slope changes its sign, or is not half the one before.
    """
    low, high, place, step = 1 / HOTTEST, HOTTEST, 1.0, math.inf
    while abs(step) > 1e-6 * place:
        slope, bend = _derivatives(logits, targets, place)
        low, high = (low, place) if slope > 0 else (place, high)  # flat: as confident as allowed
        newton = -slope / bend if bend > 0 else math.inf
        quick = abs(newton) <= abs(step) / 2 and low <= place + newton <= high
        step = newton if quick else math.sqrt(low * high) - place
        place += step
    return 1 / place


def at_limit(temperature: float) -> bool:
    """Whether no temperature between the limits of `fit_temperature` was best: calibration failed."""
    return not 1.001 / HOTTEST < temperature < HOTTEST / 1.001


def _derivatives(logits: Tensor, targets: Tensor, scale: float) -> tuple[float, float]:
    """Slope and curvature of the mean loss by 1/T, at 1/T = scale: from mean and variance of the logits."""
    slope = bend = 0.0
    for some, own in _parts(logits, targets):
        values = some.double()
        values = values - values.amax(1, keepdim=True)  # a right answer's is 0: no rounding turns the slope
        probability = (scale * values).softmax(1)
        mean = torch.linalg.vecdot(probability, values)
        slope += (mean - values.gather(1, own.unsqueeze(1)).squeeze(1)).sum().item()
        bend += torch.linalg.vecdot(probability, (values - mean.unsqueeze(1)) ** 2).sum().item()
    return slope / len(targets), bend / len(targets)


def _parts(logits: Tensor, targets: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Some images at a time, so that their values stay in the cache."""
    some = _part(logits)
    return zip(logits.split(some), targets.split(some), strict=True)


def _part(logits: Tensor) -> int:
    """How many images are processed at a time: a copy of all in float64 may not fit into memory."""
    return max(PART // logits.shape[1], 1)


def cautious_temperature(logits: Tensor, targets: Tensor) -> float:
    """The temperature of best likelihood, as if one more image had been taken for its second choice.

    Without that one, a few images that are all right would make the model certain of everything.
    """
    best = logits.topk(2, 1)
    typical = (best.values[:, 0] - best.values[:, 1]).argsort()[len(logits) // 2]
    more = torch.cat([logits, logits[typical : typical + 1]])
    return fit_temperature(more, torch.cat([targets, best.indices[typical, 1:]]))


def temperature_interval(logits: Tensor, targets: Tensor, temperature: float) -> tuple[float, float]:
    """The ends of the 95% interval of a temperature that was fitted to these images.

    By the curvature h of the mean loss in s = 1/T: log s has a standard error of 1 / (s sqrt(n h)).
    """
    scale = 1 / temperature
    bend = _derivatives(logits, targets, scale)[1]
    error = 1 / (scale * math.sqrt(len(targets) * bend)) if bend > 0 else math.inf
    widest = 2 * math.log(HOTTEST)
    factor = math.exp(min(NormalDist().inv_cdf(0.975) * error, widest))
    return max(temperature / factor, 1 / HOTTEST), min(temperature * factor, HOTTEST)


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
            return [row for row in lines if is_count(row.get("step") or "")]
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


def is_count(text: str) -> bool:
    """Whether this is a number of steps; Python reads no number of thousands of digits."""
    return text.isdecimal() and len(text) <= 18


def has_row(path: Path, step: int) -> bool:
    """Whether a table of metrics has the row of this step."""
    return any(int(row["step"]) == step for row in MetricsFile(path, ()).read())


def _is_cell(text: str | None) -> bool:
    """A number, or nothing: a row that was cut has no text at all in its last columns."""
    try:
        return text == "" or (text is not None and math.isfinite(float(text)))
    except ValueError:
        return False
