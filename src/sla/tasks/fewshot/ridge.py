"""Ridge regression on the labels, in closed form: MetaOptNet's RR, and R2D2, which learns its numbers."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sla.errors import InputError
from sla.tasks.fewshot.head import Head, one_hot


def ridge_weights(support: Tensor, labels: Tensor, regularization: Tensor | float) -> Tensor:
    """W = Y^T (K + r I)^-1 X with K = X X^T: features X (E, S, D), labels Y (E, S, way) -> (E, way, D).

    The same as Y^T X (X^T X + r I)^-1; the smaller of the two systems is solved, for all episodes at once.
    """
    _, count, width = support.shape
    identity = torch.eye(min(count, width), dtype=support.dtype, device=support.device)
    if count <= width:
        gram = support @ support.mT + regularization * identity
        return torch.linalg.solve(gram, labels).mT @ support
    gram = support.mT @ support + regularization * identity
    return torch.linalg.solve(gram, support.mT @ labels).mT


class Ridge(Head):
    """alpha = 2 (K + 50 I)^-1 Y, Y the labels one-hot; logits scale * K_qs alpha."""

    def __init__(self, scale: float = 1.0, regularization: float = 50.0) -> None:
        super().__init__(scale)
        if regularization <= 0:
            raise InputError(f"the regularization of ridge must be above 0, not {regularization:g}")
        self.regularization = regularization

    def adapt(self, support: Tensor, targets: Tensor, way: int) -> Tensor:
        """(E, S, D), (E, S) -> weights (E, way, D)."""
        return 2 * ridge_weights(support, one_hot(targets, way, support), self.regularization)


class R2D2(Head):
    """Ridge with an intercept (a feature that is always 1), then logits scale * output + bias.

    The bias is one number for all classes, as published: a softmax does not feel it, a threshold would.
    """

    def __init__(self, scale: float = 1.0, regularization: float = 50.0) -> None:
        super().__init__(scale)
        if regularization <= 0:
            raise InputError(f"the regularization of r2d2 must be above 0, not {regularization:g}")
        self.log_regularization = nn.Parameter(torch.tensor(math.log(regularization)))
        self.bias = nn.Parameter(torch.tensor(0.0))

    def adapt(self, support: Tensor, targets: Tensor, way: int) -> Tensor:
        """(E, S, D), (E, S) -> weights and intercepts (E, way, D + 1)."""
        labels = one_hot(targets, way, support)
        return ridge_weights(F.pad(support, (0, 1), value=1.0), labels, self.log_regularization.exp())

    def score(self, rows: Tensor, query: Tensor) -> Tensor:
        """(E, way, D + 1), (E, Q, D) -> (E, Q, way)."""
        return self.scale * (query @ rows[..., :-1].mT + rows[..., -1].unsqueeze(1)) + self.bias
