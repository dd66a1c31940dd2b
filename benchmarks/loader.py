"""Loader and basic augmentation as a share of a ResNet-8 training step of 128, side by side in one run.

    python benchmarks/loader.py [--rounds 20] [--threads N] [--compile]

Every round times one step in turn: read, augment, train. The target is 5% at most.
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn

from sla.augment.ops import ColorJitter, Flip, Normalize, Pipeline, RandomCrop, RandomResizedCrop
from sla.backbones import create_backbone
from sla.datasets.folder import load_folder
from sla.sampling.loader import TrainLoader

BATCH, IMAGES, CLASSES, TARGET = 128, 1024, 4, 0.05
NORMALIZE = Normalize((0.5,) * 3, (0.5,) * 3)
BASIC = (Flip(), NORMALIZE)
JITTER = ColorJitter(0.4, 0.4, 0.4, 0.25)
ROWS = (  # stored size, what is done
    (32, (RandomCrop(32, padding=4), *BASIC)),
    (32, (RandomCrop(32, padding=4), JITTER, *BASIC)),
    (32, (RandomResizedCrop(32), *BASIC)),
    (96, (RandomResizedCrop(96), *BASIC)),
    (128, (RandomResizedCrop(96), JITTER, *BASIC)),
)


def write_pictures(folder, size):
    """Noise in colour, a little wider than high: what it shows does not matter to the clock."""
    stream = np.random.default_rng(0)
    for number in range(IMAGES):
        path = folder / f"class{number % CLASSES}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = stream.integers(0, 256, (size, size * 5 // 4, 3), np.uint8)
        Image.fromarray(pixels).save(path, compress_level=1)


def open_data(folder, size, kind):
    options = {"size": (size, size), "index_dir": folder / "index"}
    pictures = folder / str(size)
    if not pictures.exists():
        write_pictures(pictures, size)
    if kind == "memory":
        return load_folder(pictures, **options).train
    return load_folder(pictures, cache=folder / "cache", memory_limit=0, **options).train


def make_step(compiled):
    model = nn.Sequential(backbone := create_backbone("resnet8"), nn.Linear(backbone.num_features, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    forward = torch.compile(model) if compiled else model

    def step(images, targets):
        optimizer.zero_grad()
        F.cross_entropy(forward(images), targets).backward()
        optimizer.step()

    return step


def measure(data, ops, step, rounds):
    """Seconds to read, to augment and to train, taken in turn; the least of all rounds, as others disturb."""
    pipeline = Pipeline(ops)
    batches = iter(TrainLoader(data, BATCH, seed=0, steps=rounds + 2))
    times = []
    for _ in range(rounds + 2):
        marks = [time.perf_counter()]
        batch = next(batches)
        marks.append(time.perf_counter())
        images = pipeline(batch.images, batch.draws, batch.aspect)
        marks.append(time.perf_counter())
        step(images, batch.targets)
        marks.append(time.perf_counter())
        times.append(np.diff(marks))
    return [min(column) for column in zip(*times[2:], strict=True)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20, help="steps timed at 32 pixels; a quarter at 96")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--compile", action="store_true", help="torch.compile the network")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    kind_of_step = "compiled" if options.compile else "eager"
    print(f"torch {torch.__version__}, {options.threads} threads, {kind_of_step} ResNet-8, batch {BATCH}")
    columns = f"{'read ms':>8} {'augm. ms':>8} {'step ms':>8} {'share':>6}"
    print(f"{'data':7} {'stored':>6}  {'augmentation':52} {columns}")
    worst = 0.0
    with tempfile.TemporaryDirectory() as folder:
        for size, ops in ROWS:
            step = make_step(options.compile)
            for kind in ("memory", "cached"):
                rounds = options.rounds if size == 32 else max(options.rounds // 4, 3)
                read, augment, train = measure(open_data(Path(folder), size, kind), ops, step, rounds)
                share = (read + augment) / train
                worst = max(worst, share)
                names = ", ".join(type(op).__name__ for op in Pipeline(ops).ops)
                numbers = f"{read * 1e3:8.2f} {augment * 1e3:8.2f} {train * 1e3:8.1f} {share:6.1%}"
                print(f"{kind:7} {size:6}  {names:52} {numbers}", flush=True)
    print(f"largest share {worst:.1%}, target {TARGET:.0%}: {'met' if worst <= TARGET else 'missed'}")


if __name__ == "__main__":
    main()
