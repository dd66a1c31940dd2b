"""Pure functions on whole batches of images, with one parameter per image: crops, flips, colours.

Images are uint8 (B, C, H, W) unless stated otherwise; C is 1 or 3.
"""

import math
from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from sla.errors import InputError
from sla.images.channels import LUMA

TRIES = 10  # boxes that RandomResizedCrop tries before it falls back to the centre
BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)
PART = 1 << 20  # values of an image batch that are processed at a time


def to_float(images: Tensor) -> Tensor:
    """uint8 -> float32 in [0, 1]."""
    return images.float().div_(255)


def normalize(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """(images - mean) / std by channel, float32; uint8 images are first scaled to [0, 1]."""
    channels = images.shape[1]
    if not len(mean) == len(std) == channels:
        raise InputError(f"{len(mean)} means and {len(std)} stds for images with {channels} channels")
    unit = 255.0 if images.dtype == torch.uint8 else 1.0
    scale = torch.tensor([1 / (unit * s) for s in std], device=images.device)
    shift = torch.tensor([m / s for m, s in zip(mean, std, strict=True)], device=images.device)
    return images.float().mul(scale[:, None, None]).sub_(shift[:, None, None])


def crop(images: Tensor, top: Tensor, left: Tensor, size: int) -> Tensor:
    """The size x size window of each image whose corner is at (top, left), int64 (B,) each."""
    windows = images.unfold(2, size, 1).unfold(3, size, 1)  # a view: every window of every image
    return windows[torch.arange(len(images), device=images.device), :, top, left]


def pad_crop(images: Tensor, top: Tensor, left: Tensor, size: int, padding: int) -> Tensor:
    """`crop` from the images with `padding` black pixels on every side; (0, 0) is the padded corner."""
    return crop(F.pad(images, [padding] * 4), top, left, size)


def flip(images: Tensor, which: Tensor) -> Tensor:
    """Mirror left and right the images for which `which`, bool (B,), is true."""
    both = torch.cat([images, images.flip(3)])  # selecting whole images is four times as fast as torch.where
    return both.index_select(0, torch.arange(len(images), device=images.device) + len(images) * which)


def erase(images: Tensor, start: Tensor, end: Tensor) -> Tensor:
    """Zero in a box of each image, from `start` to `end`, exclusive: rows and columns, (B, 2) each."""
    return images.masked_fill(box_mask(start, end, images), 0)


def box_mask(start: Tensor, end: Tensor, images: Tensor) -> Tensor:
    """Boolean (B, 1, H, W): true from `start` to `end`, exclusive: rows and columns, (B, 2) each."""
    start, end = start.to(images.device), end.to(images.device)
    row = torch.arange(images.shape[2], device=images.device)
    column = torch.arange(images.shape[3], device=images.device)
    rows = (row >= start[:, :1]) & (row < end[:, :1])
    columns = (column >= start[:, 1:]) & (column < end[:, 1:])
    return (rows[:, :, None] & columns[:, None])[:, None]


def resized_crop(images: Tensor, boxes: Tensor, size: int) -> Tensor:
    """Resample each image's box to size x size; uint8 in, uint8 out.

    boxes: (B, 4), top, left, height and width as fractions of the image. The filter is Pillow's bilinear
    one, which is antialiased: `Image.resize((size, size), BILINEAR, box)` to within one level of 255.
    """
    _require_bytes(images)
    _, channels, height, width = images.shape
    out = images.new_empty(len(images), channels, size, size)
    for part, place, result in _parts(images, boxes, out):
        top, left, high, wide = place.unbind(1)
        rows, columns = pixel_weights(top, high, height, size), pixel_weights(left, wide, width, size).mT
        narrow = (part.flatten(1, 2).float() @ columns).unflatten(1, (channels, height))
        for channel in range(channels):
            result[:, channel] = _nearest(rows @ narrow[:, channel])
    return out


def pixel_weights(start: Tensor, length: Tensor, source: int, size: int) -> Tensor:
    """(B, size, source): the weight of each source pixel in each output pixel; rows sum to 1."""
    scale = (length * (source / size))[:, None]
    centre = start[:, None] * source + (torch.arange(size, device=start.device) + 0.5) * scale
    place = torch.arange(source, device=start.device) + 0.5
    weight = (place - centre[:, :, None]).abs_().div_(scale.clamp(min=1)[:, :, None]).neg_().add_(1)
    weight.clamp_(min=0)
    return weight.div_(weight.sum(2, keepdim=True))


def random_boxes(
    uniform: Tensor, aspect: Tensor, scale: tuple[float, float], ratio: tuple[float, float]
) -> Tensor:
    """Boxes (B, 4) for `resized_crop`: a share of the area in `scale`, width / height in `ratio`.

    Both refer to the original image, whose width / height is `aspect` (B,). uniform is
    (B, 2 * TRIES + 2) in [0, 1). The first candidate that fits is used; if none does, the largest central box
    whose shape is in `ratio`.
    """
    tries = uniform[:, : 2 * TRIES].view(-1, TRIES, 2)
    area = scale[0] + (scale[1] - scale[0]) * tries[:, :, 0]
    low, high = math.log(ratio[0]), math.log(ratio[1])
    shape = (low + (high - low) * tries[:, :, 1]).exp() / aspect[:, None]
    heights, widths = (area / shape).sqrt(), (area * shape).sqrt()
    fits = (heights <= 1) & (widths <= 1)
    first = fits.int().argmax(1, keepdim=True)
    found = fits.any(1)
    central = aspect.clamp(*ratio) / aspect
    height = torch.where(found, heights.gather(1, first)[:, 0], (1 / central).clamp(max=1))
    width = torch.where(found, widths.gather(1, first)[:, 0], central.clamp(max=1))
    place = torch.where(found[:, None], uniform[:, 2 * TRIES :], 0.5)
    return torch.stack([place[:, 0] * (1 - height), place[:, 1] * (1 - width), height, width], 1)


def center_box(aspect: Tensor, share: float, down: float = 0.5, across: float = 0.5) -> Tensor:
    """(B, 4): the central square of the original image, its side `share` of the shorter; or elsewhere."""
    height, width = share * aspect.clamp(max=1), share * (1 / aspect).clamp(max=1)
    return torch.stack([down * (1 - height), across * (1 - width), height, width], 1)


def tone_(images: Tensor, scale: Tensor, grey: Tensor, mean: Tensor) -> Tensor:
    """scale * x + grey * luma(x) + mean * (mean of luma(x)), in [0, 1]; parameters (B,); in place.

    Of a factor f, brightness is (f, 0, 0), contrast (f, 0, 1 - f) and saturation (f, 1 - f, 0): three
    adjustments in one pass, so that images of a batch may get different ones.
    """
    if images.shape[1] == 1:
        luma = images
    else:
        red, green, blue = images.split(1, dim=1)
        luma = (red * LUMA[0]).add_(green, alpha=LUMA[1]).add_(blue, alpha=LUMA[2])
    level = luma.mean((1, 2, 3)) * mean
    rest = (luma * _each(grey)).add_(_each(level))
    return torch.addcmul(rest, images, _each(scale), out=images).clamp_(0, 1)


def shift_hue(images: Tensor, shift: Tensor) -> Tensor:
    """Turn the colours of each image, float in [0, 1], by `shift` (B,) of the colour circle; grey stays."""
    if images.shape[1] == 1:
        return images
    red, green, blue = images.unbind(1)
    high = torch.maximum(torch.maximum(red, green), blue)
    chroma = high - torch.minimum(torch.minimum(red, green), blue)
    # Distance to red on the circle of six, without cases: 2 + (g + b - r - max) / chroma; green's side is +.
    # (torch.where on random conditions costs more than all the rest.)
    away = (green + blue).sub_(red).sub_(high).div_(chroma.clamp(min=1e-6)).add_(2)
    hue = away.copysign_(green - blue).add_(6 * shift[:, None, None])
    hue.sub_((hue / 6).floor_(), alpha=6)
    lacks = ((hue - 3).abs_().neg_().add_(2), (hue - 2).abs_().sub_(1), (hue - 4).abs_().sub_(1))
    out = torch.empty_like(images)
    for channel, lack in zip(out.unbind(1), lacks, strict=True):  # the share of the chroma that it lacks
        torch.addcmul(high, chroma, lack.clamp_(0, 1), value=-1, out=channel)
    return out


def color_jitter(images: Tensor, factors: Tensor, order: Tensor) -> Tensor:
    """Adjust uint8 images by their factors (B, 4), in each image's own order, int64 (B, 4).

    Columns of factors are BRIGHTNESS, CONTRAST, SATURATION and HUE; order[b, k] is the one that image b
    gets as its k-th, or -1 for none. Rounded to uint8 once, at the end.
    """
    _require_bytes(images)
    factor = factors.gather(1, order.clamp(min=0))
    scale = torch.where((order >= 0) & (order != HUE), factor, 1.0)
    grey, mean = (1 - scale) * (order == SATURATION), (1 - scale) * (order == CONTRAST)
    shift = torch.where(order == HUE, factor, 0.0)
    # Which images are turned is read where the draws were made, the CPU: no device waits for it.
    scale, grey, mean = (parameter.to(images.device) for parameter in (scale, grey, mean))
    out = torch.empty_like(images)
    for part, result, *parameters in _parts(images, out, scale, grey, mean, shift):
        pixels = to_float(part)
        for s, g, m, turn in zip(*(parameter.unbind(1) for parameter in parameters), strict=True):
            tone_(pixels, s, g, m)
            turned = turn.nonzero()[:, 0]
            if len(turned):
                turn, turned = turn[turned].to(images.device), turned.to(images.device)
                colors = shift_hue(pixels.index_select(0, turned), turn)
                pixels.index_copy_(0, turned, colors)
        result.copy_(_nearest(pixels.mul_(255)))
    return out


def greyscale(images: Tensor, which: Tensor) -> Tensor:
    """The grey of each image in all its channels, as Pillow's mode L, where `which`, bool (B,), is true.

    Which images these are is read on the CPU.
    """
    _require_bytes(images)
    chosen = which.nonzero()[:, 0].to(images.device)
    if images.shape[1] == 1 or not len(chosen):
        return images
    red, green, blue = images.index_select(0, chosen).int().split(1, dim=1)
    grey = (red * 19595 + green * 38470 + blue * 7471 + 32768) >> 16  # LUMA in 16 bits, rounded
    return images.index_copy(0, chosen, grey.to(torch.uint8).expand(-1, images.shape[1], -1, -1))


def gaussian_blur(images: Tensor, sigma: Tensor, reach: int) -> Tensor:
    """Blur uint8 images by a Gaussian of their own, sigma (B,) in pixels, cut off `reach` pixels away.

    Beyond the border an image is mirrored, without the pixels of the border itself.
    """
    _require_bytes(images)
    offsets = torch.arange(-reach, reach + 1, device=images.device)
    weights = (-(offsets**2) / (2 * sigma.to(images.device)[:, None] ** 2)).exp()
    weights = weights.div_(weights.sum(1, keepdim=True)).repeat_interleave(images.shape[1], 0)
    out = images.float().flatten(0, 1).unsqueeze(0)  # a channel of an image is a group of the convolution
    count = len(weights)
    out = F.conv2d(F.pad(out, [reach, reach, 0, 0], "reflect"), weights[:, None, None], groups=count)
    out = F.conv2d(F.pad(out, [0, 0, reach, reach], "reflect"), weights[:, None, :, None], groups=count)
    return _nearest(out).to(torch.uint8).view_as(images)


def _parts(images: Tensor, *others: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Some images at a time: on a CPU, buffers that fit its cache and are used again cost a third less."""
    some = max(PART // math.prod(images.shape[1:]), 1) if images.device.type == "cpu" else len(images)
    return zip(*(tensor.split(some) for tensor in (images, *others)), strict=True)


def _nearest(levels: Tensor) -> Tensor:
    return levels.add_(0.5).int()  # from there to uint8 is fast; in one step it takes twice as long


def _require_bytes(images: Tensor) -> None:
    if images.dtype != torch.uint8:
        raise InputError(f"images must be uint8, as they are before normalisation, not {images.dtype}")


def _each(parameter: Tensor) -> Tensor:
    return parameter[:, None, None, None]
