"""The on-disk cache of resized images."""

import contextlib
import hashlib
import io
import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.lib import format as npy

from sla.disk import check_space, exclusive, replacing, to_disk
from sla.errors import InputError, SLAError, shown
from sla.images.decode import BadImageError
from sla.images.files import FileImages, in_threads
from sla.images.paths import Paths
from sla.images.store import Pixels, Rows
from sla.progress import QUIET, Progress

DECODER = 1  # increase it when the same file would decode to other pixels
SAVED_BYTES = 64 << 20  # of new pixels between two points from which a build can resume


class CachedImages(FileImages):
    """Image files, already resized to one size (H, W) in a memory-mapped file: reading one is a copy."""

    def __init__(self, path: Path, paths: Paths, size: tuple[int, int]) -> None:
        super().__init__(paths, size)
        self.path = path
        self._rows = self._open()

    def _open(self) -> np.ndarray:
        rows: np.ndarray = np.load(self.path, mmap_mode="r", allow_pickle=False).view(np.ndarray)
        if rows.dtype != row_type(self.size) or rows.shape != (len(self.paths),):
            raise InputError(f"{shown(self.path)}: not the cache of {len(self.paths)} images {self.size}")
        return rows

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_rows": None}  # a memory map would be pickled with all its bytes

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._rows = self._open()

    def read(self, rows: Rows) -> Pixels:
        """The images of these rows, in their order; nothing is decoded."""
        pixels = np.empty((len(rows), *self.shape), np.uint8)
        aspect = np.empty(len(rows), np.float32)
        stored_pixels, stored_aspect = self._rows["pixels"], self._rows["aspect"]
        for i, row in enumerate(rows):
            pixels[i], aspect[i] = stored_pixels[row], stored_aspect[row]
        return Pixels(torch.from_numpy(pixels), torch.from_numpy(aspect))


def row_type(size: tuple[int, int]) -> np.dtype:
    """One image in the cache file: the key of the file it was made from, its aspect, its pixels (3, H, W)."""
    return np.dtype([("key", "<u8"), ("aspect", "<f4"), ("pixels", "u1", (3, *size))])


def build_cache(files: FileImages, folder: Path, name: str, *, progress: Progress = QUIET) -> CachedImages:
    """The cache of these files in `folder`, under `name`: opened, completed, or built.

    It is valid as long as no file changes its name, size or modification time. Otherwise it is rebuilt,
    reusing the rows that are still valid, and the outdated one of this name and size is removed. An
    interrupted build resumes where it was last saved; of two processes that ask at once, one builds and the
    other waits.
    """
    keys = files.paths.keys()
    if not keys.all():
        raise BadImageError(files.name(int(keys.argmin())), "no such file")
    keys ^= np.uint64(DECODER)
    state = hashlib.blake2b(keys.tobytes(), digest_size=8).hexdigest()
    stem = f"{name}-{files.size[0]}x{files.size[1]}"
    path = folder / f"{stem}-{state}.npy"
    with contextlib.suppress(OSError, ValueError):  # absent or truncated
        return CachedImages(path, files.paths, files.size)
    try:
        with exclusive(folder / f"{stem}.lock"):
            with contextlib.suppress(OSError, ValueError):  # built while we waited
                return CachedImages(path, files.paths, files.size)
            others = [f for f in folder.iterdir() if f.name.startswith(f"{stem}-") and state not in f.name]
            _fill(files, path, keys, _longest(others, row_type(files.size)), progress)
            for outdated in others:
                with contextlib.suppress(OSError):  # open elsewhere, on a system that refuses
                    outdated.unlink()
    except OSError as error:
        raise SLAError(f"{shown(folder)}: the image cache cannot be written: {error.strerror}") from error
    return CachedImages(path, files.paths, files.size)


def _fill(files: FileImages, path: Path, keys: np.ndarray, old: np.ndarray, progress: Progress) -> None:
    """Write the rows in order to a temporary file; a small header beside it says how many are on disk."""
    partial, header = path.with_suffix(".partial"), path.with_suffix(".json")
    kind, total = row_type(files.size), len(files)
    fields = {"descr": npy.dtype_to_descr(kind), "fortran_order": False, "shape": (total,)}
    head = io.BytesIO()
    npy.write_array_header_1_0(head, fields)
    start = _rows_saved(partial, header, head.getvalue())
    check_space(path.parent, (total - start) * kind.itemsize, "the image cache")

    def save(done: int) -> None:
        to_disk(file)
        about = {"source": files.paths.root, "images": total, "size": files.size, "filled": done}
        with replacing(header) as text:
            text.write(json.dumps(about).encode())

    with open(partial, "r+b" if start else "wb") as file:
        file.write(head.getvalue())
        file.seek(start * kind.itemsize, os.SEEK_CUR)
        done = saved = start
        try:
            for part, rows in in_threads(_row_maker(files, keys, old), range(start, total)):
                progress.advance("reading images", start + part.stop, total)
                file.write(rows.tobytes())
                done = start + part.stop
                if (done - saved) * kind.itemsize >= SAVED_BYTES:
                    save(done)
                    saved = done
        finally:
            save(done)
    os.replace(partial, path)


def _row_maker(files: FileImages, keys: np.ndarray, old: np.ndarray) -> Callable[[Rows], np.ndarray]:
    """A function from row numbers to rows: copied from an old cache where it has them, else decoded."""
    place, known = np.zeros(len(keys), np.int64), np.zeros(len(keys), bool)
    if len(old):
        order = np.argsort(old["key"])
        place = order[np.searchsorted(old["key"], keys, sorter=order).clip(max=len(old) - 1)]
        known = old["key"][place] == keys

    def made(rows: Rows) -> np.ndarray:
        index = np.asarray(rows)
        result = np.empty(len(index), row_type(files.size))
        fresh = ~known[index]
        result["pixels"][fresh], result["aspect"][fresh] = files.read(index[fresh])
        result[~fresh] = old[place[index[~fresh]]]
        result["key"] = keys[index]
        return result

    return made


def _longest(files: list[Path], kind: np.dtype) -> np.ndarray:
    """The rows of the most complete of these caches, finished or not."""
    best = np.empty(0, kind)
    for path in files:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError), open(path, "rb") as file:
            npy.read_magic(file)
            (rows,), _, found = npy.read_array_header_1_0(file)
            if path.suffix == ".partial":
                rows = int(json.loads(path.with_suffix(".json").read_bytes())["filled"])
            if found == kind and rows > len(best):
                best = np.memmap(path, kind, "r", file.tell(), (rows,)).view(np.ndarray)
    return best


def _rows_saved(partial: Path, header: Path, head: bytes) -> int:
    try:
        with open(partial, "rb") as file:
            begun = file.read(len(head)) == head
        return int(json.loads(header.read_bytes())["filled"]) if begun else 0
    except (OSError, ValueError, KeyError, TypeError):
        return 0
