"""Readers of the datasets' official layouts, one file per family: lists of files, or arrays."""

import os
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from sla.disk import reason
from sla.errors import InputError
from sla.images.paths import Paths


class Arrays(NamedTuple):
    """One split as pixels."""

    pixels: np.ndarray  # uint8 (n, C, H, W)
    targets: np.ndarray  # int64 (n,)
    classes: tuple[str, ...]
    groups: tuple[str, ...] = ()  # the coarse class of each class, where the owner gives them


class Listing(NamedTuple):
    """One split as image files."""

    paths: Paths
    targets: np.ndarray  # int64 (n,)
    classes: tuple[str, ...]


Parts = dict[str, Arrays] | dict[str, Listing]  # by split: train, and val and test where there are any


def labels_in_range(source: Path, targets: ArrayLike, num_classes: int) -> np.ndarray:
    """The labels as int64 (n,), or one line naming the file with labels out of range."""
    try:
        labels = np.asarray(targets, dtype=np.int64)
    except (ValueError, TypeError, OverflowError):
        raise InputError(f"{source}: labels that are not integers") from None
    if labels.ndim != 1:
        raise InputError(f"{source}: labels of shape {labels.shape}, not one per image")
    if len(labels) and not 0 <= labels.min() <= labels.max() < num_classes:
        found = f"labels run from {labels.min()} to {labels.max()}"
        raise InputError(f"{source}: {found}, but there are {num_classes} classes (0 to {num_classes - 1})")
    return labels


def read_lines(path: Path) -> list[str]:
    """The lines of a text file that are not blank, stripped."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InputError(f"{path}: not a text file") from None
    except OSError as error:
        raise InputError(f"{path}: {reason(error)}") from None
    return [line.strip() for line in text.splitlines() if line.strip()]


def listing(
    source: Path, root: Path, names: Sequence[str], targets: Sequence[int], classes: Sequence[str]
) -> Listing:
    """The files that a list names below a root: all there, and none outside it."""
    present: dict[str, set[str]] = {}
    for name in names:
        folder, _, file = name.rpartition("/")
        if folder not in present:  # list each folder once, instead of a stat per file
            if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
                raise InputError(f"{source}: names {name!r}, which lies outside {root}")
            present[folder] = _files_in(root / folder)
        if file not in present[folder]:
            raise InputError(f"{source}: names {name!r}, but there is no such file below {root}")
    return Listing(Paths.of(names, root), np.asarray(targets, dtype=np.int64), tuple(classes))


def _files_in(folder: Path) -> set[str]:
    try:
        return set(os.listdir(folder))
    except (OSError, ValueError):  # a NUL in the name
        return set()
