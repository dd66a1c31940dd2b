"""Archives unpacked without ever writing outside their folder: plain files only, and only so many bytes."""

import bz2
import contextlib
import errno
import gzip
import lzma
import os
import secrets
import shutil
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO, Any

from sla.errors import InputError

MAX_BYTES = 16 << 30
MAX_FILES = 2_000_000
CHUNK = 1 << 20
# What the standard readers raise at a damaged archive; the second row: zipfile, at a bad field or a password.
DAMAGE: tuple[type[Exception], ...] = (
    *(tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, lzma.LZMAError, EOFError),
    *(ValueError, IndexError, OverflowError, struct.error, RuntimeError),
)
UNWRITABLE = (
    errno.EEXIST,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ENAMETOOLONG,
)  # names, not the disk, are at fault
OPENERS: tuple[tuple[bytes, Any], ...] = (
    (b"\x1f\x8b", gzip.open),
    (b"BZh", bz2.open),
    (b"\xfd7zXZ", lzma.open),
)


def unpack(
    archive: str | Path, target: str | Path, *, max_bytes: int = MAX_BYTES, max_files: int = MAX_FILES
) -> Path:
    """A tar (plain, gz, bz2, xz) or zip archive unpacked as the new folder `target`: whole, or not at all."""
    with new_folder(target) as folder:
        unpack_into(archive, folder, max_bytes=max_bytes, max_files=max_files)
    return Path(target)


@contextlib.contextmanager
def new_folder(target: str | Path) -> Iterator[Path]:
    """A temporary sibling of `target` that takes its name when the block ends well, and else vanishes."""
    target = Path(target)
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise InputError(f"{target}: already there; remove it first, or name another folder")
    target.parent.mkdir(parents=True, exist_ok=True)
    folder = target.with_name(f".{target.name}.{secrets.token_hex(6)}.part")
    folder.mkdir()
    try:
        yield folder
        if target.exists():
            target.rmdir()
        os.replace(folder, target)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def unpack_into(
    archive: str | Path, folder: Path, *, max_bytes: int = MAX_BYTES, max_files: int = MAX_FILES
) -> None:
    """Unpack into a folder of the caller's own making, which must hold no links.

    Refused with one line: `..`, absolute paths, links, devices, more than `max_bytes` or `max_files`.
    """
    archive = Path(archive)
    writer = _Writer(archive, folder, max_bytes, max_files)
    try:
        if zipfile.is_zipfile(archive):
            _unpack_zip(archive, writer)
        else:
            _unpack_tar(archive, writer)
    except InputError:
        raise
    except DAMAGE as error:
        raise _damaged(archive, error) from None
    except OSError as error:
        if error.errno is not None and error.errno != errno.EINVAL:  # the disk's fault, not the archive's
            raise
        raise _damaged(archive, error) from None


def gunzip(archive: str | Path, target: Path, *, max_bytes: int = MAX_BYTES) -> None:
    """One gzipped file unpacked to `target`."""
    writer = _Writer(Path(archive), target.parent, max_bytes, 1)
    try:
        with gzip.open(archive) as source:
            writer.file(target.name, source)
    except InputError:
        raise
    except DAMAGE as error:
        raise _damaged(Path(archive), error) from None


def _damaged(archive: Path, error: Exception) -> InputError:
    reason = " ".join(str(error).split()) or type(error).__name__
    return InputError(f"{archive}: truncated, damaged, or no archive ({reason})")


class _Writer:
    """Writes members below one folder, and counts."""

    def __init__(self, archive: Path, folder: Path, max_bytes: int, max_files: int) -> None:
        self.archive, self.folder = archive, folder
        self.max_bytes, self.max_files = max_bytes, max_files
        self.bytes = self.members = 0

    def refuse(self, name: str, why: str) -> InputError:
        return InputError(f"{self.archive}: member {name!r} {why}; nothing of it was kept")

    def place(self, name: str) -> Path:
        self.members += 1
        if self.members > self.max_files:
            raise self.refuse(name, f"is one more than the {self.max_files:,} files allowed")
        path, windows = PurePosixPath(name), PureWindowsPath(name)
        if path.is_absolute() or windows.drive or windows.root:
            raise self.refuse(name, "has an absolute path")
        if ".." in path.parts or ".." in windows.parts:
            raise self.refuse(name, "climbs out of the folder with '..'")
        if "\0" in name:
            raise self.refuse(name, "has a NUL in its name")
        return self.folder / path

    def directory(self, name: str) -> None:
        self._guard(name, lambda path: path.mkdir(parents=True, exist_ok=True))

    def file(self, name: str, source: Any) -> None:
        def write(path: Path) -> None:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as out:
                while chunk := source.read(CHUNK):
                    self.bytes += len(chunk)
                    if self.bytes > self.max_bytes:
                        raise self.refuse(name, f"brings it over the {self.max_bytes:,} bytes allowed")
                    out.write(chunk)

        self._guard(name, write)

    def _guard(self, name: str, write: Any) -> None:
        path = self.place(name)
        try:
            write(path)
        except OSError as error:
            if error.errno not in UNWRITABLE:
                raise
            raise self.refuse(name, f"cannot be written ({error.strerror})") from None


def _unpack_zip(archive: Path, writer: _Writer) -> None:
    with zipfile.ZipFile(archive) as opened:
        for member in opened.infolist():
            kind = (member.external_attr >> 16) & 0o170000  # the Unix mode, where the archive has one
            if kind not in (0, 0o100000, 0o040000):
                raise writer.refuse(member.filename, "is a link or a device")
            if member.is_dir():
                writer.directory(member.filename)
            else:
                with opened.open(member) as source:
                    writer.file(member.filename, source)


def _unpack_tar(archive: Path, writer: _Writer) -> None:
    with _decompressed(archive) as stream:
        with tarfile.open(fileobj=stream, mode="r|") as opened:
            for member in opened:
                if member.isdir():
                    writer.directory(member.name)
                elif not member.isreg():
                    raise writer.refuse(member.name, "is a link" if _is_link(member) else "is a device")
                else:
                    source = opened.extractfile(member)
                    assert source is not None
                    writer.file(member.name, source)
        while chunk := stream.read(CHUNK):  # to the end: the compressed stream's own checksum is compared
            if chunk.strip(b"\0"):
                raise tarfile.ReadError("a damaged member, after which nothing can be read")


def _is_link(member: tarfile.TarInfo) -> bool:
    return member.issym() or member.islnk()


def _decompressed(archive: Path) -> IO[bytes]:
    with archive.open("rb") as file:
        head = file.read(6)
    for magic, opener in OPENERS:
        if head.startswith(magic):
            return opener(archive, "rb")
    return archive.open("rb")
