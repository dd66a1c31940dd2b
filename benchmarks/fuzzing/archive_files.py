"""Archives: members with hostile names, kinds and sizes; then their headers and bytes changed."""

import bz2
import gzip
import io
import lzma
import shutil
import struct
import tarfile
import zipfile
from pathlib import Path
from random import Random

from fuzzing.guard import Reader
from fuzzing.mutate import mutate_bytes
from sla.datasets.archives import gunzip, new_folder, unpack_into

NAMES = (
    "a",
    "a/b",
    "d/e/f",
    "../evil",
    "a/../../evil",
    "/tmp/evil",
    "C:\\evil",
    "..\\evil",
    ".",
    "..",
    "",
    "a/.",
)
NAMES += (
    "~/x",
    "n" * 300,
    "d/" * 200 + "x",
    "é",
    "a\nb",
    "\x1b[31m",
    "x\0y",
    "//x",
    "a//b",
    "a/",
    "link/x",
    "con",
)
SIZES = (0, 1, 511, 512, 513, -1, -512, 1 << 20, 1 << 33, (1 << 62), -(1 << 40))
MOST_BYTES, MOST_FILES = 1 << 20, 50


def make_tar(rng: Random) -> bytes:
    held = io.BytesIO()
    form = rng.choice((tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.PAX_FORMAT))
    for _ in range(rng.randrange(1, 4)):
        info = tarfile.TarInfo(rng.choice(NAMES[:3]) if rng.random() < 0.5 else rng.choice(NAMES))
        body = rng.randbytes(rng.choice((0, 3, 600)))
        info.size = len(body)
        if rng.random() < 0.3:
            info.type = rng.choice([bytes([kind]) for kind in b"0123456789ABDKLMNSVXgx\0Z"])
            info.linkname = rng.choice(NAMES)
        if form == tarfile.PAX_FORMAT and rng.random() < 0.4:
            key = rng.choice(
                ("path", "linkpath", "size", "mtime", "uid", "hdrcharset", "GNU.sparse.major", "x")
            )
            text = rng.choice((*map(str, SIZES), *NAMES, "BINARY", "nan", "9" * 5000))
            info.pax_headers = {key: text.replace("\ud800", "")}
        if rng.random() < 0.2:
            info.mode, info.mtime = rng.choice((0, 0o7777, -1)), rng.choice((-1, 0, 1 << 40))
        try:
            head = info.tobuf(form, "utf-8", "surrogateescape")
        except (ValueError, UnicodeError, OverflowError):
            continue
        if rng.random() < 0.3:
            head = head[:-512] + _with_size(rng, head[-512:])
        held.write(head + body.ljust(-(-len(body) // 512) * 512, b"\0"))
    held.write(bytes(1024 * rng.randrange(2)))
    data = held.getvalue()
    if rng.random() < 0.3:
        data = mutate_bytes(rng, data)
    packed = rng.choice((bytes, bytes, gzip.compress, bz2.compress, lzma.compress))(data)
    return mutate_bytes(rng, packed) if rng.random() < 0.2 else packed


def _with_size(rng: Random, head: bytes) -> bytes:
    """Another size in the header, with a right checksum; numbers that eight digits do not hold are binary."""
    size = rng.choice(SIZES)
    octal = 0 <= size < 8**11
    text = (
        b"%011o\0" % size
        if octal
        else bytes([0x80 if size >= 0 else 0xFF]) + (size % (1 << 88)).to_bytes(11, "big")
    )
    head = head[:124] + text + head[136:]
    total = sum(head[:148]) + 8 * 32 + sum(head[156:])
    return head[:148] + b"%06o\0 " % total + head[156:]


def make_zip(rng: Random) -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as file:
        for _ in range(rng.randrange(1, 4)):
            info = zipfile.ZipInfo(rng.choice(NAMES[:3]) if rng.random() < 0.5 else rng.choice(NAMES))
            info.compress_type = rng.choice((0, 8, 8, 12, 14))
            if rng.random() < 0.2:
                info.external_attr = rng.choice((0o120777, 0o100644, 0o040755, 0o020666, 0xFFFF)) << 16
            if rng.random() < 0.2:
                info.extra = rng.choice((b"\1\0\x18\0" + rng.randbytes(24), b"\1\0\0\0", rng.randbytes(9)))
            body = rng.choice(
                (b"", b"abc", bytes(3000), bytes(MOST_BYTES + 1) if rng.random() < 0.05 else b"x")
            )
            file.writestr(info, body)
    data = held.getvalue()
    if rng.random() < 0.5:
        data = _zip_field(rng, data)
    return mutate_bytes(rng, data) if rng.random() < 0.3 else data


def _zip_field(rng: Random, data: bytes) -> bytes:
    """Another value of a field of a member's local or central header, or of the end of the directory."""
    held = bytearray(data)
    mark, sizes = rng.choice(((b"PK\1\2", 46), (b"PK\3\4", 30), (b"PK\5\6", 22), (b"PK\1\2", 46)))
    places = [i for i in range(len(held) - 3) if held[i : i + 4] == mark]
    if places:
        place = rng.choice(places) + rng.randrange(4, sizes, 2)
        form = rng.choice(("<H", "<I"))
        number = rng.choice((0, 1, 8, 99, 255, 0x7FFF, 0xFFFF, 1 << 20, 0x7FFFFFFF, 0xFFFFFFFF))
        number &= (1 << 8 * struct.calcsize(form)) - 1
        held[place : place + struct.calcsize(form)] = struct.pack(form, number)
    return bytes(held)


def make_gzip(rng: Random) -> bytes:
    return mutate_bytes(rng, gzip.compress(rng.randbytes(rng.randrange(300)) + bytes(rng.randrange(2000))))


def open_archive(folder: Path):
    home = folder / "home"
    home.mkdir()

    def read(path: Path) -> None:
        target = home / "out"
        try:
            with new_folder(target) as new:
                unpack_into(path, new, max_bytes=MOST_BYTES, max_files=MOST_FILES)
            found = list(target.rglob("*"))
            assert not any(one.is_symlink() or not (one.is_file() or one.is_dir()) for one in found)
            assert sum(one.stat().st_size for one in found if one.is_file()) <= MOST_BYTES
        finally:
            if target.exists():
                shutil.rmtree(target)
            assert not list(home.iterdir())

    return read


def open_gzip(folder: Path):
    def read(path: Path) -> None:
        gunzip(path, folder / "unpacked", max_bytes=MOST_BYTES)
        assert (folder / "unpacked").stat().st_size <= MOST_BYTES

    return read


READERS = [
    Reader("tar", make_tar, open_archive),
    Reader("zip", make_zip, open_archive),
    Reader("gzip", make_gzip, open_gzip),
]
