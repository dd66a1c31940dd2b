"""Speed of inference against the paper's evaluation listing, run eagerly; and of `sla predict`.

    python benchmarks/inference.py [--quick]

Every variant is run in turn, round after round, so that a busy machine slows all of them: the ratios count.
Four parts: images per second of aggregated inference for many images; milliseconds for one image, by threads;
`predict` on photographs, where decoding and the network overlap; seconds before the first answer. Writes
results/inference.csv and the table of docs/inference.md. Some five minutes on two cores; --quick: one, and
it writes nothing.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from tables import Table
from torch import Tensor, nn

import sla
from sla.accelerate import accelerate, try_onnxruntime
from sla.augment.preprocessing import Preprocessing
from sla.classifier import Classifier
from sla.images.files import FileImages, in_threads
from sla.images.store import Dataset
from sla.runs.result import find_commit
from sla.tasks.classifier.evaluation import infer

COLUMNS = ("part", "what", "variant", "threads", "value", "unit", "ratio", "difference", "commit")
TABLE = Table("inference", "docs/inference.md", COLUMNS)
NETWORKS = (
    ("resnet32", 32, 128),
    ("resnet9_32", 32, 128),
    ("resnet18", 64, 32),
    ("efficientnet_lite0", 96, 32),
)
ROUNDS, PHOTOS, SIDE = 5, 1000, (500, 375)


def build(name: str) -> Classifier:
    """A model in eval mode whose batch norms are not the identity."""
    torch.manual_seed(0)
    model = sla.create(name, 100, sla.SLA())
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None
            assert module.running_var is not None
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 1.5)
    return model.eval()


@torch.no_grad()
def listing(model: Classifier, images: Tensor) -> Tensor:
    """Aggregated inference as the paper's listing has it: all views, the whole joint head, then slices."""
    inputs = torch.stack([torch.rot90(images, k, (2, 3)) for k in range(4)], 1).flatten(0, 1)
    outputs = model.heads["joint"](model.backbone(inputs))
    return sum(outputs[k::4, k::4] / 4 for k in range(4))  # type: ignore[return-value]


def variants(model: Classifier, images: Tensor) -> dict[str, Callable[[], Tensor]]:
    """What is compared; each gives the logits (B, N)."""
    folded = accelerate(model, images[:2])
    found = {"listing": lambda: listing(model, images)}

    def aggregated(one: Classifier) -> Callable[[], Tensor]:
        return torch.inference_mode()(lambda: one.logits(images, "aggregated"))

    found["own blocks"], found["folded, channels last"] = aggregated(model), aggregated(folded)
    graph = try_onnxruntime(folded, images)
    if graph is not folded:
        found["onnxruntime"] = aggregated(graph)
    return found


def race(found: dict[str, Callable[[], Tensor]], rounds: int) -> dict[str, tuple[float, float, float]]:
    """For each: median seconds, median ratio to the listing's in the same round, largest difference."""
    expected = found["listing"]()
    gaps = {name: float((run() - expected).abs().max() / expected.abs().max()) for name, run in found.items()}
    times: dict[str, list[float]] = {name: [] for name in found}
    for _ in range(rounds):
        for name, run in found.items():
            start = time.monotonic()
            run()
            times[name].append(time.monotonic() - start)
    first = times["listing"]
    return {
        name: (
            statistics.median(taken),
            statistics.median(a / b for a, b in zip(first, taken, strict=True)),
            gaps[name],
        )
        for name, taken in times.items()
    }


def row(part: str, what: str, variant: str, value: float, unit: str, **more: object) -> dict[str, object]:
    """A row, printed too."""
    cells = {"part": part, "what": what, "variant": variant, "value": f"{value:.4g}", "unit": unit}
    found = {**dict.fromkeys(COLUMNS, ""), **cells, "threads": torch.get_num_threads(), **more}
    print(*(found[name] for name in COLUMNS if found[name] != ""), sep="  ", flush=True)
    return {**found, "commit": find_commit()}


def measure_networks(quick: bool) -> list[dict[str, object]]:
    """Many images, and one."""
    rows, most = [], torch.get_num_threads()
    for name, size, batch in NETWORKS[:2] if quick else NETWORKS:
        model, what = build(name), f"{name} at {size}"
        images = torch.randn(batch // 4 if quick else batch, 3, size, size)
        for variant, (seconds, ratio, gap) in race(variants(model, images), 2 if quick else ROUNDS).items():
            more = {"ratio": f"{ratio:.2f}", "difference": f"{gap:.0e}"}
            rows.append(row("many images", what, variant, len(images) / seconds, "images per second", **more))
        for threads in sorted({1, most}):
            torch.set_num_threads(threads)
            for variant, (seconds, ratio, gap) in race(
                variants(model, images[:1]), 5 if quick else 20
            ).items():
                more = {"ratio": f"{ratio:.2f}", "difference": f"{gap:.0e}"}
                rows.append(row("one image", what, variant, 1000 * seconds, "ms", **more))
        torch.set_num_threads(most)
    return rows


def measure_photographs(quick: bool) -> list[dict[str, object]]:
    """Decoding alone, the network alone, and both as `sla predict` has them."""
    count, what = (64, "64 photographs") if quick else (PHOTOS, f"{PHOTOS:,} photographs")
    seen = Preprocessing("none", 96, 128, (0.5,) * 3, (0.5,) * 3)
    model = build("efficientnet_lite0")
    with tempfile.TemporaryDirectory() as folder:
        draw, paths = np.random.default_rng(0), []
        for number in range(count):
            coarse = Image.fromarray(draw.integers(0, 256, (12, 16, 3), np.uint8))
            paths.append(str(Path(folder) / f"{number}.jpg"))
            coarse.resize(SIDE, Image.Resampling.BICUBIC).save(paths[-1], quality=90)
        files = FileImages(paths, (128, 128))
        dataset = Dataset(files, np.zeros(count, np.int64), ("a", "b"))
        start = time.monotonic()
        for _ in in_threads(files.read, range(count)):
            pass
        decoding = time.monotonic() - start
        passing = {"batch_size": 64, "inferences": ("aggregated",), "fast": True}
        start = time.monotonic()
        infer(model, dataset, seen.eval_pipeline(), **passing)
        both = time.monotonic() - start
        pixels = dataset.read(np.arange(count))
        from sla.images.store import ArrayImages

        memory = Dataset(ArrayImages(pixels.images, aspect=pixels.aspect), dataset.targets, dataset.classes)
        start = time.monotonic()
        infer(model, memory, seen.eval_pipeline(), **passing)
        network = time.monotonic() - start
    named = (("decoding", decoding), ("network", network), ("overlapped", both))
    return [row("predict", what, variant, seconds, "seconds") for variant, seconds in named]


STEPS = """
import sys, time
start = time.monotonic()
def lap(name):
    print(name, time.monotonic() - start)
import torch; lap("import torch")
from sla.tasks.classifier.run import Run; lap("import sla")
run = Run(sys.argv[1]); lap("open the run")
run.predict([sys.argv[2]]); lap("first answer")
"""


def measure_start(quick: bool) -> list[dict[str, object]]:
    """Seconds from the start of a process to the first answer, adding up; the median of fresh processes."""
    with tempfile.TemporaryDirectory() as folder:
        settings = {"model__backbone": "convnet4", "run__iterations": 2, "run__compile": False}
        run = sla.fit("digits", f"{folder}/run", data__workers=0, **settings)
        picture = Path(folder) / "one.png"
        Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(picture)
        found: dict[str, list[float]] = {}
        for _ in range(2 if quick else ROUNDS):
            words = [sys.executable, "-c", STEPS, str(run.folder), str(picture)]
            said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
            for line in said.splitlines():
                name, _, seconds = line.rpartition(" ")
                found.setdefault(name, []).append(float(seconds))
    return [
        row("start", "seconds since the start", name, statistics.median(values), "seconds")
        for name, values in found.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller, and nothing is written")
    quick = parser.parse_args().quick
    rows = [*measure_networks(quick), *measure_photographs(quick), *measure_start(quick)]
    if not quick:
        TABLE.write(rows)
        TABLE.show(render)


def render(rows: list[dict[str, str]]) -> str:
    """A line a row."""
    lines = ["| | | | threads | | times the listing |", "|---|---|---|--:|--:|--:|"]
    for row in rows:
        words = [row["part"], row["what"], row["variant"], row["threads"], f"{row['value']} {row['unit']}"]
        lines.append(f"| {' | '.join([*words, row['ratio']])} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
