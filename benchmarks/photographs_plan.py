"""The runs of benchmarks/photographs.py: pictures, ways to train on them, budgets, and their order."""

from typing import Any, NamedTuple

from sla.tasks.classifier.features import MIRRORED

MINUTE = 4.0e12  # FLOP of EfficientNet-Lite0's training in a minute of two cores
FORWARD = 7.7e8  # FLOP of one pass at 224 pixels, for the part of a budget that the quick model takes


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
    "cub200-29": Cell(CUB, "0-199", 29),
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
DISTILLED = 0.15  # of the steps, for a student
WAYS: dict[str, dict[str, Any]] = {
    "features": {"method.name": "features"},
    "plain": {**PLAIN, **LIGHT},
    "mixed": {**PLAIN, **LIGHT, **MIXED},
    "strong": {**PLAIN, **STRONG},
    "sla": {**SLA, **LIGHT},
    "sla-strong": {**SLA, **STRONG},
    "student": {**SLA, **LIGHT, "stages": ["features", "train", "distil"], "distil.share": DISTILLED},
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
SMALL = "cub20-5,cub20-10,flowers20-5,flowers20-15"
BIRDS = "cub20-5,cub20-10,cub20-30,cub50-5,cub50-10,cub50-30"
EVERY = f"{BIRDS},flowers20-5,flowers20-15,flowers102-5,flowers102-15,cifar10-100"
VARIED = "cub20-10,cub50-10,flowers20-5,flowers102-5,cifar10-100"
STRONGLY = "cub20-5,cub20-10,cub50-5,cub50-10,flowers20-5,flowers20-15"
PLAN = (  # minutes, ways, cells, seeds: most valuable first, within twelve core-hours with the pilots
    (1, "strong,sla-strong", STRONGLY, (0,)),
    (1, "strong", "cifar10-100", (0,)),
    (5, "strong,sla-strong", "cub20-10,flowers20-5", (0,)),
    (5, "strong", "cub50-10", (0,)),
    (1, "plain,sla", EVERY, (0,)),
    (5, "plain,sla", VARIED, (0,)),
    (20, "plain,sla", "cub20-30,flowers102-5", (0,)),
    (1, "mixed,timm,student", "cub20-10,flowers20-5", (0,)),
    (1, "features", "cub200-29", (0,)),
    (1, "plain,sla", SMALL, (1, 2)),
    (5, "mixed,timm,student", "cub20-10,flowers20-5", (0,)),
    (5, "plain", "cub200-29", (0,)),
    (5, "plain,sla", "cub20-10,flowers20-5", (1, 2)),
    (1, "features", "cub20-30,cub50-5,cub50-10,cub50-30,flowers102-5,flowers102-15,cifar10-100", (1, 2)),
    (1, "plain", "cub50-10,flowers102-5,cifar10-100", (1,)),
    (1, "plain", "cub50-10", (2,)),
)


def settings_of(cell: Cell, way: str, minutes: float, seed: int) -> dict[str, Any]:
    """The keys of a run; what is not here is the default of `sla train`."""
    passes = cell.images * (2 if cell.images <= MIRRORED else 1)
    left = minutes * MINUTE - (0 if way == "timm" else passes * FORWARD)
    steps = {} if way == "features" else {"run.flop": max(left, MINUTE / 10)}
    # A student's steps and its teacher's answers are part of the budget: of 3 + 4 passes, where SLA has 3.
    if way == "student":
        steps = {"run.flop": steps["run.flop"] / (1 + DISTILLED * 7 / 3)}
    data = {"data.classes": cell.classes, "data.per_class": cell.per_class, "data.hold_out": cell.hold_out}
    run = {"run.seed": seed, "run.evaluations": 1, "run.compile": False, "run.threads": 1}
    return data | run | WAYS[way] | steps
