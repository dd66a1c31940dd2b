"""The answer in a few rows: what SLA gains, and at which cost; for the page of results and the README."""

from collections.abc import Sequence
from math import isfinite
from statistics import fmean
from typing import NamedTuple

from sla.reproduce.paper import experiment
from sla.reproduce.results import Place, Results
from sla.stats import Interval, interval

COLUMNS = ("cifar10", "cifar100")
UNIT = Place("views", "baseline-1", "")  # its training FLOP is 1 C


class Line(NamedTuple):
    """A row of the summary: what it is called, where its numbers are, and the baseline of the same cost."""

    label: str
    experiment: str
    row: str
    against: str
    passes: int  # per image, when it predicts
    front: bool = False  # also in the README


LINES = (
    Line("SLA, two rotations, aggregated", "views", "rot2-1", "baseline-1", 2, front=True),
    Line("SLA, four rotations, aggregated", "views", "k1-1", "baseline-1", 4, front=True),
    Line("SLA, two rotations, aggregated", "views", "rot2-2", "baseline-2", 2),
    Line("SLA, four rotations, aggregated", "views", "k1-2", "baseline-2", 4, front=True),
    Line("SLA, four rotations, aggregated", "views", "k1-4", "baseline-4", 4, front=True),
    Line("SLA, four rotations, aggregated", "views", "k1-8", "baseline-8", 4, front=True),
    Line("SLA, all four rotations in every step, aggregated", "views", "k4-4", "baseline-4", 4),
    Line("SLA, four rotations, single", "rivals", "sla-single", "baseline", 1, front=True),
    Line("SLA over rotations and flips; baseline over flips", "rivals", "sla-flips", "flips", 8),
    Line("SLA and baseline with CutMix, aggregated", "rivals", "sla-cutmix", "cutmix", 4, front=True),
    Line("SLA and baseline with CutMix, single", "rivals", "sla-cutmix-single", "cutmix", 1, front=True),
    Line(
        "student of SLA; baseline; both on CutMix images",
        "students",
        "student-fast",
        "plain-cutmix",
        1,
        front=True,
    ),
    Line(
        "student of SLA; student of the baseline; both with more images without labels",
        "students",
        "student-unlabelled",
        "plain-student-unlabelled",
        1,
        front=True,
    ),
)
FRONT = tuple(line for line in LINES if line.front)
AGGREGATED = tuple(line for line in LINES if line.row.startswith("k1-"))
IN_ONE_PASS = tuple(line for line in LINES if line.passes == 1)
SIDES = {1: "above the baseline", -1: "below the baseline", 0: "not clearly different from the baseline"}


class Found(NamedTuple):
    """A line in one column: mean accuracies of the baseline and of its own, and the paired gain."""

    plain: float
    own: float
    gain: Interval


def find(results: Results, line: Line, column: str) -> Found | None:
    """The numbers of a line over the seeds that both have; None where there is none."""
    place = Place(line.experiment, line.row, column)
    pairs = list(results.by_seed(place, place._replace(row=line.against)).values())
    if not pairs:
        return None
    own, plain = (fmean(values) for values in zip(*pairs, strict=True))
    return Found(plain, own, interval([a - b for a, b in pairs]))


def cost(results: Results, line: Line) -> float | None:
    """The training FLOP as a multiple of the baseline's, in the first column that has both."""
    for column in COLUMNS:
        places = (Place(line.experiment, line.row, column), UNIT._replace(column=column))
        own, unit = ([r.training_flop for r in results.records.get(p, {}).values()] for p in places)
        if own and unit and own[0] and unit[0]:
            return own[0] / unit[0]
    return None


def answers(results: Results) -> list[str]:
    """For each dataset the costs at which SLA is above the baseline, below it, or neither."""
    found = []
    for column in COLUMNS:
        label = experiment("views").columns[column].label
        sides: dict[int, list[str]] = {1: [], -1: [], 0: []}
        for line in AGGREGATED:
            if (cell := find(results, line, column)) and (times := cost(results, line)):
                sides[cell.gain.sign].append(f"{times:.2g} C ({cell.gain.mean:+.1f})")
        texts = [f"{SIDES[sign]} at {_and(costs)}" for sign, costs in sides.items() if costs]
        if texts:
            found.append(f"{label}: aggregated over four rotations, SLA is {'; '.join(texts)}.")
        alone = [
            f"{line.label} at {times:.2g} C {cell.gain.mean:+.1f} ({SIDES[cell.gain.sign]})"
            for line in IN_ONE_PASS
            if (cell := find(results, line, column)) and (times := cost(results, line))
        ]
        if alone:
            found.append(f"{label}, in one pass: {'; '.join(alone)}.")
    return found


def _and(texts: Sequence[str]) -> str:
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"


def summary_rows(
    results: Results, lines: Sequence[Line] = LINES
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """(header, rows): accuracies in percent of the baseline and of SLA at the same cost, the gain."""
    columns = [c for c in COLUMNS if any(find(results, line, c) for line in lines)]
    labels = [experiment("views").columns[column].label for column in columns]
    header = ["", "training cost", "passes per image (baseline: 1)"]
    header += [text for label in labels for text in (f"{label}: baseline, SLA", "gain")]
    rows = []
    for line in lines:
        cells = [find(results, line, column) for column in columns]
        times = cost(results, line)
        if any(cells):
            numbers = [text for cell in cells for text in _texts(cell)]
            rows.append((line.label, f"{times:.2g} C" if times else "", str(line.passes), *numbers))
    return tuple(header), rows


def _texts(cell: Found | None) -> tuple[str, str]:
    if cell is None:
        return "", ""
    ends = cell.gain.ends("+.1f") if isfinite(cell.gain.low) else "one seed"
    return f"{cell.plain:.1f}, {cell.own:.1f}", f"{cell.gain.mean:+.1f} ({ends})"
