"""The list of labelled image files: which is of which class and split, and how the list is kept on disk."""

import json
import os
import time
import warnings
from array import array
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sla.datasets.entry import SPLIT_NAMES
from sla.disk import replacing
from sla.errors import InputError, SLAWarning, listed, shown
from sla.images.paths import Paths

VERSION = 1
SETTLED_NS = 3_000_000_000  # the coarsest clock of a file system, and some


@dataclass(frozen=True)
class Index:
    """A list of labelled image files: row i is `paths[i]`."""

    paths: Paths
    targets: np.ndarray  # int64 (n,)
    splits: np.ndarray  # uint8 (n,): places in SPLIT_NAMES
    classes: tuple[str, ...]
    ignored: int  # files passed over: hidden, broken links, or not named like an image
    sources: Paths  # the folders that were read, or the CSV
    stamps: np.ndarray  # int64 (sources, 2): time of change and size of each

    def __len__(self) -> int:
        return len(self.targets)


class IndexBuilder:
    """An index in the making; classes are numbered as they come and sorted at the end."""

    def __init__(self) -> None:
        self.names, self.ends = bytearray(), array("q")
        self.targets, self.splits = array("q"), array("B")
        self.classes: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self.ends)

    def add(self, path: str, label: str, split: int) -> None:
        """One more image: its path relative to the root, its class, its place in SPLIT_NAMES."""
        self.names += os.fsencode(path)
        self.ends.append(len(self.names))
        self.targets.append(self.classes.setdefault(label, len(self.classes)))
        self.splits.append(split)

    def index(self, source: str | Path, root: str, ignored: int, sources: Paths, stamps: np.ndarray) -> Index:
        """The finished index; every class of val and test must be in train, which needs two or more."""
        order = sorted(self.classes)
        place = np.empty(len(order), np.int64)
        place[[self.classes[name] for name in order]] = np.arange(len(order))
        targets, splits = place[np.array(self.targets)], np.array(self.splits)
        _check_classes(source, order, targets, splits)
        paths = Paths(root, np.frombuffer(bytes(self.names), np.uint8), np.array(self.ends))
        # A folder name that is not Unicode must not break whoever writes class names down.
        classes = tuple(name.encode("utf-8", "backslashreplace").decode() for name in order)
        return Index(paths, targets, splits, classes, ignored, sources, stamps)


def _check_classes(source: str | Path, classes: list[str], targets: np.ndarray, splits: np.ndarray) -> None:
    where, known = shown(source), np.unique(targets[splits == 0])
    if not len(known):
        raise InputError(f"{where}: no images to train on")
    for split in (1, 2):
        extra = [shown(classes[i]) for i in np.setdiff1d(targets[splits == split], known)]
        if extra:
            raise InputError(f"{where}: {SPLIT_NAMES[split]} has classes that train has not: {listed(extra)}")
    if len(known) < 2:
        raise InputError(f"{where}: one class only, {shown(classes[0])!r}; a classifier needs at least two")


def stamp(info: os.stat_result, now: int) -> tuple[int, int]:
    """Time of change and size; a time so recent that a further change might not show counts as unknown."""
    return (info.st_mtime_ns if info.st_mtime_ns < now - SETTLED_NS else -1), info.st_size


def save_index(index: Index, kept: Path) -> None:
    """Keep the index for the next start; a place that cannot be written is only a warning."""
    about = {"version": VERSION, "classes": index.classes, "ignored": index.ignored}
    arrays = {
        "about": np.frombuffer(json.dumps(about).encode(), np.uint8),
        "names": index.paths.names,
        "ends": index.paths.ends,
        "targets": index.targets.astype(np.int32),
        "splits": index.splits,
        "source_names": index.sources.names,
        "source_ends": index.sources.ends,
        "stamps": index.stamps,
    }
    try:
        with replacing(kept) as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
    except OSError as error:
        warnings.warn(f"{shown(kept)}: the index cannot be kept: {error.strerror}", SLAWarning)


def load_index(kept: Path, path: str | Path) -> Index | None:
    """The kept index if it is whole and still true."""
    full = os.path.abspath(path)
    root = os.path.dirname(full) if os.path.isfile(full) else full
    try:
        with np.load(kept, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        about = json.loads(arrays["about"].tobytes())
        sources = Paths(root, arrays["source_names"], arrays["source_ends"])
        now = np.array([stamp(os.stat(source), time.time_ns()) for source in sources])
        if about["version"] != VERSION or (now != arrays["stamps"]).any() or (now < 0).any():
            return None
        paths = Paths(root, arrays["names"], arrays["ends"])
        classes, targets = tuple(about["classes"]), arrays["targets"].astype(np.int64)
        return Index(paths, targets, arrays["splits"], classes, about["ignored"], sources, arrays["stamps"])
    except Exception:  # whatever is wrong with it, a new one is made
        return None
