"""Defaults of a configuration that every task chooses the same way.

The catalogue of datasets is imported where it is needed: opening a run to predict does without.
"""

import warnings
from pathlib import Path
from typing import Any, TypeVar

import torch

from sla.augment.pipelines import find_contradictions, read_policies
from sla.backbones import PRETRAINED, check_backbone, count_features, find_weights
from sla.errors import InputError, SLAWarning
from sla.heads import check_device
from sla.images.store import Splits
from sla.plugins import import_plugin, is_passed
from sla.runs.config import TrainingConfig
from sla.runs.preprocessing import build_train_pipeline
from sla.views import Views

TINY = 40  # pixels a side up to which a picture is for a CIFAR network

Tree = TypeVar("Tree", bound=TrainingConfig)


def fill_missing(config: Tree, part: str, **values: Any) -> Tree:
    """The configuration with values for the keys of a branch that are None; others stay."""
    branch = getattr(config, part)
    return override(
        config, part, **{name: value for name, value in values.items() if getattr(branch, name) is None}
    )


def override(config: Tree, part: str, **values: Any) -> Tree:
    """The configuration with values of a branch replaced."""
    return config.model_copy(update={part: getattr(config, part).model_copy(update=values)})


def with_absolute_paths(config: Tree) -> Tree:
    """The configuration with absolute paths of data and weights, so that it means the same from anywhere."""
    from sla.datasets.catalogue import CATALOGUE

    source, weights = Path(config.data.source).expanduser(), Path(config.model.weights or "none").expanduser()
    if config.data.source and config.data.source not in CATALOGUE and source.exists():
        config = override(config, "data", source=str(source.absolute()))
    if config.model.weights not in (None, "none", "pretrained", "own") and weights.exists():
        config = override(config, "model", weights=str(weights.absolute()))
    return config  # of what does not exist, loading says what is wrong


def same_source(one: str, other: str) -> bool:
    """Whether two names of data mean the same, however a path is written."""
    from sla.datasets.catalogue import CATALOGUE

    if one == other or one in CATALOGUE or other in CATALOGUE:
        return one == other
    return bool(one and other) and Path(one).expanduser().resolve() == Path(other).expanduser().resolve()


def with_policies(config: Tree, *augments: str) -> Tree:
    """The configuration with what the files of its policies held: a file may change or disappear.

    `augments`: further augmentations, beside the one of the training images.
    """
    kept: dict[str, Any] = {}
    for text in (config.augment or "none", *augments):
        kept |= read_policies(text, config.policies)
    return config.model_copy(update={"policies": kept})


def choose_device(config: Tree) -> Tree:
    """The fastest device of this machine, and the threads that torch has now: a run keeps them."""
    device = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    config = fill_missing(config, "run", device=device, threads=torch.get_num_threads())
    check_device(config.run.device or "cpu")
    return config


def usual_precision(device: str) -> str:
    """float32; mixed with what a GPU computes fast in."""
    if torch.device(device).type != "cuda":
        return "float32"
    return "bfloat16" if torch.cuda.is_bf16_supported() else "float16"


def check_model(config: TrainingConfig) -> None:
    """Refuse a backbone that does not exist, or that lacks an option, before anything is read."""
    if config.model.backbone is not None:
        check_backbone(config.model.backbone, config.model.options)


def has_pretrained(backbone: str = PRETRAINED) -> bool:
    """Whether published weights of this backbone are on this machine."""
    weights = find_weights(backbone)
    return weights is not None and weights.available


def native_size(source: str) -> int:
    """Pixels a side of the pictures, by the catalogue or by a sample of the files."""
    from sla.datasets.catalogue import CATALOGUE
    from sla.datasets.folder import choose_size
    from sla.datasets.load import load
    from sla.datasets.scan import open_index

    if source in CATALOGUE:
        return max(CATALOGUE[source].shape[1:])
    path = Path(source).expanduser()
    if not path.exists():
        load(source)  # says what is wrong
    return max(choose_size(open_index(path, least_classes=1).paths))  # loading counts its classes


def choose_input(config: Tree, splits: Splits) -> Tree:
    """Normalisation and the number of channels, from the weights, the dataset, or 0.5."""
    model, mean, std = config.model, splits.mean, splits.std
    # Statistics of three channels, given or of weights, are for a network of three, grey pictures or not.
    counted = len(model.mean) if model.mean else splits.train.images.shape[0]
    channels = model.options.get("in_channels", counted)
    if channels != 3 and "in_channels" not in model.options:
        config = override(config, "model", options={**model.options, "in_channels": channels})
    if mean is None or std is None or len(mean) != channels:
        mean, std = (0.5,) * channels, (0.5,) * channels
    if model.weights == "pretrained":
        # Weights expect the pixels they were trained with.
        known = find_weights(model.backbone or "")
        mean, std = (known.input.mean, known.input.std) if known else (mean, std)
    return fill_missing(config, "model", mean=tuple(mean), std=tuple(std))


def measure_backbone(config: Tree) -> Tree:
    """The width of the features of a module that was passed from Python, as one of its options."""
    model = config.model
    if not is_passed(model.backbone or "") or "num_features" in model.options:
        return config
    edge = model.resolution or 0
    width = count_features(import_plugin(model.backbone or ""), (len(model.mean or ()), edge, edge))
    return override(config, "model", options={**model.options, "num_features": width})


def warn_of_contradictions(config: TrainingConfig, views: Views, augment: str | None = None) -> None:
    """Warn where the run's augmentation, or another one, does to an image what one of the views does."""
    pipeline = build_train_pipeline(config, augment)
    for contradiction in find_contradictions(pipeline, views.elements):
        what = f"augment {augment or config.augment!r} contains a view of {views.text}"
        warnings.warn(f"{what}: {contradiction}; the same picture then has two labels", SLAWarning)


def check_input(config: TrainingConfig) -> None:
    """Refuse pictures without any shape, and means and deviations that do not fit the channels."""
    if config.model.resolution == 1:
        raise InputError(
            "pictures of 1 x 1 pixels have no shapes to learn: at least 2 x 2 are needed (model.resolution)"
        )
    channels = config.model.options.get("in_channels", 3)
    for name, values in (("mean", config.model.mean or ()), ("std", config.model.std or ())):
        if len(values) != channels:
            raise InputError(f"model.{name}: {len(values)} numbers for {channels} channels")


def small_backbone(slow: bool) -> str:
    """For small pictures: the best in equal time on a CPU, by `sla reproduce networks`; a wider one else."""
    return "resnet9_16" if slow else "resnet9"
