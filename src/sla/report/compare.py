"""The page of a comparison: accuracies, differences on the same images, flipped images, cost, settings."""

import json
import shlex
import sys
from pathlib import Path
from typing import Any

from sla.compare.comparison import Comparison, SeedGroup, format_p
from sla.errors import shown
from sla.report.charts import Strip
from sla.report.formatting import section
from sla.report.page import render, write
from sla.report.pictures import Card, short_name
from sla.stats import Interval

PICTURES, LEAST_PICTURES = 24, 4  # of flipped images in all, and at least of each kind of each pair
MOST_LISTED = 1000  # flipped images listed by name


def write_compare_page(comparison: Comparison, path: Path) -> None:
    """Write the page of a finished comparison."""
    write(path, compare_page(comparison))


def compare_page(comparison: Comparison) -> str:
    """The whole page."""
    names = [entry.name for entry in comparison.entries]
    return render(
        "compare.html",
        title=f"{names[0]} and {names[1]}" if len(names) == 2 else f"Comparison of {len(names)} runs",
        comparison=comparison,
        runs=_runs(comparison),
        seeds=[_seeds(comparison, group) for group in comparison.groups],
        pairs=[_flips(comparison, place) for place in range(1, len(names))],
        settings={key: [*map(_value, values)] for key, values in comparison.settings.items()},
        command=shown(shlex.join(["sla", *sys.argv[1:]])),
    )


def _runs(comparison: Comparison) -> list[dict[str, Any]]:
    """Every run with its accuracy and cost and, after the first, its difference to the first."""
    found: list[dict[str, Any]] = []
    for place, entry in enumerate(comparison.entries):
        one = comparison.differences[place - 1] if place else None
        row = {"name": entry.name, "config": entry.run.config, "difference": one}
        row["correct"] = int(comparison.right[place].sum())
        row["accuracy"] = Strip(entry.name, (), comparison.accuracies[place])
        row["points"] = Strip(entry.name, (), one.points if one else Interval(0.0, 0.0, 0.0))
        row["p"] = [format_p(p).removeprefix("= ") for p in (one.p, one.adjusted)] if one else []
        row["cost"] = cost = section(entry.run.result, "cost")
        row["inference_flop"] = section(cost, "inference_flop").get(entry.inference)
        found.append(row)
    return found


def _seeds(comparison: Comparison, group: SeedGroup) -> dict[str, Any]:
    entry, more = comparison.entries[group.places[0]], len(group.places) - 1
    mean, sd = group.spread
    return {
        "name": f"{shown(entry.run.folder)}{f' and {more} more' if more else ''}, {entry.inference}",
        "seeds": ", ".join(map(str, sorted(group.seeds))),
        "mean": mean,
        "sd": sd if more else None,
        "difference": group.difference(comparison.groups[0]),
    }


def _flips(comparison: Comparison, place: int) -> dict[str, Any]:
    """The images that one run gained and lost against the first, some as pictures and all by name."""
    dataset, classes = comparison.dataset, [shown(name) for name in comparison.dataset.classes]
    first, this = comparison.entries[0], comparison.entries[place]
    gained, lost = comparison.flipped(place)
    most = max(PICTURES // (2 * (len(comparison.entries) - 1)), LEAST_PICTURES)

    def card(image: int) -> Card:
        pixels, true = dataset.read([image]), classes[int(dataset.targets[image])]
        name, answers = short_name(dataset.name(image)), []
        for who, entry in (("first", first), ("this", this)):
            probability = 100 * float(entry.confidence[image])
            answers.append(f"{who}: {classes[int(entry.predicted[image])]}, {probability:.1f}%")
        lines = (f"true class {true}", *answers, name)
        return Card(pixels.images[0], float(pixels.aspect[0]), f"{name}: {true}; {'; '.join(answers)}", lines)

    def row(image: int, kind: str) -> tuple[str, ...]:
        numbers = (dataset.targets[image], first.predicted[image], this.predicted[image])
        return short_name(dataset.name(image)), kind, *(classes[int(number)] for number in numbers)

    listed = [row(image, "gained") for image in gained] + [row(image, "lost") for image in lost]
    both = (("Gained", gained), ("Lost", lost))
    kinds = [(kind, len(images), [card(image) for image in images[:most]]) for kind, images in both]
    return {"name": this.name, "kinds": kinds, "flipped": len(listed), "listed": listed[:MOST_LISTED]}


def _value(value: Any) -> str:
    return "not set" if value is None else shown(value if isinstance(value, str) else json.dumps(value))
