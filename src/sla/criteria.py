"""Criteria: the loss of logits and hard or mixed targets, for every method and label space.

A criterion is any callable `(logits (B, K), target) -> scalar`. Values per class (N,) also apply to joint
labels (K = N*M): each of the M labels of a class inherits its value.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor, nn

from sla.errors import InputError
from sla.labels import MixedTarget, Target, shares, spread_classes
from sla.linear_loss import linear_cross_entropy

Criterion = Callable[[Tensor, Target], Tensor]


def cross_entropy(
    input: Tensor, target: Target, weight: Tensor | None = None, label_smoothing: float = 0.0
) -> Tensor:
    r"""Cross entropy for hard and mixed targets, class weights and label smoothing.

    For a hard target y over K labels, with weights w and smoothing e,

        l(y) = (1 - e) * w_y * -log p_y + e/K * sum_c w_c * -log p_c

    and the loss is sum_b l(y_b) / sum_b w_{y_b}, as in torch. A mixed target counts lam of one parent and
    1 - lam of the other, in both the numerator and the denominator.

    Args:
        input: logits (B, K).
        target: (B,) labels below K, or a `MixedTarget` of two.
        weight: (N,), K a multiple of N.
        label_smoothing: e in [0, 1].

    The loss of half-precision logits is computed in float32.
    """
    log_prob = log_probabilities(input)
    return mean_over_labels(lambda labels: log_prob, target, weight, label_smoothing)


def mean_over_labels(
    scores: Callable[[Tensor], Tensor], target: Target, weight: Tensor | None, label_smoothing: float
) -> Tensor:
    """The mean of `cross_entropy` for any scores (B, K) in place of log p; each parent of a mix has its own.

    `scores` is called with the true labels (B,), once for each parent of a mixed target.
    """
    if not isinstance(target, MixedTarget):
        loss, mass = _sums(scores(target), target, weight, label_smoothing, None)
        return loss / mass
    first = scores(target.a)
    lam = shares(target).to(first)  # before 1 - lam: lam may be in half precision
    loss_a, mass_a = _sums(first, target.a, weight, label_smoothing, lam)
    loss_b, mass_b = _sums(scores(target.b), target.b, weight, label_smoothing, 1 - lam)
    return (loss_a + loss_b) / (mass_a + mass_b)


def log_probabilities(logits: Tensor) -> Tensor:
    """The log softmax over the last dimension, in float32 for half-precision logits."""
    return without_half(logits).log_softmax(-1)


def without_half(logits: Tensor) -> Tensor:
    """Half-precision logits in float32, others unchanged."""
    # float16 ends at 65504: the sum over a batch would overflow before the division.
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


def _sums(
    log_prob: Tensor, target: Tensor, weight: Tensor | None, smoothing: float, share: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Numerator and denominator of the mean over the batch, each image weighted by its proportion."""
    check_shapes(log_prob, target)
    target = target.long()
    if weight is not None:
        weight = spread_classes(weight.to(log_prob), log_prob.shape[-1])
    mass = torch.ones_like(log_prob[:, 0]) if weight is None else weight[target]
    loss = -mass * log_prob.gather(1, target.unsqueeze(1)).squeeze(1)
    if smoothing:
        weighted = log_prob if weight is None else log_prob * weight
        loss = (1 - smoothing) * loss - smoothing * weighted.mean(1)
    if share is not None:
        loss, mass = share * loss, share * mass
    return loss.sum(), mass.sum()


def check_shapes(logits: Tensor, target: Tensor) -> None:
    """Raise an error unless these are logits (B, K) with labels (B,)."""
    if logits.ndim != 2 or target.shape != logits.shape[:1]:
        shapes = f"{tuple(logits.shape)} and {tuple(target.shape)}"
        raise InputError(f"cross entropy needs logits (B, K) and a target (B,), not {shapes}")


class CrossEntropy(nn.Module):
    """`cross_entropy` with fixed class weights (N,) and label smoothing.

    With `start`, the weights are deferred: all are 1 until `on_step` reaches that fraction of the run.
    """

    # Attributes with one value per class, and what messages call them.
    per_class: Mapping[str, str] = MappingProxyType({"weight": "class weights", "deferred": "class weights"})
    weight: Tensor | None
    deferred: Tensor | None

    def __init__(
        self, weight: Tensor | None = None, label_smoothing: float = 0.0, start: float = 0.0
    ) -> None:
        super().__init__()
        if not 0 <= label_smoothing <= 1:
            raise InputError(f"label smoothing must be between 0 and 1, not {label_smoothing}")
        if weight is not None and (weight.ndim != 1 or not bool((weight >= 0).all()) or not weight.any()):
            raise InputError("class weights must be one number per class, none negative, not all zero")
        if not 0 <= start <= 1 or (start and weight is None):
            raise InputError(f"start is a share of the run from which weights count, not {start}")
        # Not saved in checkpoints: the weights belong to the training data, not to the model.
        now = torch.ones_like(weight) if weight is not None and start else weight
        self.register_buffer("weight", now, persistent=False)
        self.register_buffer("deferred", weight if start else None, persistent=False)
        self.label_smoothing, self.start = label_smoothing, start

    def on_step(self, step: int, steps: int) -> None:
        """Call before step number `step` (from 0) of `steps`: sets deferred weights to 1 or to their values.

        The result depends on the step alone. The existing tensor is filled in place, so a compiled step is
        not recompiled.
        """
        if self.deferred is None or self.weight is None:
            return
        if step >= self.start * steps:
            self.weight.copy_(self.deferred)
        else:
            self.weight.fill_(1.0)

    def forward(self, input: Tensor, target: Target) -> Tensor:
        """Logits (B, K) and a hard or mixed target -> scalar."""
        return cross_entropy(input, target, self.weight, self.label_smoothing)

    def of_linear(self, input: Tensor, weight: Tensor, bias: Tensor | None, target: Target) -> Tensor:
        """The same of logits `F.linear(input, weight, bias)`, never all held at once; for many labels.

        A subclass that defines `forward` defines this too, or its logits are computed as a whole.
        """
        return linear_cross_entropy(input, weight, bias, target, self.weight, self.label_smoothing)
