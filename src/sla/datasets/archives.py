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
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path, PureWindowsPath
from typing import IO, Any

from sla.errors import InputError, shown

MAX_BYTES = 16 << 30
MAX_FILES = 2_000_000
CHUNK = 1 << 20
LONGEST_HEADER = 1 << 20  # bytes of a member's long name or extended header
# What the standard readers raise at a damaged archive; the second row: zipfile, at a bad field or a password.
DAMAGE: tuple[type[Exception], ...] = (
    *(tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, lzma.LZMAError, EOFError),
    *(ValueError, IndexError, OverflowError, struct.error, RuntimeError, OSError, MemoryError),
)
BAD_NAME = (errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG)  # the name's fault, not the disk's
HEADERS = 4096  # bytes of a tar that a member may take besides its content, on average
EXTENDED = (
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
)
Member = tuple[Any, str, int, str]  # with its name, its size, and why it is refused, if it is
OPENERS: dict[bytes, Any] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ": lzma.open}


@contextlib.contextmanager
def new_folder(target: str | Path) -> Iterator[Path]:
    """A temporary folder beside `target`: renamed to it when the block succeeds, removed otherwise."""
    target = Path(target)
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise InputError(f"{target}: already exists; remove it, or name another folder")
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
    """Unpack a tar (plain, gz, bz2, xz) or zip archive into an existing folder, which must contain no links.

    Refused with one line: `..`, absolute paths, links, devices, more than `max_bytes` or `max_files`.
    """
    archive, limits = Path(archive), (max_bytes, max_files)
    with _one_line_errors(archive):
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as opened:
                found = ((m, m.filename, m.file_size, _zip_refusal(m)) for m in opened.infolist())
                _extract(archive, found, partial(opened.extract, path=folder), *limits)
            return
        with _decompressed(archive) as file:
            stream = _Bounded(file, archive, max_bytes + HEADERS * max_files)
            with tarfile.open(fileobj=stream, mode="r|", tarinfo=_Header) as tar:  # type: ignore[call-overload]
                members = ((m, m.name, m.size, _tar_refusal(m)) for m in tar)
                write = partial(tar.extract, path=folder, set_attrs=False, filter="data")
                _extract(archive, members, write, *limits)
            while chunk := stream.read(CHUNK):  # to the end: the compressed stream's own checksum is compared
                if chunk.strip(b"\0"):
                    raise tarfile.ReadError("a damaged member, after which nothing can be read")


def gunzip(archive: str | Path, target: Path, *, max_bytes: int = MAX_BYTES) -> None:
    """One gzipped file unpacked to `target`."""
    written = 0
    with _one_line_errors(Path(archive)), gzip.open(archive) as source, target.open("wb") as out:
        while chunk := source.read(CHUNK):
            written += len(chunk)
            if written > max_bytes:
                raise InputError(f"{archive}: unpacks to over the {max_bytes:,} bytes allowed")
            out.write(chunk)


@contextlib.contextmanager
def _one_line_errors(archive: Path) -> Iterator[None]:
    try:
        yield
    except InputError:
        raise
    except DAMAGE as error:
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise  # the disk's fault, not the archive's
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{archive}: truncated, damaged, or no archive ({shown(reason)})") from None


def _extract(
    archive: Path, members: Iterable[Member], write: Callable[[Any], object], max_bytes: int, max_files: int
) -> None:
    """Write each member unless something is wrong with it."""
    total = 0
    for count, (member, name, size, refusal) in enumerate(members, 1):
        total += size  # neither reader unpacks more than the size in the header
        why = refusal or _name_refusal(name)
        if count > max_files:
            why = f"is one more than the {max_files:,} files allowed"
        if total > max_bytes:
            why = f"brings it over the {max_bytes:,} bytes allowed"
        try:
            if not why:
                write(member)
        except OSError as error:
            if error.errno not in BAD_NAME:
                raise
            why = f"cannot be written ({error.strerror})"
        if why:
            raise InputError(f"{archive}: member {name!r} {why}; nothing was unpacked")


def _name_refusal(name: str) -> str:
    path = PureWindowsPath(name)  # which knows both slashes, and drives
    if path.drive or path.root:
        return "has an absolute path"
    if "\0" in name:
        return "has a NUL in its name"
    return "climbs out of the folder with '..'" if ".." in path.parts else ""


def _zip_refusal(member: zipfile.ZipInfo) -> str:
    if member.compress_type == zipfile.ZIP_LZMA:  # it may claim gigabytes for its dictionary
        return "is compressed by LZMA, which is not read in a zip: pack it again by deflate, zip's usual way"
    kind = (member.external_attr >> 16) & 0o170000  # the Unix mode, where the archive has one
    return "" if kind in (0, 0o100000, 0o040000) else "is a link or a device"


class _Header(tarfile.TarInfo):
    """A header whose sizes are possible: tarfile reads long names into memory, and seeks by any number."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> "_Header":
        """As the original."""
        found = super().frombuf(buf, encoding, errors)
        if found.size < 0 or (found.type in EXTENDED and found.size > LONGEST_HEADER):
            raise ValueError(f"a header that claims {found.size:,} bytes")
        return found


class _Bounded:
    """A stream that ends with an error after so many bytes: little data may unpack to endless zeros."""

    def __init__(self, file: IO[bytes], archive: Path, most: int) -> None:
        self.file, self.archive, self.left = file, archive, most

    def read(self, size: int) -> bytes:
        """As a file's."""
        data = self.file.read(size)
        self.left -= len(data)
        if self.left < 0:
            raise InputError(f"{self.archive}: unpacks to more than is allowed; nothing was unpacked")
        return data


def _tar_refusal(member: tarfile.TarInfo) -> str:
    if member.issparse() or member.size < 0:  # an extended header may have changed the size
        return "is a sparse file" if member.issparse() else "has a negative size"
    if member.isreg() or member.isdir():
        return ""
    return "is a link" if member.issym() or member.islnk() else "is a device"


def _decompressed(archive: Path) -> IO[bytes]:
    with archive.open("rb") as file:
        head = file.read(6)
    opener = next((opener for magic, opener in OPENERS.items() if head.startswith(magic)), open)
    return opener(archive, "rb")
