"""Your own photographs: what a linear classifier on features, fine-tuning and SLA reach at the same cost.

    python benchmarks/photographs.py DATA OUT
    python benchmarks/photographs.py DATA OUT --minutes 1,5 --seeds 3 --datasets cub20-10,flowers20-5
    python benchmarks/photographs.py DATA OUT --minutes 3 --datasets pilot-cub,pilot-flowers --pilots

The first line runs what is missing of PLAN; several processes share it.

DATA has CUB_200_2011/ and flowers102/, each with train/ and test/ of class folders; of CIFAR-10, found as
`sla train` finds it, 500 training and 200 test images per class are taken. A budget is minutes of two cores,
as FLOP (MINUTE), the quick model included, so that a row can be run again; every run has one thread. Pilots
train and test on training images alone: what `sla train` does by default is chosen on them. Rows that
results/photographs.csv has are not run again. Writes that file, and the tables in docs/photographs.md.
"""

import argparse
import json
import time
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from tables import Printed, Table

from sla.stats import interval, share

MINUTE = 4.0e12  # FLOP of EfficientNet-Lite0's training in a minute of two cores
FORWARD = 7.7e8  # FLOP of one pass at 224 pixels, for the part of a budget that the quick model takes
MIRRORED = 600  # pictures up to which the quick model sees mirror images too


class Cell(NamedTuple):
    """Pictures: a folder below DATA or a dataset, the classes, how many of each are trained on, held out."""

    source: str
    classes: str
    per_class: int
    hold_out: float = 0.0

    @property
    def images(self) -> int:
        """Training pictures."""
        low, high = self.classes.split("-")
        return self.per_class * (int(high) - int(low) + 1)


CUB, FLOWERS, CIFAR = "CUB_200_2011", "flowers102", "cifar10"
CELLS = {
    **{f"cub20-{each}": Cell(CUB, "0-19", each) for each in (5, 10, 30)},
    **{f"cub50-{each}": Cell(CUB, "0-49", each) for each in (5, 10, 30)},
    "cub200-30": Cell(CUB, "0-199", 30),
    **{f"flowers20-{each}": Cell(FLOWERS, "0-19", each) for each in (5, 15)},
    **{f"flowers102-{each}": Cell(FLOWERS, "0-101", each) for each in (5, 15)},
    "cifar10-100": Cell(CIFAR, "0-9", 100),
}
PILOTS = {  # judged on what is held out of the training pictures
    "pilot-cub": Cell(CUB, "100-149", 10, 1 / 3),
    "pilot-flowers": Cell(FLOWERS, "50-99", 5, 1 / 3),
    "pilot-cub-2": Cell(CUB, "100-149", 10, 0.6),  # about twice as many held out
    "pilot-flowers-2": Cell(FLOWERS, "50-99", 5, 2 / 3),
    "pilot-cub-5": Cell(CUB, "150-199", 5, 0.6),
    "pilot-cub-20": Cell(CUB, "60-99", 20, 1 / 3),
    "pilot-cifar": Cell(CIFAR, "0-9", 50, 0.2),
}
LIGHT = {"method.label_smoothing": 0.0, "augment": "resized(0.35), flip"}
STRONG = {"method.label_smoothing": 0.1, "augment": "randaugment(2, 9), resized(0.35), flip"}
MIXED = {"method.label_smoothing": 0.1, "mix": "mixup(0.2)"}
CUTMIX = {"method.label_smoothing": 0.1, "mix": "cutmix(1.0, 0.5)"}
PLAIN = {"method.name": "baseline"}
SLA = {"method.name": "sla", "method.views": "rot4", "method.views_per_step": 1}
WAYS: dict[str, dict[str, Any]] = {
    "features": {"method.name": "features"},
    "plain": {**PLAIN, **LIGHT},
    "mixed": {**PLAIN, **LIGHT, **MIXED},
    "strong": {**PLAIN, **STRONG},
    "sla": {**SLA, **LIGHT},
    "sla-strong": {**SLA, **STRONG},
    "student": {**SLA, **LIGHT, "stages": ["features", "train", "distil"], "distil.share": 0.15},
    "timm": {  # its usual fine-tuning: a new head, one rate for all layers, statistics of the batch
        **PLAIN,
        "method.label_smoothing": 0.1,
        "stages": ["train"],
        "augment": "randaugment(2, 9), resized(0.08), flip",
        "optimizer.learning_rate": 5e-4,
        "optimizer.backbone_factor": 1.0,
        "optimizer.warmup": 0.1,
        "optimizer.fixed_norms": False,
    },
}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {  # of a way, for the pilots
    "": ("plain", {}),
    "slow": ("plain", {"optimizer.learning_rate": 3e-4}),
    "fast": ("plain", {"optimizer.learning_rate": 3e-3}),
    "smooth": ("plain", {"method.label_smoothing": 0.1}),
    "mixup": ("plain", {"mix": "mixup(0.2)"}),
    "mixed": ("mixed", {}),
    "cutmix": ("plain", CUTMIX),
    "average": ("plain", {"optimizer.ema": 0.98}),
    "randaugment": ("plain", STRONG),
    "policy": ("plain", {"augment": STRONG["augment"]}),
    "160": ("plain", {"model.train_resolution": 160}),
    "128": ("plain", {"model.train_resolution": 128}),
    "four": ("sla", {}),
    "four-mixed": ("sla", MIXED),
    "four-cutmix": ("sla", CUTMIX),
    "four-randaugment": ("sla", STRONG),
    "two": ("sla", {"method.views": "rot2"}),
    "two-randaugment": ("sla", {"method.views": "rot2", **STRONG}),
    "colours": ("sla", {"method.views": "rgb3"}),
    "four-160": ("sla", {"model.train_resolution": 160}),
    "timm": ("timm", {}),
}
BIRDS, SMALL = (
    "cub20-5,cub20-10,cub20-30,cub50-5,cub50-10,cub50-30",
    "cub20-5,cub20-10,flowers20-5,flowers20-15",
)
EVERY = f"{BIRDS},flowers20-5,flowers20-15,flowers102-5,flowers102-15,cifar10-100"
VARIED = "cub20-10,cub50-10,flowers20-5,flowers102-5,cifar10-100"
PLAN = (  # minutes, ways, cells, seeds: most valuable first, within twelve core-hours with the pilots
    (1, "plain,sla", EVERY, (0,)),
    (5, "plain,sla", VARIED, (0,)),
    (20, "plain,sla", "cub50-30,flowers102-15", (0,)),
    (5, "plain,sla", "cub20-5,cub20-30,cub50-5,flowers20-15", (0,)),
    (5, "plain,sla", "cub200-30", (0,)),
    (5, "mixed,timm,student", "cub20-10,flowers20-5,cub50-10,flowers102-5", (0,)),
    (1, "mixed,timm,student", SMALL, (0,)),
    (1, "plain,sla", SMALL, (1, 2)),
    (5, "plain,sla", "cub50-30,flowers102-15", (0,)),
    (5, "plain,sla", "cub20-10,flowers20-5", (1, 2)),
)
SCORES = ("quick", "single", "flips", "aggregated", "distilled", "averaged", "averaged_views")
WHAT = ("cell", "way", "minutes", "seed", "variant")
COLUMNS = (*WHAT, "train", "test", *SCORES, "training_flop", "seconds", "core_seconds", "commit")
TABLE = Table("photographs", "docs/photographs.md", COLUMNS)
ANSWERS = (  # a line of a table: way, score, words, passes per picture
    ("features", "quick", "linear classifier on features", 1),
    ("plain", "single", "fine-tuning", 1),
    ("plain", "flips", "fine-tuning, over flips", 2),
    ("plain", "averaged", "fine-tuning, averaged", 1),
    ("mixed", "averaged", "fine-tuning, smoothing and mixup, averaged", 1),
    ("strong", "single", "fine-tuning, smoothing and RandAugment", 1),
    ("strong", "flips", "fine-tuning, smoothing and RandAugment, over flips", 2),
    ("strong", "averaged", "fine-tuning, smoothing and RandAugment, averaged", 1),
    ("timm", "single", "timm's usual fine-tuning", 1),
    ("sla", "single", "SLA, single", 1),
    ("sla", "aggregated", "SLA, aggregated", 4),
    ("sla", "averaged", "SLA, averaged, single", 1),
    ("sla", "averaged_views", "SLA, averaged, aggregated", 4),
    ("sla-strong", "single", "SLA, smoothing and RandAugment, single", 1),
    ("sla-strong", "aggregated", "SLA, smoothing and RandAugment, aggregated", 4),
    ("sla-strong", "averaged", "SLA, smoothing and RandAugment, averaged, single", 1),
    ("sla-strong", "averaged_views", "SLA, smoothing and RandAugment, averaged, aggregated", 4),
    ("student", "distilled", "SLA, student", 1),
)
QUICK, TUNED = ("features", "quick"), ("plain", "averaged")
DEFAULTS = {"1": QUICK}  # what `sla train --minutes` answers by; with more minutes, TUNED
SLA_WAYS = ("sla", "sla-strong", "student")
Rows = list[dict[str, str]]


def render(rows: Rows) -> str:
    """A table for each budget: accuracies by answer and pictures; then the pilots."""
    tables = []
    for minutes in sorted({row["minutes"] for row in rows if row["cell"] in CELLS}, key=float):
        cells = [name for name in CELLS if any((r["cell"], r["minutes"]) == (name, minutes) for r in rows)]
        tables += [
            f"**{minutes} minute{'s' * (minutes != '1')} of two cores**",
            _budget(rows, minutes, cells),
            _goal(rows, minutes, cells),
        ]
    return "\n\n".join([*filter(None, tables), "**Pilots**, on held-out training pictures", _pilots(rows)])


def _values(rows: Rows, cell: str, minutes: str, way: str, score: str, variant: str = "") -> dict[str, float]:
    """A score by seed."""
    wanted = (cell, minutes, way, variant)
    found = [row for row in rows if (row["cell"], row["minutes"], row["way"], row["variant"]) == wanted]
    if way == "features":  # every way but timm's begins with it, whatever the budget
        found = [row for row in rows if row["cell"] == cell]
    return {row["seed"]: float(row[score]) for row in found if row[score]}


def _budget(rows: Rows, minutes: str, cells: list[str]) -> str:
    """Means over seeds with half their 95% interval, and the gain over the default."""
    default = DEFAULTS.get(minutes, TUNED)
    lines: list[tuple[str, ...]] = [("", "passes", *cells, "over the default")]
    lines.append(("---", "--:", *["--:"] * len(cells), "---"))
    for way, score, words, passes in ANSWERS:
        found = {name: _values(rows, name, minutes, way, score) for name in cells}
        if any(found.values()):
            shown = [_mean(list(values.values())) for values in found.values()]
            last = "the default" if (way, score) == default else _gain(rows, minutes, found)
            lines.append((words, str(passes), *shown, last))
    return _markdown(lines)


def _goal(rows: Rows, minutes: str, cells: list[str]) -> str:
    """In which columns the default's interval has the best row, and what SLA adds to the best without it."""
    best, missed, sla = [], [], []
    for cell in cells:
        default = _values(rows, cell, minutes, *DEFAULTS.get(minutes, TUNED))
        gains = _over(rows, cell, minutes, default)
        if len(gains) < 2:  # nothing but the default
            continue
        best.append(max(gains.values()))
        accuracy, count = (
            fmean(default.values()),
            max(int(row["test"]) for row in rows if row["cell"] == cell),
        )
        if accuracy + best[-1] > share(accuracy / 100 * count, count).high:
            missed.append(cell)
        ours = [gain for way, gain in gains.items() if way[0] in SLA_WAYS]
        if ours:
            sla.append(max(ours) - max(gain for way, gain in gains.items() if way[0] not in SLA_WAYS))
    if not best:
        return ""
    text = (
        f"The best row is {fmean(best):.1f} points above the default, on average, and within the default's "
        f"95% interval over the test pictures in {len(best) - len(missed)} of {len(best)} columns"
    )
    text += f" (not in {', '.join(missed)})." if missed else "."
    if len(sla) > 1:
        one = interval(sla)
        text += (
            f" The best row with SLA against the best without: {one.mean:+.1f} points ({one.ends('+.1f')})."
        )
    return text


def _over(rows: Rows, cell: str, minutes: str, default: dict[str, float]) -> dict[tuple[str, str], float]:
    """By way and score the mean gain over the default, on the seeds that both have."""
    gains = {}
    for way, score, _, _ in ANSWERS:
        values = _values(rows, cell, minutes, way, score)
        if seeds := values.keys() & default.keys():
            gains[way, score] = fmean(values[seed] - default[seed] for seed in seeds)
    return gains


def _mean(values: list[float]) -> str:
    if len(values) < 2:
        return f"{values[0]:.1f}" if values else ""
    return f"{(found := interval(values)).mean:.1f} ± {found.high - found.mean:.1f}"


def _gain(rows: Rows, minutes: str, found: dict[str, dict[str, float]]) -> str:
    """The mean over columns of the difference, paired by seed; its interval is over the columns."""
    usual = {name: _values(rows, name, minutes, *DEFAULTS.get(minutes, TUNED)) for name in found}
    gains = [
        fmean(values[seed] - usual[name][seed] for seed in seeds)
        for name, values in found.items()
        if (seeds := values.keys() & usual[name].keys())
    ]
    if not any(gains):
        return ""
    one = interval(gains)
    ends = f"({one.ends('+.1f')}), " if len(gains) > 1 else ""
    return f"{one.mean:+.1f} {ends}{len(gains)} column{'s' if len(gains) > 1 else ''}"


def _pilots(rows: Rows) -> str:
    tried = {(row["cell"], row["minutes"]) for row in rows if row["cell"] in PILOTS}
    columns = sorted(tried, key=lambda column: (float(column[1]), column[0]))
    lines: list[tuple[str, ...]] = [
        ("way", "settings", "answer", *(f"{cell}, {minutes} minutes" for cell, minutes in columns)),
        ("---", "---", "---", *["--:"] * len(columns)),
    ]
    for variant, (way, more) in VARIANTS.items():
        settings = ", ".join(f"{key.partition('.')[2] or key} {value}" for key, value in more.items())
        for score in SCORES:
            found = [_values(rows, cell, minutes, way, score, variant) for cell, minutes in columns]
            if any(found) and (score != "quick" or not variant):
                shown = (f"{fmean(values.values()):.1f}" if values else "" for values in found)
                lines.append((way, settings, score.replace("_", ", "), *shown))
    return _markdown(lines)


def _markdown(lines: Iterable[tuple[str, ...]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def settings_of(cell: Cell, way: str, minutes: float, seed: int) -> dict[str, Any]:
    """The keys of a run; what is not here is the default of `sla train`."""
    passes = cell.images * (2 if cell.images <= MIRRORED else 1)
    left = minutes * MINUTE - (0 if way == "timm" else passes * FORWARD)
    steps = {} if way == "features" else {"run.flop": max(left, MINUTE / 10)}
    # A student's steps and its teacher's answers are part of the budget: 0.15 of the steps, of 3 + 4 passes.
    if way == "student":
        steps = {"run.flop": steps["run.flop"] / (1 + 0.15 * 7 / 3)}
    data = {"data.classes": cell.classes, "data.per_class": cell.per_class, "data.hold_out": cell.hold_out}
    run = {"run.seed": seed, "run.evaluations": 1, "run.compile": False, "run.threads": 1}
    return data | run | WAYS[way] | steps


def scores_of(run: Any, split: str, flips: bool) -> dict[str, float]:
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
    if flips:
        last = Run(run.folder, "last")
        scores["flips"] = last.flips(last.dataset(), "single").scores()["flips"]["top1"]
    return scores


def cifar_folder(out: Path) -> Path:
    """Some images of each class of CIFAR-10 as files: testing on all would cost more than training."""
    from PIL import Image

    from sla.datasets.load import load
    from sla.sampling.protocols import limited

    folder, splits = out / CIFAR, load(CIFAR)
    for split, dataset, count in (("train", splits.train, 500), ("test", splits.test, 200)):
        assert dataset is not None
        part = limited(dataset, count)
        pixels = part.read(range(len(part))).images.permute(0, 2, 3, 1).numpy()
        for number, (image, target) in enumerate(zip(pixels, part.targets, strict=True)):
            place = folder / split / dataset.classes[int(target)]
            place.mkdir(parents=True, exist_ok=True)
            if not (place / f"{number}.png").exists():
                Image.fromarray(image).save(place / f"{number}.png")
    return folder


def run_cell(
    data: Path, out: Path, name: str, way: str, minutes: float, seed: int, more: dict, variant: str
) -> None:
    """Train and test one cell, unless its row is there; the row is written at once."""
    import sla

    what = {"cell": name, "way": way, "minutes": f"{minutes:g}", "seed": str(seed), "variant": variant}
    if any(all(row[key] == value for key, value in what.items()) for row in TABLE.read()):
        return
    pilot, cell = name in PILOTS, (PILOTS | CELLS)[name]
    folder = out / f"{name}-{way}-{minutes:g}-{seed}{'-' + variant if variant else ''}"
    source = cifar_folder(out) if cell.source == CIFAR else data / cell.source
    source = source / "train" if pilot else source
    settings = settings_of(cell, way, minutes, seed) | more
    config = {key.replace(".", "__"): value for key, value in settings.items()}
    start = time.process_time()
    try:
        with TABLE.alone(folder.name, wait=False):
            resume = (folder / "config.yaml").exists()
            run = sla.fit(str(source), str(folder), resume=resume, progress=Printed(), **config)
            split = "val" if pilot else "test"
            scores = scores_of(run, split, flips=way in ("plain", "strong") and not pilot)
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
    words.add_argument("--datasets", help="without it the plan is run")
    words.add_argument("--ways", default=",".join(WAYS))
    every = ",".join(VARIANTS)
    words.add_argument("--pilots", nargs="?", const=every, help="these variants, or all, instead of the ways")
    given = words.parse_args()
    if given.pilots is not None:
        tried = [(*VARIANTS[name], name) for name in given.pilots.split(",")]
    else:
        tried = [(way, {}, "") for way in given.ways.split(",")]
    jobs = [
        (minutes, seed, name, *one)
        for minutes in map(float, given.minutes.split(","))
        for seed in range(given.seeds)
        for name in (given.datasets or "").split(",")
        for one in tried
    ]
    if given.datasets is None:
        jobs = [
            (minutes, seed, name, way, {}, "")
            for minutes, ways, names, seeds in PLAN
            for seed in seeds
            for name in names.split(",")
            for way in ways.split(",")
        ]
    for minutes, seed, name, way, more, variant in jobs:
        run_cell(given.data, given.out, name, way, minutes, seed, more, variant)
    TABLE.show(render)
