"""The operations of augmentation policies on whole batches: one operation and one magnitude an image.

Images are uint8 (B, C, H, W), C 1 or 3, in and out. Each is Pillow's operation to the bit (ImageOps,
ImageEnhance, Image.transform with the nearest pixel), black where a picture was moved away. Magnitudes:

    shear_x, shear_y            pixels of shift a row or column
    translate_x, translate_y    pixels, to the nearest
    rotate                      degrees, counter-clockwise
    solarize                    the level from which pixels are inverted
    solarize_add                what is added to pixels below 128
    posterize                   bits that are kept, at least 1
    contrast, brightness, color, sharpness      ImageEnhance's factor
    cutout                      pixels a side of a grey box
    autocontrast, invert, equalize              none

Three kinds of work: pixels moved by an index, levels looked up in a table, and the two that mix pixels. An
image pays for the operation it gets, and images of one kind of work share the call.
"""

import math

import torch
from torch import Tensor

from sla.data.transforms import PART, box_mask
from sla.errors import InputError

MOVES = ("shear_x", "shear_y", "translate_x", "translate_y", "rotate")
TABLES = (
    "autocontrast",
    "invert",
    "equalize",
    "solarize",
    "solarize_add",
    "posterize",
    "contrast",
    "brightness",
)
OPERATIONS = (*MOVES, *TABLES, "color", "sharpness", "cutout")
NUMBER = {name: number for number, name in enumerate(OPERATIONS)}
NOTHING = -1  # the number of no operation
GREY = (125, 123, 114)  # what a policy's cutout leaves: the mean of CIFAR-10, as in Fast AutoAugment
FIXED = 1 << 16  # Pillow counts places in fixed point, with 16 bits behind the point


def apply_operations(images: Tensor, kind: Tensor, magnitude: Tensor, place: Tensor) -> Tensor:
    """Each image through its own operation.

    Args:
        images: uint8 (B, C, H, W).
        kind: int64 (B,), numbers of OPERATIONS or NOTHING; on the CPU, as the rest.
        magnitude: float (B,).
        place: (B, 2) in [0, 1), where the centre of a cutout is: row and column, as shares.
    """
    if images.dtype != torch.uint8:
        raise InputError(f"images must be uint8, as they are before they are normalised, not {images.dtype}")
    out = images.clone(memory_format=torch.contiguous_format)
    some = max(PART // math.prod(images.shape[1:]), 1) if images.device.type == "cpu" else len(images)
    first = len(MOVES)
    for low, high, work in (
        (0, first, _move),
        (first, first + len(TABLES), _look_up),
        (NUMBER["color"], NUMBER["color"] + 1, _color),
        (NUMBER["sharpness"], NUMBER["sharpness"] + 1, _sharpen),
        (NUMBER["cutout"], NUMBER["cutout"] + 1, _cut_out),
    ):
        for which in ((kind >= low) & (kind < high)).nonzero()[:, 0].split(some):
            if len(which):
                there = which.to(images.device)
                result = work(out.index_select(0, there), kind[which], magnitude[which], place[which])
                out.index_copy_(0, there, result)
    return out


def operate(
    images: Tensor, name: str, magnitude: Tensor | float = 0.0, place: Tensor | None = None
) -> Tensor:
    """One operation by its name for the whole batch; magnitude (B,) or one for all."""
    count = len(images)
    magnitudes = torch.as_tensor(magnitude, dtype=torch.float64).expand(count)
    places = torch.full((count, 2), 0.5) if place is None else place
    return apply_operations(images, torch.full((count,), NUMBER[name]), magnitudes, places)


def affine(images: Tensor, matrix: Tensor) -> Tensor:
    """Pillow's affine transform: output pixel (x, y) is the input's at (a x + b y + c, d x + e y + f).

    matrix: float64 (B, 6), a to f, of pixel centres; black where there is no input. The nearest pixel, in
    Pillow's fixed point, so both choose the same one.
    """
    height, width = images.shape[2:]
    a, b, c, d, e, f = matrix.unbind(1)
    starts = (c + 0.5 * a + 0.5 * b, f + 0.5 * d + 0.5 * e)
    steps = torch.stack([a, b, starts[0], d, e, starts[1]], 1).mul_(FIXED).add_(0.5).floor_().int()
    steps = steps.to(images.device)[:, :, None, None]
    row = torch.arange(height, dtype=torch.int32, device=images.device)[:, None]
    column = torch.arange(width, dtype=torch.int32, device=images.device)
    x = (steps[:, 0] * column + (steps[:, 1] * row + steps[:, 2])).bitwise_right_shift_(16)
    y = (steps[:, 3] * column + (steps[:, 4] * row + steps[:, 5])).bitwise_right_shift_(16)
    outside = (x < 0) | (x >= width) | (y < 0) | (y >= height)
    index = (y.mul_(width).add_(x)).masked_fill_(outside, 0).flatten(1).long()
    moved = images.flatten(2).gather(2, index[:, None].expand(-1, images.shape[1], -1))
    return moved.view_as(images).masked_fill_(outside[:, None], 0)


def _move(images: Tensor, kind: Tensor, magnitude: Tensor, place: Tensor) -> Tensor:
    """Shears, shifts and rotations, as one affine transform with a matrix an image."""
    height, width = images.shape[2:]
    value = magnitude.double()
    matrix = torch.tensor([1.0, 0, 0, 0, 1, 0], dtype=torch.float64).repeat(len(images), 1)
    matrix[:, 1] = torch.where(kind == NUMBER["shear_x"], value, 0)
    matrix[:, 3] = torch.where(kind == NUMBER["shear_y"], value, 0)
    whole = (value + 0.5).floor()  # Pillow's rule for shifts: exact, not in fixed point
    matrix[:, 2] = torch.where(kind == NUMBER["translate_x"], whole, 0)
    matrix[:, 5] = torch.where(kind == NUMBER["translate_y"], whole, 0)
    turned = (kind == NUMBER["rotate"]).nonzero()[:, 0]
    if len(turned):
        angle = -value[turned].deg2rad()
        cosine, sine = angle.cos(), angle.sin()
        x, y = width / 2, height / 2  # what stays in its place
        across = x - cosine * x - sine * y
        down = y + sine * x - cosine * y
        matrix[turned] = torch.stack([cosine, sine, across, -sine, cosine, down], 1)
    return affine(images, matrix)


def _look_up(images: Tensor, kind: Tensor, magnitude: Tensor, place: Tensor) -> Tensor:
    """Operations that change a level whatever its place, by one table an image and channel."""
    levels = torch.arange(256, device=images.device)
    tables = levels.to(torch.uint8).repeat(len(images), images.shape[1], 1)
    for number in kind.unique().tolist():
        which = (kind == number).nonzero()[:, 0]
        value = magnitude[which].to(images.device).float()[:, None, None]
        which = which.to(images.device)
        name = OPERATIONS[number]
        if name == "invert":
            table = 255 - levels
        elif name == "solarize":
            table = torch.where(levels < value, levels, 255 - levels)
        elif name == "solarize_add":
            table = torch.where(levels < 128, (levels + value.int()).clamp(0, 255), levels)
        elif name == "posterize":
            table = levels & (-1 << (8 - value.int().clamp(1, 8)))
        elif name == "brightness":
            table = _blend(torch.zeros_like(value), levels, value)
        elif name == "contrast":
            table = _blend(_mean_grey(images.index_select(0, which)), levels, value)
        elif name == "autocontrast":
            table = _autocontrast_table(images.index_select(0, which), levels)
        else:
            table = _equalize_table(images.index_select(0, which), levels)
        tables[which] = table.to(torch.uint8).expand(len(which), images.shape[1], 256)
    return tables.gather(2, images.flatten(2).long()).view_as(images)


def _autocontrast_table(images: Tensor, levels: Tensor) -> Tensor:
    """(b, C, 256): each channel's darkest level to 0 and its lightest to 255; one level alone stays."""
    low, high = images.flatten(2).aminmax(dim=2)
    span = (high.double() - low.double())[:, :, None]
    scale = torch.full_like(span, 255) / span  # `255 / span` would be 255 times a rounded 1 / span
    table = (levels * scale - low[:, :, None] * scale).trunc_().clamp_(0, 255)
    return torch.where(span > 0, table, levels.double())


def _equalize_table(images: Tensor, levels: Tensor) -> Tensor:
    """(b, C, 256): levels spread so that each is about as frequent; by Pillow's whole-number rule."""
    pixels = images.flatten(2).flatten(0, 1)
    starts = torch.arange(len(pixels), device=images.device)[:, None] * 256
    counts = torch.bincount((pixels + starts).flatten(), minlength=256 * len(pixels)).view(-1, 256)
    last = counts.gather(1, pixels.amax(1, keepdim=True).long())
    step = (pixels.shape[1] - last) // 255
    below = counts.cumsum(1).sub_(counts)
    table = ((below + step // 2) // step.clamp(min=1)).clamp_(max=255)
    return torch.where(step > 0, table, levels).view(*images.shape[:2], 256)


def _color(images: Tensor, kind: Tensor, magnitude: Tensor, place: Tensor) -> Tensor:
    """ImageEnhance.Color: towards or away from the grey picture; a grey one stays."""
    if images.shape[1] == 1:
        return images
    factor = magnitude.to(images.device).float()[:, None, None, None]
    return _blend(_grey(images)[:, None], images, factor).to(torch.uint8)


def _sharpen(images: Tensor, kind: Tensor, magnitude: Tensor, place: Tensor) -> Tensor:
    """ImageEnhance.Sharpness: towards or away from a smoothed picture; its outermost pixels stay."""
    if min(images.shape[2:]) < 3:
        return images
    pixels = images.short()
    lines = pixels[:, :, :-2] + pixels[:, :, 1:-1] + pixels[:, :, 2:]
    total = lines[..., :-2] + lines[..., 1:-1] + lines[..., 2:]
    inner = pixels[:, :, 1:-1, 1:-1]
    total.add_(inner, alpha=4)
    # By 13 to the nearest, as a product: whole-number division is slow. Right for every sum there can be.
    smooth = (total.int().add_(6)).mul_(20165).bitwise_right_shift_(18)
    factor = magnitude.to(images.device).float()[:, None, None, None]
    images[:, :, 1:-1, 1:-1] = _blend(smooth, inner, factor).to(torch.uint8)
    return images


def _cut_out(images: Tensor, kind: Tensor, magnitude: Tensor, place: Tensor) -> Tensor:
    """A grey box, cut off at the border as in Fast AutoAugment: its last row and column included."""
    fill = GREY if images.shape[1] == 3 else GREY[1:2]
    color = torch.tensor(fill, dtype=torch.uint8, device=images.device)[:, None, None]
    sides = torch.tensor(images.shape[2:])
    centre = place.double() * sides
    start = (centre - magnitude.double()[:, None] / 2).clamp(min=0).floor()
    end = torch.minimum(start + magnitude.double()[:, None], sides).floor()
    end = torch.where(magnitude[:, None] > 0, end, -1.0)
    inside = box_mask(start, end + 1, images)
    return torch.where(inside, color, images)


def _grey(images: Tensor) -> Tensor:
    """int32 (B, H, W): what Pillow's mode L shows, in its whole numbers."""
    if images.shape[1] == 1:
        return images[:, 0].int()
    red, green, blue = images.int().unbind(1)
    grey = red.mul_(19595).add_(green, alpha=38470).add_(blue, alpha=7471)
    return grey.add_(1 << 15).bitwise_right_shift_(16)


def _mean_grey(images: Tensor) -> Tensor:
    """(b, 1, 1): the mean of the grey picture, to the nearest level."""
    total, count = _grey(images).flatten(1).sum(1), images.shape[2] * images.shape[3]
    return (total.double() / count + 0.5).floor().float()[:, None, None]


def _blend(base: Tensor, images: Tensor, factor: Tensor) -> Tensor:
    """base + factor * (images - base) in float32, as Pillow's blend; what is behind the point is cut off."""
    base = base.float()
    return (images - base).mul_(factor).add_(base).clamp_(0, 255)
