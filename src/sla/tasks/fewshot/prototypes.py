"""Prototypical networks: the nearest mean."""

from torch import Tensor

from sla.tasks.fewshot.head import Head, one_hot


class Prototypes(Head):
    """Logits -scale * ||q - p||^2 / D, p the mean of a class's support features."""

    def adapt(self, support: Tensor, targets: Tensor, way: int) -> Tensor:
        """(E, S, D), (E, S) -> prototypes (E, way, D)."""
        members = one_hot(targets, way, support)
        return (members.mT @ support) / members.sum(1).unsqueeze(2)

    def score(self, rows: Tensor, query: Tensor) -> Tensor:
        """(E, way, D), (E, Q, D) -> (E, Q, way)."""
        cross, own = query @ rows.mT, query.square().sum(2).unsqueeze(2)
        return -self.scale / query.shape[2] * (own - 2 * cross + rows.square().sum(2).unsqueeze(1))
