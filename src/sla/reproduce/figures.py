"""Figures 3 (training curves) and 4 (gains with less data) of the paper, and those of our studies."""

from collections import defaultdict
from pathlib import Path
from statistics import fmean

from sla.disk import replacing
from sla.errors import MissingExtraError
from sla.report.charts import Series
from sla.reproduce.paper import experiment
from sla.reproduce.results import Place, Results

COLORS = {"da": "#d9822b", "mt": "#2a9d4a", "sla": "#1f6feb"}
AXES = {
    "figure3": ("iteration", "accuracy, %"),
    "figure4": ("images per class", "relative gain, %"),
    "views": ("training cost, C", "CIFAR10, test accuracy, %"),
    "capacity": ("width of the first layer", "CIFAR10, test accuracy, %"),
}
STUDIED = {  # rows of a study that make a line: the start of their names, and its label
    "views": {
        "baseline-": "plain classifier",
        "k1-": "SLA aggregated, one view per step",
        "k2-": "SLA aggregated, two views per step",
        "k4-": "SLA aggregated, all four views per step",
    },
    "capacity": {"baseline-": "plain classifier", "sla-": "SLA aggregated"},
}


def series_of(results: Results, name: str) -> dict[str, Series]:
    """The lines of a figure by row, means over seeds; {} for a table, or without numbers."""
    if name in STUDIED:
        return _study(results, name)
    return {"figure3": _curves, "figure4": _gains}[name](results) if name in AXES else {}


def _study(results: Results, name: str) -> dict[str, Series]:
    """A line for each start of rows' names; how they end is the place on the axis, in tenths if it is 05."""
    found = {}
    for start, label in STUDIED[name].items():
        points = []
        for row in experiment(name).rows:
            numbers = results.of(Place(name, row, "cifar10")) if row.startswith(start) else []
            if numbers:
                end = row.removeprefix(start)
                points.append((int(end) / (10 if end.startswith("0") else 1), fmean(numbers)))
        if points:
            found[start] = Series(label, sorted(points))
    return found


def _curves(results: Results) -> dict[str, Series]:
    found = {}
    for row_name, row in experiment("figure3").rows.items():
        heights: dict[float, list[float]] = defaultdict(list)
        for record in results.records.get(Place("figure3", row_name, "cifar100"), {}).values():
            for point in record.more["curve"]:
                heights[point["step"]].append(point[row.score])
        if heights:
            points = [(step, fmean(values)) for step, values in sorted(heights.items())]
            found[row_name] = Series(row.label, points)
    return found


def _gains(results: Results) -> dict[str, Series]:
    found = {}
    table = experiment("figure4")
    for row_name, row in table.rows.items():
        points = []
        if row.against is None:
            continue
        for column in table.columns:
            place = Place("figure4", row_name, column)
            pairs = results.by_seed(place, place._replace(row=row.against)).values()
            if pairs:
                gain = fmean(100 * (a - b) / b for a, b in pairs)
                points.append((float(column.removeprefix("n")), gain))
        if points:
            found[row_name] = Series(row.label, sorted(points))
    return found


def draw(results: Results, name: str, path: Path) -> bool:
    """Draw the figure to a PNG file; False if it has no numbers yet."""
    lines = series_of(results, name)
    if not lines:
        return False
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("drawing figures", "report") from None
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axis = figure.subplots()
    for row, line in lines.items():
        color = COLORS.get(row.split("-")[0]) if name == "figure3" else None
        style = "--" if row.endswith("-test") else "-"
        axis.plot(*zip(*line.points, strict=True), style, marker="o", ms=3, color=color, label=line.name)
    axis.set(xlabel=AXES[name][0], ylabel=AXES[name][1])
    if name in STUDIED:  # each point is twice the one before
        axis.set_xscale("log", base=2)
        axis.xaxis.set_major_formatter("{x:g}")
    axis.grid(alpha=0.3)
    axis.legend()
    with replacing(path) as file:
        figure.savefig(file, format="png", dpi=110)
    return True
