"""Datasets by name or folder: found where they lie, got if wanted, and opened as splits."""

import hashlib
import os
import struct
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch

from sla.data.cache import cache_dir
from sla.data.download import Progress, obtain
from sla.data.entry import Entry, Web
from sla.data.files import FileImages
from sla.data.folder import MEMORY_LIMIT, _store, _without_bad, choose_size, load_folder
from sla.data.formats import Arrays, Listing, Parts
from sla.data.formats.cifar import cifar100_coarse, cifar100_names
from sla.data.formats.digits import read_digits
from sla.data.formats.wordnet import class_lists
from sla.data.index import Index
from sla.data.layouts import Layout, expected_layout, find_layout
from sla.data.scan import index_file
from sla.data.sources import CATALOGUE, find_entry, source_of
from sla.data.store import ArrayImages, Dataset, Splits
from sla.disk import exclusive
from sla.errors import InputError, SLAError, SLAWarning, nearest

OnBadImage = Literal["refuse", "skip"]
NAMESAKES = ("mnist", "fashion-mnist")
FEW_SHOT = ("mini-imagenet", "cifar-fs", "fc100")  # splits with classes of their own


class Options(NamedTuple):
    """How image files are held; see `load`."""

    size: tuple[int, int] | None
    on_bad_image: OnBadImage
    cache: Path | None
    memory_limit: int
    progress: Callable[[int, int], None] | None


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
    if on_bad_image not in ("refuse", "skip"):
        raise InputError(f"on_bad_image is 'refuse' or 'skip', not {on_bad_image!r}")
    both = (size, size) if isinstance(size, int) else size
    seen = (lambda done, total: progress("reading images", done, total)) if progress else None
    options = Options(both, on_bad_image, cache, memory_limit, seen)
    if isinstance(data, str) and data in CATALOGUE:
        return _load_named(CATALOGUE[data], Path(root) if root else None, options, download, progress)
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
    if name == "digits":
        return Got(Path(__file__).parent, "part of this package")
    source, base = source_of(entry), Path(root) if root else cache_dir()
    if found := find(name, root=root):
        return Got(found[0], "already there")
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
    """The folder in which a dataset already lies, and its layout."""
    entry = find_entry(name)
    source = source_of(entry)
    if name == "digits":
        return None
    if root:
        return find_layout(source.name, [Path(root) / source.name, Path(root)])
    base = cache_dir()
    return find_layout(source.name, [base / source.name, base, *map(Path, source.installed)])


def _load_named(
    entry: Entry, root: Path | None, options: Options, download: bool, progress: Progress | None
) -> Splits:
    if entry.name == "digits":
        return _assemble(entry, read_digits(), Path("digits"), options)
    found = find(entry.name, root=root)
    if found is None and download:
        get(entry.name, root=root, progress=progress)
        found = find(entry.name, root=root)
    if found is None:
        source, how = source_of(entry), entry.agreement or f"`sla data get {entry.name}` gets it"
        raise InputError(
            f"{entry.name}: not in {root or cache_dir()}: no {expected_layout(source.name)}; {how}"
        )
    folder, layout = found
    parts = layout.read(folder)
    _refuse_namesake(entry, parts, folder)
    if entry.made_of:
        splits = _few_shot_cifar(entry, parts, folder)
    else:
        splits = _assemble(entry, parts, folder, options)
    _say_what_differs(entry, splits, folder)
    return splits


def _assemble(entry: Entry, parts: Parts, folder: Path, options: Options) -> Splits:
    held: dict[str, Dataset] = {}
    for split, part in parts.items():
        if isinstance(part, Arrays):
            images = ArrayImages(_tensor(part.pixels), f"{entry.name}/{split}")
            held[split] = Dataset(images, part.targets, part.classes)
            continue
        size = options.size or (held["train"].images.shape[1:] if held else choose_size(part.paths))
        held[split] = _from_files(part, size, folder / split, options)
        if entry.name not in FEW_SHOT:
            held[split] = _as_in_train(held[split], held["train"].classes, folder, split)
    return _splits(entry, held)


def _splits(entry: Entry, held: dict[str, Dataset]) -> Splits:
    return Splits(entry.name, held["train"], held.get("val"), held.get("test"), entry.mean, entry.std)


def _from_files(part: Listing, size: tuple[int, int], source: Path, options: Options) -> Dataset:
    split = np.zeros(len(part.targets), np.uint8)
    index = Index(
        part.paths, part.targets, split, part.classes, 0, part.paths.keep(split > 0), np.empty((0, 2))
    )
    if options.on_bad_image == "skip":
        sound = index_file(source, suffix=".sound.npy")
        index = _without_bad(source, index, size, sound, options.progress)
    cached = options.cache / index_file(source).stem if options.cache else None
    images = _store(FileImages(index.paths, size), options.memory_limit, cached, options.progress)
    return Dataset(images, index.targets, index.classes)


def _as_in_train(part: Dataset, classes: tuple[str, ...], folder: Path, split: str) -> Dataset:
    """The same images with targets numbered as in train."""
    if stray := sorted(set(part.classes) - set(classes)):
        raise InputError(f"{folder}: {split} has class {stray[0]!r}, which train has not")
    place = np.array([classes.index(name) for name in part.classes])
    return replace(part, targets=place[part.targets], classes=classes)


def _few_shot_cifar(entry: Entry, parts: Parts, folder: Path) -> Splits:
    """CIFAR-FS and FC100: all 600 images of a class, those of train before those of test."""
    fine, coarse = cifar100_names(folder)
    train, test = parts["train"], parts["test"]
    assert isinstance(train, Arrays)
    assert isinstance(test, Arrays)
    images = ArrayImages(_tensor(np.concatenate([train.pixels, test.pixels])), "cifar100")
    targets = np.concatenate([train.targets, test.targets])
    parent = cifar100_coarse(folder)
    held = {}
    for split, names in class_lists(entry.name).items():
        if entry.name == "fc100":
            names = [child for name in names for child in fine if coarse[parent[child]] == name]
        place = np.full(len(fine), -1, np.int64)
        place[[fine.index(name) for name in names]] = np.arange(len(names))
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
    if splits.name in FEW_SHOT:
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
