"""Datasets by name or folder: found where they lie, got if wanted, and opened as splits."""

import hashlib
import os
import struct
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from sla.datasets.catalogue import CATALOGUE, find_entry, source_of
from sla.datasets.download import Progress, obtain
from sla.datasets.entry import Entry, Web
from sla.datasets.folder import load_folder
from sla.datasets.formats import Arrays, Parts
from sla.datasets.formats.wordnet import class_lists
from sla.datasets.layouts import Layout, expected_layout, find_layout
from sla.disk import exclusive
from sla.errors import InputError, SLAError, SLAWarning, nearest
from sla.images.cache_paths import cache_dir
from sla.images.storage import MEMORY_LIMIT, OnBadImage, Storage, store_files
from sla.images.store import ArrayImages, Dataset, Splits

NAMESAKES = ("mnist", "fashion-mnist")


class Got(NamedTuple):
    """Where a dataset lies, and how it came there."""

    folder: Path
    route: str


def load(
    data: str | Path,
    *,
    root: str | Path | None = None,
    size: int | tuple[int, int] | None = None,
    on_bad_image: OnBadImage = "refuse",
    cache: Path | None = None,
    memory_limit: int = MEMORY_LIMIT,
    download: bool = False,
    progress: Progress | None = None,
) -> Splits:
    """A dataset of the catalogue by name, or a folder of images, or a CSV of path and label.

    A name is looked for below `root`, by default the data folder (`SLA_DATA`, else the platform's cache
    folder), in its owner's layout or as class folders; with `download` it is got when it is not there. A
    folder that has a dataset's name is meant by writing `./name`. `size` (H, W) is that of stored pictures
    and, like `cache`, `memory_limit` and `on_bad_image`, concerns datasets of image files (`load_folder`).
    """
    both = (size, size) if isinstance(size, int) else size
    seen = (lambda done, total: progress("reading images", done, total)) if progress else None
    storage = Storage(both, on_bad_image, cache, memory_limit, seen)
    if isinstance(data, str) and data in CATALOGUE:
        return _load_named(CATALOGUE[data], Path(root) if root else None, storage, download, progress)
    path = Path(data).expanduser()
    if not path.exists() and os.sep not in str(data) and path.suffix.lower() not in (".csv", ".tsv"):
        raise InputError(
            f"{data!r} is no folder here and no dataset's name{nearest(str(data), list(CATALOGUE))}"
        )
    return load_folder(
        path, size=both, on_bad_image=on_bad_image, cache=cache, memory_limit=memory_limit, progress=seen
    )


def get(name: str, *, root: str | Path | None = None, progress: Progress | None = None) -> Got:
    """Make sure that a dataset is on disk; of several processes that ask at once, one does the work."""
    entry = find_entry(name)
    source, base = source_of(entry), Path(root) if root else cache_dir()
    if found := find(name, root=root):
        carried = not source.routes and not source.agreement
        return Got(found[0], "part of this package" if carried else "already there")
    if not source.routes:
        raise InputError(f"{name}: cannot be downloaded: {entry.agreement}; looked for in {base}")
    try:
        with exclusive(base / f".{source.name}.lock"):
            if found := find(name, root=root):
                return Got(found[0], "already there")
            route = obtain(source, base / source.name, progress, _reads_as(source))
    except OSError as error:
        raise SLAError(f"{base}: cannot be written: {error.strerror}") from None
    found = find(name, root=root)
    assert found is not None
    return Got(found[0], route)


def _reads_as(entry: Entry) -> Callable[[Path], None]:
    def accept(folder: Path) -> None:
        found = find_layout(entry.name, [folder])
        if found is None:
            raise InputError(f"what was got is not {expected_layout(entry.name)}")
        if any(
            file.checksum is None for route in entry.routes if isinstance(route, Web) for file in route.files
        ):
            found[1].read(found[0])  # without checksums, lists that name what is there must do

    return accept


def find(name: str, *, root: str | Path | None = None) -> tuple[Path, Layout] | None:
    """The folder in which a dataset already lies, and its layout: below the root, else as installed."""
    source, base = source_of(find_entry(name)), Path(root) if root else cache_dir()
    return find_layout(source.name, [base / source.name, base, *map(Path, source.installed)])


def _load_named(
    entry: Entry, root: Path | None, storage: Storage, download: bool, progress: Progress | None
) -> Splits:
    found = find(entry.name, root=root)
    if found is None and download:
        get(entry.name, root=root, progress=progress)
        found = find(entry.name, root=root)
    if found is None:
        source, way = source_of(entry), entry.agreement or f"`sla data get {entry.name}` gets it"
        raise InputError(
            f"{entry.name}: not in {root or cache_dir()}: no {expected_layout(source.name)}; {way}"
        )
    folder, layout = found
    parts = layout.read(folder)
    _refuse_namesake(entry, parts, folder)
    splits = (
        _few_shot_cifar(entry, parts, folder) if entry.made_of else _assemble(entry, parts, folder, storage)
    )
    _say_what_differs(entry, splits, folder)
    return splits


def _assemble(entry: Entry, parts: Parts, folder: Path, storage: Storage) -> Splits:
    held: dict[str, Dataset] = {}
    for split, part in parts.items():
        if isinstance(part, Arrays):
            images = ArrayImages(_tensor(part.pixels), f"{entry.name}/{split}")
            held[split] = Dataset(images, part.targets, part.classes)
            continue
        held[split], _ = store_files(folder / split, *part, storage)
        storage = replace(storage, size=held[split].images.shape[1:])  # the next as train
        if not entry.few_shot:
            held[split] = _as_in_train(held[split], held["train"].classes, folder, split)
    return _splits(entry, held)


def _splits(entry: Entry, held: dict[str, Dataset]) -> Splits:
    return Splits(entry.name, held["train"], held.get("val"), held.get("test"), entry.mean, entry.std)


def _as_in_train(part: Dataset, classes: tuple[str, ...], folder: Path, split: str) -> Dataset:
    """The same images with targets numbered as in train."""
    if stray := sorted(set(part.classes) - set(classes)):
        raise InputError(f"{folder}: {split} has class {stray[0]!r}, which train has not")
    place = np.array([classes.index(name) for name in part.classes])
    return replace(part, targets=place[part.targets], classes=classes)


def _few_shot_cifar(entry: Entry, parts: Parts, folder: Path) -> Splits:
    """CIFAR-FS and FC100: all 600 images of a class, those of train before those of test."""
    train, test = parts["train"], parts["test"]
    assert isinstance(train, Arrays)
    assert isinstance(test, Arrays)
    images = ArrayImages(_tensor(np.concatenate([train.pixels, test.pixels])), "cifar100")
    targets = np.concatenate([train.targets, test.targets])
    if entry.name == "fc100" and not train.groups:
        raise InputError(f"{folder}: a fine class has two coarse labels, or none; not CIFAR-100")
    held = {}
    for split, names in class_lists(entry.name).items():
        if entry.name == "fc100":
            both = list(zip(train.classes, train.groups, strict=True))
            names = [fine for name in names for fine, coarse in both if coarse == name]
        place = np.full(len(train.classes), -1, np.int64)
        place[[train.classes.index(name) for name in names]] = np.arange(len(names))
        rows = np.flatnonzero(place[targets] >= 0)
        held[split] = Dataset(images, place[targets[rows]], tuple(names), rows)
    return _splits(entry, held)


def _tensor(pixels: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.array(pixels))  # a copy: what was read may lie in a read-only buffer


def _refuse_namesake(entry: Entry, parts: Parts, folder: Path) -> None:
    """MNIST and Fashion-MNIST have the same file names: tell them apart by the checksum of their labels."""
    if entry.name not in NAMESAKES:
        return
    targets = parts["train"].targets
    content = struct.pack(">HBBI", 0, 8, 1, len(targets)) + targets.astype(np.uint8).tobytes()
    found = hashlib.md5(content, usedforsecurity=False).hexdigest()
    for other in NAMESAKES:
        if other != entry.name and found == CATALOGUE[other].checksums["train-labels-idx1-ubyte"]:
            raise InputError(f"{folder}: this is {other}, not {entry.name}")


def _say_what_differs(entry: Entry, splits: Splits, folder: Path) -> None:
    """A warning where images or classes are fewer, or more, than the whole dataset's."""
    parts = {"train": splits.train, "val": splits.val, "test": splits.test}
    found = {name: len(part) for name, part in parts.items() if part is not None}
    if entry.few_shot:
        classes = sum(part.num_classes for part in parts.values() if part is not None)
    else:
        classes = splits.train.num_classes
    if found == entry.splits and classes == entry.num_classes:
        return
    counts = ", ".join(
        f"{found.get(name, 0):,} of {whole:,} {name} images" for name, whole in entry.splits.items()
    )
    warnings.warn(
        f"{entry.name} in {folder}: {classes:,} of {entry.num_classes:,} classes, {counts}", SLAWarning
    )
