"""Labelled image files as a dataset: in memory, cached on disk, or decoded on read; corrupt ones skipped."""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from sla.disk import reason, replacing
from sla.errors import InputError, SLAWarning, listed, shown
from sla.images.cache import build_cache
from sla.images.cache_paths import index_file
from sla.images.decode import BadImageError, read_size
from sla.images.files import FileImages, find_bad, load_into_memory
from sla.images.paths import Paths
from sla.images.store import Dataset, Images, spread
from sla.progress import QUIET, Progress

OnBadImage = Literal["refuse", "skip"]
MEMORY_LIMIT = 2 << 30
SAMPLE = 256  # headers read to choose a size
SMALL, LARGE = 32, 256  # the smallest and largest edge that is chosen


@dataclass(frozen=True)
class Storage:
    """How image files are stored; `load_folder` explains the options."""

    size: tuple[int, int] | None = None  # (H, W); None: chosen from the images
    on_bad_image: OnBadImage = "refuse"
    cache: Path | None = None
    memory_limit: int = MEMORY_LIMIT
    progress: Progress = QUIET

    def __post_init__(self) -> None:
        if self.on_bad_image not in ("refuse", "skip"):
            raise InputError(f"on_bad_image is 'refuse' or 'skip', not {self.on_bad_image!r}")


def store_files(
    source: Path,
    paths: Paths,
    targets: np.ndarray,
    classes: tuple[str, ...],
    storage: Storage,
    needed: np.ndarray | None = None,
) -> tuple[Dataset, np.ndarray]:
    """These files with their targets (n,), and which of them are in the dataset: bool (n,).

    Files kept on disk about them are named after `source`, where they were found. Where corrupt files are
    skipped, each class must keep one of the rows that are `needed`, bool (n,), by default all.
    """
    files, readable = FileImages(paths, storage.size or choose_size(paths)), np.ones(len(paths), bool)
    if storage.on_bad_image == "skip":
        known = index_file(source, ".sound.npy")
        readable = readable_files(files, known, progress=storage.progress)
        left = np.bincount(targets[readable if needed is None else readable & needed], minlength=len(classes))
        if not left.all():
            name = shown(classes[int(left.argmin())])
            raise InputError(f"{shown(source)}: class {name!r} has no readable image")
        files = FileImages(paths.keep(readable), files.size)
    progress = storage.progress
    if storage.cache is not None:
        files = build_cache(files, storage.cache, index_file(source).stem, progress=progress)
        progress = QUIET  # what follows is a copy
    fits = len(files) * math.prod(files.shape) <= storage.memory_limit
    images: Images = load_into_memory(files, progress=progress) if fits else files
    return Dataset(images, targets[readable], classes), readable


def choose_size(paths: Paths) -> tuple[int, int]:
    """(H, W) for these files, from a sample of headers: their own if all are equal and square, else a square.

    Its edge is the median of the shorter sides, from 32 to 256.
    """
    sizes, error = [], None
    for row in spread(len(paths), SAMPLE):
        try:
            sizes.append(read_size(paths[row]))
        except BadImageError as bad:
            error = error or bad
    if not sizes and error:
        raise error
    edge = choose_edge(sizes)
    return edge, edge


def choose_edge(sizes: Sequence[tuple[int, int]]) -> int:
    """The edge of the square for images of these sizes (H, W)."""
    edges = sorted(min(size) for size in sizes)
    edge = edges[len(edges) // 2]
    alike = len(set(sizes)) == 1 and sizes[0] == (edge, edge)
    return min(edge, LARGE) if alike else min(max(edge, SMALL), LARGE)


def readable_files(files: FileImages, known: Path, *, progress: Progress = QUIET) -> np.ndarray:
    """Which files can be read, bool (n,); the others are named in a warning.

    Every file is decoded once: those that are readable are remembered in the file `known`.
    """
    keys = files.paths.keys()
    try:
        remembered = np.load(known, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        remembered = np.empty(0, np.uint64)
    good = np.isin(keys, remembered) & (keys != 0)
    rows, bad = np.flatnonzero(~good), dict[int, str]()
    try:
        for part, reasons in find_bad(files, rows, progress=progress):
            good[rows[part.start : part.stop]] = True
            good[list(reasons)] = False
            bad |= reasons
    finally:  # also when interrupted: the next start resumes from here
        if len(rows) > len(bad):
            try:
                with replacing(known) as file:
                    np.save(file, keys[good])
            except OSError as error:
                message = f"the list of readable images cannot be written: {reason(error)}"
                warnings.warn(f"{shown(known)}: {message}", SLAWarning)
    if bad:
        named = listed([f"{shown(files.name(row))}: {why}" for row, why in bad.items()], separator="; ")
        warnings.warn(f"skipped {len(bad)} of {len(files)} images: {named}", SLAWarning)
    return good
