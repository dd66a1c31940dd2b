"""Image files as a store: decoded on read, or once into memory."""

import os
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch

from sla.errors import InputError, SLAWarning, shown
from sla.images.decode import BadImageError, decode_array
from sla.images.paths import Paths
from sla.images.store import ArrayImages, Pixels, Rows
from sla.progress import QUIET, Progress

T = TypeVar("T")
CHUNK = 32  # rows that a thread takes at a time
SKIP_HINT = "in a dataset, on_bad_image='skip' (`--on-bad-image skip`) skips such files"
MAX_THREADS = 16  # more would wait for the interpreter, and use memory


class FileImages:
    """Image files, decoded on read and resized, ignoring aspect ratio, to one size (H, W).

    `paths` are relative to `root`, or absolute. Holds only the names, so a copy in a worker is cheap.
    """

    in_memory = False  # a read decodes, or copies from a file

    def __init__(self, paths: Sequence[str], size: tuple[int, int], root: str | Path = "") -> None:
        self.paths = paths if isinstance(paths, Paths) else Paths.of(paths, root)
        self.size = size
        if min(size) < 1:
            raise InputError(f"images cannot be stored at height {size[0]} and width {size[1]}")

    @property
    def shape(self) -> tuple[int, int, int]:
        """(3, H, W)."""
        return 3, *self.size

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, rows: Rows) -> Pixels:
        """The images of these rows, decoded now; the first that is corrupt raises BadImageError."""
        pixels = np.empty((len(rows), *self.shape), np.uint8)
        aspect = np.empty(len(rows), np.float32)
        for i, row in enumerate(rows):
            try:
                pixels[i], aspect[i] = decode_array(self.paths[int(row)], self.size)
            except BadImageError as error:
                raise BadImageError(error.path, error.reason, SKIP_HINT) from None
        return Pixels(torch.from_numpy(pixels), torch.from_numpy(aspect))

    def name(self, row: int) -> str:
        """The path of the file."""
        return self.paths[row]


def load_into_memory(files: FileImages, *, progress: Progress = QUIET) -> ArrayImages:
    """All images decoded once, in threads.

    Pillow decodes outside the interpreter's lock: on 4,000 images of CUB two threads took 2.7 s, two
    forked processes 2.8 s and two spawned ones 8.9 s.
    """
    pixels = torch.empty((len(files), *files.shape), dtype=torch.uint8)
    aspect = torch.empty(len(files))
    for rows, block in in_threads(files.read, range(len(files)), progress=progress):
        pixels[rows.start : rows.stop], aspect[rows.start : rows.stop] = block
    return ArrayImages(pixels, aspect=aspect, names=files.paths)


def find_bad(
    files: FileImages, rows: Rows, *, progress: Progress = QUIET
) -> Iterator[tuple[range, dict[int, str]]]:
    """Decode these rows; for each run of places in `rows`, in order, the corrupt rows and why."""

    def corrupt(some: Rows) -> dict[int, str]:
        reasons = {}
        for row in some:
            try:
                decode_array(files.paths[int(row)], files.size)
            except BadImageError as error:
                reasons[int(row)] = error.reason
        return reasons

    return in_threads(corrupt, rows, progress=progress)


def readable_rows(files: FileImages) -> list[int]:
    """The readable rows; each of the others is named in a warning."""
    bad: dict[int, str] = {}
    for _, reasons in find_bad(files, range(len(files))):
        bad |= reasons
    for row, why in bad.items():
        warnings.warn(f"skipped {shown(files.name(row))}: {why}", SLAWarning)
    if len(bad) == len(files):
        raise InputError(f"none of the {len(files):,} images is readable")
    return [row for row in range(len(files)) if row not in bad]


def in_threads(
    work: Callable[[Rows], T],
    rows: Rows,
    *,
    threads: int | None = None,
    progress: Progress = QUIET,
    what: str = "reading images",
) -> Iterator[tuple[range, T]]:
    """`work` on consecutive parts of the rows, several at a time: places and result, in order.

    Only a few parts are in work ahead of the reader, so memory stays flat. An error or an interrupt ends
    the threads before it is raised.
    """
    count = threads or min(available_cores(), MAX_THREADS)
    parts = (range(i, min(i + CHUNK, len(rows))) for i in range(0, len(rows), CHUNK))
    pool, pending = ThreadPoolExecutor(count), deque[tuple[range, Future[T]]]()

    def finished() -> tuple[range, T]:
        part, future = pending.popleft()
        result = future.result()
        progress.advance(what, part.stop, len(rows))
        return part, result

    try:
        for part in parts:
            pending.append((part, pool.submit(work, rows[part.start : part.stop])))
            if len(pending) > 2 * count:
                yield finished()
        while pending:
            yield finished()
    finally:
        pool.shutdown(cancel_futures=True)


def available_cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
