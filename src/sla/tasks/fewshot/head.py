"""What every few-shot method offers: adapt to a support set, score queries; whole batches of episodes."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sla.errors import InputError, SLAError


class Head(nn.Module):
    """One row of numbers per class, made from the support set (`adapt`) and compared with queries (`score`).

    E episodes go through at once; their classes are 0 to way - 1. The scale of the logits is learnt.
    """

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        if not 0 < scale < float("inf"):
            raise InputError(f"the scale of logits must be above 0, not {scale:g}")
        self.scale = nn.Parameter(torch.tensor(float(scale)))

    def adapt(self, support: Tensor, targets: Tensor, way: int) -> Tensor:
        """Support features (E, S, D) with targets (E, S) -> a row per class, (E, way, *)."""
        raise InputError(f"{type(self).__name__} does not say how it adapts to a support set")

    def score(self, rows: Tensor, query: Tensor) -> Tensor:
        """Rows of `adapt` and query features (E, Q, D) -> logits (E, Q, way)."""
        return self.scale * query @ rows.mT

    def forward(self, support: Tensor, targets: Tensor, query: Tensor, way: int) -> Tensor:
        """Support (E, S, D), targets (E, S) and query (E, Q, D) -> logits (E, Q, way)."""
        check_episodes(support, targets, query, way)
        try:
            return self.score(self.adapt(support, targets, way), query)
        except torch.linalg.LinAlgError:
            why = "if training diverged, a lower learning rate may help"
            raise SLAError(f"{type(self).__name__} has no solution for these features: {why}") from None


def one_hot(targets: Tensor, way: int, like: Tensor) -> Tensor:
    """(E, S) -> (E, S, way) in the type of `like`."""
    return F.one_hot(targets, way).to(like.dtype)


def check_episodes(support: Tensor, targets: Tensor, query: Tensor, way: int) -> None:
    """Refuse shapes that do not fit each other, and classes without a support image."""
    if support.ndim != 3 or query.ndim != 3 or support.shape[0] != query.shape[0]:
        shapes = f"{tuple(support.shape)} and {tuple(query.shape)}"
        raise InputError(f"support and query must be (E, S, D) and (E, Q, D), not {shapes}")
    if support.shape[2] != query.shape[2]:
        widths = f"{support.shape[2]} and {query.shape[2]}"
        raise InputError(f"support and query have {widths} features: their images differ in size")
    if targets.shape != support.shape[:2] or targets.is_floating_point():
        shapes = f"{tuple(support.shape[:2])} class numbers, not {tuple(targets.shape)}"
        raise InputError(f"targets must be {shapes}")
    if way < 2:
        raise InputError(f"an episode needs at least two classes, not {way}")
    if targets.device.type == "cpu":  # values are checked only where that costs no synchronisation
        if targets.numel() and not 0 <= int(targets.min()) <= int(targets.max()) < way:
            low, high = int(targets.min()), int(targets.max())
            raise InputError(f"targets run from {low} to {high} but there are {way} classes")
        missing = (F.one_hot(targets, way).sum(1) == 0).nonzero()
        if len(missing):
            episode, label = missing[0].tolist()
            raise InputError(f"class {label} of episode {episode} has no support image")
