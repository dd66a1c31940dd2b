"""idx files, plain or gzipped: MNIST and Fashion-MNIST."""

import gzip
import math
import struct
import zlib
from io import BufferedIOBase
from pathlib import Path

import numpy as np

from sla.datasets.formats import Arrays, labels_in_range
from sla.disk import reason
from sla.errors import InputError

PARTS = {"train": "train", "test": "t10k"}
MAX_BYTES = 1 << 30
PART = 1 << 20
UNSIGNED_BYTE = 0x08


def read_idx(path: Path) -> np.ndarray:
    """The array of unsigned bytes in an idx file, gzipped or not."""
    try:
        with path.open("rb") as file:
            zipped = file.read(2) == b"\x1f\x8b"
        with gzip.open(path) if zipped else path.open("rb") as file:
            data = _read_bounded(file)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise InputError(f"{path}: truncated or damaged gzip file") from None
    except OSError as error:
        raise InputError(f"{path}: {reason(error)}") from None
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] != UNSIGNED_BYTE or len(data) < 4 + 4 * data[3]:
        raise InputError(f"{path}: not an idx file of unsigned bytes")
    shape = struct.unpack(f">{data[3]}I", data[4 : 4 + 4 * data[3]])
    body = len(data) - 4 - 4 * len(shape)
    if body != math.prod(shape):
        raise InputError(f"{path}: says {shape} but holds {body:,} bytes: truncated?")
    try:
        return np.frombuffer(data, np.uint8, offset=4 + 4 * len(shape)).reshape(shape)
    except ValueError:  # more dimensions, or with a 0 among them larger ones, than an array can have
        raise InputError(f"{path}: not an idx file of unsigned bytes: {len(shape)} dimensions") from None


def _read_bounded(file: BufferedIOBase) -> bytes:
    """All of it, up to a little over MAX_BYTES; `read` of so many takes the memory at once."""
    parts, size = [], 0
    while size <= MAX_BYTES and (part := file.read(PART)):
        parts.append(part)
        size += len(part)
    return b"".join(parts)


def find_idx(folder: Path, stem: str) -> Path:
    """The file of a part in any of its usual spellings: `train-images-idx3-ubyte`, `.idx3-ubyte`, `.gz`."""
    kind = "idx3" if stem.endswith("images") else "idx1"
    for name in (f"{stem}-{kind}-ubyte", f"{stem}.{kind}-ubyte"):
        for ending in ("", ".gz"):
            if (folder / f"{name}{ending}").is_file():
                return folder / f"{name}{ending}"
    raise InputError(f"{folder}: no {stem}-{kind}-ubyte, plain or .gz")


def read_mnist(folder: Path, classes: tuple[str, ...]) -> dict[str, Arrays]:
    """MNIST's four files: images (n, 1, 28, 28) and labels, train and test."""
    parts = {}
    for split, prefix in PARTS.items():
        images, labels = find_idx(folder, f"{prefix}-images"), find_idx(folder, f"{prefix}-labels")
        pixels, targets = read_idx(images), read_idx(labels)
        if pixels.ndim != 3 or targets.ndim != 1:
            wrong = images if pixels.ndim != 3 else labels
            raise InputError(f"{wrong}: holds {pixels.shape}, {targets.shape}")
        if len(pixels) != len(targets):
            raise InputError(f"{labels}: {len(targets)} labels for the {len(pixels)} images of {images.name}")
        parts[split] = Arrays(pixels[:, None], labels_in_range(labels, targets, len(classes)), classes)
    return parts
