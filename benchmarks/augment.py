"""Strong augmentation as a share of a ResNet-8 training step of 128 images of 32 pixels, in one run.

    python benchmarks/augment.py [--rounds 30] [--threads N] [--compile]

Rounds take everything in turn, so that what else the machine does disturbs all alike; the least time counts.
Pillow and torchvision do the same AutoAugment image by image, tensors in, tensors out. The targets:
AutoAugment at most 5% of the step, crop + flip + mix at most 2%, beyond what normalising alone takes.
Writes results/augment.csv, in place of the rows of the same kind of step, and the table in
docs/augmentation.md. On a machine with nothing else to do, a minute.
"""

import argparse
import time

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from tables import Table
from torch import nn

from sla.augment.mixing import parse_mix
from sla.augment.pipelines import train_pipeline
from sla.backbones import create_backbone
from sla.backbones.torchvision_import import import_torchvision
from sla.errors import MissingExtraError
from sla.runs.result import find_commit
from sla.sampling.draws import Draws

BATCH, SIZE, CLASSES = 128, 32, 10
ROWS = (  # augmentation, mixing, the largest share of a step
    ("none", "none", None),
    ("crop(4), flip", "mixup(1.0)", 0.02),
    ("crop(4), flip", "cutmix(1.0, 1.0)", 0.02),
    ("autoaugment", "none", 0.05),
    ("autoaugment(imagenet)", "none", 0.05),
    ("randaugment(2, 9)", "none", None),
    ("trivialaugment", "none", None),
    ("cutout(16)", "none", None),
    ("erasing(0.25)", "none", None),
    ("autoaugment, crop(4), flip, cutout(16)", "cutmix(1.0, 0.5)", None),
)
COLUMNS = ("work", "step", "threads", "milliseconds", "step_milliseconds", "share", "target", "commit")
TABLE = Table("augment", "docs/augmentation.md", COLUMNS)


def make_row(text, mixing):
    pipeline, mix = train_pipeline(text, SIZE, (0.5,) * 3, (0.5,) * 3), parse_mix(mixing)

    def work(images, number):
        draws = Draws(0, number, BATCH)
        out = pipeline(images, draws, torch.ones(BATCH))
        return out if mix is None else mix(out, draws).images

    return work


def make_step(compiled):
    model = nn.Sequential(backbone := create_backbone("resnet8"), nn.Linear(backbone.num_features, CLASSES))
    model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    forward = torch.compile(model) if compiled else model
    targets = torch.randint(CLASSES, (BATCH,))
    inputs = torch.randn(BATCH, 3, SIZE, SIZE).contiguous(memory_format=torch.channels_last)

    def work(images, number):
        optimizer.zero_grad()
        F.cross_entropy(forward(inputs), targets).backward()
        optimizer.step()

    return work


def others():
    """AutoAugment by torchvision, on Pillow's pictures and on tensors, each image by itself."""
    try:
        import_torchvision()
    except MissingExtraError:
        return {}
    from torchvision.transforms import AutoAugment, AutoAugmentPolicy

    policy = AutoAugment(AutoAugmentPolicy.CIFAR10)

    def with_pillow(images, number):
        pictures = [Image.fromarray(pixels) for pixels in images.permute(0, 2, 3, 1).numpy()]
        return torch.from_numpy(np.stack([np.asarray(policy(picture)) for picture in pictures]))

    def with_tensors(images, number):
        return torch.stack([policy(image) for image in images])

    return {"autoaugment by Pillow": with_pillow, "autoaugment by torchvision": with_tensors}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--compile", action="store_true", help="torch.compile the network")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    images = torch.randint(0, 256, (BATCH, 3, SIZE, SIZE), dtype=torch.uint8)
    works = {f"{text} + {mix}": make_row(text, mix) for text, mix, _ in ROWS} | others()
    works["step"] = make_step(options.compile)
    best = dict.fromkeys(works, float("inf"))
    for number in range(options.rounds):
        for name, work in works.items():
            start = time.perf_counter()
            work(images, number)
            best[name] = min(best[name], time.perf_counter() - start)
    step, plain = best.pop("step"), best["none + none"]
    kind = {"step": "compiled" if options.compile else "eager", "threads": options.threads}
    targets = {f"{text} + {mix}": target for text, mix, target in ROWS}
    rows = []
    for name, seconds in best.items():
        extra = seconds if name not in targets or name == "none + none" else seconds - plain
        row = {"work": name.replace(" + none", ""), **kind, "milliseconds": f"{seconds * 1e3:.2f}"}
        row |= {"step_milliseconds": f"{step * 1e3:.1f}", "share": f"{100 * extra / step:.2f}"}
        rows.append(row | {"target": 100 * (targets.get(name) or 0) or "", "commit": find_commit()})
        print("  ".join(str(value) for value in rows[-1].values()))
    same = (kind["step"], str(kind["threads"]))
    kept = [row for row in TABLE.read() if (row["step"], row["threads"]) != same]
    TABLE.write([*kept, *rows])
    TABLE.show(render)


def render(rows):
    """Works down, kinds of step across: the share of a step in percent."""
    kinds = list(dict.fromkeys((row["step"], row["threads"]) for row in rows))
    found = {(row["work"], row["step"], row["threads"]): row for row in rows}
    heads = [f"{step}, {threads} thread{'s' if threads != '1' else ''}" for step, threads in kinds]
    lines = ["| % of a step | at most | " + " | ".join(heads) + " |", "|---|--:|" + "--:|" * len(kinds)]
    for work in dict.fromkeys(row["work"] for row in rows):
        cells = [found.get((work, *kind)) for kind in kinds]
        target = next(f"{float(cell['target']):g}" if cell["target"] else "" for cell in cells if cell)
        lines.append(f"| {work} | {target} | {' | '.join(_share(cell) for cell in cells)} |")
    return "\n".join(lines)


def _share(row):
    if row is None:
        return ""
    missed = row["target"] and float(row["share"]) > float(row["target"])
    return f"{float(row['share']):.1f}{' (missed)' if missed else ''}"


if __name__ == "__main__":
    main()
