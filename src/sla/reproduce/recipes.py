"""What every run of the paper is told, at three scales: flat settings by the name of a recipe.

A name is a dataset and what is done with it: `cifar100`, `cifar100_n25`, `cifar10_wrn_autoaugment`. `paper`
is the paper's own setting, and what it leaves to other papers; `small` has the same data, the same schedule
in shares of the run, and small networks; `smoke` has the digits of this package, and seconds.
"""

import re

from sla.datasets.catalogue import CATALOGUE
from sla.errors import InputError, nearest
from sla.reproduce.names import SCALES
from sla.reproduce.paper import Column, Row
from sla.reproduce.scales import Settings, small, smoke

_CIFAR = ("cifar10", "cifar100")
_PHOTOS = ("cub200", "mit67", "stanford-dogs", "tiny-imagenet", "imagenet", "inaturalist2018")
_ITERATIONS = {"imagenet": 900_000, "inaturalist2018": 300_000, "tiny-imagenet": 80_000}
_IMAGENET_MEAN, _IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_WRN_MEAN, _WRN_STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
_PYRAMID_MEAN = tuple(value / 255 for value in (125.3, 123.0, 113.9))
_PYRAMID_STD = tuple(value / 255 for value in (63.0, 62.1, 66.7))
_POLICIES = {  # the stronger augmentations of Table 5, by the end of a recipe's name
    "": "crop(4), flip",
    "cutout": "crop(4), flip, cutout(16)",
    "autoaugment": "autoaugment, crop(4), flip, cutout(16)",
    "own": "policy(own), crop(4), flip, cutout(16)",
}
_MIXES: dict[str, Settings] = {
    "": {},
    "mixup": {"mix": "mixup(1.0)"},
    "cutmix": {"mix": "cutmix(1.0, 0.5)"},
}

# Stated, not left to defaults: a recipe means the same when a default changes. Device, precision and
# compilation are the machine's.
_COMMON: Settings = {
    "data.hold_out": 0.1,
    "data.hold_out_seed": 0,
    "data.sampling": "random",  # public code draws every batch afresh
    "model.options": {},
    "model.weights": "none",
    "method.name": "baseline",
    "method.views": "rot4",
    "method.views_per_step": None,
    "method.beta": 1.0,
    "method.temperature": 1.0,
    "method.view_reduction": "mean",
    "method.head": "linear",
    "method.label_smoothing": 0.0,
    "optimizer.name": "sgd",
    "optimizer.learning_rate": 0.1,
    "optimizer.momentum": 0.9,
    "optimizer.nesterov": False,
    "optimizer.weight_decay": 1e-4,
    "optimizer.decay_norms": True,
    "optimizer.schedule": "multistep",
    "optimizer.milestones": [0.5, 0.75],
    "optimizer.gamma": 0.1,
    "optimizer.warmup": 0.0,
    "optimizer.backbone_factor": 1.0,
    "optimizer.frozen": 0.0,
    "optimizer.clip": None,
    "optimizer.ema": None,
    "run.batch_size": 128,
    "run.snapshots": 0,
}


def recipe(name: str, scale: str) -> Settings:
    """The settings of a recipe, keys as in the training configuration (`run.batch_size`)."""
    if scale not in SCALES:
        raise InputError(f"no scale is called {scale!r}{nearest(scale, SCALES)}")
    dataset, _, variant = name.partition("_")
    if dataset not in CATALOGUE:
        raise InputError(
            f"recipe {name!r}: no dataset is called {dataset!r}{nearest(dataset, list(CATALOGUE))}"
        )
    if dataset == "mnist":
        return {"data.source": "digits" if scale == "smoke" else "mnist"}
    settings = _standard(dataset) if dataset in (*_CIFAR, *_PHOTOS) else {}
    if CATALOGUE[dataset].few_shot:
        settings = _few_shot(dataset, variant, name)
    elif dataset in _CIFAR:
        settings |= _variant(dataset, variant, name)
    elif variant:
        raise InputError(f"no recipe is called {name!r}: {dataset} has only the one of its name")
    if scale == "small":
        settings |= small(dataset, variant, settings)
    elif scale == "smoke":
        settings |= smoke(variant, settings)
    return settings


def cell_settings(row: Row, column: Column, scale: str) -> Settings:
    """What runs a cell: the column's recipe as the row names it, what the column sets, what the row sets."""
    return recipe(column.recipe + row.suffix, scale) | column.set | row.set


def _standard(dataset: str) -> Settings:
    """Tables 1 to 4, 8 to 10. Images are held out on CIFAR alone, as in public code: elsewhere all train."""
    if dataset in _CIFAR:
        return {
            **_COMMON,
            "data.source": dataset,
            "data.stored_size": 32,
            "model.backbone": "resnet32",
            "model.resolution": 32,
            "model.mean": (0.5,) * 3,
            "model.std": (0.5,) * 3,
            "augment": "crop(4), flip",
            "run.iterations": 80_000,
            "run.snapshots": 20 if dataset == "cifar100" else 0,  # Figure 3 is drawn from them
        }
    fine_grained = dataset not in _ITERATIONS
    return {
        **_COMMON,
        "data.source": dataset,
        # Photographs are cropped from the original in the paper: at 512 pixels even a box of 8% keeps detail.
        "data.stored_size": 64 if dataset == "tiny-imagenet" else 512,
        "data.hold_out": 0.0,
        "model.backbone": "resnet50" if dataset in ("imagenet", "inaturalist2018") else "resnet18",
        "model.resolution": 224,
        "model.mean": _IMAGENET_MEAN,
        "model.std": _IMAGENET_STD,
        "augment": "resized(0.08), flip",
        "run.batch_size": 32 if fine_grained else 128,
        "run.iterations": 30_000 if fine_grained else _ITERATIONS[dataset],
    }


def _variant(dataset: str, variant: str, name: str) -> Settings:
    """What differs from CIFAR's standard recipe."""
    kind, _, rest = variant.partition("_")
    if not variant:
        return {}
    if found := re.fullmatch(r"n(\d+)", variant):  # Figure 4
        return {"data.per_class": int(found[1]), "run.snapshots": 0}
    if found := re.fullmatch(r"longtail(\d+)", variant):
        return _long_tail(int(found[1]), 5000 if dataset == "cifar10" else 500)
    if kind == "wrn" and rest in _POLICIES:
        return _wide(_POLICIES[rest])
    if kind == "pyramid" and rest in _MIXES:
        return _pyramid(_MIXES[rest])
    if variant == "resnet18":  # Table 11: nothing is said but the network
        return {"model.backbone": "resnet18", "model.options": {"stem": "small"}, "run.snapshots": 0}
    raise InputError(f"no recipe is called {name!r}: {dataset} has no {variant!r}")


def _wide(augment: str) -> Settings:
    """WRN-40-2 by the recipe of Fast AutoAugment."""
    return {
        "data.hold_out": 0.0,
        "data.sampling": "epochs",
        "model.backbone": "wrn40_2",
        "model.options": {"conv_bias": True, "norm_momentum": 0.9},
        "model.mean": _WRN_MEAN,
        "model.std": _WRN_STD,
        "augment": augment,
        "optimizer.nesterov": True,
        "optimizer.weight_decay": 2e-4,
        "optimizer.decay_norms": False,
        "optimizer.decay_biases": True,
        "optimizer.schedule": "cosine",
        "optimizer.warmup": 5 / 200,
        "optimizer.cosine_length": 1.0,  # of 200 epochs too, so the run ends before the rate is 0
        "optimizer.clip": 5.0,
        "run.iterations": None,
        "run.epochs": 200,
        "run.snapshots": 0,
    }


def _pyramid(mix: Settings) -> Settings:
    """PyramidNet-200 by the recipe of CutMix."""
    return {
        "data.hold_out": 0.0,
        "data.sampling": "epochs",
        "model.backbone": "pyramidnet200_240",
        "model.mean": _PYRAMID_MEAN,
        "model.std": _PYRAMID_STD,
        **mix,
        "optimizer.learning_rate": 0.25,
        "optimizer.nesterov": True,
        "run.batch_size": 64,
        "run.iterations": None,
        "run.epochs": 300,
        "run.snapshots": 0,
    }


def _long_tail(ratio: int, most: int) -> Settings:
    """Table 7 by the recipe of LDAM: the rate falls to 0.01 and 0.0001 of itself after epochs 160 and 180."""
    return {
        "data.long_tail": ratio,
        "data.long_tail_max": most,
        "data.sampling": "epochs",
        "model.mean": _WRN_MEAN,
        "model.std": _WRN_STD,
        "method.deferred": 0.8,  # from epoch 160
        "optimizer.weight_decay": 2e-4,
        "optimizer.milestones": [0.8, 0.9],
        "optimizer.factors": [0.01, 0.0001],
        "optimizer.warmup": 5 / 200,
        "optimizer.warmup_stairs": 5,  # one an epoch
        "run.iterations": None,
        "run.epochs": 200,
        "run.snapshots": 0,
    }


_SHOTS = {
    "mini-imagenet": 15,
    "cifar-fs": 5,
    "fc100": 15,
}  # that MetaOptNet trains at, whatever it is tested at


def _few_shot(dataset: str, variant: str, name: str) -> Settings:
    """Table 6 by the recipe of MetaOptNet, keys as in the few-shot configuration."""
    found = re.fullmatch(r"(\d+)shot_(protonet|metaoptnet)", variant)
    if found is None:
        raise InputError(f"no recipe is called {name!r}: one is {dataset}_5shot_protonet")
    ridge, size = found[2] == "metaoptnet", CATALOGUE[dataset].shape[1]
    smoothing = 0.1 if ridge and dataset == "mini-imagenet" else 0.0
    return {
        "data.source": dataset,
        "data.stored_size": size,
        "model.backbone": "resnet12",
        "model.options": {"pool": False, "resolution": size, "drop_rate": 0.1, "ramp_steps": 20_000},
        "model.weights": "none",
        "model.resolution": size,
        "model.mean": CATALOGUE[dataset].mean,
        "model.std": CATALOGUE[dataset].std,
        "method.name": "ridge" if ridge else "protonet",
        "method.options": {"regularization": 50.0} if ridge else {},
        "method.views": "none",
        "method.label_smoothing": smoothing,
        "episodes.way": 5,
        "episodes.shot": _SHOTS[dataset]
        if ridge
        else int(found[1]),  # ProtoNet trains at the shot of the test
        "episodes.query": 6,
        "episodes.per_step": 8,
        "episodes.test_query": 15,
        "episodes.val_shot": 5,
        "episodes.val_episodes": 2000,
        "episodes.test_shots": [1, 5],
        "episodes.test_episodes": 1000,
        "augment": f"crop({4 if size == 32 else 8}), jitter(0.4), flip",
        "optimizer.learning_rate": 0.1,
        "optimizer.momentum": 0.9,
        "optimizer.nesterov": True,
        "optimizer.weight_decay": 5e-4,
        "optimizer.schedule": "multistep",
        "optimizer.milestones": [20 / 60, 40 / 60, 50 / 60],
        "optimizer.factors": [0.06, 0.012, 0.0024],
        "run.iterations": 60_000,  # 60 epochs of 1,000 batches
        "run.evaluations": 60,
    }


def pretraining(scale: str) -> Settings:
    """SimCLR before the fine-tuning of Table 11. The paper gives no settings; these are known to be good."""
    settings: Settings = {
        "pretrain.batch_size": 512,
        "pretrain.epochs": 1000,
        "pretrain.learning_rate": 1.0,
        "pretrain.warmup": 10 / 1000,
        "pretrain.schedule": "cosine",
        "pretrain.momentum": 0.9,
        "pretrain.weight_decay": 1e-4,
        "pretrain.temperature": 0.5,
        "pretrain.projection_layers": 2,
        "pretrain.augment": "resized(0.08), flip, jitter(0.4, 0.4, 0.4, 0.1), grey(0.2)",
    }
    shorter = {
        "paper": {},
        "small": {"pretrain.batch_size": 128, "pretrain.epochs": 10},
        "smoke": {"pretrain.batch_size": 32, "pretrain.epochs": 1},
    }
    return settings | shorter[scale]
