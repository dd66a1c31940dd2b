"""Batches of made-up images, and the way between tensors and Pillow's pictures."""

import struct
import zlib

import numpy as np
import torch
from PIL import Image

from sla.sampling.draws import Draws


def noise(n, channels=3, height=32, width=32):
    stream = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (n, channels, height, width), dtype=torch.uint8, generator=stream)


def as_picture(image):
    return Image.fromarray(image.permute(1, 2, 0).numpy() if len(image) == 3 else image[0].numpy())


def as_tensor(picture):
    pixels = np.array(picture)
    return torch.from_numpy(pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1).copy())


def through(op, images, step=0):
    """Images of shape 1 : 1 through an operation or a pipeline."""
    return op(images, Draws(0, step, len(images)), torch.ones(len(images)))


def png(width, height, pixels=b"\0" * 1000, bits=8):
    """The bytes of a PNG whose header says this size, whatever the pixels are."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(pixels)) + chunk(b"IEND", b"")
