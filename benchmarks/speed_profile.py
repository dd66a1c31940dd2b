"""What a training step spends where, by torch's profiler, for five networks; four views of each image.

    python benchmarks/speed_profile.py [--threads N] [--quick]

The steps are eager, channels_last and with kept memory, as a run takes them. An operation counts for the
part of the step it happens in (augmentation, views, loss, optimiser); those of the network, forward and
backward, by their kind. What is left inside a part is Python. The profiler itself takes some of it, more of
small steps. Writes results/speed_profile.csv and the table in docs/speed.md. About three minutes on two
cores.
"""

import argparse
import os
from collections import Counter

from speed import PLACE, note, place
from tables import Table

import sla

NETWORKS = (  # backbone, pixels, images of a step
    ("resnet32", 32, 128),
    ("resnet9_16", 32, 128),
    ("resnet18", 64, 32),
    ("efficientnet_lite0", 96, 16),
    ("efficientnet_lite0", 128, 16),
)
PARTS = ("convolution", "norm_activation", "other", "views", "loss", "optimizer", "augmentation", "python")
TITLES = {"norm_activation": "batch norm, activation", "other": "other operations", "optimizer": "optimiser"}
KINDS = {
    "convolution": ("conv",),
    "norm_activation": ("batch_norm", "relu", "threshold", "hardtanh", "clamp", "norm"),
}
COLUMNS = ("network", "pixels", "images", *PARTS, *PLACE)
TABLE = Table("speed_profile", "docs/speed.md", COLUMNS)
MARK = "part: "


def part_of(event) -> str:
    """The part of the step that an event's own time belongs to."""
    if event.name.startswith(MARK) or event.name.startswith("Optimizer."):
        return "python"
    around = event
    while (around := around.cpu_parent) is not None:
        name = around.name.removeprefix(MARK)
        if around.name.startswith(MARK) and name in PARTS:
            return name
        for kind, words in KINDS.items():  # an operation inside a convolution is part of it
            if around.name.startswith("aten::") and any(word in around.name for word in words):
                return kind
    for kind, words in KINDS.items():
        if event.name.startswith("aten::") and any(word in event.name for word in words):
            return kind
    return "other"


def profile(network: str, size: int, batch: int, steps: int) -> dict[str, float]:
    """The share of each part, over some steps."""
    import torch
    from torch.profiler import record_function

    from sla.augment.pipelines import train_pipeline
    from sla.sampling.draws import Draws

    torch.manual_seed(0)
    model = sla.create(network, 100, sla.SLA()).train().to(memory_format=torch.channels_last)
    pipeline = train_pipeline("crop(4), flip", size, (0.5,) * 3, (0.5,) * 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
    pixels = torch.randint(256, (batch, 3, size, size), dtype=torch.uint8)
    targets, aspect = torch.randint(100, (batch,)), torch.ones(batch)

    def step(number: int) -> None:
        with record_function(MARK + "augmentation"):
            images = pipeline(pixels, Draws(0, number, batch), aspect)
            images = images.contiguous(memory_format=torch.channels_last)
        with record_function(MARK + "views"):
            seen = model.method.expand(images)
        with record_function(MARK + "network"):
            features = model.backbone(seen)
        with record_function(MARK + "loss"):
            loss = model.method.losses(model.heads, features, targets)["loss"]
        optimizer.zero_grad()
        with record_function(MARK + "backward"):
            loss.backward()
        with record_function(MARK + "optimizer"):
            optimizer.step()

    step(0)
    step(1)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as found:
        for number in range(steps):
            step(2 + number)
    spent: Counter[str] = Counter()
    for event in found.events():
        spent[part_of(event)] += event.self_cpu_time_total
    return {part: spent[part] / spent.total() for part in PARTS}


def render(rows: list[dict[str, str]]) -> str:
    """A line a network."""
    titles = [TITLES.get(part, part) for part in PARTS]
    titles[-1] = "Python"
    lines = [f"| network | {' | '.join(titles)} |", f"|---|{'--:|' * len(PARTS)}"]
    for row in rows:
        name = f"{row['network']}, {row['pixels']} pixels, {row['images']} x 4"
        lines.append(f"| {name} | {' | '.join(f'{100 * float(row[part]):.1f}%' for part in PARTS)} |")
    return "\n".join([*lines, "", note(rows)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    sla.keep_memory()
    import torch

    torch.set_num_threads(given.threads)
    where, rows = place(given.threads, given.quick), []
    for network, size, batch in NETWORKS:
        batch = 4 if given.quick else batch
        shares = profile(network, size, batch, 1 if given.quick else 4)
        print(
            network,
            size,
            *(f"{name} {100 * value:.1f}%" for name, value in shares.items()),
            sep="  ",
            flush=True,
        )
        cells = {"network": network, "pixels": size, "images": batch}
        rows.append(cells | {part: f"{share:.4f}" for part, share in shares.items()} | where)
    TABLE.write(rows)
    TABLE.show(render)


if __name__ == "__main__":
    main()
