"""Figures 3 (training curves) and 4 (gains with less data) of the paper, from our numbers."""

from collections import defaultdict
from pathlib import Path
from statistics import fmean

from sla.disk import replacing
from sla.errors import MissingExtraError
from sla.report.charts import Series
from sla.reproduce.paper import experiment
from sla.reproduce.results import Place, Results

COLORS = {"da": "#d9822b", "mt": "#2a9d4a", "sla": "#1f6feb"}
AXES = {"figure3": ("iteration", "accuracy, %"), "figure4": ("images per class", "relative gain, %")}


def series_of(results: Results, name: str) -> dict[str, Series]:
    """The lines of a figure by row, means over seeds; {} for a table, or without numbers."""
    return {"figure3": _curves, "figure4": _gains}[name](results) if name in AXES else {}


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
    axis.grid(alpha=0.3)
    axis.legend()
    with replacing(path) as file:
        figure.savefig(file, format="png", dpi=110)
    return True
