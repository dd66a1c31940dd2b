"""Datasets by name or folder, opened as splits; downloaded first if asked to."""

import hashlib
import os
import struct
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from sla.datasets.catalogue import CATALOGUE, source_of
from sla.datasets.entry import Entry
from sla.datasets.find import find, get
from sla.datasets.folder import load_folder
from sla.datasets.formats import Arrays, Parts
from sla.datasets.formats.wordnet import class_lists
from sla.datasets.layouts import expected_layout
from sla.datasets.objects import refuse_object_source
from sla.errors import InputError, SLAWarning, nearest
from sla.images.cache_paths import cache_dir
from sla.images.storage import MEMORY_LIMIT, OnBadImage, Storage, store_files
from sla.images.store import ArrayImages, Dataset, Splits
from sla.progress import QUIET, Progress

NAMESAKES = ("mnist", "fashion-mnist")


def load(
    data: str | Path,
    *,
    root: str | Path | None = None,
    size: int | tuple[int, int] | None = None,
    on_bad_image: OnBadImage = "refuse",
    cache: Path | None = None,
    memory_limit: int = MEMORY_LIMIT,
    least_classes: int = 2,
    download: bool = False,
    progress: Progress = QUIET,
) -> Splits:
    """A dataset of the catalogue by name, or a folder of images, or a CSV of path and label.

    A name is searched for below `root`, by default the data folder (`SLA_DATA`, else the platform's cache
    folder), in its owner's layout or as class folders; with `download` it is downloaded if missing. Write
    `./name` for a folder that has a dataset's name. `size` (H, W) is that of stored images and, like
    `cache`, `memory_limit` and `on_bad_image`, applies to datasets of image files (`load_folder`);
    `least_classes` to folders and CSV files.
    """
    refuse_object_source(str(data))
    both = (size, size) if isinstance(size, int) else size
    storage = Storage(both, on_bad_image, cache, memory_limit, progress)
    if isinstance(data, str) and data in CATALOGUE:
        return _load_named(CATALOGUE[data], Path(root) if root else None, storage, download)
    path = Path(data).expanduser()
    if not path.exists() and os.sep not in str(data) and path.suffix.lower() not in (".csv", ".tsv"):
        hint = nearest(str(data), list(CATALOGUE))
        raise InputError(f"{data!r} is neither a folder nor the name of a dataset{hint}")
    return load_folder(
        path,
        size=both,
        on_bad_image=on_bad_image,
        cache=cache,
        memory_limit=memory_limit,
        least_classes=least_classes,
        progress=progress,
    )


def _load_named(entry: Entry, root: Path | None, storage: Storage, download: bool) -> Splits:
    found = find(entry.name, root=root)
    if found is None and download:
        get(entry.name, root=root, progress=storage.progress)
        found = find(entry.name, root=root)
    if found is None:
        source, way = source_of(entry), entry.agreement or f"`sla data get {entry.name}` downloads it"
        if not source.routes and not entry.agreement:
            way = "it has no download: put it there"
        raise InputError(f"{entry.name}: not in {root or cache_dir()}: no {expected_layout(source)}; {way}")
    folder, layout = found
    parts = layout.read(folder)
    _refuse_namesake(entry, parts, folder)
    if entry.made_of:
        held = _few_shot_cifar(entry, parts, folder)
    else:
        held = _assemble(entry, parts, folder, storage)
    _warn_of_differences(entry, held, folder)
    return Splits(entry.name, held["train"], held.get("val"), held.get("test"), entry.mean, entry.std)


def _assemble(entry: Entry, parts: Parts, folder: Path, storage: Storage) -> dict[str, Dataset]:
    held: dict[str, Dataset] = {}
    for split, part in parts.items():
        if isinstance(part, Arrays):
            images = ArrayImages(_tensor(part.pixels), f"{entry.name}/{split}")
            held[split] = Dataset(images, part.targets, part.classes)
            continue
        held[split], _ = store_files(folder / split, *part, storage)
        storage = replace(storage, size=held[split].images.shape[1:])  # the others like train
        if not entry.few_shot:
            held[split] = _as_in_train(held[split], held["train"].classes, folder, split)
    return held


def _as_in_train(part: Dataset, classes: tuple[str, ...], folder: Path, split: str) -> Dataset:
    """The same images with targets numbered as in train."""
    if stray := sorted(set(part.classes) - set(classes)):
        raise InputError(f"{folder}: {split} has class {stray[0]!r}, which is missing from train")
    place = {name: number for number, name in enumerate(classes)}
    numbers = np.array([place[name] for name in part.classes])
    return replace(part, targets=numbers[part.targets], classes=classes)


def _few_shot_cifar(entry: Entry, parts: Parts, folder: Path) -> dict[str, Dataset]:
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
    return held


def _tensor(pixels: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.array(pixels))  # a copy: what was read may be a read-only buffer


def _refuse_namesake(entry: Entry, parts: Parts, folder: Path) -> None:
    """MNIST and Fashion-MNIST have the same file names; the checksum of the labels differs."""
    if entry.name not in NAMESAKES:
        return
    targets = parts["train"].targets
    content = struct.pack(">HBBI", 0, 8, 1, len(targets)) + targets.astype(np.uint8).tobytes()
    found = hashlib.md5(content, usedforsecurity=False).hexdigest()
    for other in NAMESAKES:
        if other != entry.name and found == CATALOGUE[other].checksums["train-labels-idx1-ubyte"]:
            raise InputError(f"{folder}: this is {other}, not {entry.name}")


def _warn_of_differences(entry: Entry, held: dict[str, Dataset], folder: Path) -> None:
    """Warn if there are fewer, or more, images or classes than in the whole dataset."""
    found = {name: len(part) for name, part in held.items()}
    counts = [part.num_classes for part in held.values()]
    classes = sum(counts) if entry.few_shot else held["train"].num_classes
    if found != entry.splits or classes != entry.num_classes:
        said = [f"{classes:,} of {entry.num_classes:,} classes"]
        said += [f"{found.get(name, 0):,} of {whole:,} {name} images" for name, whole in entry.splits.items()]
        warnings.warn(f"{entry.name} in {folder}: {', '.join(said)}", SLAWarning)
