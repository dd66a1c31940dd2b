"""Images without labels: every picture below a folder, and which sources have labels."""

from pathlib import Path

import numpy as np

from sla.datasets.catalogue import CATALOGUE
from sla.datasets.scan import open_index, scan_pictures
from sla.errors import InputError, shown
from sla.images.storage import Storage, store_files
from sla.images.store import Dataset

NO_LABEL = "image"  # the one class of images without labels


def load_pictures(folder: str | Path, storage: Storage) -> Dataset:
    """Every picture below a folder, whatever its folders are called; the target of all is 0, of NO_LABEL."""
    path = Path(folder).expanduser()
    paths = scan_pictures(path)
    return store_files(path, paths, np.zeros(len(paths), np.int64), (NO_LABEL,), storage)[0]


def has_labels(source: str | Path) -> bool:
    """Whether this is a known dataset, a CSV, or a folder whose every picture is in the folder of a class."""
    if str(source) in CATALOGUE:
        return True
    path = Path(source).expanduser()
    if not path.exists():
        raise InputError(f"{shown(source)}: neither a folder, a CSV nor the name of a dataset")
    if path.is_file():
        return True
    try:
        index = open_index(path)
    except InputError:  # one class, no class folders, ...: pictures all the same
        return False
    return int((index.splits == 0).sum()) == len(scan_pictures(path))
