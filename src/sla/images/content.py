"""Images by their content: a key that follows from the pixels alone, whatever the file is called."""

import hashlib

import numpy as np
from torch import Tensor

from sla.images.store import Dataset
from sla.progress import QUIET, Progress

AT_A_TIME = 256  # images


def content_keys(images: Tensor) -> np.ndarray:
    """uint64 (B,) from stored pixels, uint8 (B, C, H, W): equal pictures have equal keys."""
    pixels = images.cpu().contiguous().numpy()
    digests = (hashlib.blake2b(image.tobytes(), digest_size=8).digest() for image in pixels)
    return np.frombuffer(b"".join(digests), "<u8")


def dataset_keys(dataset: Dataset, progress: Progress = QUIET) -> np.ndarray:
    """The content keys of a whole dataset, (n,)."""
    keys = [np.empty(0, np.uint64)]
    for start in range(0, len(dataset), AT_A_TIME):
        places = range(start, min(start + AT_A_TIME, len(dataset)))
        keys.append(content_keys(dataset.read(places).images))
        progress.advance("reading images", places.stop, len(dataset))
    return np.concatenate(keys)
