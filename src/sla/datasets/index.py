"""The list of labelled image files, with class and split of each, and how the list is saved."""

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

VERSION = 3
SETTLED_NS = 3_000_000_000  # more than the coarsest clock of a file system


@dataclass(frozen=True)
class Index:
    """A list of labelled image files: row i is `paths[i]`."""

    paths: Paths
    targets: np.ndarray  # int64 (n,)
    splits: np.ndarray  # uint8 (n,): places in SPLIT_NAMES
    classes: tuple[str, ...]
    ignored: int  # files skipped: hidden, a system's, dangling links, or without an image's extension
    beside: tuple[str, ...]  # folders with names of classes that are not read: they lie beside train/
    sources: Paths  # the folders that were read, or the CSV
    stamps: np.ndarray  # int64 (sources, 2): modification time and size of each

    def __len__(self) -> int:
        return len(self.targets)

    def is_current(self) -> bool:
        """Whether no source has changed since, as far as modification times can show."""
        try:
            now = np.array([stamp(os.stat(source), time.time_ns()) for source in self.sources])
        except OSError:
            return False
        return now.shape == self.stamps.shape and bool((now == self.stamps).all() and (now >= 0).all())


class IndexBuilder:
    """An index under construction; classes are numbered in order of appearance and sorted at the end."""

    def __init__(self) -> None:
        self.names, self.ends = bytearray(), array("q")
        self.targets, self.splits = array("q"), array("B")
        self.classes: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self.ends)

    def add(self, path: str, label: str, split: int) -> None:
        """Add an image: its path relative to the root, its class, its place in SPLIT_NAMES."""
        self.names += os.fsencode(path)
        self.ends.append(len(self.names))
        self.targets.append(self.classes.setdefault(label, len(self.classes)))
        self.splits.append(split)

    def index(
        self,
        source: str | Path,
        root: str,
        sources: Paths,
        stamps: np.ndarray,
        ignored: int = 0,
        beside: tuple[str, ...] = (),
    ) -> Index:
        """The finished index; every class of val and test must be in train."""
        order = sorted(self.classes)
        place = np.empty(len(order), np.int64)
        place[[self.classes[name] for name in order]] = np.arange(len(order))
        targets, splits = place[np.array(self.targets)], np.array(self.splits)
        _check_classes(source, order, targets, splits)
        paths = Paths(root, np.frombuffer(bytes(self.names), np.uint8), np.array(self.ends))
        # A folder name that is not Unicode must not fail where class names are written.
        classes = tuple(name.encode("utf-8", "backslashreplace").decode() for name in order)
        return Index(paths, targets, splits, classes, ignored, beside, sources, stamps)


def _check_classes(source: str | Path, classes: list[str], targets: np.ndarray, splits: np.ndarray) -> None:
    where, known = shown(source), np.unique(targets[splits == 0])
    if not len(known):
        raise InputError(f"{where}: no images to train on")
    for split in (1, 2):
        extra = [shown(classes[i]) for i in np.setdiff1d(targets[splits == split], known)]
        if extra:
            raise InputError(f"{where}: {SPLIT_NAMES[split]} has classes missing from train: {listed(extra)}")


def stamp(info: os.stat_result, now: int) -> tuple[int, int]:
    """Modification time and size; a time so recent that a further change might not show counts as unknown."""
    return (info.st_mtime_ns if info.st_mtime_ns < now - SETTLED_NS else -1), info.st_size


def save_index(index: Index, file: Path) -> None:
    """Save the index for the next start; if it cannot be written, that is only a warning."""
    about = {"version": VERSION, "classes": index.classes, "ignored": index.ignored, "beside": index.beside}
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
        with replacing(file) as opened:
            np.savez(opened, **arrays)  # type: ignore[arg-type]
    except OSError as error:
        warnings.warn(f"{shown(file)}: the index cannot be saved: {error.strerror}", SLAWarning)


def load_index(file: Path, path: str | Path) -> Index | None:
    """The saved index if it is complete and still valid."""
    full = os.path.abspath(path)
    root = os.path.dirname(full) if os.path.isfile(full) else full
    try:
        with np.load(file, allow_pickle=False) as saved:
            arrays = {name: saved[name] for name in saved.files}
        about = json.loads(arrays["about"].tobytes())
        sources = Paths(root, arrays["source_names"], arrays["source_ends"])
        paths = Paths(root, arrays["names"], arrays["ends"])
        classes, targets = tuple(about["classes"]), arrays["targets"].astype(np.int64)
        others = about["ignored"], tuple(about["beside"])
        index = Index(paths, targets, arrays["splits"], classes, *others, sources, arrays["stamps"])
        return index if about["version"] == VERSION and index.is_current() else None
    except Exception:  # whatever is wrong with it, a new one is built
        return None
