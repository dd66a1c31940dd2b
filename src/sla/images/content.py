"""Images by their content: a key that follows from the pixels alone, whatever the file is called."""

import hashlib

import numpy as np
from torch import Tensor


def content_keys(images: Tensor) -> np.ndarray:
    """uint64 (B,) from stored pixels, uint8 (B, C, H, W): equal pictures have equal keys."""
    pixels = images.cpu().contiguous().numpy()
    digests = (hashlib.blake2b(image.tobytes(), digest_size=8).digest() for image in pixels)
    return np.frombuffer(b"".join(digests), "<u8")
