"""Image files: small ones of every format, changed as bytes and, where a checksum guards them, by chunk."""

import io
import struct
import zlib
from functools import cache
from pathlib import Path
from random import Random

import numpy as np
from PIL import Image

from fuzzing.guard import Reader
from fuzzing.mutate import EXTREMES, mutate_bytes
from sla.images.decode import decode_array, open_rgb, read_format, read_size

MEMORY = 4 << 30  # the package reads up to 179 million pixels, with transparency three times over


@cache
def seeds() -> list[bytes]:
    y, x = np.mgrid[:6, :8]
    colours = np.stack([x * 36, y * 51, (x * 3 + y * 7) % 256, x * 30], 2).astype(np.uint8)
    rgb, exif = Image.fromarray(colours[:, :, :3]), Image.Exif()
    exif[0x0112] = 6
    deep = Image.fromarray(colours[:, :, 0].astype(np.uint16) * 200)
    palette = rgb.quantize(8)
    made: list[tuple[Image.Image, str, dict]] = [
        *((rgb, kind, {}) for kind in ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM")),
        *((rgb, kind, {"exif": exif}) for kind in ("PNG", "JPEG", "WEBP", "TIFF")),
        *((deep, kind, {}) for kind in ("PNG", "TIFF", "PPM")),
        *((palette, kind, {"transparency": 2}) for kind in ("PNG", "GIF")),
        (palette, "BMP", {}),
        (Image.fromarray(colours), "PNG", {}),
        (Image.fromarray(colours), "WEBP", {"lossless": True}),
        (Image.fromarray(colours), "TIFF", {"compression": "tiff_lzw"}),
        (rgb, "TIFF", {"compression": "tiff_adobe_deflate"}),
        (rgb, "JPEG", {"progressive": True}),
        (Image.fromarray(colours, "CMYK"), "JPEG", {}),
        (Image.fromarray(colours[:, :, 0].astype(np.float32)), "TIFF", {}),
        (rgb, "GIF", {"save_all": True, "append_images": [rgb.transpose(Image.Transpose.FLIP_LEFT_RIGHT)]}),
        (rgb.convert("1"), "PPM", {}),
        (rgb.convert("1"), "TIFF", {"compression": "group4"}),
    ]
    found = []
    for image, kind, options in made:
        file = io.BytesIO()
        image.save(file, kind, **options)
        found.append(file.getvalue())
    return found


def make(rng: Random) -> bytes:
    data = rng.choice(seeds())
    if data.startswith(b"\x89PNG") and rng.random() < 0.8:
        return _png(rng, data)
    if data[:4] in (b"II*\0", b"MM\0*") and rng.random() < 0.7:
        return _tiff(rng, data)
    return mutate_bytes(rng, data, seeds())


def _png(rng: Random, data: bytes) -> bytes:
    """One chunk changed, repeated, moved or removed; the checksums are right again."""
    chunks, place = [], 8
    while place < len(data):
        size = int.from_bytes(data[place : place + 4], "big")
        chunks.append([data[place + 4 : place + 8], data[place + 8 : place + 8 + size]])
        place += size + 12
    which = rng.randrange(len(chunks))
    kind = rng.randrange(6)
    if kind < 3:
        chunks[which][1] = mutate_bytes(rng, chunks[which][1])
    elif kind == 3:
        chunks.insert(rng.randrange(len(chunks)), list(chunks[which]))
    elif kind == 4:
        names = (
            b"IHDR",
            b"PLTE",
            b"tRNS",
            b"eXIf",
            b"iCCP",
            b"zTXt",
            b"iTXt",
            b"acTL",
            b"fcTL",
            b"fdAT",
            b"pHYs",
        )
        chunks.insert(rng.randrange(len(chunks)), [rng.choice(names), rng.randbytes(rng.randrange(40))])
    else:
        pixels = b"".join(body for name, body in chunks if name == b"IDAT")
        changed = zlib.compress(mutate_bytes(rng, zlib.decompress(pixels)))
        chunks = [[n, changed if n == b"IDAT" else b] for n, b in chunks]
    joined = (struct.pack(">I", len(b)) + n + b + struct.pack(">I", zlib.crc32(n + b)) for n, b in chunks)
    return data[:8] + b"".join(joined)


def _tiff(rng: Random, data: bytes) -> bytes:
    """One entry of the directory with another tag, type, count or value."""
    order = "<" if data[:1] == b"I" else ">"
    (start,) = struct.unpack(order + "I", data[4:8])
    (count,) = struct.unpack(order + "H", data[start : start + 2])
    held = bytearray(data)
    for _ in range(rng.choice((1, 1, 2))):
        place = start + 2 + 12 * rng.randrange(count)
        part, form = rng.choice(((0, "H"), (2, "H"), (4, "I"), (8, "I"), (8, "H"), (8, "I")))
        tags = (
            256,
            257,
            258,
            259,
            262,
            273,
            274,
            277,
            278,
            279,
            284,
            317,
            320,
            322,
            323,
            324,
            338,
            339,
            34665,
        )
        number = rng.choice(tags) if part == 0 else rng.choice((*EXTREMES, *range(20))) & 0xFFFFFFFF
        number &= (1 << 8 * struct.calcsize(form)) - 1
        held[place + part : place + part + struct.calcsize(form)] = struct.pack(order + form, number)
    return bytes(held)


def open_image(_: Path):
    import PIL.ImageCms  # Pillow imports it when it first meets a LAB image

    assert PIL.ImageCms

    def read(path: Path) -> None:
        head = path.read_bytes()[-1:]
        if head > b"\xc0":
            assert open_rgb(path).mode == "RGB"
        elif head > b"\xb0":
            assert min(read_size(path)) > 0
            assert read_format(path)
        else:
            pixels, aspect = decode_array(path, (8, 8))
            assert pixels.shape == (3, 8, 8)
            assert pixels.dtype == np.uint8
            assert aspect > 0

    return read


READERS = [Reader("image", make, open_image, "a.jpg", MEMORY, claims=True)]
