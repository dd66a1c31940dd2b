"""Which images a run trains on and which it holds out; the classes of other data in the model's order."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sla.errors import InputError, listed, shown
from sla.images.cache_paths import cache_dir
from sla.images.storage import OnBadImage
from sla.images.store import Dataset, Splits
from sla.progress import QUIET, Progress
from sla.sampling.protocols import hold_out, limited, long_tailed, selection_set
from sla.tasks.classifier.config import ClassifierConfig, DataConfig


def load_data(
    part: DataConfig,
    data: str | Path | None = None,
    on_bad_image: OnBadImage | None = None,
    progress: Progress = QUIET,
    **options: Any,
) -> Splits:
    """The data that a configuration names, or other data, at the size at which its run stores images."""
    from sla.datasets.load import load  # opening a run to predict does without the catalogue

    return load(
        data or part.source,
        root=part.root,
        size=part.stored_size,
        on_bad_image=on_bad_image or part.on_bad_image,
        cache=cache_dir() / "images" if part.cache else None,
        progress=progress,
        **options,
    )


def split_images(
    config: ClassifierConfig, splits: Splits, reasons: list[str]
) -> tuple[Dataset, Dataset | None]:
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


def _cut_tail(config: ClassifierConfig, train: Dataset, reasons: list[str]) -> tuple[Dataset, Dataset]:
    data = config.data
    assert data.long_tail is not None
    if data.per_class:
        raise InputError(
            "data.per_class and data.long_tail both say how many images a class keeps: choose one"
        )
    train, left_out = long_tailed(train, data.long_tail, data.long_tail_max)
    reasons.append(f"a long tail of ratio {data.long_tail:g}: {len(train):,} images")
    return train, left_out


def same_classes(dataset: Dataset, classes: Sequence[str]) -> Dataset:
    """The dataset with its classes in the model's order; refused when it has classes the model lacks."""
    if tuple(dataset.classes) == tuple(classes):
        return dataset
    unknown = [name for name in dataset.classes if name not in classes]
    if unknown:
        some = listed([shown(name) for name in unknown])
        raise InputError(
            f"another label set: the model does not know {len(unknown)} of these classes: {some}"
        )
    order = np.array([list(classes).index(name) for name in dataset.classes])
    return Dataset(dataset.images, order[dataset.targets], tuple(classes), dataset.rows)
