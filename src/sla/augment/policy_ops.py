"""The operations of augmentation policies on whole batches: one operation and one magnitude per image.

Images are uint8 (B, C, H, W), C 1 or 3, in and out. Each is Pillow's operation to the bit (ImageOps,
ImageEnhance, Image.transform with the nearest pixel), black where an image was moved away. Magnitudes:

    shear_x, shear_y            pixels of shift per row or column
    translate_x, translate_y    pixels, to the nearest
    rotate                      degrees, counter-clockwise
    solarize                    the level from which pixels are inverted
    solarize_add                what is added to pixels below 128
    posterize                   bits that remain, at least 1
    contrast, brightness, color, sharpness      ImageEnhance's factor
    cutout                      pixels per side of a grey box
    autocontrast, invert, equalize              none

Three kinds of work: pixels moved by an index, levels looked up in a table, and the two that mix pixels. Each
image costs only its own operation, and images of one kind of work share the call.
"""

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sla.augment.transforms import PART, box_mask
from sla.errors import InputError

MOVES = ("shear_x", "shear_y", "translate_x", "translate_y", "rotate")
WHOLE = ("autocontrast", "invert", "equalize")
TABLES = (*WHOLE, "solarize", "solarize_add", "posterize", "contrast", "brightness")
OPERATIONS = (*MOVES, *TABLES, "color", "sharpness", "cutout")
NUMBER = {name: number for number, name in enumerate(OPERATIONS)}
NOTHING = -1  # stands for no operation
GREY = (125, 123, 114)  # the colour of a policy's cutout: the mean of CIFAR-10, as in Fast AutoAugment
FIXED = 1 << 16  # Pillow's coordinates are fixed point, with 16 fractional bits


def apply_operations(images: Tensor, kind: np.ndarray, magnitude: np.ndarray, place: np.ndarray) -> Tensor:
    """Apply to each image its own operation.

    Args:
        images: uint8 (B, C, H, W).
        kind: int (B,), numbers of OPERATIONS or NOTHING.
        magnitude: float (B,).
        place: (B, 2) in [0, 1), the centre of a cutout: row and column, as fractions.
    """
    if images.dtype != torch.uint8:
        raise InputError(f"images must be uint8, as they are before normalisation, not {images.dtype}")
    # Images sorted by operation: each kind of work is then on a slice.
    order = np.argsort(kind, kind="stable")
    kind, magnitude, place = kind[order], magnitude[order], place[order]
    ordered = images.index_select(0, torch.from_numpy(order).to(images.device))
    some = max(PART // math.prod(images.shape[1:]), 1) if images.device.type == "cpu" else len(images)
    start = int(np.searchsorted(kind, 0))
    done = [ordered[:start]]
    for last, work in WORKS:
        stop = int(np.searchsorted(kind, last, side="right"))
        for low in range(start, stop, some):
            part = slice(low, min(low + some, stop))
            done.append(work(ordered[part], kind[part], magnitude[part], place[part]))
        start = stop
    back = torch.from_numpy(np.argsort(order)).to(images.device)
    return torch.cat(done).index_select(0, back)


def affine(images: Tensor, matrix: np.ndarray) -> Tensor:
    """Pillow's affine transform: output pixel (x, y) is the input's at (a x + b y + c, d x + e y + f).

    matrix: float64 (B, 6), a to f, of pixel centres; black where there is no input. The nearest pixel, in
    Pillow's fixed point, so both choose the same one.
    """
    height, width = images.shape[2:]
    a, b, c, d, e, f = matrix.T
    starts = np.stack([a, b, c + 0.5 * a + 0.5 * b, d, e, f + 0.5 * d + 0.5 * e])
    fixed = np.floor(starts * FIXED + 0.5).astype(np.int32)[..., None, None]
    steps = torch.from_numpy(fixed).to(images.device)
    row = torch.arange(height, dtype=torch.int32, device=images.device)[:, None]
    column = torch.arange(width, dtype=torch.int32, device=images.device)
    x = (steps[0] * column).add(steps[1] * row + steps[2]).bitwise_right_shift_(16).clamp_(-1, width)
    y = (steps[3] * column).add(steps[4] * row + steps[5]).bitwise_right_shift_(16).clamp_(-1, height)
    framed = F.pad(images, (1, 1, 1, 1)).flatten(2)  # whatever lies outside is on the black frame
    index = y.add_(1).mul_(width + 2).add_(x).add_(1).flatten(1).long()
    return framed.gather(2, index[:, None].expand(-1, images.shape[1], -1)).view_as(images)


def _move(images: Tensor, kind: np.ndarray, magnitude: np.ndarray, place: np.ndarray) -> Tensor:
    """Shears, shifts and rotations, as one affine transform with a matrix per image."""
    height, width = images.shape[2:]
    matrix = np.tile(np.array([1.0, 0, 0, 0, 1, 0]), (len(images), 1))
    whole = np.floor(magnitude + 0.5)  # Pillow's rule for shifts: exact, not in fixed point
    for name, column in (("shear_x", 1), ("shear_y", 3), ("translate_x", 2), ("translate_y", 5)):
        value = magnitude if name.startswith("shear") else whole
        matrix[:, column] = np.where(kind == NUMBER[name], value, 0)
    turned = kind == NUMBER["rotate"]
    angle = -np.radians(magnitude[turned])
    cosine, sine = np.cos(angle), np.sin(angle)
    x, y = width / 2, height / 2  # the centre of the rotation
    across, down = x - cosine * x - sine * y, y + sine * x - cosine * y
    matrix[turned] = np.stack([cosine, sine, across, -sine, cosine, down], 1)
    return affine(images, matrix)


def _look_up(images: Tensor, kind: np.ndarray, magnitude: np.ndarray, place: np.ndarray) -> Tensor:
    """Operations that change a level whatever its place, by one table per image and channel."""
    tables = []
    starts = np.flatnonzero(np.diff(kind, prepend=NOTHING))
    for start, stop in zip(starts, [*starts[1:], len(kind)], strict=True):
        table = _tables(OPERATIONS[kind[start]], images[start:stop], magnitude[start:stop, None, None])
        tables.append(table.expand(-1, images.shape[1], -1))
    return torch.cat(tables).gather(2, images.flatten(2).long()).view_as(images)


def _tables(name: str, images: Tensor, value: np.ndarray) -> Tensor:
    """uint8 (b, C or 1, 256): the new value of each level; value (b, 1, 1)."""
    levels = np.arange(256)
    if name == "autocontrast":
        return _autocontrast_table(images)
    if name == "equalize":
        return _equalize_table(images)
    if name == "contrast":
        factor = torch.from_numpy(value.astype(np.float32)).to(images.device)
        return _blend(_mean_grey(images), torch.arange(256, device=images.device), factor)
    if name == "invert":
        table = np.broadcast_to(255 - levels, (len(value), 1, 256))
    elif name == "solarize":
        table = np.where(levels < value, levels, 255 - levels)
    elif name == "solarize_add":
        table = np.where(levels < 128, (levels + value.astype(int)).clip(0, 255), levels)
    elif name == "posterize":
        table = levels & (-1 << (8 - value.astype(int).clip(1, 8)))
    else:
        table = (levels.astype(np.float32) * value.astype(np.float32)).clip(0, 255)
    return torch.from_numpy(table.astype(np.uint8)).to(images.device)


def _autocontrast_table(images: Tensor) -> Tensor:
    """Each channel's darkest level to 0 and its lightest to 255; a single level stays."""
    levels = torch.arange(256, dtype=torch.float64, device=images.device)
    pixels = images.flatten(2)
    low, high = pixels.amin(2, keepdim=True).double(), pixels.amax(2, keepdim=True).double()
    span = high - low
    scale = torch.full_like(span, 255) / span  # `255 / span` would be 255 times a rounded 1 / span
    table = (levels * scale).sub_(low * scale).clamp_(0, 255)
    return torch.where(span > 0, table, levels).to(torch.uint8)


def _equalize_table(images: Tensor) -> Tensor:
    """Levels spread so that each is about as frequent; by Pillow's integer rule."""
    pixels = images.flatten(2).flatten(0, 1)
    counts = torch.zeros(len(pixels), 256, dtype=torch.int64, device=images.device)
    counts.scatter_add_(1, pixels.long(), torch.ones_like(pixels, dtype=torch.int64))  # bincount would wait
    last = counts.gather(1, pixels.amax(1, keepdim=True).long())
    step = (pixels.shape[1] - last) // 255
    below = counts.cumsum(1).sub_(counts)
    table = below.add_(step // 2).floor_divide_(step.clamp(min=1)).clamp_(max=255)
    table = torch.where(step > 0, table, torch.arange(256, device=images.device))
    return table.to(torch.uint8).view(*images.shape[:2], 256)


def _color(images: Tensor, kind: np.ndarray, magnitude: np.ndarray, place: np.ndarray) -> Tensor:
    """ImageEnhance.Color: towards or away from the grey image; a grey one stays."""
    if images.shape[1] == 1:
        return images
    return _blend(_grey(images)[:, None], images, _factors(magnitude, images))


def _sharpen(images: Tensor, kind: np.ndarray, magnitude: np.ndarray, place: np.ndarray) -> Tensor:
    """ImageEnhance.Sharpness: towards or away from the smoothed image; its outermost pixels stay."""
    if min(images.shape[2:]) < 3:
        return images
    pixels = images.short()
    lines = pixels[:, :, :-2] + pixels[:, :, 1:-1] + pixels[:, :, 2:]
    total = lines[..., :-2] + lines[..., 1:-1] + lines[..., 2:]
    inner = pixels[:, :, 1:-1, 1:-1]
    total.add_(inner, alpha=4)
    # Divided by 13 and rounded, as a product: integer division is slow. Exact for every possible sum.
    smooth = total.int().add_(6).mul_(20165).bitwise_right_shift_(18)
    out = images.clone()
    out[:, :, 1:-1, 1:-1] = _blend(smooth, inner, _factors(magnitude, images))
    return out


def _cut_out(images: Tensor, kind: np.ndarray, magnitude: np.ndarray, place: np.ndarray) -> Tensor:
    """A grey box, cut off at the border as in Fast AutoAugment: its last row and column included."""
    fill = GREY if images.shape[1] == 3 else GREY[1:2]
    color = torch.tensor(fill, dtype=torch.uint8, device=images.device)[:, None, None]
    sides, size = np.array(images.shape[2:]), magnitude[:, None]
    start = np.floor((place.astype(np.float64) * sides - size / 2).clip(0))
    end = np.where(size > 0, np.floor(np.minimum(start + size, sides)) + 1, 0)
    return torch.where(box_mask(torch.from_numpy(start), torch.from_numpy(end), images), color, images)


WORKS = (  # the last of OPERATIONS that each kind of work covers
    (NUMBER[MOVES[-1]], _move),
    (NUMBER[TABLES[-1]], _look_up),
    (NUMBER["color"], _color),
    (NUMBER["sharpness"], _sharpen),
    (NUMBER["cutout"], _cut_out),
)


def _grey(images: Tensor) -> Tensor:
    """int32 (B, H, W): as Pillow's mode L, in integers."""
    if images.shape[1] == 1:
        return images[:, 0].int()
    red, green, blue = images.int().unbind(1)
    grey = red.mul_(19595).add_(green, alpha=38470).add_(blue, alpha=7471)
    return grey.add_(1 << 15).bitwise_right_shift_(16)


def _mean_grey(images: Tensor) -> Tensor:
    """(b, 1, 1): the mean of the grey image, to the nearest level."""
    total, count = _grey(images).flatten(1).sum(1), images.shape[2] * images.shape[3]
    return (total.double() / count + 0.5).floor_()[:, None, None]


def _factors(magnitude: np.ndarray, images: Tensor) -> Tensor:
    return torch.from_numpy(magnitude.astype(np.float32)).to(images.device)[:, None, None, None]


def _blend(base: Tensor, images: Tensor, factor: Tensor) -> Tensor:
    """base + factor * (images - base) in float32, as Pillow's blend; truncated to integers."""
    base = base.float()
    return (images - base).mul_(factor).add_(base).clamp_(0, 255).to(torch.uint8)
