"""The on-disk cache of resized images.

Every row has the key of its pixels' content and a checksum of the rest: a row that is not what was written is
decoded again from its file when a process first uses it.
"""

import contextlib
import hashlib
import io
import json
import os
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.lib import format as npy

from sla.disk import check_space, exclusive, replacing, to_disk
from sla.errors import InputError, SLAError, SLAWarning, shown
from sla.images.content import pixel_keys
from sla.images.decode import BadImageError
from sla.images.files import FileImages, in_threads
from sla.images.paths import Paths
from sla.images.store import Pixels, Rows
from sla.progress import QUIET, Progress
from sla.trees import parse_json

DECODER = 2  # increase it when the same file would decode to other pixels, or rows have other fields
HEAD = ("key", "content", "aspect")  # what the checksum of a row is of
SAVED_BYTES = 64 << 20  # of new pixels between two points from which a build can resume


class CachedImages(FileImages):
    """Image files, already resized to one size (H, W) in a memory-mapped file: reading one is a copy."""

    def __init__(self, path: Path, paths: Paths, size: tuple[int, int]) -> None:
        super().__init__(paths, size)
        self.path = path
        self._rows = self._open()

    def _open(self) -> np.ndarray:
        kind, total = row_type(self.size), len(self.paths)
        head = _header(kind, total)
        with open(self.path, "rb") as file:
            whole = file.read(len(head)) == head
        if not whole or self.path.stat().st_size != len(head) + total * kind.itemsize:
            raise InputError(f"{shown(self.path)}: not the cache of {total} images {self.size}")
        self._checked = np.zeros(total, bool)  # which rows this process has found as they were written
        return np.memmap(self.path, kind, "r", len(head), (total,)).view(np.ndarray)

    def __getstate__(self) -> dict[str, object]:
        # A memory map would be pickled with all its bytes.
        return {**self.__dict__, "_rows": None, "_checked": None}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._rows = self._open()

    def read(self, rows: Rows) -> Pixels:
        """The images of these rows, in their order; nothing is decoded but damaged rows."""
        pixels = np.empty((len(rows), *self.shape), np.uint8)
        aspect = np.empty(len(rows), np.float32)
        for i, row in enumerate(rows):
            found = self._rows[row]
            if not self._checked[row]:
                found = found if is_intact(found) else self._repaired(int(row))
                self._checked[row] = True
            pixels[i], aspect[i] = found["pixels"], found["aspect"]
        return Pixels(torch.from_numpy(pixels), torch.from_numpy(aspect))

    def content(self, rows: Rows) -> np.ndarray:
        """The keys of their pixels' content, uint64 (n,), as `pixel_keys` gives them; no pixel is read."""
        keys = np.empty(len(rows), np.uint64)
        for i, row in enumerate(rows):
            found = self._rows[row]
            keys[i] = (found if _head_intact(found) else self._repaired(int(row)))["content"]
        return keys

    def _repaired(self, row: int) -> np.void:
        """A damaged row decoded again from its file, and written where it belongs."""
        warnings.warn(f"{shown(self.path)}: damaged rows are decoded again from their files", SLAWarning)
        key = Paths.of([self.paths.relative(row)], self.paths.root).keys() ^ np.uint64(DECODER)
        made = _make_rows(FileImages(self.paths, self.size), [row], key)
        with contextlib.suppress(OSError), open(self.path, "r+b") as file:
            file.seek(len(_header(made.dtype, len(self))) + row * made.itemsize)
            file.write(made.tobytes())
        return made[0]


def row_type(size: tuple[int, int]) -> np.dtype:
    """One image in the cache file.

    The key of the file it was made from, the key of its content, its aspect, a checksum of these three, and
    its pixels (3, H, W).
    """
    head = [("key", "<u8"), ("content", "<u8"), ("aspect", "<f4"), ("check", "<u4")]
    return np.dtype([*head, ("pixels", "u1", (3, *size))])


def is_intact(row: np.void) -> bool:
    """Whether a row is what was written."""
    return _head_intact(row) and bool(pixel_keys(row["pixels"][None])[0] == row["content"])


def _head_intact(row: np.void) -> bool:
    return _head_checksum(row) == row["check"]


def _head_checksum(row: np.void) -> int:
    return zlib.crc32(b"".join(row[name].tobytes() for name in HEAD))


def _make_rows(files: FileImages, rows: Rows, keys: np.ndarray) -> np.ndarray:
    """New rows of these files, decoded now."""
    made = np.empty(len(rows), row_type(files.size))
    made["pixels"], made["aspect"] = files.read(rows)
    made["key"], made["content"] = keys, pixel_keys(made["pixels"])
    made["check"] = [_head_checksum(row) for row in made]
    return made


def _header(kind: np.dtype, total: int) -> bytes:
    """The first bytes of a cache file of so many rows, as numpy writes them."""
    head = io.BytesIO()
    fields = {"descr": npy.dtype_to_descr(kind), "fortran_order": False, "shape": (total,)}
    npy.write_array_header_1_0(head, fields)
    return head.getvalue()


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
    with contextlib.suppress(OSError, ValueError):  # absent or damaged
        return CachedImages(path, files.paths, files.size)
    try:
        with exclusive(folder / f"{stem}.lock"):
            with contextlib.suppress(OSError, ValueError):  # built while we waited
                return CachedImages(path, files.paths, files.size)
            if path.exists():
                warnings.warn(f"{shown(path)}: the image cache is damaged and built again", SLAWarning)
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
    head = _header(kind, total)
    start = _rows_saved(partial, header, head)
    check_space(path.parent, (total - start) * kind.itemsize, "the image cache")

    def save(done: int) -> None:
        to_disk(file)
        about = {"source": files.paths.root, "images": total, "size": files.size, "filled": done}
        with replacing(header) as text:
            text.write(json.dumps(about).encode())

    with open(partial, "r+b" if start else "wb") as file:
        file.write(head)
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
        taken = known[index]
        result[taken] = old[place[index[taken]]]
        taken[taken] = [is_intact(row) for row in result[taken]]
        result[~taken] = _make_rows(files, index[~taken], keys[index[~taken]])
        return result

    return made


def _longest(files: list[Path], kind: np.dtype) -> np.ndarray:
    """The rows of the most complete of these caches, finished or not."""
    best = np.empty(0, kind)
    for path in files:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError), open(path, "rb") as file:
            total = rows = (path.stat().st_size - len(_header(kind, 0))) // kind.itemsize
            if path.suffix == ".partial":
                about = parse_json(path.with_suffix(".json").read_bytes())
                total, rows = int(about["images"]), int(about["filled"])
            head = _header(kind, max(total, 0))
            if file.read(len(head)) == head and rows > len(best):
                best = np.memmap(path, kind, "r", len(head), (rows,)).view(np.ndarray)
    return best


def _rows_saved(partial: Path, header: Path, head: bytes) -> int:
    try:
        with open(partial, "rb") as file:
            begun = file.read(len(head)) == head
        return int(parse_json(header.read_bytes())["filled"]) if begun else 0
    except (OSError, ValueError, KeyError, TypeError):
        return 0
