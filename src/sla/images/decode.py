"""One image file in, three 8-bit channels out: any mode, upright, bounded; or one line of what is wrong."""

import contextlib
import os
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import Image

from sla.disk import reason
from sla.errors import InputError, shown

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")  # plain rasters: none runs a program
MAX_PIXELS = 178_956_970  # Pillow's own limit; 512 MiB as RGB
MAX_SIDE = 8192  # pixels to which a side is resized
REDUCING_GAP = 2.0  # a huge image is first reduced cheaply, to at least this many times the final size

BLOCK = 1 << 20  # pixels converted at a time: a large image must not be there in several types at once

ORIENTATION, BITS_PER_SAMPLE = 0x0112, 258  # tags of EXIF and TIFF
UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
TURNED = (5, 6, 7, 8)  # width and height are exchanged
PILLOW_WARNINGS = ("ignore", None, Warning, re.compile(r"PIL\."), 0)

Source = str | Path | BinaryIO  # an image file, or an opened one, in memory or on disk


class BadImageError(InputError):
    """A file that cannot be read as an image: its path, the reason, and perhaps a hint what to do."""

    def __init__(self, path: str | Path, reason: str, hint: str = "") -> None:
        super().__init__(f"{shown(path)}: {reason}" + (f"; {hint}" if hint else ""))
        self.path, self.reason, self.hint = str(path), reason, hint

    def __reduce__(self) -> tuple[type, tuple[str, str, str]]:
        return type(self), (self.path, self.reason, self.hint)  # it is sent from worker processes


def open_rgb(path: Source, *, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """The image upright (EXIF) as 8-bit RGB at its own size; transparency becomes white.

    Raises BadImageError for whatever is not an image, from the header alone if it claims too many pixels.
    """
    with _opened(path, max_pixels) as image:
        image.load()
        return _upright(as_rgb(image), _orientation(image))


def read_size(path: Source, *, max_pixels: int = MAX_PIXELS) -> tuple[int, int]:
    """(height, width) from the header alone, before any EXIF rotation."""
    with _opened(path, max_pixels) as image:
        return image.height, image.width


def read_format(path: Source) -> str:
    """One of FORMATS, from the header alone."""
    with _opened(path, MAX_PIXELS) as image:
        return "JPEG" if image.format == "MPO" else str(image.format)  # JPEG with more pictures


def decode_array(path: Source, size: tuple[int, int]) -> tuple[np.ndarray, float]:
    """The image resized to (H, W), ignoring aspect ratio: uint8 (3, H, W); and its width / height before."""
    edge = int(max(size) * REDUCING_GAP)
    with _opened(path, MAX_PIXELS) as image:
        claimed = image.size
        draft = image.draft(None, (edge, edge))  # a large JPEG decodes straight to a half, quarter or eighth
        image.load()
        orientation = _orientation(image)  # only now: loading rotates a TIFF
        width, height = claimed if draft else image.size
        box = draft[1] if draft else None
        turned = orientation in TURNED
        target = size if turned else size[::-1]
        rgb = as_rgb(image).resize(target, Image.Resampling.BICUBIC, box, reducing_gap=REDUCING_GAP)
        pixels = np.ascontiguousarray(np.asarray(_upright(rgb, orientation)).transpose(2, 0, 1))
    return pixels, height / width if turned else width / height


@contextlib.contextmanager
def _opened(source: Source, max_pixels: int) -> Iterator[Image.Image]:
    """The opened file, no larger than allowed; every error inside the block becomes a BadImageError."""
    path = os.fspath(source) if isinstance(source, str | Path) else None
    name: str = path if path is not None else getattr(source, "name", "image")
    with _quiet():
        try:
            with Image.open(path or source, formats=FORMATS) as image:
                if image.width * image.height > max_pixels:
                    raise BadImageError(name, _too_large(image.width * image.height, max_pixels))
                yield image
        except BadImageError:
            raise
        except Exception as error:  # a damaged file makes Pillow's readers raise nearly anything
            raise BadImageError(name, _reason(source, error, max_pixels)) from None


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence Pillow's warnings.

    One entry is added to the list of filters and removed again: unlike `warnings.catch_warnings`, which
    swaps the list, this may overlap in several threads.
    """
    filters: list[object] = warnings.filters  # type: ignore[assignment]
    filters.insert(0, PILLOW_WARNINGS)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            filters.remove(PILLOW_WARNINGS)


def _reason(source: Source, error: Exception, max_pixels: int) -> str:
    if isinstance(error, OSError) and error.errno is not None:
        return reason(error)
    if isinstance(error, Image.DecompressionBombError) and (pixels := re.search(r"\d+", str(error))):
        return _too_large(int(pixels[0]), max_pixels)
    if isinstance(error, Image.UnidentifiedImageError):
        if _is_empty(source):
            return "an empty file"
        return f"not an image ({', '.join(FORMATS)} are read)"
    text = " ".join(str(error).split()) or type(error).__name__
    return f"a damaged image ({shown(text)})"


def _is_empty(source: Source) -> bool:
    if isinstance(source, str | Path):
        return os.path.getsize(source) == 0
    return source.seek(0, os.SEEK_END) == 0


def _too_large(pixels: int, max_pixels: int) -> str:
    return f"claims {pixels:,} pixels, more than the {max_pixels:,} allowed"


def _orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(ORIENTATION, 1))
    except Exception:  # damaged EXIF with readable pixels: the image is not rotated
        return 1


def _upright(image: Image.Image, orientation: int) -> Image.Image:
    return image.transpose(UPRIGHT[orientation]) if orientation in UPRIGHT else image


def as_rgb(image: Image.Image) -> Image.Image:
    """Any mode as 8-bit RGB; transparency becomes white."""
    if image.mode == "F" or image.mode.startswith("I"):
        return Image.fromarray(to_8_bit(image)).convert("RGB")
    if image.has_transparency_data:
        return _on_white(image)
    return image if image.mode == "RGB" else image.convert("RGB")


def _on_white(image: Image.Image) -> Image.Image:
    """In bands of rows: a large picture would else be there four times, in four bytes a pixel."""
    result, rows = Image.new("RGB", image.size), max(1, BLOCK // image.width)
    for top in range(0, image.height, rows):
        box = (0, top, image.width, min(top + rows, image.height))
        rgba = image.crop(box).convert("RGBA")
        result.paste(Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB"), box)
    return result


def to_8_bit(image: Image.Image) -> np.ndarray:
    """Deep greyscale as uint8 (H, W): scaled by the range of its type, or else by its own."""
    values = np.asarray(image)  # uint16, int32 or float32
    bits = getattr(image, "tag_v2", {}).get(BITS_PER_SAMPLE, 16)
    bits = bits[0] if isinstance(bits, tuple) else bits
    if values.dtype.kind == "f" or bits > 16 or values.min() < 0:
        return _stretched(values)
    table = np.arange(max(2**bits, int(values.max()) + 1)) * (255 / (2**bits - 1))
    table = table.round().clip(max=255).astype(np.uint8)
    if isinstance(image.info.get("transparency"), int):
        table[image.info["transparency"] :][:1] = 255  # onto white
    return table[values]


def _stretched(values: np.ndarray) -> np.ndarray:
    flat = values.reshape(-1)
    ends = [_ends(flat[start : start + BLOCK]) for start in range(0, len(flat), BLOCK)]
    found = [pair for pair in ends if pair is not None]
    low, high = min((pair[0] for pair in found), default=0.0), max((pair[1] for pair in found), default=0.0)
    if values.dtype.kind == "f" and low >= 0 and high <= 1:
        low, high = 0.0, 1.0
    result = np.empty(flat.shape, np.uint8)
    for start in range(0, len(flat), BLOCK):
        block = np.nan_to_num(flat[start : start + BLOCK].astype(np.float64), posinf=high, neginf=low)
        scaled = (block.clip(low, high) - low) * (255 / max(high - low, 1e-12))
        result[start : start + BLOCK] = scaled.round()
    return result.reshape(values.shape)


def _ends(block: np.ndarray) -> tuple[float, float] | None:
    """The smallest and the largest finite value; None where there is none."""
    finite = block[np.isfinite(block)]
    return (float(finite.min()), float(finite.max())) if len(finite) else None
