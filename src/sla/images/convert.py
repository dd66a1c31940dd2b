"""Pictures that are already in memory, from Pillow, numpy or torch: as uint8 (C, H, W), at one size."""

import hashlib
from typing import Any

import numpy as np
import torch
from PIL import Image

from sla.errors import InputError
from sla.images.decode import REDUCING_GAP, as_rgb, to_8_bit

GREY_MODES = ("1", "L", "I", "F")  # also I;16 and its relatives
USUAL_CHANNELS = (1, 3, 4)
ROUNDING = 1e-3  # by which a resized picture may leave [0, 1]


def as_levels(image: Any) -> np.ndarray:
    """A Pillow image, an array or a tensor as uint8 (C, H, W); one line of what is wrong with any other.

    Pillow: one channel if it is grey, else three, transparent pixels white. Arrays and tensors: (H, W),
    (H, W, C) or (C, H, W), levels from 0 to 255 (uint8), numbers from 0 to 1 (float), or bool.
    """
    if isinstance(image, Image.Image):
        return _of_pillow(image)
    is_tensor = isinstance(image, torch.Tensor)
    if is_tensor:
        tensor = image.detach().cpu().to_dense()
        image = (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
    elif not isinstance(image, np.ndarray):
        if not hasattr(image, "__array__"):
            raise InputError(
                f"an image is a Pillow image, an array or a tensor, not a {type(image).__name__}"
            )
        image = np.asarray(image)
    return _to_levels(_channels_first(image, is_tensor))


def resize_levels(levels: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """uint8 (C, h, w) -> (C, H, W), ignoring aspect ratio, as image files are resized."""
    if levels.shape[1:] == size:
        return levels
    planes = levels.transpose(1, 2, 0) if len(levels) == 3 else levels
    parts = [Image.fromarray(planes)] if len(levels) == 3 else [Image.fromarray(plane) for plane in planes]
    resized = [
        np.asarray(part.resize(size[::-1], Image.Resampling.BICUBIC, reducing_gap=REDUCING_GAP))
        for part in parts
    ]
    return resized[0].transpose(2, 0, 1) if len(levels) == 3 else np.stack(resized)


def fit_channels(levels: np.ndarray, channels: int) -> np.ndarray:
    """uint8 (C, H, W) with this many channels: grey becomes colour, nothing else is changed."""
    if len(levels) == channels:
        return levels
    if len(levels) == 1 and channels == 3:
        return np.repeat(levels, 3, 0)
    raise InputError(f"{len(levels)} channels, where others have {channels}: convert all to the same")


def levels_key(levels: np.ndarray) -> int:
    """32 bits from a picture's pixels."""
    return int.from_bytes(hashlib.blake2b(np.ascontiguousarray(levels).data, digest_size=4).digest(), "big")


def _of_pillow(image: Image.Image) -> np.ndarray:
    if image.mode in GREY_MODES or image.mode.startswith("I;"):
        deep = image.mode == "F" or image.mode.startswith("I")
        return (to_8_bit(image) if deep else np.asarray(image.convert("L")))[None]
    return np.asarray(as_rgb(image)).transpose(2, 0, 1)


def _channels_first(image: np.ndarray, is_tensor: bool) -> np.ndarray:
    """(H, W), (H, W, C) or (C, H, W) as (C, H, W).

    The channels are the first or the last axis: the one of 1, 3 or 4, else the shorter, else the last of an
    array and the first of a tensor.
    """
    if image.ndim == 2:
        image = image[None]
    if image.ndim != 3 or not image.size:
        raise InputError(f"an image is (H, W), (H, W, C) or (C, H, W), not {image.shape}")
    first, last = image.shape[0], image.shape[2]
    usual = (last in USUAL_CHANNELS) - (first in USUAL_CHANNELS) or (first > last) - (first < last)
    is_last = usual > 0 or (usual == 0 and not is_tensor)
    return image.transpose(2, 0, 1) if is_last else image


def _to_levels(image: np.ndarray) -> np.ndarray:
    if image.dtype == np.uint8:
        return image
    if image.dtype == np.bool_:
        return image.astype(np.uint8) * np.uint8(255)
    if image.dtype.kind != "f":
        raise InputError(
            f"pixels are {image.dtype}: uint8 levels from 0 to 255 are needed (image.astype('uint8')), or "
            "float from 0 to 1"
        )
    low, high = float(image.min()), float(image.max())
    if not np.isfinite((low, high)).all():
        raise InputError("pixels that are NaN or infinite")
    if low < -ROUNDING:
        raise InputError(
            f"float pixels run from {low:.3g} to {high:.3g}, not from 0 to 1: leave normalisation out of the "
            "transform; model.mean and model.std do it"
        )
    if high > 1 + ROUNDING:
        raise InputError(
            f"float pixels run from {low:.3g} to {high:.3g}, not from 0 to 1: divide by the highest level"
        )
    return (image.clip(0, 1) * 255).round().astype(np.uint8)
