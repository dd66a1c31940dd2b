"""Files that are whole or not there at all, locks between processes, and what the disk refuses."""

import contextlib
import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO, BinaryIO

from filelock import FileLock, Timeout

from sla.errors import InputError, SLAError, shown


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write that takes the place of `path`, whole and on the disk, when the block ends well."""
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


@contextlib.contextmanager
def exclusive(path: Path, wait: bool = True) -> Iterator[None]:
    """One process at a time is inside the block for this path; a dead one lets go.

    The others wait, or get a BlockingIOError where they do not want to.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        held = FileLock(path).acquire(blocking=wait)
    except Timeout:
        raise BlockingIOError(errno.EAGAIN, "held by another process", str(path)) from None
    with held:
        yield


def to_disk(file: IO[bytes]) -> None:
    """Wait until what was written is on the disk."""
    file.flush()
    os.fsync(file.fileno())


def check_space(folder: Path, need: int, what: str, error: type[SLAError] = InputError) -> None:
    """Refuse, by this kind of error, what needs more bytes than are free on the disk of a folder."""
    free = shutil.disk_usage(folder).free
    if need > free:
        unit, name = (1e9, "GB") if need >= 1e8 else (1e6, "MB")
        sizes = f"{need / unit:.1f} {name} and {free / unit:.1f} {name} are free"
        raise error(f"{shown(folder)}: {what} needs {sizes}")


def reason(error: OSError) -> str:
    """Why a file cannot be read, in the system's words."""
    return (error.strerror or "cannot be read").lower()
