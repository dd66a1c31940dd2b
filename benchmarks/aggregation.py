"""Which images aggregation gains, and which it loses.

    python benchmarks/aggregation.py --name "CIFAR10, 100 per class" RUN [RUN ...]

The runs are seeds of one experiment. Their test images are evaluated once, by every view, and grouped by the
confidence of single inference, by how many of the other views give its answer, and by class. Writes the rows
of that name to results/aggregation.csv and the tables of docs/aggregation.md.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

import torch
from tables import Table, with_ends
from torch import Tensor

from sla.runs.result import find_commit
from sla.stats import interval
from sla.tasks.classifier.evaluation import infer
from sla.tasks.classifier.run import Run

SHARES = ("single", "aggregated", "gained", "lost")
TABLE = Table(
    "aggregation",
    "docs/aggregation.md",
    ("model", "seed", "group", "value", "images", *SHARES, "commit"),
)
FIFTHS = 5
GROUPS = {
    "all": "all images",
    "confidence": "confidence of single inference, fifth",
    "agreement": "other views with the same answer",
    "class": "class",
}
MOST_CLASSES = 10  # with more, each has too few images


def groups_of(by_view: Tensor, targets: Tensor, classes: list[str]) -> Iterator[tuple[str, str, Tensor]]:
    """(group, value, bool (n,)): the images of each part, from class logits (n, M, N) of every view."""
    yield "all", "", torch.ones(len(targets), dtype=torch.bool)
    confidence = by_view[:, 0].softmax(1).amax(1)
    place = confidence.argsort(stable=True).argsort() * FIFTHS // len(targets)
    for fifth in range(FIFTHS):
        yield "confidence", str(fifth + 1), place == fifth
    answers = by_view.argmax(2)
    agreeing = (answers[:, 1:] == answers[:, :1]).sum(1)
    for count in range(by_view.shape[1]):
        yield "agreement", str(count), agreeing == count
    if len(classes) <= MOST_CLASSES:
        for number, name in enumerate(classes):
            yield "class", name, targets == number


def shares_of(single: Tensor, aggregated: Tensor) -> dict[str, float]:
    """In percent, from right answers, bool (n,): each inference, and images that only one has right."""
    parts = (single, aggregated, aggregated & ~single, single & ~aggregated)
    return {name: 100 * float(part.double().mean()) for name, part in zip(SHARES, parts, strict=True)}


def measure(run: Run, name: str) -> list[dict[str, object]]:
    """The rows of one run."""
    dataset = run.dataset()
    outputs = infer(run.model, dataset, run.pipeline, by_view=True)
    if outputs.by_view is None or len(outputs.by_view) != len(dataset):
        raise SystemExit("too many images or classes to hold the scores of every view")
    right = [outputs.logits[name].argmax(1) == outputs.targets for name in ("single", "aggregated")]
    rows: list[dict[str, object]] = []
    for group, value, members in groups_of(outputs.by_view, outputs.targets, list(dataset.classes)):
        if members.any():
            shares = shares_of(*(one[members] for one in right))
            row: dict[str, object] = {"model": name, "seed": run.config.run.seed, "group": group}
            row |= {"value": value, "images": int(members.sum()), "commit": find_commit()}
            rows.append(row | {key: f"{share:.2f}" for key, share in shares.items()})
    return rows


def render(rows: list[dict[str, str]]) -> str:
    """A table for each model: means over its seeds, and the difference with its interval over them."""
    tables = []
    for model in dict.fromkeys(row["model"] for row in rows):
        own = [row for row in rows if row["model"] == model]
        lines = ["| | | images | single | aggregated | gained | lost | difference |"]
        lines.append("|---|---|--:|--:|--:|--:|--:|---|")
        for group, value in dict.fromkeys((row["group"], row["value"]) for row in own):
            part = [row for row in own if (row["group"], row["value"]) == (group, value)]
            means = [f"{fmean(float(row[key]) for row in part):.1f}" for key in SHARES]
            images = f"{fmean(float(row['images']) for row in part):,.0f}"
            differences = [float(row["aggregated"]) - float(row["single"]) for row in part]
            line = (GROUPS[group], value, images, *means, with_ends(interval(differences)))
            lines.append(f"| {' | '.join(line)} |")
        seeds = len({row["seed"] for row in own})
        tables += [f"**{model}**, mean of {seeds} runs", "\n".join(lines)]
    return "\n\n".join(tables)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    parser.add_argument("--name", required=True, help="of the experiment in the tables")
    given = parser.parse_args()
    rows = [row for folder in given.runs for row in measure(Run(folder), given.name)]
    TABLE.write([*(row for row in TABLE.read() if row["model"] != given.name), *rows])
    TABLE.show(render)


if __name__ == "__main__":
    main()
