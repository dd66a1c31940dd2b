"""Charts as inline SVG: places are percentages and names are HTML, so that text keeps its size anywhere."""

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from sla.stats import Interval


class Strip(NamedTuple):
    """One row of a strip chart: its name, every value, and their mean with its interval."""

    name: str
    values: Sequence[float]
    interval: Interval


def strip_chart(strips: Sequence[Strip], unit: str = "%") -> str:
    """Every value as a dot, the mean with its interval over them, the first row's mean as a line for all."""
    everything = [value for strip in strips for value in strip.values]
    ticks = nice_ticks(min(everything), max(everything))
    low, high = ticks[0], ticks[-1]

    def place(value: float) -> str:
        share = (min(max(value, low), high) - low) / (high - low)
        return f"{2 + 96 * share:.2f}%"

    grid = "".join(
        f'<line class="grid-line" x1="{place(t)}" x2="{place(t)}" y1="0" y2="100%"/>' for t in ticks
    )
    reference = place(strips[0].interval.mean)
    grid += f'<line class="reference" x1="{reference}" x2="{reference}" y1="0" y2="100%"/>'
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
    return f'<div class="strip">{"".join(rows)}<div></div><svg aria-hidden="true">{axis}</svg></div>'


def nice_ticks(low: float, high: float, most: int = 7) -> list[float]:
    """Round numbers from at most `low` to at least `high`, evenly spaced, no more than about `most`."""
    spread = max(high - low, 1e-9)
    power = 10.0 ** math.floor(math.log10(spread / most))
    step = next(power * factor for factor in (1, 2, 5, 10, 20) if spread / (power * factor) <= most - 1)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [round(step * i, 10) for i in range(first, max(last, first + 1) + 1)]
