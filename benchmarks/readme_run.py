"""The README's real run: CIFAR-10 with 500 images per class, the baseline and SLA, and its pictures.

    python benchmarks/readme_run.py OUT [SEEDS]

Runs are written below OUT; finished ones are kept, interrupted ones resumed. Writes
results/readme_run.csv, the table in README.md and two pictures in docs/images. Needs CIFAR-10 (`sla data get
cifar10`). About fifteen minutes per seed on two cores.
"""

import csv
import json
import sys
from pathlib import Path
from statistics import fmean

from tables import REPOSITORY, Printed, Table

IMAGES = REPOSITORY / "docs" / "images"
SETTINGS = {"data__per_class": 500, "model__backbone": "resnet8", "augment": "crop(4), flip"}
SETTINGS |= {"run__batch_size": 64, "run__iterations": 2000}
ROWS = {  # method and kind of inference: what the README calls it, forward passes per image
    ("baseline", "single"): ("the plain classifier", 1),
    ("sla+sd", "distilled"): ("SLA with self-distillation, distilled", 1),
    ("sla+sd", "aggregated"): ("the same model, aggregated over four rotations", 4),
}
COLUMNS = ("method", "seed", "single", "aggregated", "distilled", "training_flop", "seconds", "commit")
TABLE = Table("readme_run", "README.md", COLUMNS)


def train(out: Path, seeds: range) -> list[dict[str, object]]:
    from sla.session import fit
    from sla.tasks.classifier.run import Run

    rows = []
    for seed in seeds:
        for method in ("baseline", "sla+sd"):
            folder = out / f"{method}-{seed}"
            if not (folder / "result.json").exists():
                going_on = (folder / "config.yaml").exists()
                settings = {} if going_on else {**SETTINGS, "method__name": method, "run__seed": seed}
                fit("cifar10", folder, resume=going_on, progress=Printed(), **settings)
            result = Run(folder).result
            row = {"method": method, "seed": seed, "commit": result["commit"]}
            scores = result["accuracies"]["last"]["test"]
            row |= {inference: f"{found['top1']:.2f}" for inference, found in scores.items()}
            row |= {name: result["cost"][name] for name in ("training_flop", "seconds")}
            print(json.dumps(row), flush=True)
            rows.append(row)
    return rows


def render(rows: list[dict[str, str]]) -> str:
    """The README's table, each number the mean over seeds."""
    seeds = sorted({row["seed"] for row in rows})
    lines = ["| | passes per image | test accuracy | against the plain classifier |", "|---|---|---|---|"]
    base = {row["seed"]: float(row["single"]) for row in rows if row["method"] == "baseline"}
    for (method, inference), (name, passes) in ROWS.items():
        found = {row["seed"]: float(row[inference]) for row in rows if row["method"] == method}
        gain = "" if method == "baseline" else f"{fmean(found[s] - base[s] for s in seeds):+.1f}"
        lines.append(f"| {name} | {passes} | {fmean(found.values()):.1f}% | {gain} |")
    plain, joint = (
        fmean(float(row["training_flop"]) for row in rows if row["method"] == method)
        for method in ("baseline", "sla+sd")
    )
    seen = f"the mean of {len(seeds)} seeds" if len(seeds) > 1 else f"seed {seeds[0]}"
    return "\n".join(lines) + (
        f"\n\nResNet-8, 500 training images per class, all 10,000 test images, {seen}. SLA trains on four "
        f"views of every image: {joint / plain:.0f} times the training compute ({joint / 1e12:.0f} TFLOP)."
    )


def draw_views(path: Path) -> None:
    """Three training images in four rotations, each with its joint label."""
    import torch
    from matplotlib.figure import Figure

    import sla
    from sla.datasets.load import load

    train = load("cifar10").train
    chosen = [int((train.targets == label).nonzero()[0][3]) for label in (1, 3, 7)]
    images = train.read(chosen).images
    views = sla.Rotation()
    seen = sla.expand_views(images, views)
    labels = sla.join_labels(torch.as_tensor(train.targets[chosen]), len(views)).tolist()
    figure = Figure(figsize=(7, 5.7), layout="constrained")
    for place, axis in enumerate(figure.subplots(3, 4).flat):
        row, column = divmod(place, 4)
        axis.imshow(seen[place].permute(1, 2, 0).numpy(), interpolation="nearest")
        axis.set(xticks=[], yticks=[])
        name = train.classes[train.targets[chosen[row]]]
        axis.set_xlabel(f"{name}, {90 * column}°: {labels[place]}", fontsize=8)
    figure.savefig(path, dpi=90)


def draw_curves(out: Path, path: Path) -> None:
    """Held-out accuracy over the steps of the first seed's two runs."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.6), layout="constrained")
    axis = figure.subplots()
    for method, kinds in (("baseline", ["single"]), ("sla+sd", ["aggregated", "distilled"])):
        with open(out / f"{method}-0" / "metrics.csv", newline="") as file:
            rows = list(csv.DictReader(file))
        for inference in kinds:
            points = [(int(r["step"]), float(r[f"val_{inference}"])) for r in rows if r[f"val_{inference}"]]
            axis.plot(*zip(*points, strict=True), marker="o", ms=3, label=ROWS[method, inference][0])
    axis.set(xlabel="step", ylabel="held-out accuracy, %")
    axis.grid(alpha=0.3)
    axis.legend()
    figure.savefig(path, dpi=90)


def main() -> None:
    out, seeds = Path(sys.argv[1]), range(int(sys.argv[2]) if len(sys.argv) > 2 else 1)
    TABLE.write(train(out, seeds))
    TABLE.show(render)
    draw_views(IMAGES / "cifar10_views.png")
    draw_curves(out, IMAGES / "cifar10_curves.png")


if __name__ == "__main__":
    main()
