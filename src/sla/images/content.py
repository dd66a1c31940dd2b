"""Images by their content: a key that follows from the pixels alone, whatever the file is called.

The key of an image is that of its stored pixels, so it holds for one stored size. Where images stay files
that are decoded on every read, because they do not fit into memory and have no cache, it is the key of the
file's bytes: that reads every file once, and decodes none.
"""

import hashlib
from typing import Literal

import numpy as np
from torch import Tensor

from sla.disk import reason
from sla.images.decode import BadImageError
from sla.images.files import FileImages, in_threads
from sla.images.joined import JoinedImages
from sla.images.store import Dataset, Images, Rows
from sla.progress import QUIET, Progress

KeyKind = Literal["pixels", "file"]


def pixel_keys(pixels: np.ndarray) -> np.ndarray:
    """uint64 (B,) from stored pixels, uint8 (B, C, H, W): equal pictures have equal keys."""
    return _as_keys([image.tobytes() for image in pixels])


def content_keys(images: Tensor) -> np.ndarray:
    """The same of a tensor, on whatever device."""
    return pixel_keys(images.cpu().contiguous().numpy())


def key_kind(dataset: Dataset) -> KeyKind:
    """What a new record of these images has keys of."""
    decoded = (isinstance(store, FileImages) and not hasattr(store, "content") for store in _stores(dataset))
    return "file" if any(decoded) else "pixels"


def dataset_keys(dataset: Dataset, progress: Progress = QUIET, by: KeyKind = "pixels") -> np.ndarray:
    """The content keys of a whole dataset, uint64 (n,); computed once for each dataset."""
    known = vars(dataset).setdefault("_keys", {})
    if by not in known:
        known[by] = _dataset_keys(dataset, progress, by)
        known[by].flags.writeable = False
    return known[by]


def _dataset_keys(dataset: Dataset, progress: Progress, by: KeyKind) -> np.ndarray:
    def of_pixels(places: Rows) -> np.ndarray:
        if (kept := getattr(dataset.images, "content", None)) is not None:  # a cache has them
            return kept(dataset.rows[places])
        return content_keys(dataset.read(places).images)

    def of_files(places: Rows) -> np.ndarray:
        return _as_keys([_read(dataset.name(int(place))) for place in places])

    are_files = all(
        isinstance(store, FileImages) or getattr(store, "names", None) is not None
        for store in _stores(dataset)
    )
    work = of_files if by == "file" and are_files else of_pixels
    parts = in_threads(work, np.arange(len(dataset)), progress=progress)
    return np.concatenate([np.empty(0, np.uint64), *(keys for _, keys in parts)])


def _stores(dataset: Dataset) -> tuple[Images, ...]:
    return dataset.images.stores if isinstance(dataset.images, JoinedImages) else (dataset.images,)


def _as_keys(contents: list[bytes]) -> np.ndarray:
    return np.frombuffer(b"".join(hashlib.blake2b(one, digest_size=8).digest() for one in contents), "<u8")


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise BadImageError(path, reason(error)) from None
