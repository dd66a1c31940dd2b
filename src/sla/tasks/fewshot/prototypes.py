"""Prototypical networks: the nearest mean."""

from torch import Tensor

from sla.tasks.fewshot.head import Head, one_hot


def prototypes(support: Tensor, targets: Tensor, way: int) -> Tensor:
    """The mean of each class's support features: (E, S, D), (E, S) -> (E, way, D)."""
    members = one_hot(targets, way, support)
    return (members.mT @ support) / members.sum(1).unsqueeze(2)


def squared_distances(query: Tensor, rows: Tensor) -> Tensor:
    """||q - p||^2: (E, Q, D), (E, way, D) -> (E, Q, way)."""
    cross = query @ rows.mT
    return query.square().sum(2).unsqueeze(2) - 2 * cross + rows.square().sum(2).unsqueeze(1)


class Prototypes(Head):
    """Logits -scale * ||q - p||^2 / D, p the mean of a class's support features."""

    def adapt(self, support: Tensor, targets: Tensor, way: int) -> Tensor:
        """(E, S, D), (E, S) -> prototypes (E, way, D)."""
        return prototypes(support, targets, way)

    def score(self, rows: Tensor, query: Tensor) -> Tensor:
        """(E, way, D), (E, Q, D) -> (E, Q, way)."""
        return -self.scale / query.shape[2] * squared_distances(query, rows)
