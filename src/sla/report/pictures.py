"""Pictures inside a page: small images as PNG data, and sheets of them."""

import base64
import io
from collections.abc import Sequence
from html import escape

import torch
from PIL import Image
from torch import Tensor


def picture(image: Tensor, description: str) -> str:
    """An <img> of one uint8 image (C, H, W), C 1 or 3, its pixels kept exactly."""
    array = image.cpu().to(torch.uint8).permute(1, 2, 0).numpy()
    file = io.BytesIO()
    Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array).save(file, "PNG")
    data = base64.b64encode(file.getvalue()).decode()
    return f'<img alt="{escape(description)}" src="data:image/png;base64,{data}">'


def sheet(
    images: Sequence[Sequence[Tensor]], columns: Sequence[str], captions: Sequence[Sequence[str]]
) -> str:
    """A grid of images with a heading for each column and a caption under each image."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in columns)
    rows = []
    for line, texts in zip(images, captions, strict=True):
        cells = "".join(
            f'<td>{picture(image, text)}<span class="caption">{escape(text)}</span></td>'
            for image, text in zip(line, texts, strict=True)
        )
        rows.append(f"<tr>{cells}</tr>")
    return f'<div class="scroll"><table class="sheet"><tr>{head}</tr>{"".join(rows)}</table></div>'
