"""Splits for few-shot learning: train, val and test have classes of their own."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sla.datasets.catalogue import CATALOGUE
from sla.datasets.entry import SPLIT_NAMES
from sla.datasets.load import load
from sla.datasets.scan import SPLITS, is_hidden
from sla.errors import InputError, listed, shown
from sla.images.store import Splits
from sla.sampling.draws import seed_of
from sla.sampling.protocols import class_subset

VAL_SHARE, TEST_SHARE = 0.16, 0.2  # of the classes, as in CIFAR-FS and mini-ImageNet


def load_class_splits(
    source: str | Path, way: int | None, *, seed: int = 0, root: str | Path | None = None, **options: Any
) -> Splits:
    """A few-shot dataset by name; a folder with train/ val/ test/ of different classes; or any other data.

    For other data the training images are split by classes, drawn with the seed: 16% of the classes for val,
    20% for test, at least `way` each; if `way` is None the data stays as it is.
    `options` are those of `datasets.load`.
    """
    if isinstance(source, str) and source in CATALOGUE:
        splits = load(source, root=root, **options)
        return splits if way is None or CATALOGUE[source].few_shot else split_classes(splits, way, seed)
    folders = _split_folders(Path(source).expanduser())
    if "train" not in folders:
        splits = load(source, root=root, **options)
        return splits if way is None else split_classes(splits, way, seed)
    train = load(folders["train"], **options).train
    size = train.images.shape[1:]  # the others like train
    parts = {}
    for name in ("val", "test"):
        if name not in folders:
            continue
        parts[name] = load(folders[name], **(options | {"size": size})).train
        if way is not None and (both := sorted(set(parts[name].classes) & set(train.classes))):
            some = f"{name} has classes of train ({listed([shown(label) for label in both])})"
            raise InputError(f"{shown(source)}: {some}; few-shot splits have none in common")
    return Splits(Path(source).expanduser().absolute().name, train, parts.get("val"), parts.get("test"))


def split_classes(splits: Splits, way: int, seed: int = 0) -> Splits:
    """The training images split by classes; without val where the classes are too few for three parts."""
    data = splits.train
    count = data.num_classes
    test, val = max(way, round(TEST_SHARE * count)), max(way, round(VAL_SHARE * count))
    if count - test < way:
        raise InputError(
            f"{shown(splits.name)} has {count} classes: {way} to train on and {way} others to test on "
            f"need {2 * way}; a smaller way (--way, episodes.way) needs fewer"
        )
    val = val if count - test - val >= way else 0
    order = np.random.default_rng(seed_of(seed, "classes")).permutation(count)
    tested, judged, learnt = (sorted(some.tolist()) for some in np.split(order, [test, test + val]))
    val_part = class_subset(data, judged) if judged else None
    return replace(splits, train=class_subset(data, learnt), val=val_part, test=class_subset(data, tested))


def _split_folders(path: Path) -> dict[str, Path]:
    """The folders `train`, `val` and `test`, if a folder contains no other folders."""
    inside = path.iterdir() if path.is_dir() else ()
    inner = [entry for entry in inside if entry.is_dir() and not is_hidden(entry.name)]
    if not all(entry.name.lower() in SPLITS for entry in inner):
        return {}
    return {SPLIT_NAMES[SPLITS[entry.name.lower()]]: entry for entry in inner}
