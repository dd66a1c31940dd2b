"""What images go through before a model sees them: built from a configuration, or from a model's file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sla.augment.ops import Pipeline
from sla.augment.pipelines import eval_pipeline, train_pipeline
from sla.images.files import FileImages
from sla.runs.config import TrainingConfig


def describe_preprocessing(config: TrainingConfig) -> dict[str, Any]:
    """The preprocessing as a model's file keeps it, for `make_eval_pipeline` and `file_images`."""
    model = config.model
    return {
        "augment": config.augment,
        "resolution": model.resolution,
        "stored_size": config.data.stored_size,
        "mean": model.mean,
        "std": model.std,
    }


def file_images(about: dict[str, Any], files: Sequence[str | Path]) -> FileImages:
    """Image files, read as the training images of the model with this description were."""
    stored = about["preprocessing"]["stored_size"]
    return FileImages([str(file) for file in files], (stored, stored))


def make_eval_pipeline(about: dict[str, Any]) -> Pipeline:
    """What a test image goes through before the model with this description sees it."""
    seen = about["preprocessing"]
    return eval_pipeline(seen["augment"], seen["resolution"], tuple(seen["mean"]), tuple(seen["std"]))


def build_pipelines(config: TrainingConfig) -> tuple[Pipeline, Pipeline]:
    """What training images and test images go through."""
    text, size = config.augment or "none", config.model.resolution
    mean, std = config.model.mean, config.model.std
    assert size is not None
    assert mean is not None
    assert std is not None
    training = train_pipeline(text, size, mean, std, config.policies)
    return training, eval_pipeline(text, size, mean, std)
