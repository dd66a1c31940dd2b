"""Ridge regression on the labels, in closed form: MetaOptNet's RR."""

import torch
from torch import Tensor

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
