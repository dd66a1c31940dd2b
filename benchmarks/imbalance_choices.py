"""What the paper leaves open for SLA+SD on long-tailed data: the student's head, weights on the distillation.

    SLA_DATA=FOLDER nice python benchmarks/imbalance_choices.py

Long-tailed CIFAR-10 (ratio 100, at most 500 images a class, 16 pixels), ResNet-8, three seeds, each arm with
the same images, order and first weights. Judged by balanced accuracy on 200 images of each class from those
that the tail left out; the test images are not read. Rows of results/imbalance_choices.csv that are there
are kept. Writes the tables in docs/imbalance.md. About 20 seconds a row on one core, 24 rows.
"""

import sys
import time
from dataclasses import dataclass
from typing import Any

from tables import Table, with_ends

RATIO, N_MAX, PER_CLASS, SIZE = 100, 500, 200, 16
STEPS, BATCH, RATE, DECAY, DEFERRED = 300, 32, 0.1, 2e-4, 0.8
CLIP = 1.0  # a cosine head's scale of 30 makes large first gradients, and the runs are short
SEEDS = (0, 1, 2)
ARMS = {  # name: criterion, the student's head, weights on the distillation
    "none": ("none", "linear", False),
    "cb": ("cb", "linear", False),
    "cb, weighted KL": ("cb", "linear", True),
    "ldam-drw": ("ldam-drw", "cosine", False),
    "ldam-drw, weighted KL": ("ldam-drw", "cosine", True),
    "ldam-drw, linear student": ("ldam-drw", "linear", False),
    "focal": ("focal", "linear", False),
    "logit-adjust": ("logit-adjust", "linear", False),
}
KINDS = ("single", "aggregated", "distilled")
SCORES = [f"{what}_{inference}" for what in ("balanced", "few") for inference in KINDS]
TABLE = Table("imbalance_choices", "docs/imbalance.md", ("arm", "seed", *SCORES, "seconds"))
CHOICES = [  # what was chosen, and the other way
    ("student's head with LDAM-DRW: cosine, not linear", "ldam-drw", "ldam-drw, linear student"),
    ("LDAM-DRW: no weights on the distillation", "ldam-drw", "ldam-drw, weighted KL"),
    ("CB: no weights on the distillation", "cb", "cb, weighted KL"),
]


def make_method(arm: str, counts: Any) -> Any:
    """SLA+SD as an arm has it: with the criterion, the student's head and the distillation of its own."""
    import torch
    import torch.nn.functional as F

    import sla
    from sla.criteria import log_probabilities

    kind, student, weighted_kl = ARMS[arm]
    weights = sla.class_balanced_weights(counts)
    criterion = {
        "none": lambda: sla.CrossEntropy(),
        "cb": lambda: sla.CrossEntropy(weights),
        "ldam-drw": lambda: sla.LDAM(counts, weights, start=DEFERRED),
        "focal": lambda: sla.Focal(),
        "logit-adjust": lambda: sla.LogitAdjusted(counts),
    }[kind]()
    own = sla.CrossEntropy(weights, start=DEFERRED) if kind == "ldam-drw" and student == "linear" else None

    @dataclass(frozen=True)
    class Arm(sla.SLA):
        @property
        def criteria(self) -> tuple[Any, ...]:
            return (self.criterion, *([own] if own is not None else []))

        def build_heads(self, in_features: int, num_classes: int) -> Any:
            heads = super().build_heads(in_features, num_classes)
            heads["plain"] = sla.PlainHead(in_features, num_classes, student)
            return heads

        def losses(self, heads: Any, features: Any, target: Any, views: Any = None) -> dict[str, Any]:
            joint = heads["joint"](features)
            logits = heads["plain"](features[:: len(self.views)])
            teacher = log_probabilities(sla.aggregate_views(joint.detach(), len(self.views)))
            kl = F.kl_div(log_probabilities(logits), teacher, reduction="none", log_target=True).sum(1)
            weight = criterion.weight[target] if weighted_kl else torch.ones_like(kl)
            distillation = (weight * kl).sum() / weight.sum()
            student_loss = (own or self.criterion)(logits, target)
            loss = sla.sla_loss(joint, target, len(self.views), self.criterion) + distillation + student_loss
            return {"loss": loss, "output": logits.detach()}

    return Arm(distill=True, criterion=criterion, head="cosine" if kind == "ldam-drw" else "linear")


def run_arm(arm: str, seed: int, train: Any, val: Any) -> dict[str, object]:
    """Train one arm on one seed; its row."""
    import torch

    import sla
    from sla.augment.pipelines import eval_pipeline, train_pipeline
    from sla.sampling.loader import TrainLoader
    from sla.tasks.classifier.evaluation import infer

    start = time.process_time()
    mean, std = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
    learn, look = (make("crop(2), flip", SIZE, mean, std) for make in (train_pipeline, eval_pipeline))
    counts = train.counts()
    torch.manual_seed(seed)
    model = sla.create("resnet8", train.num_classes, make_method(arm, counts)).train()
    optimizer = torch.optim.SGD(model.parameters(), RATE, momentum=0.9, weight_decay=DECAY)
    for batch in TrainLoader(train, BATCH, seed=seed, steps=STEPS):
        # A short warm-up, then a tenth from where the weights begin and a hundredth at the end.
        late = sum(batch.step >= share * STEPS for share in (DEFERRED, 0.9))
        optimizer.param_groups[0]["lr"] = RATE * min((batch.step + 1) / (0.025 * STEPS), 1) * 0.1**late
        for criterion in model.method.criteria:
            criterion.on_step(batch.step, STEPS)
        optimizer.zero_grad()
        losses = model.losses(learn(batch.images, batch.draws, batch.aspect), batch.targets)
        losses["loss"].backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
    outputs = infer(model, val, look)
    row: dict[str, object] = {"arm": arm, "seed": seed, "seconds": round(time.process_time() - start)}
    few = torch.as_tensor(counts) < 20
    for inference, logits in outputs.logits.items():
        right = (logits.argmax(1) == outputs.targets).double()
        recalls = torch.stack([right[outputs.targets == c].mean() for c in range(val.num_classes)])
        row[f"balanced_{inference}"] = f"{100 * recalls.mean():.2f}"
        row[f"few_{inference}"] = f"{100 * recalls[few].mean():.2f}"
    return row


def load_data() -> tuple[Any, Any]:
    """The long tail and the images to judge on, at half the size."""
    from sla.datasets.load import load
    from sla.sampling.protocols import long_tailed, selection_set

    train, left_out = long_tailed(load("cifar10").train, RATIO, N_MAX)
    return _smaller(train), _smaller(selection_set(left_out, PER_CLASS))


def _smaller(dataset: Any) -> Any:
    import torch.nn.functional as F

    from sla.images.store import ArrayImages, Dataset

    pixels = dataset.read(range(len(dataset))).images.float()
    pixels = F.avg_pool2d(pixels, pixels.shape[-1] // SIZE).round().byte()
    return Dataset(ArrayImages(pixels), dataset.targets, dataset.classes)


def render(rows: list[dict[str, str]]) -> str:
    """Two tables: every arm, and each choice against its other way on the same seeds."""
    from sla.stats import interval, paired

    def values(arm: str, column: str) -> list[float]:
        return [float(row[column]) for row in rows if row["arm"] == arm]

    lines = [
        "| | single | aggregated | distilled | distilled, few-shot classes | distilled against `none` |",
        "|---|---|---|---|---|---|",
    ]
    for arm in ARMS:
        cells = [f"{interval(values(arm, f'balanced_{inference}')).mean:.1f}" for inference in KINDS]
        cells.append(f"{interval(values(arm, 'few_distilled')).mean:.1f}")
        gain = paired(values(arm, "balanced_distilled"), values("none", "balanced_distilled"))
        cells.append("" if arm == "none" else with_ends(gain))
        lines.append(f"| {arm} | {' | '.join(cells)} |")
    lines += ["", "| chosen | distilled | aggregated |", "|---|---|---|"]
    for words, chosen, other in CHOICES:
        gains = [
            with_ends(paired(values(chosen, f"balanced_{inference}"), values(other, f"balanced_{inference}")))
            for inference in ("distilled", "aggregated")
        ]
        lines.append(f"| {words} | {' | '.join(gains)} |")
    return "\n".join(lines)


def main() -> None:
    """Run the rows that are missing, seed by seed, and append each at once."""
    there = {(row["arm"], int(row["seed"])) for row in TABLE.read()}
    missing = [(arm, seed) for seed in SEEDS for arm in ARMS if (arm, seed) not in there]
    data = load_data() if missing else None
    for arm, seed in missing:
        row = run_arm(arm, seed, *data)  # type: ignore[misc]
        TABLE.append(row)
        print(row, flush=True)
    TABLE.show(render)


if __name__ == "__main__":
    sys.exit(main())
