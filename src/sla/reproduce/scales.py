"""The paper's recipes made small (minutes on two cores) and tiny (seconds): what differs at these scales."""

import re
from typing import Any

Settings = dict[str, Any]


def small(dataset: str, variant: str, settings: Settings) -> Settings:
    """What differs at small scale: two minutes or so for a baseline on two cores, times M for M views."""
    if "episodes.way" in settings:
        large = dataset == "mini-imagenet"  # 84 pixels are seven times 32
        return {
            "model.backbone": "convnet4",
            "model.options": {"width": 32},
            "episodes.shot": min(settings["episodes.shot"], 5),
            "episodes.per_step": 4,
            "episodes.val_episodes": 200,
            "run.iterations": 100 if large else 200,
            "run.evaluations": 5,
        }
    if not dataset.startswith("cifar"):
        some = {"tiny-imagenet": 250, "imagenet": 50}.get(dataset)  # a class; the others have few
        return {
            "data.stored_size": 64 if dataset == "tiny-imagenet" else 73,
            "data.per_class": some,
            "data.hold_out": 0.1,
            "model.backbone": "resnet8",
            "model.resolution": 64,
            "run.batch_size": 32,
            "run.iterations": 1000,
            "run.evaluations": 4,
        }
    # Held-out images are few and looked at seldom: in runs this short they would cost as much as training.
    shorter: Settings = {
        "data.hold_out": 0.02,
        "run.epochs": None,
        "run.iterations": 1000,
        "run.evaluations": 4,
    }
    kind = re.match("[a-z]*", variant)[0]  # type: ignore[index]
    shorter["model.backbone"] = {"wrn": "wrn10_1", "pyramid": "pyramidnet8_48"}.get(kind, "resnet8")
    if variant == "resnet18":
        shorter["model.options"] = {}
    if kind == "longtail":
        most = 500 if dataset == "cifar10" else 100
        shorter |= {"data.long_tail_max": most, "run.batch_size": 64, "run.iterations": 500}
        # A cosine head does not survive the high rate after so short a warm-up: longer and clipped, for all.
        return shorter | {"optimizer.warmup": 0.1, "optimizer.clip": 1.0}
    if kind in ("wrn", "pyramid"):
        some = 200 if dataset == "cifar10" else 50
        return shorter | {"data.per_class": some, "run.batch_size": 64, "run.iterations": 500}
    if kind != "n":
        shorter["data.per_class"] = 500 if dataset == "cifar10" else 100
    return shorter | ({"run.snapshots": 10} if settings["run.snapshots"] else {})


def smoke(variant: str, settings: Settings) -> Settings:
    """What differs on the 8x8 digits, in three equal channels so that colour permutations run."""
    augment = settings["augment"]
    for large, little in (("crop(4)", "crop(1)"), ("crop(8)", "crop(1)"), ("cutout(16)", "cutout(4)")):
        augment = augment.replace(large, little)
    tiny: Settings = {
        "data.source": "digits",
        "data.stored_size": 8,
        "model.backbone": "convnet4",
        "model.options": {"in_channels": 3, "width": 8},
        "model.resolution": 8,
        "model.mean": (0.5,) * 3,
        "model.std": (0.5,) * 3,
        "augment": augment,
        "run.iterations": 20,
        "run.evaluations": 1,
    }
    if "episodes.way" in settings:
        few = {"way": 2, "shot": 2, "query": 2, "per_step": 2, "test_query": 4, "val_shot": 2}
        few |= {"val_episodes": 4, "test_episodes": 10}
        return tiny | {f"episodes.{key}": value for key, value in few.items()}
    tiny |= {"data.hold_out": 0.1, "run.batch_size": 16, "run.epochs": None, "run.compile": False}
    if found := re.fullmatch(r"n(\d+)", variant):
        tiny["data.per_class"] = int(found[1]) // 5
    if found := re.fullmatch(r"longtail(\d+)", variant):
        tiny |= {"data.long_tail": {100: 10, 10: 5}[int(found[1])], "data.long_tail_max": 50}
    return tiny | ({"run.snapshots": 2} if settings["run.snapshots"] else {})
