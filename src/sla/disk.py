"""Atomic writes, locks between processes, and free disk space."""

import contextlib
import errno
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO, BinaryIO

from filelock import FileLock, Timeout

from sla.errors import InputError, SLAError, shown

TEMPORARY = re.compile(r"\..+\.[0-9a-f]{12}")  # names of files that `replacing` has not finished


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write that replaces `path` atomically, and is on the disk, when the block succeeds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    try:
        with open(temporary, "xb") as file:
            yield file
            to_disk(file)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def remove_temporaries(folder: Path) -> None:
    """Remove what killed processes left of files they were writing, below this folder; it must be locked."""
    for path in folder.rglob(".*"):
        if TEMPORARY.fullmatch(path.name) and path.is_file():
            path.unlink(missing_ok=True)


def remove_temporaries_of(path: Path) -> None:
    """The same for one file; whoever writes it must hold its lock."""
    for left in path.parent.glob(f".{path.name}.*"):
        if TEMPORARY.fullmatch(left.name):
            left.unlink(missing_ok=True)


@contextlib.contextmanager
def exclusive(path: Path, wait: bool = True) -> Iterator[None]:
    """One process at a time runs the block for this path; the lock of a dead process is released.

    The others wait, or get a BlockingIOError if `wait` is false.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        held = FileLock(path).acquire(blocking=wait)
    except Timeout:
        raise BlockingIOError(errno.EAGAIN, "held by another process", str(path)) from None
    with held:
        yield


def to_disk(file: IO[bytes]) -> None:
    """Flush a file to the disk."""
    file.flush()
    os.fsync(file.fileno())


def check_space(folder: Path, need: int, what: str, error: type[SLAError] = InputError) -> None:
    """Raise this kind of error if more bytes are needed than are free on the disk of a folder."""
    free = shutil.disk_usage(folder).free
    if need > free:
        unit, name = (1e9, "GB") if need >= 1e8 else (1e6, "MB")
        sizes = f"{need / unit:.1f} {name} and {free / unit:.1f} {name} are free"
        raise error(f"{shown(folder)}: {what} needs {sizes}")


def reason(error: OSError) -> str:
    """Why a file cannot be read or written, as the system says it."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "the disk is full"
    return (error.strerror or str(error) or "cannot be read").lower()


def explain(error: OSError, folder: Path | None = None) -> str:
    """One line about it: the file, or the folder that was written to, and the reason."""
    place = error.filename or folder
    return reason(error) if place is None else f"{shown(os.fsdecode(place))}: {reason(error)}"
