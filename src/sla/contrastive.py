"""The loss of contrastive learning: of all other views in a batch, which one is of the same image?"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from sla.errors import InputError


def nt_xent_loss(
    embeddings: Tensor, temperature: float = 0.5, everyone: Tensor | None = None, first: int = 0
) -> Tensor:
    """NT-Xent of SimCLR: the mean over rows i, whose other view is row p(i), of

        -log( exp(cos(z_i, z_p(i)) / T) / sum over k other than i of exp(cos(z_i, z_k) / T) )

    Args:
        embeddings: (2b, D), two views of each of b images, interleaved: image 0 view 0, image 0 view 1, ...
        temperature: T.
        everyone: (2B, D), if the batch is shared by processes: the rows of all of them, with gradient.
        first: the place of `embeddings` among those rows.
    """
    return F.cross_entropy(*contrast_logits(embeddings, temperature, everyone, first))


def contrast_logits(
    embeddings: Tensor, temperature: float = 0.5, everyone: Tensor | None = None, first: int = 0
) -> tuple[Tensor, Tensor]:
    """Cosine similarities over T, (2b, 2B), -inf of a row with itself; and the row of the other view, (2b,).

    Arguments are those of `nt_xent_loss`, which is the cross entropy of the two.
    """
    everyone = embeddings if everyone is None else everyone
    _check(embeddings, everyone, first, temperature)
    own = torch.arange(first, first + len(embeddings), device=embeddings.device)
    # In float32 whatever the network's precision: a half has three digits, and exp magnifies.
    with torch.autocast(embeddings.device.type, enabled=False):
        queries, keys = (F.normalize(rows.float(), dim=1) for rows in (embeddings, everyone))
        logits = (queries @ keys.T / temperature).scatter(1, own.unsqueeze(1), -math.inf)
    return logits, own ^ 1  # rows 2i and 2i + 1 are views of one image


def _check(embeddings: Tensor, everyone: Tensor, first: int, temperature: float) -> None:
    if not 0 < temperature < math.inf:
        raise InputError(f"temperature must be a number above 0, not {temperature}")
    for rows in (embeddings, everyone):
        if rows.ndim != 2 or rows.shape[0] % 2:
            raise InputError(f"embeddings must be (2B, D), two views of each image, not {tuple(rows.shape)}")
    if len(everyone) < 4:
        raise InputError(
            "contrastive learning tells images of a batch apart: it needs at least two, not "
            f"{len(everyone) // 2}"
        )
    if first % 2 or not 0 <= first <= len(everyone) - len(embeddings):
        raise InputError(f"{len(embeddings)} rows from row {first} on are not among all {len(everyone)}")
