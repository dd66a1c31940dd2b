"""Images inside a page, as PNG data."""

import base64
import io
import os
from collections.abc import Sequence
from typing import NamedTuple

import torch
from markupsafe import Markup
from PIL import Image
from torch import Tensor

from sla.errors import shown

WIDEST = 4  # width / height of the widest picture, and height / width of the tallest
TINY = 64  # images with shorter edges are enlarged as squares, without smoothing


class Card(NamedTuple):
    """An image uint8 (C, H, W), its original width / height, a description and the lines of text below it."""

    image: Tensor
    aspect: float
    description: str
    lines: Sequence[str]


def picture(image: Tensor, description: str, aspect: float | None = None, most: int | None = None) -> Markup:
    """An <img> of one uint8 image (C, H, W); its pixels are unchanged unless it has to be resized.

    `aspect` is the width / height to resize to, `most` the longest edge. Of channels that are not 1, 3 or 4
    the first is shown.
    """
    file = io.BytesIO()
    draw(image, aspect, most).save(file, "PNG")
    data = base64.b64encode(file.getvalue()).decode()
    kind = Markup(' class="pixels"') if max(image.shape[1:]) < TINY else ""
    return Markup('<img alt="{}"{} src="data:image/png;base64,{}">').format(description, kind, data)


def draw(image: Tensor, aspect: float | None = None, most: int | None = None) -> Image.Image:
    """The same as a Pillow image."""
    channels, height, _ = image.shape
    array = (image if channels in (1, 3, 4) else image[:1]).cpu().to(torch.uint8).permute(1, 2, 0).numpy()
    drawn = Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array)
    if aspect is not None:
        drawn = drawn.resize((round(height * min(max(aspect, 1 / WIDEST), WIDEST)) or 1, height))
    if most is not None:
        drawn.thumbnail((most, most))
    return drawn


def short_name(name: str) -> str:
    """An image's name without the folders of this machine, as one printable line."""
    return shown(os.path.basename(name) if os.path.isabs(name) else name)
