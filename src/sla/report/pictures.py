"""Pictures inside a page: small images as PNG data, and sheets of them."""

import base64
import io
import os
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

import torch
from PIL import Image
from torch import Tensor

from sla.errors import shown

CARD = 224  # pixels of the longer edge of a picture on a card
WIDEST = 4  # width / height of the widest picture, and height / width of the tallest
TINY = 64  # an edge below which pixels are shown as squares


def picture(image: Tensor, description: str, *, aspect: float | None = None, most: int | None = None) -> str:
    """An <img> of one uint8 image (C, H, W), its pixels kept exactly unless another size is asked for.

    `aspect` is the width / height it is to have, `most` its longest edge. Of channels that are not 1, 3 or 4
    the first is shown.
    """
    channels, height, width = image.shape
    array = (image if channels in (1, 3, 4) else image[:1]).cpu().to(torch.uint8).permute(1, 2, 0).numpy()
    drawn = Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array)
    if aspect is not None:
        drawn = drawn.resize((round(height * min(max(aspect, 1 / WIDEST), WIDEST)) or 1, height))
    if most is not None:
        drawn.thumbnail((most, most))
    file = io.BytesIO()
    drawn.save(file, "PNG")
    data = base64.b64encode(file.getvalue()).decode()
    kind = ' class="pixels"' if max(height, width) < TINY else ""
    return f'<img alt="{escape(description)}"{kind} src="data:image/png;base64,{data}">'


def sheet(
    images: Sequence[Sequence[Tensor]],
    columns: Sequence[str],
    captions: Sequence[Sequence[str]],
    rows: Sequence[str] = (),
) -> str:
    """A grid of images with a heading for each column, for each row if given, and a caption under each."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in columns)
    lines = []
    for number, (line, texts) in enumerate(zip(images, captions, strict=True)):
        if rows:
            # The column's name shows what a picture is only to those who see the table.
            spoken = [f"{rows[number]}, {name}: {text}" for name, text in zip(columns, texts, strict=True)]
            heading = f'<th class="over" colspan="{len(columns)}">{escape(rows[number])}</th>'
            lines.append(f"<tr>{heading}</tr>")
        else:
            spoken = list(texts)
        cells = "".join(
            f'<td>{picture(image, alt)}<span class="caption">{escape(text)}</span></td>'
            for image, alt, text in zip(line, spoken, texts, strict=True)
        )
        lines.append(f"<tr>{cells}</tr>")
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="Sheet of pictures">'
        f'<table class="sheet"><tr>{head}</tr>{"".join(lines)}</table></div>'
    )


def short_name(name: str) -> str:
    """A picture's name without the folders of the machine it lies on, as one printable line."""
    return shown(os.path.basename(name) if os.path.isabs(name) else name)


class Card(NamedTuple):
    """A picture uint8 (C, H, W) with its shape (width / height) and the lines of text below it."""

    image: Tensor
    aspect: float
    description: str
    lines: Sequence[str]


def cards(items: Sequence[Card]) -> str:
    """Pictures side by side, as many in a row as fit."""
    shown = []
    for card in items:
        first, *others = (escape(line) for line in card.lines)
        text = "".join(f"<br>{line}" for line in others)
        drawn = picture(card.image, card.description, aspect=card.aspect, most=CARD)
        shown.append(f"<li><figure>{drawn}<figcaption><b>{first}</b>{text}</figcaption></figure></li>")
    return f'<ul class="cards">{"".join(shown)}</ul>'
