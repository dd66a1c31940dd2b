"""Does `sla data check --labels` find wrong labels? Labels flipped on purpose, against confident learning.

    OMP_NUM_THREADS=1 nice python benchmarks/label_check.py DATA

DATA is a folder with train/ of photographs, such as the first 20 classes of CUB-200-2011; CIFAR-10 is found
by its name, 100 training images of each class are taken. 5% of the labels are flipped, to any other class or
to one of the three most similar ones. All rules see the same cross-validated probabilities. The rule was
chosen on other classes of CUB, on Flowers-102 and on CIFAR-100. Writes results/label_check.csv and the table
in docs/labels.md. About five minutes on one core: 1,600 images are embedded, and 12 times cross-validated.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from tables import Table
from torch import Tensor

SHARE, SEEDS, PER_CLASS, SIMILAR = 0.05, (0, 1, 2), 100, 3
RULES = {
    "odds": "log odds, the first k",
    "odds, 2k": "log odds, the first 2k",
    "label": "probability of the label, the first k",
    "joint": "confident learning: off-diagonal of the joint",
    "noise rate": "confident learning: prune by noise rate",
    "noise rate, k": "confident learning: the first k of these, by margin",
    "both": "confident learning: both",
}
COLUMNS = ("data", "images", "classes", "flips", "seed", "agreement", "flipped", "rule", "listed", "wrong")
NUMBERS = ("flipped", "listed", "wrong", "ours")
TABLE = Table("label_check", "docs/labels.md", (*COLUMNS, "ours", "commit"))


def flip(targets: Tensor, near: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Other labels for some images, from the classes in their own class's row of `near`; and which images."""
    draws, count = np.random.default_rng(seed), round(SHARE * len(targets))
    places = torch.from_numpy(draws.permutation(len(targets))[:count])
    chosen = torch.from_numpy(draws.integers(0, near.shape[1], count))
    flipped = targets.clone()
    flipped[places] = near[targets[places], chosen]
    return flipped, flipped != targets


def other_classes(unit: Tensor, targets: Tensor, num_classes: int) -> dict[str, Tensor]:
    """For each class all others, and the most similar ones by the centred means of their features."""
    every = torch.tensor([[c for c in range(num_classes) if c != own] for own in range(num_classes)])
    means = torch.stack([unit[targets == label].mean(0) for label in range(num_classes)])
    means = F.normalize(means - means.mean(0), dim=1)
    near = (means @ means.T).fill_diagonal_(-2).topk(SIMILAR, 1).indices
    return {"any": every, "similar": near}


def confident_joint(probabilities: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Northcutt et al. 2021: counts (N, N) of label and confident class, and that class (n,), -1 for none.

    A class is confident where its probability is at least the mean one of the images with that label.
    """
    num_classes = probabilities.shape[1]
    own = [probabilities[labels == label, label].mean() for label in range(num_classes)]
    above = probabilities >= torch.stack(own)
    best = torch.where(above, probabilities, -1.0).argmax(1)
    best = torch.where(above.any(1), best, -1)
    counts = torch.zeros(num_classes, num_classes, dtype=torch.float64)
    for label, found in zip(labels.tolist(), best.tolist(), strict=True):
        if found >= 0:
            counts[label, found] += 1
    return counts, best


def prune(probabilities: Tensor, labels: Tensor, counts: Tensor) -> dict[str, Tensor]:
    """Images, bool (n,), that the paper takes for wrong: by noise rate, and those of them by class too."""
    sizes = labels.bincount(minlength=len(counts)).double()
    joint = counts / counts.sum(1, keepdim=True).clamp(min=1) * sizes.unsqueeze(1)
    by_rate, by_class = torch.zeros(len(labels), dtype=torch.bool), torch.zeros(len(labels), dtype=torch.bool)
    for label in range(len(counts)):
        places = (labels == label).nonzero().squeeze(1)
        own = probabilities[places, label]
        for other in range(len(counts)):
            if other != label:
                margin = probabilities[places, other] - own
                by_rate[places[margin.argsort(descending=True)[: round(joint[label, other].item())]]] = True
        wrong = round((joint[label].sum() - joint[label, label]).item())
        by_class[places[own.argsort()[:wrong]]] = True
    return {"noise rate": by_rate, "both": by_rate & by_class}


def judge(features: Tensor, targets: Tensor, seed: int, near: Tensor) -> list[dict[str, Any]]:
    """For each rule how many pictures it lists and how many of these are wrong."""
    from sla.tasks.classifier.label_check import held_out_logits
    from sla.tasks.classifier.label_doubts import label_odds

    labels, wrong = flip(targets, near, seed)
    held, logits = held_out_logits(features, labels, len(near))
    assert held.all()
    probabilities = logits.softmax(1)
    order = label_odds(logits, labels)[0].argsort(descending=True)
    hits = torch.cat([torch.zeros(1, dtype=torch.int64), wrong[order].cumsum(0)])
    own = probabilities.gather(1, labels.unsqueeze(1)).squeeze(1)
    counts, best = confident_joint(probabilities, labels)
    found = {"joint": (best >= 0) & (best != labels), **prune(probabilities, labels, counts)}
    flipped = int(wrong.sum())
    margin = probabilities.scatter(1, labels.unsqueeze(1), -1.0).amax(1) - own
    first = torch.where(found["noise rate"], margin, -2.0).argsort(descending=True)[:flipped]
    found["noise rate, k"] = torch.zeros_like(wrong).index_fill(0, first, True) & found["noise rate"]
    found["label"] = torch.zeros_like(wrong).index_fill(0, own.argsort()[:flipped], True)
    rows = [("odds", flipped, int(hits[flipped])), ("odds, 2k", 2 * flipped, int(hits[2 * flipped]))]
    rows += [(rule, int(some.sum()), int(wrong[some].sum())) for rule, some in found.items()]
    agreement = f"{100 * (logits.argmax(1) == labels).double().mean().item():.1f}"
    return [
        {"seed": seed, "agreement": agreement, "flipped": flipped, "rule": rule, "listed": listed}
        | {"wrong": right, "ours": int(hits[listed])}
        for rule, listed, right in rows
    ]


def main(data: str) -> None:
    from sla.datasets.load import load
    from sla.runs.result import find_commit
    from sla.sampling.protocols import limited
    from sla.tasks.classifier.frozen import embed, open_pretrained

    model, preprocessing = open_pretrained()
    commit, rows = find_commit(), []
    sets = {
        Path(data).name: load(data, size=preprocessing.stored_size, memory_limit=0).train,
        "cifar10": limited(load("cifar10").train, PER_CLASS),
    }
    for name, dataset in sets.items():
        features = embed(model, dataset, preprocessing.eval_pipeline(), batch_size=32)
        targets, count = torch.from_numpy(dataset.targets), dataset.num_classes
        unit = F.normalize(features.double(), dim=1)
        about = {"data": name, "images": len(dataset), "classes": count, "commit": commit}
        for flips, near in other_classes(unit, targets, count).items():
            for seed in SEEDS:
                found = judge(features, targets, seed, near)
                rows += [about | {"flips": flips} | row for row in found]
                TABLE.write(rows)
                print(name, flips, seed, found[0]["wrong"], "of", found[0]["flipped"], flush=True)
    TABLE.show(render)


def render(rows: list[dict[str, str]]) -> str:
    """Precision and recall, mean and range over the seeds; and our order cut at the same number."""
    titles = ("data", "flipped to", "rule", "listed", "wrong among them %", "of all wrong %")
    lines = [f"| {' | '.join(titles)} | log odds, as many listed % |", "|---" * 7 + "|"]
    for data, flips in dict.fromkeys((row["data"], row["flips"]) for row in rows):
        own = [row for row in rows if (row["data"], row["flips"]) == (data, flips)]
        images, flipped = int(own[0]["images"]), int(own[0]["flipped"])
        what = [f"{data}, {images:,} images, {own[0]['classes']} classes, k = {flipped}", flips]
        for rule, title in RULES.items():
            some = [{k: float(row[k]) for k in NUMBERS} for row in own if row["rule"] == rule]
            parts = [(row["wrong"] / row["listed"], row["wrong"] / row["flipped"]) for row in some]
            shares = [[100 * part[place] for part in parts] for place in (0, 1)]
            ours = "" if rule.startswith("odds") else _range([100 * r["ours"] / r["listed"] for r in some])
            cells = [*what, title, _range([row["listed"] for row in some]), *map(_range, shares), ours]
            lines.append(f"| {' | '.join(cells)} |")
            what = ["", ""]
        chance = f"{100 * flipped / images:.0f}"
        lines.append(f"| | | chance, k pictures | {flipped} | {chance} | {chance} | |")
    return "\n".join(lines)


def _range(values: list[float]) -> str:
    """The mean with the least and the largest value, where they differ."""
    mean, low, high = (f"{number:.0f}" for number in (sum(values) / len(values), min(values), max(values)))
    return mean if low == high else f"{mean} ({low} to {high})"


if __name__ == "__main__":
    main(*sys.argv[1:])
