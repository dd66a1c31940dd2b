"""A user's own images, from a folder or a CSV, as splits ready to train on."""

import math
import warnings
from pathlib import Path
from typing import Literal

import numpy as np

from sla.data.cache import build_cache
from sla.data.decode import BadImageError, read_size, shown
from sla.data.files import FileImages, Paths, Progress, find_bad, load_into_memory
from sla.data.index import Index
from sla.data.scan import index_file, open_index, read_csv, scan_folder
from sla.data.store import ArrayImages, Dataset, Images, Splits
from sla.disk import replacing
from sla.errors import InputError, SLAWarning

__all__ = ["choose_size", "load_folder", "read_csv", "scan_folder"]

MEMORY_LIMIT = 2 << 30
SAMPLE = 256  # headers read to choose a size
SMALL, LARGE = 32, 256  # the least and the largest edge of a size that is chosen


def load_folder(
    path: str | Path,
    *,
    size: tuple[int, int] | None = None,
    on_bad_image: Literal["refuse", "skip"] = "refuse",
    cache: Path | None = None,
    memory_limit: int = MEMORY_LIMIT,
    index_dir: Path | None = None,
    progress: Progress | None = None,
) -> Splits:
    """A folder `<class>/*.jpg`, one with `train/ val/ test/` of that kind, or a CSV of path and label.

    `size` (H, W) is the stored size, by default one that fits the pictures. They are held in memory when
    all fit into `memory_limit` bytes, else decoded on read. `cache` names a folder for a file of the resized
    images: then they are decoded once, and read from there now and at every later start. A broken file
    raises BadImageError when it is met, or is left out with a warning (`skip`: every file is decoded once
    before, and those found sound are remembered).
    """
    if on_bad_image not in ("refuse", "skip"):
        raise InputError(f"on_bad_image is 'refuse' or 'skip', not {on_bad_image!r}")
    path = Path(path).expanduser()
    if not path.exists():
        raise InputError(f"{shown(path)}: no such folder or CSV file")
    if not path.is_dir() and path.suffix.lower() not in (".csv", ".tsv"):
        raise InputError(f"{shown(path)}: neither a folder nor a .csv file")
    index = open_index(path, index_dir)
    size = size or choose_size(index.paths)
    if on_bad_image == "skip":
        sound = index_file(path, index_dir, ".sound.npy")
        index = _without_bad(path, index, size, sound, progress)
    name = path.absolute().stem if path.is_file() else path.absolute().name
    cached = cache / index_file(path).stem if cache else None
    images = _store(FileImages(index.paths, size), memory_limit, cached, progress)
    return _splits(name, index, images)


def choose_size(paths: Paths) -> tuple[int, int]:
    """(H, W) for these files, from a sample of headers: their own if all are alike and square, else a square.

    Its edge is the middle one of the shorter sides, from 32 to 256.
    """
    sizes, error = [], None
    for row in np.unique(np.linspace(0, len(paths) - 1, min(len(paths), SAMPLE)).astype(int)):
        try:
            sizes.append(read_size(paths[row]))
        except BadImageError as bad:
            error = error or bad
    if not sizes and error:
        raise error
    edges = sorted(min(size) for size in sizes)
    edge = edges[len(edges) // 2]
    alike = len(set(sizes)) == 1 and sizes[0] == (edge, edge)
    edge = min(edge, LARGE) if alike else min(max(edge, SMALL), LARGE)
    return edge, edge


def _without_bad(
    path: Path, index: Index, size: tuple[int, int], sound: Path, progress: Progress | None
) -> Index:
    """Decode every file not yet known to be sound; the index without those that are not."""
    keys = index.paths.keys()
    try:
        known = np.load(sound, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        known = np.empty(0, np.uint64)
    good = np.isin(keys, known) & (keys != 0)
    rows, bad = np.flatnonzero(~good), dict[int, str]()
    try:
        for part, reasons in find_bad(FileImages(index.paths, size), rows, progress=progress):
            good[rows[part.start : part.stop]] = True
            good[list(reasons)] = False
            bad |= reasons
    finally:  # also when interrupted: the next start goes on from here
        if len(rows) > len(bad):
            with replacing(sound) as file:
                np.save(file, keys[good])
    if bad:
        some = "; ".join(f"{shown(index.paths[row])}: {why}" for row, why in list(bad.items())[:5])
        more = f"; and {len(bad) - 5} more" if len(bad) > 5 else ""
        warnings.warn(f"left out {len(bad)} of {len(index)} images: {some}{more}", SLAWarning)
    left = index.keep(good)
    empty = np.flatnonzero(np.bincount(left.targets[left.splits == 0], minlength=len(index.classes)) == 0)
    if len(empty):
        name = shown(index.classes[empty[0]])
        raise InputError(f"{shown(path)}: class {name!r} has no image that can be read")
    return left


def _store(files: FileImages, memory_limit: int, cached: Path | None, progress: Progress | None) -> Images:
    """In memory, on disk at the stored size, or as the files are."""
    fits = len(files) * math.prod(files.shape) <= memory_limit
    if cached is None:
        return load_into_memory(files, progress=progress) if fits else files
    images = build_cache(files, cached.parent, cached.name, progress=progress)
    if not fits:
        return images
    pixels, aspect = images.read(range(len(images)))
    return ArrayImages(pixels, aspect=aspect, names=files.paths)


def _splits(name: str, index: Index, images: Images) -> Splits:
    parts: list[Dataset | None] = []
    for split in range(3):
        rows = np.flatnonzero(index.splits == split)
        parts.append(Dataset(images, index.targets[rows], index.classes, rows) if len(rows) else None)
    train, val, test = parts
    assert train is not None  # the index has seen to it
    return Splits(name, train, val, test)
