"""What images go through before a model sees them: by a configuration, a model's file, published weights."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sla.augment.ops import Pipeline
from sla.augment.pipelines import train_pipeline
from sla.augment.preprocessing import Preprocessing
from sla.backbones import Weights
from sla.images.files import FileImages
from sla.runs.config import TrainingConfig


def preprocessing_of(config: TrainingConfig) -> Preprocessing:
    """The preprocessing of a resolved configuration."""
    model, stored = config.model, config.data.stored_size
    return Preprocessing(config.augment or "none", model.resolution, stored, model.mean, model.std)  # type: ignore[arg-type]


def enlarged(resolution: int) -> int:
    """Pixels a side of stored pictures: above what a network sees, so that crops keep their detail."""
    return resolution * 8 // 7


def published_preprocessing(weights: Weights) -> Preprocessing:
    """What pictures go through before a network with these weights that is not trained."""
    mean, std, size = weights.input
    return Preprocessing("resized", size, enlarged(size), mean, std)


def read_preprocessing(about: dict[str, Any]) -> Preprocessing:
    """The preprocessing that a model's file has."""
    return Preprocessing.from_dict(about.get("preprocessing"))


def file_images(preprocessing: Preprocessing, files: Sequence[str | Path]) -> FileImages:
    """Image files, read as the training images were."""
    stored = preprocessing.stored_size
    return FileImages([str(file) for file in files], (stored, stored))


def build_pipelines(config: TrainingConfig) -> tuple[Pipeline, Pipeline]:
    """What training images and test images go through."""
    return build_train_pipeline(config), preprocessing_of(config).eval_pipeline()


def build_train_pipeline(config: TrainingConfig, augment: str | None = None) -> Pipeline:
    """What training images go through, by the run's augmentation or by another one."""
    seen, size = preprocessing_of(config), config.model.input_shape(training=True)[1]
    return train_pipeline(augment or seen.augment, size, seen.mean, seen.std, config.policies)
