"""Charts as inline SVG: positions are percentages and labels are HTML, so text has its size at any width."""

import math
from collections.abc import Sequence
from html import escape
from statistics import fmean
from typing import NamedTuple

from markupsafe import Markup

from sla.stats import Interval

Ticks = Sequence[tuple[float, str]]  # percent of the side, text
MOST_POINTS = 300  # of a line; above that, neighbours are averaged
MOST_MARKS = 40  # points of a line that has each of them marked


class Strip(NamedTuple):
    """One row of a strip chart: its name, every value (or none), and their mean with its interval."""

    name: str
    values: Sequence[float]
    interval: Interval


def strip_chart(strips: Sequence[Strip], unit: str = "%") -> Markup:
    """Every value as a dot, the mean with its interval on top; a dashed line marks the first row's mean."""
    everything = [value for strip in strips for value in strip.values or strip.interval]
    ticks = nice_ticks(min(everything), max(everything))
    low, high = ticks[0], ticks[-1]

    def place(value: float) -> str:
        share = (min(max(value, low), high) - low) / (high - low)
        return f"{2 + 96 * share:.2f}%"

    upright = [("grid-line", tick) for tick in ticks] + [("reference", strips[0].interval.mean)]
    grid = ""
    for kind, x in upright:
        grid += f'<line class="{kind}" x1="{place(x)}" x2="{place(x)}" y1="0" y2="100%"/>'
    rows = []
    for strip in strips:
        mean, left, right = strip.interval
        dots = "".join(f'<circle class="seed" cx="{place(v)}" cy="50%" r="4"/>' for v in strip.values)
        label = f"{strip.name}: mean {mean:.1f}{unit}, 95% interval {left:.1f} to {right:.1f}"
        rows.append(
            f'<div class="name">{escape(strip.name)} <b>{mean:.1f}{escape(unit)}</b></div>'
            f'<svg role="img" aria-label="{escape(label)}">{grid}{dots}'
            f'<line class="range" x1="{place(left)}" x2="{place(right)}" y1="50%" y2="50%"/>'
            f'<circle class="mean" cx="{place(mean)}" cy="50%" r="6"/></svg>'
        )
    axis = "".join(f'<text class="tick" x="{place(t)}" y="1rem">{t:g}{escape(unit)}</text>' for t in ticks)
    return Markup(f'<div class="strip">{"".join(rows)}<div></div><svg aria-hidden="true">{axis}</svg></div>')


class Bin(NamedTuple):
    """The images with a confidence from low to high; all in [0, 1]."""

    low: float
    high: float
    images: int
    confidence: float  # mean
    accuracy: float


class Series(NamedTuple):
    """One line of a chart: its name, its points (x, y), x ascending, and how far each y may be off."""

    name: str
    points: Sequence[tuple[float, float]]
    errors: Sequence[float] = ()


def line_chart(series: Sequence[Series], axis: str, label: str, unit: str = "") -> Markup:
    """Lines over a common x axis, with a legend; `axis` names that axis, `label` the whole chart."""
    xs, ys = zip(*(point for one in series for point in one.points), strict=True)
    left, right = min(xs), max(max(xs), min(xs) + 1)
    along = [tick for tick in nice_ticks(left, max(xs), 6) if left <= tick <= right]
    up = nice_ticks(min(ys), max(ys), 6)

    def across(x: float) -> float:
        return 100 * (x - left) / (right - left)

    def height(y: float) -> float:
        return 100 * (y - up[0]) / (up[-1] - up[0])

    lines = [f'<path class="grid-line" d="M0 {100 - height(tick):.2f}h100"/>' for tick in up]
    legend, described = "", []
    for number, (name, points, _) in enumerate(series):
        kind = f'class="s{number % 6}"'
        places = [f"{across(x):.2f} {100 - height(y):.2f}" for x, y in thinned(points, MOST_POINTS)]
        marks = "".join(f"M{place}h0" for place in places) if len(places) <= MOST_MARKS else ""
        line = f'<path class="line" d="M{" L".join(places)}"/><path class="point" d="{marks}"/>'
        lines.append(f"<g {kind}>{line}</g>")
        swatch = f'<svg {kind} aria-hidden="true"><path class="line" d="M0 6h32"/></svg>'
        legend += f"<li>{swatch}{escape(name)}</li>"
        ends = dict.fromkeys((points[0], points[-1]))  # one, if there is only one point
        described.append(f"{name} {' to '.join(f'{y:.3g}{unit}' for _, y in ends)}")
    return Markup(f'<ul class="legend">{legend}</ul>') + _plot(
        "".join(lines),
        f"{label}: {'; '.join(described)}",
        [(height(tick), f"{tick:g}{unit}") for tick in up],
        [(across(tick), f"{tick:,g}") for tick in along],
        axis,
    )


def thinned(points: Sequence[tuple[float, float]], most: int) -> list[tuple[float, float]]:
    """At most `most` points: means of groups of neighbours of equal size."""
    size = -(-len(points) // most)
    if size == 1:
        return list(points)
    groups = [points[start : start + size] for start in range(0, len(points), size)]
    return [(fmean(x for x, _ in group), fmean(y for _, y in group)) for group in groups]


def reliability_chart(bins: Sequence[Bin], label: str) -> Markup:
    """Accuracy by confidence as bars, each with the gap between the two."""
    drawn = ""
    for one in bins:
        left, width = 100 * one.low + 0.4, 100 * (one.high - one.low) - 0.8
        accuracy, confidence = 100 * one.accuracy, 100 * one.confidence
        drawn += (
            f'<rect class="accuracy" x="{left:.2f}" width="{width:.2f}" y="{100 - accuracy:.2f}" '
            f'height="{accuracy:.2f}"/><rect class="gap" x="{left:.2f}" width="{width:.2f}" '
            f'y="{100 - max(accuracy, confidence):.2f}" height="{abs(accuracy - confidence):.2f}"/>'
        )
    drawn += '<line class="reference" x1="0" x2="100" y1="100" y2="0"/>'
    ticks = [(float(share), f"{share}%") for share in (0, 25, 50, 75, 100)]
    return _plot(drawn, label, ticks, ticks, "confidence", "plot square")


def _plot(drawn: str, label: str, up: Ticks, along: Ticks, axis: str, kind: str = "plot") -> Markup:
    """A drawing of 100 x 100, stretched to the available space, with ticks beside it."""
    side = "".join(f'<span style="bottom:{place:.2f}%">{escape(text)}</span>' for place, text in up)
    # Centred, the last tick would run off the page.
    below = "".join(
        f'<span{" class=end" if place > 97 else ""} style="left:{place:.2f}%">{escape(text)}</span>'
        for place, text in along
    )
    return Markup(
        f'<div class="{kind}"><div class="ticks up" aria-hidden="true">{side}</div><div class="area">'
        f'<svg role="img" aria-label="{escape(label)}" viewBox="0 0 100 100" preserveAspectRatio="none">'
        f'{drawn}</svg></div><div class="ticks along" aria-hidden="true">{below}</div>'
        f'<div class="axis" aria-hidden="true">{escape(axis)}</div></div>'
    )


def nice_ticks(low: float, high: float, most: int = 7) -> list[float]:
    """About `most` round, evenly spaced numbers that enclose `low` and `high`."""
    spread = max(high - low, 1e-9)
    power = 10.0 ** math.floor(math.log10(spread / most))
    step = next(power * factor for factor in (1, 2, 5, 10, 20) if spread / (power * factor) <= most - 1)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [round(step * i, 10) for i in range(first, max(last, first + 1) + 1)]
