"""Figures 3 (training curves) and 4 (gains with less data) of the paper, and those of our studies."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from sla.disk import replacing
from sla.errors import MissingExtraError
from sla.report.charts import Series
from sla.reproduce.paper import experiment
from sla.reproduce.results import Place, Results
from sla.stats import mean_sd

COLORS = {"da": "#d9822b", "mt": "#2a9d4a", "sla": "#1f6feb"}
ACCURACY = "test accuracy, %"
AXES = {
    "figure3": ("iteration", "accuracy, %"),
    "figure4": ("images per class", "relative gain, %"),
    "views": ("training cost, C", ACCURACY),
    "capacity": ("width of the first layer", ACCURACY),
    "students": ("training cost, C", f"CIFAR10, {ACCURACY}"),
    "semi": ("labels per class", f"CIFAR10, {ACCURACY}"),
    "grow": ("classes so far", f"CIFAR100, {ACCURACY} of all of them"),
}
DOUBLING = ("views", "capacity", "students", "semi")  # with a logarithmic axis
STUDIED = {  # rows of a study that make a line: the start of their names, and its label
    "views": {
        "baseline-": "baseline",
        "k1-": "SLA aggregated, one view per step",
        "k2-": "SLA aggregated, two views per step",
        "k4-": "SLA aggregated, all four views per step",
        "rot2-": "SLA aggregated, two rotations, one per step",
    },
    "capacity": {
        "baseline-": "baseline",
        "sla-": "SLA aggregated",
        "long-": "baseline, four times the steps: the FLOP of SLA",
    },
}
ALONG = {"figure3": ("curve", "step"), "grow": ("growth", "classes")}  # what a record has along an axis
MOST_INSIDE = 6  # lines of a figure whose legend is in it; that of more would hide some
BY_COST = {  # cells that make a line of the figure of students
    "baseline, one pass": [
        "views baseline-1",
        "views baseline-2",
        "views baseline-4",
        "students baseline",
        "views baseline-8",
    ],
    "baseline with CutMix, one pass": ["rivals cutmix", "students plain-cutmix"],
    "SLA, one view per step, one pass": ["rivals sla-single"],
    "SLA with CutMix, one pass": ["rivals sla-cutmix-single"],
    "SLA, one view per step, four passes": ["views k1-1", "views k1-2", "views k1-4", "views k1-8"],
    "SLA with CutMix, four passes": ["rivals sla-cutmix"],
    "student on CutMix images, one pass": ["students student-fast"],
    "student with images without labels, one pass": ["students student-unlabelled"],
    "SLA+SD as in the paper, one pass": ["students paper"],
}


def series_of(results: Results, name: str, column: str | None = None) -> dict[str, Series]:
    """The lines of a figure by row, means over seeds; {} for a table, or without numbers.

    `column`: of a study with a figure for each of its columns; by default the first.
    """
    if name in STUDIED:
        return _study(results, name, column or next(iter(experiment(name).columns)))
    if name in ALONG:
        return _along(results, name, *ALONG[name])
    own = {"figure4": _gains, "students": _students, "semi": _labels}
    return own[name](results) if name in AXES else {}


def drawable(lines: Mapping[str, Series]) -> bool:
    """Whether there is anything to see: numbers at two places of the axis."""
    return len({x for line in lines.values() for x, _ in line.points}) > 1


def _line(label: str, numbers: Iterable[tuple[float, Sequence[float]]]) -> Series:
    """Means over seeds, with their standard deviations."""
    found = [(x, *mean_sd(values)) for x, values in sorted(numbers, key=lambda one: one[0]) if values]
    return Series(label, [(x, mean) for x, mean, _ in found], [sd for *_, sd in found])


def _study(results: Results, name: str, column: str) -> dict[str, Series]:
    """A line for each start of rows' names; how they end is the place on the axis, in tenths if it is 05."""
    found = {}
    for start, label in STUDIED[name].items():
        ends = [row.removeprefix(start) for row in experiment(name).rows if row.startswith(start)]
        places = [int(end) / (10 if end.startswith("0") else 1) for end in ends]
        line = _line(
            label, zip(places, (results.of(Place(name, start + end, column)) for end in ends), strict=True)
        )
        if line.points:
            found[start] = line
    return found


def _along(results: Results, name: str, part: str, axis: str) -> dict[str, Series]:
    """Mean scores by row, at each place on the axis at which the records have some in this part of them."""
    found = {}
    for row_name, row in experiment(name).rows.items():
        heights: dict[float, list[float]] = defaultdict(list)
        for record in results.records.get(Place(name, row_name, "cifar100"), {}).values():
            for point in record.more[part]:
                heights[point[axis]].append(point[row.score])
        if heights:
            points = [(place, fmean(values)) for place, values in sorted(heights.items())]
            found[row_name] = Series(row.label, points)
    return found


def _gains(results: Results) -> dict[str, Series]:
    found = {}
    table = experiment("figure4")
    for row_name, row in table.rows.items():
        points: list[tuple[float, list[float]]] = []
        if row.against is None:
            continue
        for column in table.columns:
            place = Place("figure4", row_name, column)
            pairs = results.by_seed(place, place._replace(row=row.against)).values()
            if pairs:
                gains = [100 * (a - b) / b for a, b in pairs]
                points.append((float(column.removeprefix("n")), gains))
        if points:
            found[row_name] = _line(row.label, points)
    return found


def _students(results: Results) -> dict[str, Series]:
    """Accuracy against training FLOP, in units of the baseline's."""
    unit = _flop(results, Place("views", "baseline-1", "cifar10"))
    found = {}
    for label, cells in BY_COST.items():
        places = [Place(name, row, "cifar10") for name, row in (cell.split() for cell in cells)]
        costs = {place: _flop(results, place) for place in places}
        points = [(cost / unit, results.of(place)) for place, cost in costs.items() if cost and unit]
        if points:
            found[label] = _line(label, points)
    return found if "student on CutMix images, one pass" in found else {}


def _flop(results: Results, place: Place) -> float:
    records = results.records.get(place, {}).values()
    return next((record.training_flop for record in records if record.training_flop), 0.0)


def _labels(results: Results) -> dict[str, Series]:
    """Accuracy against labels per class, by row: the number that a column's name ends with."""
    table, found = experiment("semi"), {}
    for row_name, row in table.rows.items():
        cells = {column: results.of(Place("semi", row_name, column)) for column in table.columns}
        points = [(float(column.rpartition("-")[2]), some) for column, some in cells.items() if some]
        if points:
            found[row_name] = _line(row.label, points)
    return found


def draw(results: Results, name: str, path: Path) -> bool:
    """Draw the figure to a PNG file, bars for one standard deviation over seeds; False if there is none."""
    columns: list[str | None] = [*experiment(name).columns] if name in STUDIED else [None]
    parts = {column: lines for column in columns if drawable(lines := series_of(results, name, column))}
    if not parts:
        return False
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("drawing figures", "report") from None
    size = (8, 4.2) if len(parts) == 1 else (5 * len(parts), 3.4)
    figure = Figure(figsize=size, layout="constrained")
    for axis, (column, lines) in zip(
        figure.subplots(1, len(parts), squeeze=False)[0], parts.items(), strict=True
    ):
        for number, (row, line) in enumerate(lines.items()):
            color = COLORS.get(row.split("-")[0]) if name == "figure3" else f"C{_place(name, row, number)}"
            style = "--" if row.endswith("-test") else "-"
            axis.plot(*zip(*line.points, strict=True), style, marker="o", ms=4, color=color, label=line.name)
            if line.errors:
                axis.errorbar(
                    *zip(*line.points, strict=True), line.errors, fmt="none", ecolor=color, alpha=0.5
                )
        axis.set(xlabel=AXES[name][0], ylabel=AXES[name][1])
        if column is not None:
            axis.set_title(experiment(name).columns[column].label, fontsize=10)
        if name in DOUBLING:
            axis.set_xscale("log", base=2)
            axis.set_xticks(sorted({round(x, 1) for line in axis.lines for x in line.get_xdata()}))
            axis.xaxis.set_major_formatter("{x:g}")
        axis.grid(alpha=0.3)
    if any(len(lines) > MOST_INSIDE for lines in parts.values()):
        figure.legend(fontsize=8, loc="outside right center")
    else:
        figure.axes[0].legend(fontsize=8)
    with replacing(path) as file:
        figure.savefig(file, format="png", dpi=110)
    return True


def _place(name: str, row: str, number: int) -> int:
    """Which colour a line has: in every part of a figure the same."""
    return list(STUDIED[name]).index(row) if name in STUDIED else number
