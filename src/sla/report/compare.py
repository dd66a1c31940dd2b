"""The page of a comparison: accuracies, differences on the same images, what flipped, costs, settings."""

import json
import shlex
import sys
from html import escape
from pathlib import Path
from typing import Any

from sla.compare.comparison import RISK, Comparison, SeedGroup, format_p
from sla.errors import shown
from sla.report import html
from sla.report.charts import Strip, strip_chart
from sla.report.formatting import amount, duration, part
from sla.report.pictures import Card, cards, short_name
from sla.stats import Interval

PICTURES, LEAST_PICTURES = 24, 4  # of flipped images of one pair, shared out where there are several pairs
MOST_LISTED = 1000  # flipped images named one by one
COVERS = (
    "Intervals (Tango's score) and p-values (McNemar's exact test) are about the images: how far the "
    "difference might be chance in which images were asked, for these very models. They do not cover the "
    "spread from one training to the next: another seed can move an accuracy by more. Only several seeds of "
    "each show that."
)


def write_compare_page(comparison: Comparison, path: Path) -> None:
    """Write the page of a finished comparison."""
    html.write(path, compare_page(comparison))


def compare_page(comparison: Comparison) -> str:
    """The whole page."""
    names = [entry.name for entry in comparison.entries]
    title = f"{names[0]} and {names[1]}" if len(names) == 2 else f"{len(names)} runs side by side"
    return html.page(
        title,
        html.paragraph(comparison.summary(), "lead"),
        *(html.paragraph(note) for note in comparison.notes),
        html.section("Accuracy", _accuracies(comparison)),
        html.section("Over seeds", _seeds(comparison)) if comparison.groups else "",
        html.section("Differences on the same images", _differences(comparison)),
        html.section("Which images flipped", _flips(comparison)),
        html.section("What each cost", _costs(comparison)),
        html.section("What was set differently", _settings(comparison)),
        html.section("How this was made", html.code(shown(shlex.join(["sla", *sys.argv[1:]])))),
    )


def _accuracies(comparison: Comparison) -> str:
    found = list(zip(comparison.entries, comparison.accuracies, comparison.right, strict=True))
    rows = [
        (
            entry.name,
            f"{top1.mean:.2f}%",
            f"{top1.low:.1f} to {top1.high:.1f}",
            f"{int(right.sum()):,}",
            entry.run.config.method.name,
            f"{entry.run.config.run.seed}",
        )
        for entry, top1, right in found
    ]
    header = ("run, inference", "accuracy", "95% interval", "right", "method", "seed")
    words = (
        f"On the same {len(comparison.dataset):,} {comparison.what}, with the {found[0][0].run.checkpoint} "
        "checkpoint of each. The bar is the 95% interval (Wilson); the dashed line is the first run. Two "
        "intervals may overlap though the runs differ: below, answers are paired image by image."
    )
    strips = [Strip(entry.name, (), top1) for entry, top1, _ in found]
    return (
        html.paragraph(words, "soft")
        + strip_chart(strips)
        + html.table(header, rows, "Accuracy", "scroll names")
    )


def _differences(comparison: Comparison) -> str:
    several, rows = len(comparison.differences) > 1, []
    strips = [Strip(comparison.entries[0].name, (), Interval(0.0, 0.0, 0.0))]
    for entry, one in zip(comparison.entries[1:], comparison.differences, strict=True):
        counts = [f"{n:,}" for n in (one.gained, one.lost, one.both_right, one.both_wrong)]
        p_values = [one.p, one.adjusted] if several else [one.p]
        interval = f"{one.points.low:+.1f} to {one.points.high:+.1f}"
        p_cells = [format_p(p).removeprefix("= ") for p in p_values]
        rows.append((entry.name, f"{one.points.mean:+.2f}", interval, *p_cells, one.verdict, *counts))
        strips.append(Strip(entry.name, (), one.points))
    tested = ("p", f"p for {len(rows)} tests") if several else ("p",)
    counted = ("gained", "lost", "both right", "both wrong")
    header = ("run, inference", "points", "95% interval", *tested, "so it is", *counted)
    adjusted = ", adjusted for the number of tests (Holm)," if several else ""
    return (
        html.paragraph(
            f"In points of accuracy, to {comparison.entries[0].name}. Gained: right where that one is wrong; "
            f"lost: the other way round. McNemar's exact p{adjusted} decides, below {RISK:g}; Tango's "
            "interval is shown beside it, and a row says where the two disagree.",
            "soft",
        )
        + strip_chart(strips, unit="")
        + html.table(header, rows, "Differences on the same images", "scroll names")
        + html.paragraph(COVERS)
    )


def _seeds(comparison: Comparison) -> str:
    rows, first = [], comparison.groups[0]
    for group in comparison.groups:
        mean, sd = group.spread
        cells = ["", "the first"] if group is first else _paired(group, first)
        spread = f"{sd:.2f}" if len(group.seeds) > 1 else "one seed"
        seeds = ", ".join(map(str, sorted(group.seeds)))
        rows.append((_group_name(comparison, group), seeds, f"{mean:.2f}%", spread, *cells))
    header = ("runs", "seeds", "mean", "sd", "points", "95% interval")
    words = (
        "Runs that differ in their seed alone. Here the spread is that of training: means over seeds, and "
        "differences paired by seed, where both have the same two seeds or more, with an interval by "
        "Student's t; all on these images."
    )
    return html.paragraph(words, "soft") + html.table(header, rows, "Over seeds", "scroll words names")


def _paired(group: SeedGroup, first: SeedGroup) -> list[str]:
    found = group.difference(first)
    if found is None:
        return ["", "not the same seeds"]
    return [f"{found.mean:+.2f}", f"{found.low:+.1f} to {found.high:+.1f}"]


def _group_name(comparison: Comparison, group: SeedGroup) -> str:
    entry, more = comparison.entries[group.places[0]], len(group.places) - 1
    return f"{shown(entry.run.folder)}{f' and {more} more' if more else ''}, {entry.inference}"


def _flips(comparison: Comparison) -> str:
    pairs = len(comparison.entries) - 1
    most = max(PICTURES // (2 * pairs), LEAST_PICTURES)
    parts = [
        html.paragraph(
            f"First: the answer of {comparison.entries[0].name}; this: that of the run in the heading; each "
            "with how sure it was. The surest wrong answers come first.",
            "soft",
        )
    ]
    for place in range(1, pairs + 1):
        parts.append(f"<h3>{escape(comparison.entries[place].name)}</h3>")
        for kind, images in zip(("Gained", "Lost"), comparison.flipped(place), strict=True):
            shown_here = f", {min(most, len(images))} of them here" if len(images) > most else ""
            parts.append(html.paragraph(f"{kind}: {len(images):,}{shown_here}"))
            parts.append(
                cards([_card(comparison, place, image) for image in images[:most]]) if images else ""
            )
        parts.append(_listed(comparison, place))
    return "".join(parts)


def _card(comparison: Comparison, place: int, image: int) -> Card:
    dataset, classes = comparison.dataset, [shown(name) for name in comparison.dataset.classes]
    pixels = dataset.read([image])
    true, name = classes[int(dataset.targets[image])], short_name(dataset.name(image))
    answers = [
        f"{who}: {classes[int(entry.given[image])]}, {100 * float(entry.confidence[image]):.1f}%"
        for who, entry in (("first", comparison.entries[0]), ("this", comparison.entries[place]))
    ]
    lines = (f"is {true}", *answers, name)
    return Card(pixels.images[0], float(pixels.aspect[0]), f"{name}: {true}; {'; '.join(answers)}", lines)


def _listed(comparison: Comparison, place: int) -> str:
    """Every flipped image by name, as far as a page can hold them."""
    dataset, classes = comparison.dataset, [shown(name) for name in comparison.dataset.classes]
    first, this = comparison.entries[0], comparison.entries[place]
    gained, lost = comparison.flipped(place)
    found = [(image, "gained") for image in gained] + [(image, "lost") for image in lost]
    if not found:
        return ""
    rows = [
        (
            short_name(dataset.name(image)),
            what,
            classes[int(dataset.targets[image])],
            classes[int(first.given[image])],
            classes[int(this.given[image])],
        )
        for image, what in found[:MOST_LISTED]
    ]
    table = html.table(("image", "", "class", "first", "this"), rows, "Flipped images", "scroll tall")
    more = (
        f"the first {MOST_LISTED:,} of {len(found):,}; --json has all" if len(found) > MOST_LISTED else "all"
    )
    return html.details(f"By name, {more}", table)


def _costs(comparison: Comparison) -> str:
    rows = []
    for entry in comparison.entries:
        cost = part(entry.run.result, "cost")
        inference = part(cost, "inference_flop").get(entry.inference)
        rows.append(
            (
                entry.name,
                amount(cost.get("training_flop"), "FLOP"),
                duration(cost.get("seconds")),
                amount(cost.get("peak_memory_bytes"), "B"),
                amount(inference, "FLOP"),
                amount(cost.get("parameters")),
                shown(str(cost.get("device", "not known"))),
            )
        )
    header = (
        "run, inference",
        "training",
        "training time",
        "peak memory",
        "an image",
        "parameters",
        "device",
    )
    return html.table(header, rows, "What each cost", "scroll names")


def _settings(comparison: Comparison) -> str:
    if not comparison.settings:
        return html.paragraph("Nothing: the configurations are the same in every key.")
    header = ("key", *(entry.name for entry in comparison.entries))
    rows = [(key, *map(_value, values)) for key, values in comparison.settings.items()]
    return html.table(header, rows, "What was set differently", "scroll settings")


def _value(value: Any) -> str:
    return "not set" if value is None else shown(value if isinstance(value, str) else json.dumps(value))
