"""Which images a run trains on and which it holds out; the classes of other data in the model's order."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sla.datasets.objects import Objects
from sla.errors import InputError, listed, shown
from sla.images.cache_paths import cache_dir
from sla.images.joined import Joiner
from sla.images.storage import OnBadImage
from sla.images.store import Dataset, Splits
from sla.progress import QUIET, Progress
from sla.sampling.protocols import class_subset, hold_out, limited, long_tailed, selection_set
from sla.tasks.classifier.config import ClassifierConfig, DataConfig, EarlierData


def load_data(
    part: DataConfig,
    data: Any = None,
    on_bad_image: OnBadImage | None = None,
    progress: Progress = QUIET,
    **options: Any,
) -> Splits:
    """The data that a configuration names, or other data, at the size at which its run stores images."""
    if isinstance(data, Splits):
        return data
    if data is not None and not isinstance(data, str | Path):
        objects = data if isinstance(data, Objects) else Objects(data)
        return objects.load(part.stored_size, progress=progress)
    if data is not None:
        return _load(part, str(data), part.root, on_bad_image, progress, **options)
    return join_splits(load_parts(part, on_bad_image, progress, **options))


def load_parts(
    part: DataConfig, on_bad_image: OnBadImage | None = None, progress: Progress = QUIET, **options: Any
) -> list[Splits]:
    """The data that a configuration names, those of runs that it grew from first; a source is read once."""
    loaded: dict[tuple[str, str | None], Splits] = {}
    parts = []
    sources: list[EarlierData | DataConfig] = [*part.earlier, part]
    for each in sources:
        key = each.source, each.root
        if key not in loaded:  # one class may be all that a run grows by
            loaded[key] = _load(part, *key, on_bad_image, progress, least_classes=1, **options)
        parts.append(loaded[key] if each.classes is None else select_classes(loaded[key], each.classes))
    return parts


def _load(
    part: DataConfig,
    source: str,
    root: str | None,
    on_bad_image: OnBadImage | None,
    progress: Progress,
    **options: Any,
) -> Splits:
    from sla.datasets.load import load  # opening a run to predict does without the catalogue

    return load(
        source,
        root=root,
        size=part.stored_size,
        on_bad_image=on_bad_image or part.on_bad_image,
        cache=cache_dir() / "images" if part.cache else None,
        progress=progress,
        **options,
    )


def select_classes(splits: Splits, chosen: Sequence[str | int]) -> Splits:
    """Only these classes of every split, in this order: names, numbers, or ranges such as 0-19."""
    known, names = splits.train.classes, list[str | int]()
    for one in chosen:
        span = re.fullmatch(r"(\d+)-(\d+)", str(one))
        if one in known or span is None:
            names.append(int(one) if str(one).isdecimal() and one not in known else one)
        else:
            names += range(int(span[1]), int(span[2]) + 1)

    def select(part: Dataset | None) -> Dataset | None:
        return part and class_subset(same_classes(part, known), names)

    train = class_subset(splits.train, names)
    return replace(splits, train=train, val=select(splits.val), test=select(splits.test))


def join_splits(parts: Sequence[Splits], classes: Sequence[str] | None = None) -> Splits:
    """Data of different classes as one; what its owners hold out is among the training images.

    Which images a grown run holds out is in its record. There are test images if every part has some.
    `classes`: all in their order, by default those of the parts; without them one part stays as it is.
    """
    if len(parts) == 1 and classes is None:
        return parts[0]
    classes = classes or [name for part in parts for name in part.train.classes]
    if twice := next((name for name in classes if classes.count(name) > 1), None):
        where = " and ".join(shown(part.name) for part in parts if twice in part.train.classes)
        raise InputError(f"class {shown(twice)!r} is in {where}: a run grows by new classes alone")
    pool = training_images(parts)
    tests = [part.test for part in parts if part.test is not None]
    test = Joiner(tests, classes).join(tests) if len(tests) == len(parts) else None
    return replace(parts[-1], train=Joiner(pool, classes).join(pool), val=None, test=test)


def training_images(parts: Sequence[Splits]) -> list[Dataset]:
    """All that a run may train on, with what the owners of the data hold out."""
    return [some for part in parts for some in (part.train, part.val) if some is not None]


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
            reasons.append(
                f"{len(val):,} images that the tail left out are held out to choose the checkpoint"
            )
    elif val is None and config.data.hold_out:
        train, val = hold_out(train, config.data.hold_out, seed=config.data.hold_out_seed)
        purpose = "to evaluate it on" if config.is_features else "to choose the checkpoint"
        reasons.append(f"{len(val):,} of the training images are held out {purpose}")
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
    place = {name: number for number, name in enumerate(classes)}
    unknown = [name for name in dataset.classes if name not in place]
    if unknown:
        some = listed([shown(name) for name in unknown])
        raise InputError(
            f"another label set: the model does not know {len(unknown)} of these classes: {some}"
        )
    order = np.array([place[name] for name in dataset.classes])
    return Dataset(dataset.images, order[dataset.targets], tuple(classes), dataset.rows)
