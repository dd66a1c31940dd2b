"""Labelled images that are objects in memory, of numpy, torch, Hugging Face or pandas, as splits to train on.

No library is imported for its objects: they are known by what they offer. All end as a uint8 store, class
numbers and class names, as a folder does.
"""

import contextlib
import math
import os
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from torch.utils.data import DataLoader

from sla.datasets.entry import SPLIT_NAMES
from sla.datasets.labelled_items import Items, as_items, kind_name
from sla.datasets.labels import encode_labels
from sla.datasets.scan import SPLITS
from sla.disk import reason
from sla.errors import InputError, SLAWarning, shown
from sla.images.cache_paths import cache_dir
from sla.images.convert import as_levels, fit_channels, levels_key, resize_levels
from sla.images.decode import decode_array, read_size
from sla.images.files import CHUNK, in_threads
from sla.images.storage import MEMORY_LIMIT, SAMPLE, choose_edge
from sla.images.store import ArrayImages, Dataset, Splits
from sla.progress import QUIET, Progress

UNLABELLED = "unlabelled"
SOURCE = "object.data:"  # how the source of a run on objects begins in its configuration


@dataclass(frozen=True)
class ObjectImages(ArrayImages):
    """Images that were objects, each named by its row and its pixels (of a file, at the stored size)."""

    keys: np.ndarray | None = None  # uint32 (n,)

    def name(self, row: int) -> str:
        """`arrays/17-5e2f9a1c`: other pictures at the same place have another name."""
        return super().name(row) if self.keys is None else f"{self.label}/{row}-{self.keys[row]:08x}"


@dataclass(frozen=True)
class MappedImages(ObjectImages):
    """The same, where the pixels lie in a file that the operating system reads as needed."""

    in_memory: ClassVar[bool] = False


class Objects:
    """Training images, and perhaps validation and test ones, not yet read: `load` reads them at one size.

    Args:
        data: anything that `sla.fit` takes, except a folder, a file or a name.
        y: the labels, where `data` has none.
        val, test: further images with labels, of the same kinds as `data`.
        classes: the names of classes 0, 1, 2, ...; by default those that the object has, or the labels.
        columns: the names of the columns of images and labels of a table.
        unlabelled: more images to train on: an array, a tensor or a list; or as `data`, its labels not used.
    """

    def __init__(
        self,
        data: Any,
        y: Any = None,
        *,
        val: Any = None,
        test: Any = None,
        classes: Sequence[str] | None = None,
        columns: tuple[str, str] | None = None,
        unlabelled: Any = None,
    ) -> None:
        if data is None:
            raise InputError("no data: a folder, a dataset's name, or images and labels: sla.fit(X, y)")
        if columns is not None and (not _are_texts(columns) or len(columns) != 2):
            raise InputError(f"columns are the names of the image's and the label's, not {columns!r}")
        self.name = kind_name(data)
        given = {"val": val, "test": test}
        if isinstance(data, Mapping) and y is None:
            given = _of_mapping(data, given)
        else:
            given["train"] = data if y is None else (data, y)
        self.parts: dict[str, Items] = {}
        for split, part in given.items():
            if part is not None:
                self.parts |= as_items(part, split, columns)
        if unlabelled is not None:
            plain = isinstance(unlabelled, np.ndarray | torch.Tensor | list)
            pair = (unlabelled, np.zeros(len(unlabelled), np.int64)) if plain else unlabelled
            self.parts[UNLABELLED] = as_items(pair, UNLABELLED, columns)[UNLABELLED]
        if classes is not None and not _are_texts(classes):
            raise InputError(
                f"classes are the names of classes 0, 1, 2, ...: a list of text, not {classes!r}"
            )
        self.classes = tuple(classes) if classes is not None else None

    @property
    def source(self) -> str:
        """What a configuration says about these images: that they were passed from Python, and their kind."""
        return SOURCE + self.name

    @property
    def unlabelled_source(self) -> str | None:
        """The same of those without labels; None where there are none."""
        return SOURCE + self.parts[UNLABELLED].name if UNLABELLED in self.parts else None

    @property
    def native(self) -> int:
        """Pixels a side, chosen from a sample of the training images as for a folder."""
        return self._sampled[0]

    @property
    def channels(self) -> int:
        """1 if the sampled images are all grey."""
        return self._sampled[1]

    @cached_property
    def _sampled(self) -> tuple[int, int]:
        items = self.parts["train"]
        rows = np.unique(np.linspace(0, len(items) - 1, min(len(items), SAMPLE)).astype(int))
        shapes = [_shape(items, int(row)) for row in rows]
        channels = {shape[0] for shape in shapes}
        if len(channels) > 1 and channels != {1, 3}:
            some = " and ".join(map(str, sorted(channels)))
            raise InputError(f"{items.what}: images have {some} channels: convert all to the same")
        _warn_if_random(items)
        return choose_edge([shape[1:] for shape in shapes]), max(channels)

    def load(
        self,
        size: int | None = None,
        *,
        memory_limit: int = MEMORY_LIMIT,
        progress: Progress = QUIET,
    ) -> Splits:
        """Read every image once, resized to squares of `size`; classes are numbered by the names in train.

        Beyond `memory_limit` bytes the pixels go into a temporary file in the cache folder.
        """
        size, channels = size or self.native, self.channels
        held = {}
        for split, items in self.parts.items():
            store, labels = _read(items, (channels, size, size), memory_limit, progress)
            if split == UNLABELLED:
                held[split] = Dataset(store, np.zeros(len(store), np.int64), ("",))
                continue
            targets, names = encode_labels(labels, items.what, self.classes, items.classes)
            held[split] = Dataset(store, targets, names)
        splits = Splits(self.source, held["train"], held.get("val"), held.get("test"))
        return replace(splits, unlabelled=held.get(UNLABELLED))


def _are_texts(values: Any) -> bool:
    is_list = isinstance(values, Sequence) and not isinstance(values, str)
    return is_list and all(isinstance(value, str) for value in values)


def source_name(data: Any) -> str:
    """Data as a message names it: a path or name as it is, an object by its kind."""
    if isinstance(data, Splits | str | os.PathLike):
        return str(data.name if isinstance(data, Splits) else data).removeprefix(SOURCE)
    return kind_name(data)


def refuse_object_source(source: str) -> None:
    """Say of a source that was an object that only Python can pass it again."""
    if source.startswith(SOURCE):
        raise InputError(
            f"these images were passed from Python ({source.removeprefix(SOURCE)}): name a folder of them, "
            "or pass them again: sla.open_run(RUN, data=...), sla.fit(..., out=RUN, resume=True)"
        )


def _of_mapping(data: Mapping[Any, Any], given: dict[str, Any]) -> dict[str, Any]:
    """`{"train": ..., "validation": ..., "test": ...}`, as of Hugging Face."""
    for name, part in data.items():
        if str(name).lower() not in SPLITS:
            raise InputError(
                f"a table of splits has train and perhaps val and test, not {shown(str(name))!r}: pass one "
                "dataset, or (images, labels)"
            )
        split = SPLIT_NAMES[SPLITS[str(name).lower()]]
        if given.get(split) is not None:
            raise InputError(f"{split} is given twice")
        given[split] = part
    if given.get("train") is None:
        raise InputError("a table of splits needs a train")
    return given


def _shape(items: Items, row: int) -> tuple[int, int, int]:
    """(C, H, W) of an image at its own size."""
    with items.naming(row):
        image, _ = items[row]
        if isinstance(image, str | os.PathLike):
            return 3, *read_size(os.fspath(image))
        channels, height, width = as_levels(image).shape
        return channels, height, width


def _warn_if_random(items: Items) -> None:
    """An image is stored once: random transforms of a dataset's own would be frozen."""
    with items.naming(0):
        images = [items[0][0] for _ in range(2)]
        if isinstance(images[0], str | os.PathLike) or images[0] is images[1]:
            return
        first, second = map(as_levels, images)
        if first.shape != second.shape or (first != second).any():
            warnings.warn(
                f"{items.what}: image 0 is another each time it is read: a random transform; each image is "
                "read once, so leave such transforms out and name them in augment",
                SLAWarning,
            )


class _Reader:
    """Reads an image and its label: uint8 (C, H, W), its aspect ratio, its key, its label."""

    def __init__(self, items: Items, shape: tuple[int, int, int]) -> None:
        self.items, self.shape = items, shape

    def __getitem__(self, row: int) -> tuple[np.ndarray, float, int, Any]:
        channels, *size = self.shape
        with self.items.naming(row):
            image, label = self.items[row]
            if isinstance(image, str | os.PathLike):
                levels, aspect = decode_array(os.fspath(image), (size[0], size[1]))
                return fit_channels(levels, channels), aspect, levels_key(levels), label
            levels = as_levels(image)
            aspect, key = levels.shape[2] / levels.shape[1], levels_key(levels)
            return fit_channels(resize_levels(levels, (size[0], size[1])), channels), aspect, key, label

    def all(self, progress: Progress) -> Iterator[tuple[int, tuple[np.ndarray, float, int, Any]]]:
        """Every row in order: by threads from files, by the workers of a loader, or one after another."""
        total = len(self.items)
        if self.items.workers:
            loader: Iterable[Any] = DataLoader(
                _Telling(self),  # type: ignore[arg-type]  # read by number, as a dataset is
                batch_size=CHUNK,
                sampler=range(total),
                num_workers=self.items.workers,
                collate_fn=list,
                generator=torch.Generator(),  # else it would draw from the global one
            )
            for number, rows in enumerate(loader):
                for found in rows:
                    if isinstance(found, InputError):
                        raise found
                yield from enumerate(rows, number * CHUNK)
                progress.advance("reading images", min((number + 1) * CHUNK, total), total)
            return

        def work(rows: Any) -> list[Any]:
            return [self[int(row)] for row in rows]

        threads = None if self.items.are_files else 1  # not every dataset may be read by several
        for rows, found in in_threads(work, range(total), threads=threads, progress=progress):
            yield from zip(rows, found, strict=True)


class _Telling:
    """A reader in a worker: it returns what it refuses; torch adds a traceback to what is raised."""

    def __init__(self, reader: _Reader) -> None:
        self.reader = reader

    def __getitem__(self, row: int) -> Any:
        try:
            return self.reader[row]
        except InputError as error:
            return InputError(str(error))  # without its frames


def _read(
    items: Items, shape: tuple[int, int, int], memory_limit: int, progress: Progress
) -> tuple[ObjectImages, list[Any]]:
    count, labels = len(items), list[Any]()
    mapped = count * math.prod(shape) > memory_limit
    if mapped:
        pixels = _map_file(count * math.prod(shape), progress).view(count, *shape)
    else:
        pixels = torch.empty((count, *shape), dtype=torch.uint8)
    array, aspect, keys = pixels.numpy(), torch.empty(count), np.empty(count, np.uint32)
    for row, (levels, ratio, key, label) in _Reader(items, shape).all(progress):
        array[row], aspect[row], keys[row] = levels, ratio, key
        labels.append(label)
    make = MappedImages if mapped else ObjectImages
    return make(pixels, items.name, aspect, keys=keys), labels


def _map_file(size: int, progress: Progress) -> torch.Tensor:
    """uint8 (size,) in a file without a name, which is gone when the tensor is."""
    folder = cache_dir() / "objects"
    progress.message(f"{size / 1e9:.1f} GB of images: kept in a temporary file in {shown(folder)}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle, path = tempfile.mkstemp(dir=folder)
        os.close(handle)
        pixels = torch.from_file(path, shared=True, size=size, dtype=torch.uint8)
        with contextlib.suppress(OSError):  # some systems keep it until it is closed
            os.unlink(path)
    except (OSError, RuntimeError) as error:
        why = reason(error) if isinstance(error, OSError) else str(error).splitlines()[0]
        raise InputError(f"{shown(folder)}: no room for {size / 1e9:.1f} GB of images: {why}") from None
    return pixels
