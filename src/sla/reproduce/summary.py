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
    against: str  # another row, or an experiment and a row
    passes: int  # per image, when it predicts
    front: bool = False  # also in the README


LINES = (
    Line("two rotations, aggregated", "views", "rot2-1", "baseline-1", 2, front=True),
    Line("four rotations, aggregated", "views", "k1-1", "baseline-1", 4, front=True),
    Line("two rotations, aggregated", "views", "rot2-2", "baseline-2", 2),
    Line("four rotations, aggregated", "views", "k1-2", "baseline-2", 4),
    Line("four rotations, aggregated", "views", "k1-4", "baseline-4", 4, front=True),
    Line("four rotations, aggregated", "views", "k1-8", "baseline-8", 4, front=True),
    Line("all four rotations in every step, aggregated", "views", "k4-4", "baseline-4", 4),
    Line("four rotations, in one pass", "rivals", "sla-single", "baseline", 1, front=True),
    Line("aggregated, against four networks", "views", "k1-4", "table2 ie", 4, front=True),
    Line("over rotations and flips, against flips", "rivals", "sla-flips", "flips", 8),
    Line("CutMix on both sides, aggregated", "rivals", "sla-cutmix", "cutmix", 4, front=True),
    Line("CutMix on both sides, in one pass", "rivals", "sla-cutmix-single", "cutmix", 1, front=True),
    Line("student on CutMix images, against CutMix", "students", "student-fast", "plain-cutmix", 1, True),
    Line(
        "students of both, with unlabelled images",
        "students",
        "student-unlabelled",
        "plain-student-unlabelled",
        1,
        front=True,
    ),
)
FRONT = tuple(line for line in LINES if line.front)
WAYS = {
    "Aggregated over views": [line for line in LINES if line.passes > 1],
    "In one pass": [line for line in LINES if line.passes == 1],
}


class Found(NamedTuple):
    """A line in one column: the mean accuracy of the baseline, and the paired gain."""

    plain: float
    gain: Interval


def find(results: Results, line: Line, column: str) -> Found | None:
    """The numbers of a line over the seeds that both have; None where there is none."""
    other, _, against = line.against.rpartition(" ")
    places = Place(line.experiment, line.row, column), Place(other or line.experiment, against, column)
    pairs = list(results.by_seed(*places).values())
    if not pairs:
        return None
    return Found(fmean(plain for _, plain in pairs), interval([own - plain for own, plain in pairs]))


def cost(results: Results, line: Line) -> float | None:
    """The training FLOP as a multiple of the baseline's, in the first column that has both."""
    for column in COLUMNS:
        places = (Place(line.experiment, line.row, column), UNIT._replace(column=column))
        own, unit = ([r.training_flop for r in results.records.get(p, {}).values()] for p in places)
        if own and unit and own[0] and unit[0]:
            return own[0] / unit[0]
    return None


def answers(results: Results) -> list[str]:
    """How often SLA is above the baseline of the same cost, and how often below it."""
    found = []
    for way, lines in WAYS.items():
        cells = [cell for line in lines for column in COLUMNS if (cell := find(results, line, column))]
        above, below = (sum(cell.gain.sign == side for cell in cells) for side in (1, -1))
        if cells:
            found.append(
                f"{way}, SLA is above a baseline of the same training cost in {above} of {len(cells)} "
                f"comparisons and below it in {below}; in the others the interval includes 0."
            )
    return found


def summary_rows(
    results: Results, lines: Sequence[Line] = LINES
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """(header, rows): for each dataset the accuracy of the baseline, and the paired gain over it."""
    columns = [c for c in COLUMNS if any(find(results, line, c) for line in lines)]
    labels = [experiment("views").columns[column].label for column in columns]
    rows = []
    for line in lines:
        cells = [find(results, line, column) for column in columns]
        times = cost(results, line)
        if any(cells):
            rows.append((line.label, f"{times:.2g} C" if times else "", str(line.passes), *map(_text, cells)))
    return ("SLA", "cost", "passes", *labels), rows


def _text(cell: Found | None) -> str:
    if cell is None:
        return ""
    ends = cell.gain.ends("+.1f") if isfinite(cell.gain.low) else "one seed"
    return f"{cell.plain:.1f}, {cell.gain.mean:+.1f} ({ends})"
