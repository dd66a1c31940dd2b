"""Anytime aggregation of a trained run: accuracy against views, and real seconds.

    python benchmarks/anytime.py RUN [--name NAME]

The rules come from the run's held-out images; the run's test images are evaluated once by every rule, by the
first 1, ..., M views for all images, and by single and aggregated inference. The differences in accuracy are
to aggregated inference on the same images, with paired 95% intervals. The seconds are of real passes over
up to 1,000 images, interleaved. Writes the rows of the run to results/anytime.csv and the table of
docs/anytime.md.
"""

import argparse
import statistics
import time
from pathlib import Path

import numpy as np
import torch
from tables import Table, with_ends

from sla.anytime import AnytimeRule, running_averages, settle
from sla.classifier import Classifier
from sla.runs.result import find_commit
from sla.stats import Interval, paired_shares
from sla.tasks.classifier.anytime import LEVELS, rule_at
from sla.tasks.classifier.evaluation import infer
from sla.tasks.classifier.run import Run

COLUMNS = (
    *("model", "inference", "agreement", "strictness", "calibrated_on", "images", "views", "accuracy"),
    *("difference", "low", "high", "changed", "milliseconds_per_image", "time_ratio", "commit"),
)
TABLE = Table("anytime", "docs/anytime.md", COLUMNS)
TIMED, ROUNDS, BATCH = 1000, 5, 128


def measure(run: Run, name: str) -> list[dict[str, object]]:
    """The rows of one run."""
    run.use_agreement(min(LEVELS))  # calibrates where the run has no rules
    rules = [rule for level in LEVELS if (rule := rule_at(run.anytime_rules, level)) is not None]
    dataset = run.dataset()
    run.model.anytime_rule = None
    outputs = infer(run.model, dataset, run.pipeline, by_view=True)
    assert outputs.by_view is not None
    if len(outputs.by_view) != len(dataset):
        raise SystemExit("too many images or classes to hold the scores of every view: name fewer")
    logits, targets = outputs.by_view, outputs.targets
    answers, order = logits.mean(1).argmax(1), rules[0].order
    running = running_averages(logits, order)
    times = time_rules(run, rules)

    def row(inference: str, predicted: torch.Tensor, views: float, rule: AnytimeRule | None = None) -> dict:
        right, full = predicted == targets, answers == targets
        gained, lost = int((right & ~full).sum()), int((full & ~right).sum())
        points = paired_shares(gained, lost, len(targets))
        key = inference if rule is None else f"anytime {rule.agreement:g}"
        seconds = times.get(key)
        return {
            "model": name,
            "inference": inference,
            "agreement": "" if rule is None else rule.agreement,
            "strictness": "" if rule is None else f"{rule.strictness:.4g}",
            "calibrated_on": "" if rule is None else rule.images,
            "images": len(targets),
            "views": f"{views:.3f}",
            "accuracy": f"{100 * right.double().mean():.2f}",
            "difference": f"{points.mean:.3f}",
            "low": f"{points.low:.3f}",
            "high": f"{points.high:.3f}",
            "changed": int((predicted != answers).sum()),
            "milliseconds_per_image": "" if seconds is None else f"{1000 * seconds[0]:.3f}",
            "time_ratio": "" if seconds is None else f"{seconds[1]:.3f}",
            "commit": find_commit(),
        }

    rows = [row("single", outputs.logits["single"].argmax(1), 1)]
    rows += [row(f"first {k}", running[:, k - 1].argmax(1), k) for k in range(1, len(order))]
    for rule in rules:
        found = settle(logits, rule)
        rows.append(row("anytime", found.logits.argmax(1), found.views.double().mean().item(), rule))
    return [*rows, row("aggregated", answers, len(order))]


@torch.inference_mode()
def time_rules(run: Run, rules: list[AnytimeRule]) -> dict[str, tuple[float, float]]:
    """Seconds per image of real passes, and their ratio to aggregated inference: medians over rounds."""
    dataset = run.dataset()
    places = np.unique(np.linspace(0, len(dataset) - 1, min(TIMED, len(dataset))).astype(int))
    pixels = dataset.read(places)
    from sla.sampling.draws import Draws

    images = run.pipeline(pixels.images, Draws(0, 0, len(places), 0, len(places)), pixels.aspect)
    passes = {"single": None, **{f"anytime {rule.agreement:g}": rule for rule in rules}, "aggregated": None}
    found: dict[str, list[float]] = {key: [] for key in passes}
    for _ in range(ROUNDS + 1):
        for key, rule in passes.items():
            run.model.anytime_rule = rule
            found[key].append(seconds_of(run.model, images, key.split()[0]))
    ratios = {
        key: statistics.median(a / b for a, b in zip(values[1:], found["aggregated"][1:], strict=True))
        for key, values in found.items()
    }
    return {key: (statistics.median(values[1:]) / len(images), ratios[key]) for key, values in found.items()}


def seconds_of(model: Classifier, images: torch.Tensor, inference: str) -> float:
    """Of one pass, batch by batch."""
    start = time.monotonic()
    for batch in images.split(BATCH):
        model.logits(batch, inference)
    return time.monotonic() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--name", help="of the model in the table; the folder's by default")
    given = parser.parse_args()
    name = given.name or given.run.absolute().name
    rows = measure(Run(given.run), name)
    TABLE.write([*(row for row in TABLE.read() if row["model"] != name), *rows])
    TABLE.show(render)
    print(render(TABLE.read()))


def render(rows: list[dict[str, str]]) -> str:
    """A line a row."""
    lines = [
        "| model | inference | views | accuracy % | difference to aggregated "
        "| changed | ms per image | time |",
        "|---|---|--:|--:|---|--:|--:|--:|",
    ]
    for row in rows:
        points = Interval(*(float(row[name]) for name in ("difference", "low", "high")))
        level = f" {100 * float(row['agreement']):g}%" if row["agreement"] else ""
        words = [row["model"], row["inference"] + level, row["views"], row["accuracy"]]
        words += ["" if row["inference"] == "aggregated" else with_ends(points, 2), row["changed"]]
        lines.append(f"| {' | '.join([*words, row['milliseconds_per_image'], row['time_ratio']])} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
