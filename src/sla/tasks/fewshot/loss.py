"""Cross entropy with MetaOptNet's label smoothing."""

import torch.nn.functional as F
from torch import Tensor


def smoothed_cross_entropy(logits: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
    """The mean over all rows, (..., way) and (...): 1 - eps for the class, eps / (way - 1) for each *other*.

    torch's rule gives eps / way to every class, the right one too.
    """
    way = logits.shape[-1]
    flat, labels = logits.reshape(-1, way), targets.reshape(-1)
    # torch's eps' = eps * way / (way - 1) gives the others eps / (way - 1) and the class 1 - eps.
    return F.cross_entropy(flat, labels, label_smoothing=smoothing * way / (way - 1))
