"""Arrays, datasets, loaders and tables of labelled images, all read alike: item i is an image and a label."""

import contextlib
import os
import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler
from torch.utils.data.distributed import DistributedSampler

from sla.datasets.entry import SPLIT_NAMES
from sla.datasets.labels import encode_labels
from sla.datasets.scan import LABEL_COLUMNS, PATH_COLUMNS, SPLITS
from sla.errors import InputError, SLAWarning, listed, nearest, shown
from sla.images.decode import BadImageError

IMAGE_COLUMNS = (*PATH_COLUMNS, "img", "pixels", "image_path", "filepath")
TARGET_COLUMNS = (*LABEL_COLUMNS, "labels", "y", "category", "fine_label")
WANTED = (
    "images and labels (X, y), a torch Dataset or DataLoader, a Hugging Face dataset, a table of paths and "
    "labels, a folder, a CSV, or the name of a dataset"
)


class Items(ABC):
    """`len` and `[i]`: an image (Pillow, array, tensor or path) and its label. Subclasses say where from."""

    are_files = False  # every image is the path of a file
    workers = 0  # processes that read

    def __init__(self, name: str, split: str, classes: Sequence[Any] | None = None) -> None:
        self.name, self.classes = name, classes
        self.what = name if split == "train" else f"{name}, {split}"

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitem__(self, row: int) -> tuple[Any, Any]: ...

    @contextlib.contextmanager
    def naming(self, row: int) -> Iterator[None]:
        """What is wrong with an image says which one it is."""
        try:
            yield
        except BadImageError:
            raise  # it names the file
        except InputError as error:
            raise InputError(f"{self.what}: image {row}: {error}") from None


class _Pairs(Items):
    """Images and labels in two sequences of one length."""

    def __init__(self, images: Any, labels: Any, name: str, split: str) -> None:
        super().__init__(name, split)
        self.images, self.labels = _as_sequence(images, "images"), _as_sequence(labels, "labels")
        if len(self.images) != len(self.labels):
            raise InputError(f"{self.what}: {len(self.images):,} images but {len(self.labels):,} labels")
        if getattr(self.images, "ndim", 3) not in (1, 3, 4):
            raise InputError(
                f"{self.what}: images are (n, H, W), (n, H, W, C) or (n, C, H, W), not "
                f"{tuple(self.images.shape)}: reshape them"
            )
        if getattr(self.labels, "ndim", 1) != 1:
            raise InputError(
                f"{self.what}: labels are (n,), one per image, not {tuple(self.labels.shape)}: of one-hot "
                "labels, y.argmax(1)"
            )
        encode_labels(self.labels, self.what)  # refused before any image is read
        first = self.images[0] if len(self.images) else None
        self.are_files = isinstance(first, str | os.PathLike)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, row: int) -> tuple[Any, Any]:
        return self.images[row], self.labels[row]


class _Samples(Items):
    """A dataset whose items are pairs, or tables with an image and a label."""

    def __init__(self, dataset: Any, split: str, columns: tuple[str, str] | None) -> None:
        super().__init__(kind_name(dataset), split, _class_names(dataset))
        self.dataset, self.columns = dataset, columns

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, row: int) -> tuple[Any, Any]:
        item = self.dataset[row]
        if isinstance(item, Mapping):
            image, label = _find_columns(list(item), self.columns)
            return item[image], item[label]
        if not isinstance(item, tuple | list) or len(item) != 2:
            size = f" of {len(item)}" if isinstance(item, tuple | list) else ""
            raise InputError(f"an item is (image, label), not a {type(item).__name__}{size}")
        return item[0], item[1]


class _Table(Items):
    """A Hugging Face dataset: rows by number, columns by name, features that say what a column is."""

    def __init__(self, table: Any, split: str, columns: tuple[str, str] | None) -> None:
        features = dict(table.features or {})
        images = [name for name, kind in features.items() if type(kind).__name__ == "Image"]
        labels = [name for name, kind in features.items() if type(kind).__name__ == "ClassLabel"]
        image = images[0] if len(images) == 1 else None
        label = labels[0] if len(labels) == 1 else None
        self.image, self.label = _find_columns(list(table.column_names), columns, image, label)
        self.table = table
        super().__init__(kind_name(table), split, getattr(features.get(self.label), "names", None))

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, row: int) -> tuple[Any, Any]:
        found = self.table[row]
        if isinstance(found[self.image], Mapping):
            raise InputError(
                f"column {self.image!r} is not decoded: dataset.cast_column({self.image!r}, datasets.Image())"
            )
        return found[self.image], found[self.label]


def as_items(data: Any, split: str, columns: tuple[str, str] | None = None) -> dict[str, Items]:
    """The items of one split; a table with a column `split` has several."""
    held: dict[str, Items]
    if isinstance(data, tuple) and len(data) == 2:
        held = {split: _Pairs(*data, kind_name(data), split)}
    elif isinstance(data, DataLoader):
        held = as_items(_loaded(data), split, columns)
        for items in held.values():
            items.workers = data.num_workers
    elif hasattr(data, "features") and hasattr(data, "column_names") and hasattr(data, "__len__"):
        held = {split: _Table(data, split, columns)}
    elif hasattr(data, "columns") and hasattr(data, "shape"):
        held = _of_frame(data, split, columns)
    elif _is_array(data):
        raise InputError(f"{kind_name(data)}: labels are missing: pass them too, sla.fit(X, y)")
    elif isinstance(data, str | bytes | os.PathLike) or data is None:
        raise InputError(f"{split}: {data!r} has no images and labels: {WANTED}")
    elif _is_stream(data):
        raise InputError(
            f"{kind_name(data)} is a stream without length: images are read by number; list(dataset), if it "
            "ends and fits into memory"
        )
    elif hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        held = {split: _Samples(data, split, columns)}
    else:
        raise InputError(f"no images and labels in a {type(data).__name__}: {WANTED}")
    for items in held.values():
        if not len(items):
            raise InputError(f"{items.what}: no images")
    return held


def kind_name(data: Any) -> str:
    """`arrays`, or the class of an object, as a word."""
    if isinstance(data, tuple) and len(data) == 2:  # images and labels
        data = data[0]
    while isinstance(data, DataLoader | torch.utils.data.Subset):
        data = data.dataset
    if _is_array(data):
        return "arrays"
    return re.sub(r"\W", "_", type(data).__name__)


def _loaded(loader: DataLoader[Any]) -> Any:
    """The dataset of a loader, which must read all of it: each image once, in any order."""
    if isinstance(loader.dataset, IterableDataset):
        return loader.dataset  # refused as it is
    drawing: Any = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
    if type(drawing) is BatchSampler:
        drawing = drawing.sampler
    if type(drawing) not in (RandomSampler, SequentialSampler, DistributedSampler):
        _refuse_drawing(f"by a {type(drawing).__name__}")
    if getattr(drawing, "replacement", False):
        _refuse_drawing("with replacement")
    dataset: Any = loader.dataset
    drawn: Any = drawing.dataset if isinstance(drawing, DistributedSampler) else drawing
    if hasattr(dataset, "__len__") and len(drawn) != len(dataset):
        _refuse_drawing(f"{len(drawn):,} at a time, not all {len(dataset):,}")
    if loader.collate_fn is not torch.utils.data.default_collate:
        warnings.warn(
            "the DataLoader's collate_fn is not called: images are read from its dataset one by one; mixing "
            "is the setting mix",
            SLAWarning,
        )
    return loader.dataset


def _refuse_drawing(how: str) -> None:
    raise InputError(
        f"the DataLoader draws images {how}, which training replaces by its own order of all images: pass "
        "the dataset, or torch.utils.data.Subset(dataset, indices)"
    )


def _of_frame(frame: Any, split: str, columns: tuple[str, str] | None) -> dict[str, Items]:
    """A table of pandas (or polars): a column of paths, one of labels, perhaps one of splits."""
    names = [str(name) for name in frame.columns]
    paths, labels = (list(frame[name]) for name in _find_columns(names, columns))
    if "split" not in names or split != "train":
        return {split: _Pairs(paths, labels, kind_name(frame), split)}
    places = [_split_of(value, row) for row, value in enumerate(frame["split"])]
    held: dict[str, Items] = {}
    for number, name in enumerate(SPLIT_NAMES):
        rows = [row for row, place in enumerate(places) if place == number]
        if rows:
            pairs = [paths[row] for row in rows], [labels[row] for row in rows]
            held[name] = _Pairs(*pairs, kind_name(frame), name)
    if "train" not in held:
        raise InputError(f"{kind_name(frame)}: no row has the split train")
    return held


def _split_of(value: Any, row: int) -> int:
    if str(value).lower() not in SPLITS:
        raise InputError(f"row {row}: unknown split {value!r}{nearest(str(value), SPLIT_NAMES)}")
    return SPLITS[str(value).lower()]


def _find_columns(
    names: list[str], given: tuple[str, str] | None, image: str | None = None, label: str | None = None
) -> tuple[str, str]:
    """The columns of image and label: those given, those known, or those with a usual name."""
    if given is None:
        return image or _column(names, IMAGE_COLUMNS), label or _column(names, TARGET_COLUMNS)
    for name in given:
        if name not in names:
            raise InputError(f"no column {name!r}{nearest(name, names)}")
    return given


def _column(columns: Any, usual: Sequence[str]) -> str:
    """The column with one of the usual names."""
    found = [name for name in columns if str(name).lower() in usual]
    if len(found) == 1:
        return str(found[0])
    what = "image" if usual is IMAGE_COLUMNS else "label"
    why = f"{len(found)} columns could be the {what}" if found else f"no column is called {what}"
    raise InputError(f"{why} among {listed([shown(str(name)) for name in columns])}: columns=(IMAGE, LABEL)")


def _class_names(dataset: Any) -> Sequence[Any] | None:
    """The `classes` of a dataset, or of the one that it is a part of."""
    for _ in range(10):
        names = getattr(dataset, "classes", None)
        if isinstance(names, list | tuple) and names:
            return names
        dataset = getattr(dataset, "dataset", None)
    return None


def _as_sequence(values: Any, what: str) -> Any:
    """Something with `len` and `[i]`; a column of a table by its values."""
    if isinstance(values, str | bytes | Mapping) or not hasattr(values, "__len__"):
        raise InputError(f"{what} are an array, a tensor or a list, not {shown(repr(values))[:40]}")
    if isinstance(values, np.ndarray | torch.Tensor | list | tuple):
        return values
    return values.to_numpy() if hasattr(values, "to_numpy") else values


def _is_array(data: Any) -> bool:
    return isinstance(data, np.ndarray | torch.Tensor)


def _is_stream(data: Any) -> bool:
    if isinstance(data, IterableDataset):
        return True
    return hasattr(data, "__iter__") and not (hasattr(data, "__len__") and hasattr(data, "__getitem__"))
