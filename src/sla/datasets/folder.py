"""A user's own images, from a folder or a CSV, as splits ready to train on."""

from pathlib import Path

import numpy as np

from sla.datasets.scan import open_index, read_csv, scan_folder
from sla.errors import InputError, shown
from sla.images.storage import MEMORY_LIMIT, OnBadImage, Storage, choose_size, store_files
from sla.images.store import Splits
from sla.progress import QUIET, Progress

__all__ = ["choose_size", "load_folder", "read_csv", "scan_folder"]


def load_folder(
    path: str | Path,
    *,
    size: tuple[int, int] | None = None,
    on_bad_image: OnBadImage = "refuse",
    cache: Path | None = None,
    memory_limit: int = MEMORY_LIMIT,
    least_classes: int = 2,
    progress: Progress = QUIET,
) -> Splits:
    """A folder `<class>/*.jpg`, one with `train/ val/ test/` of that kind, or a CSV of path and label.

    `size` (H, W) is the stored size, by default chosen from the images. They are kept in memory if all fit
    into `memory_limit` bytes, else decoded on read. `cache` names a folder for a file of the resized images:
    then they are decoded once, and read from there now and at every later start. A corrupt file raises
    BadImageError when it is read, or is skipped with a warning (`skip`: every file is decoded once before,
    and the readable ones are remembered). Fewer than `least_classes` are refused.
    """
    storage = Storage(size, on_bad_image, cache, memory_limit, progress)
    path = Path(path).expanduser()
    if not path.exists():
        raise InputError(f"{shown(path)}: no such folder or CSV file")
    if not path.is_dir() and path.suffix.lower() not in (".csv", ".tsv"):
        raise InputError(f"{shown(path)}: neither a folder nor a .csv file")
    index = open_index(path, least_classes)
    needed = index.splits == 0
    data, kept = store_files(path, index.paths, index.targets, index.classes, storage, needed)
    rows = [np.flatnonzero(index.splits[kept] == split) for split in range(3)]
    train, val, test = (data.subset(some) if len(some) else None for some in rows)
    assert train is not None  # the index made sure of it
    return Splits(path.absolute().stem if path.is_file() else path.absolute().name, train, val, test)
