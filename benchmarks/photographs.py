"""Your own photographs: what a linear classifier on features, fine-tuning and SLA reach at the same cost.

    python benchmarks/photographs.py DATA OUT
    python benchmarks/photographs.py DATA OUT --minutes 1,5 --seeds 3 --datasets cub20-10,flowers20-5
    python benchmarks/photographs.py DATA OUT --minutes 3 --datasets pilot-cub,pilot-flowers --pilots

The first line runs what is missing of the plan; several processes share it. DATA has CUB_200_2011/ and
flowers102/, each with train/ and test/ of class folders; of CIFAR-10, found as `sla train` finds it, 500
training and 200 test images per class are taken. A budget is minutes of two cores, as FLOP, the quick model
included, so that a row can be run again; every run has one thread. Pilots train and test on training images
alone: what `sla train` does by default is chosen on them. Rows that results/photographs.csv has are not run
again. Writes that file, and the tables and the picture of docs/photographs.md.
"""

import argparse
import json
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

from photographs_page import SCORES, draw, render
from photographs_plan import CELLS, CIFAR, PILOTS, PLAN, VARIANTS, WAYS, settings_of
from tables import REPOSITORY, Printed, Table

WHAT = ("cell", "way", "minutes", "seed", "variant")
COLUMNS = (*WHAT, "train", "test", *SCORES, "training_flop", "seconds", "core_seconds", "commit")
TABLE = Table("photographs", "docs/photographs.md", COLUMNS)


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


def jobs_of(given: argparse.Namespace) -> Iterator[tuple[float, int, str, str, dict[str, Any], str]]:
    """Minutes, seed, cell, way, its further settings and their name, of the plan or of what is asked for."""
    if given.datasets is None:
        for minutes, ways, names, seeds in PLAN:
            for seed, name, way in product(seeds, names.split(","), ways.split(",")):
                yield minutes, seed, name, way, {}, ""
        return
    if given.pilots is not None:
        tried = [(*VARIANTS[name], name) for name in given.pilots.split(",")]
    else:
        tried = [(way, {}, "") for way in given.ways.split(",")]
    budgets, names = map(float, given.minutes.split(",")), given.datasets.split(",")
    for minutes, seed, name, (way, more, variant) in product(budgets, range(given.seeds), names, tried):
        yield minutes, seed, name, way, more, variant


def run_cell(
    data: Path, out: Path, minutes: float, seed: int, name: str, way: str, more: dict[str, Any], variant: str
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
    for job in jobs_of(given):
        run_cell(given.data, given.out, *job)
    TABLE.show(render)
    draw(TABLE.read(), REPOSITORY / "docs" / "images" / "photographs.png")
