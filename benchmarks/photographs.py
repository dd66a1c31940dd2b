"""Your own photographs: what a linear classifier on features, fine-tuning and SLA reach at the same cost.

    python benchmarks/photographs.py DATA OUT --minutes 1 --seeds 3 --datasets cub20-10,flowers20-5
    python benchmarks/photographs.py DATA OUT --datasets pilot-10,pilot-15 --ways plain,sla

DATA has CUB_200_2011/ and flowers102/, each with train/ and test/ of class folders. A budget is in minutes
of two cores, as FLOP (MINUTE), the quick model included, so that a row can be run again; every run has one
thread. Pilots train and test on training images of classes 100 to 149 of CUB alone: what `sla train` does by
default is chosen on them. Rows that results/photographs.csv has are not run again. Writes that file, and the
table in docs/photographs.md.
"""

import argparse
import json
import time
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import yaml
from tables import Printed, Table

MINUTE = 4.0e12  # FLOP of EfficientNet-Lite0's training in a minute of two cores
FORWARD = 7.7e8  # FLOP of one pass at 224 pixels, for the part of a budget that the quick model takes
MIRRORED = 600  # pictures up to which the quick model sees mirror images too


class Cell(NamedTuple):
    """Pictures: the folder below DATA, the classes, and how many pictures of each are trained on."""

    folder: str
    classes: str
    per_class: int

    @property
    def images(self) -> int:
        """Training pictures."""
        low, high = self.classes.split("-")
        return self.per_class * (int(high) - int(low) + 1)


CUB, FLOWERS = "CUB_200_2011", "flowers102"
CELLS = {
    **{f"cub20-{each}": Cell(CUB, "0-19", each) for each in (5, 10, 30)},
    **{f"cub50-{each}": Cell(CUB, "0-49", each) for each in (5, 10, 30)},
    "cub200-30": Cell(CUB, "0-199", 30),
    **{f"flowers20-{each}": Cell(FLOWERS, "0-19", each) for each in (5, 15)},
    **{f"flowers102-{each}": Cell(FLOWERS, "0-101", each) for each in (5, 15)},
}
PILOTS = {"pilot-10": Cell(CUB, "100-149", 10), "pilot-15": Cell(CUB, "100-149", 15)}
SLA = {"method.name": "sla", "method.views": "rot4", "method.views_per_step": 1}
WAYS: dict[str, dict[str, Any]] = {
    "features": {"method.name": "features"},
    "plain": {"method.name": "baseline"},
    "mixed": {"method.name": "baseline", "method.label_smoothing": 0.1, "mix": "mixup(0.2)"},
    "sla": SLA,
    "student": {**SLA, "stages": ["features", "train", "distil"], "distil.share": 0.15},
    "timm": {  # its usual fine-tuning: a new head, one rate for all layers, statistics of the batch
        "method.name": "baseline",
        "method.label_smoothing": 0.1,
        "stages": ["train"],
        "augment": "randaugment(2, 9), resized(0.08), flip",
        "optimizer.learning_rate": 5e-4,
        "optimizer.backbone_factor": 1.0,
        "optimizer.warmup": 0.1,
        "optimizer.fixed_norms": False,
    },
}
SCORES = ("quick", "single", "flips", "aggregated", "distilled", "averaged", "averaged_views")
WHAT = ("cell", "way", "minutes", "seed", "variant")
COLUMNS = (*WHAT, "train", "test", *SCORES, "training_flop", "seconds", "core_seconds", "commit")
TABLE = Table("photographs", "docs/photographs.md", COLUMNS)


LABELS = {
    "features": "linear classifier on features",
    "plain": "fine-tuning",
    "mixed": "fine-tuning, label smoothing and mixup",
    "sla": "fine-tuning by SLA",
    "student": "fine-tuning by SLA, and a student",
    "timm": "timm's usual fine-tuning",
}


def render(rows: list[dict[str, str]]) -> str:
    """Mean accuracies over seeds, a row for each cell, budget and way."""
    header = ("pictures", "minutes", "way", "seeds", *(name.replace("_", ", ") for name in SCORES))
    lines = [header, ("---", "--:", "---", *["--:"] * (1 + len(SCORES)))]
    groups: dict[tuple[str, str, str], list[dict[str, str]]] = {}
    for row in rows:
        groups.setdefault((row["cell"], row["minutes"], row["way"]), []).append(row)
    order = [*PILOTS, *CELLS]
    for (cell, minutes, way), found in sorted(
        groups.items(), key=lambda one: (order.index(one[0][0]), one[0][1:])
    ):
        numbers = [[float(row[name]) for row in found if row[name]] for name in SCORES]
        means = [f"{fmean(some):.1f}" if some else "" for some in numbers]
        lines.append((cell, minutes, LABELS[way], str(len(found)), *means))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def settings_of(cell: Cell, way: str, minutes: float, seed: int, pilot: bool) -> dict[str, Any]:
    """The keys of a run; what is not here is the default of `sla train`."""
    passes = cell.images * (2 if cell.images <= MIRRORED else 1)
    left = minutes * MINUTE - (0 if way == "timm" else passes * FORWARD)
    steps = {} if way == "features" else {"run.flop": max(left, MINUTE / 10)}
    # A student's steps and its teacher's answers are part of the budget: 0.15 of the steps, of 3 + 4 passes.
    if way == "student":
        steps = {"run.flop": steps["run.flop"] / (1 + 0.15 * 7 / 3)}
    data = {"data.classes": cell.classes, "data.per_class": cell.per_class, "data.hold_out": 0.0}
    if pilot:
        data["data.hold_out"] = 1 / 3
    run = {"run.seed": seed, "run.evaluations": 1, "run.compile": False, "run.threads": 1}
    return data | run | WAYS[way] | steps


def scores_of(run: Any, split: str) -> dict[str, float]:
    """Accuracy in percent of the quick model, of each inference of the trained one, and of their average."""
    from sla.tasks.classifier.run import Run

    found = {
        checkpoint: {name: scores["top1"] for name, scores in parts[split].items()}
        for checkpoint, parts in run.result["accuracies"].items()
    }
    if run.config.method.name == "features":
        return {"quick": found["last"]["single"]}
    scores = found["last"]
    if "features" in found:
        scores |= {"quick": found["features"]["single"]}
    if "averaged" in found:
        scores["averaged"] = found["averaged"]["single"]
        if "aggregated" in found["averaged"]:
            scores["averaged_views"] = found["averaged"]["aggregated"]
    if split == "test":
        last = Run(run.folder, "last")
        scores["flips"] = last.flips(last.dataset(), "single").scores()["flips"]["top1"]
    return scores


def run_cell(
    data: Path, out: Path, name: str, way: str, minutes: float, seed: int, more: dict, variant: str
) -> None:
    """Train and test one cell, unless its row is there; the row is written at once."""
    import sla

    what = {"cell": name, "way": way, "minutes": f"{minutes:g}", "seed": str(seed), "variant": variant}
    if any(all(row[key] == value for key, value in what.items()) for row in TABLE.read()):
        return
    pilot = name in PILOTS
    cell = (PILOTS | CELLS)[name]
    folder = out / f"{name}-{way}-{minutes:g}-{seed}{'-' + variant if variant else ''}"
    source = data / cell.folder / "train" if pilot else data / cell.folder
    config = {
        key.replace(".", "__"): value
        for key, value in (settings_of(cell, way, minutes, seed, pilot) | more).items()
    }
    start = time.process_time()
    try:
        with TABLE.alone(folder.name, wait=False):
            resume = (folder / "config.yaml").exists()
            run = sla.fit(str(source), str(folder), resume=resume, progress=Printed(), **config)
            split = "val" if pilot else "test"
            scores = scores_of(run, split)
            images = run.result["images"]
            row = what | {"train": images["train"], "test": images[split]}
            row |= {key: f"{value:.2f}" for key, value in scores.items() if key in SCORES}
            row |= {key: run.result["cost"][key] for key in ("training_flop", "seconds")}
            row |= {"core_seconds": f"{time.process_time() - start:.0f}", "commit": run.result["commit"]}
            TABLE.append(row)
            print(json.dumps(row), flush=True)
    except BlockingIOError:
        print(f"{folder.name}: another process runs it")


if __name__ == "__main__":
    from sla.allocator import keep_memory

    keep_memory()
    import torch

    torch.set_num_threads(1)
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("data", type=Path)
    words.add_argument("out", type=Path)
    words.add_argument("--minutes", default="1")
    words.add_argument("--seeds", type=int, default=1)
    words.add_argument("--datasets", default=",".join(CELLS))
    words.add_argument("--ways", default=",".join(WAYS))
    words.add_argument("--set", action="append", default=[], help="key=value, for a variant")
    words.add_argument("--variant", default="", help="the name of a variant of the settings")
    given = words.parse_args()
    pairs = (word.partition("=")[::2] for word in given.set)
    more = {key: yaml.safe_load(value) for key, value in pairs}
    for minutes in given.minutes.split(","):
        for seed in range(given.seeds):
            for name in given.datasets.split(","):
                for way in given.ways.split(","):
                    run_cell(given.data, given.out, name, way, float(minutes), seed, more, given.variant)
    TABLE.show(render)
