"""Criteria: the loss of logits and hard or mixed targets. One rule fits every method and label space.

A criterion is any callable `(logits (B, K), target) -> scalar`. Values given per class (N,) reach joint
labels (K = N*M) by inheritance: each of a class's M labels has its class's value.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from sla.errors import InputError
from sla.labels import MixedTarget, Target, shares, spread_classes

Criterion = Callable[[Tensor, Target], Tensor]


def cross_entropy(
    input: Tensor, target: Target, weight: Tensor | None = None, label_smoothing: float = 0.0
) -> Tensor:
    r"""Cross entropy for hard and mixed targets, class weights and label smoothing.

    For a hard target y over K labels, with weights w and smoothing e,

        l(y) = (1 - e) * w_y * -log p_y + e/K * sum_c w_c * -log p_c

    and the loss is sum_b l(y_b) / sum_b w_{y_b}, as torch has it. A mixed target takes lam of one parent and
    1 - lam of the other in the numerator and in the denominator alike.

    Args:
        input: logits (B, K).
        target: (B,) labels below K, or a `MixedTarget` of two.
        weight: (N,), K a multiple of N.
        label_smoothing: e in [0, 1].

    Logits of half precision are summed in float32, and so is their loss.
    """
    log_prob = log_probabilities(input)
    labels = None if weight is None else spread_classes(weight.to(log_prob), input.shape[-1])
    if not isinstance(target, MixedTarget):
        loss, mass = _sums(log_prob, target, labels, label_smoothing, None)
        return loss / mass
    lam = shares(target).to(log_prob)
    loss_a, mass_a = _sums(log_prob, target.a, labels, label_smoothing, lam)
    loss_b, mass_b = _sums(log_prob, target.b, labels, label_smoothing, 1 - lam)
    return (loss_a + loss_b) / (mass_a + mass_b)


def log_probabilities(logits: Tensor) -> Tensor:
    """The log softmax over the last dimension, in float32 where logits are of half precision."""
    # Half precision ends at 65504: the sum over a batch would overflow before it is divided.
    half = logits.dtype in (torch.float16, torch.bfloat16)
    return logits.log_softmax(-1, dtype=torch.float32 if half else None)


def _sums(
    log_prob: Tensor, target: Tensor, weight: Tensor | None, smoothing: float, share: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Numerator and denominator of the mean over the batch, each image counted by its share."""
    if log_prob.ndim != 2 or target.shape != log_prob.shape[:1]:
        shapes = f"{tuple(log_prob.shape)} and {tuple(target.shape)}"
        raise InputError(f"cross entropy needs logits (B, K) and a target (B,), not {shapes}")
    target = target.long()
    mass = torch.ones_like(log_prob[:, 0]) if weight is None else weight[target]
    loss = -mass * log_prob.gather(1, target.unsqueeze(1)).squeeze(1)
    if smoothing:
        weighted = log_prob if weight is None else log_prob * weight
        loss = (1 - smoothing) * loss - smoothing * weighted.mean(1)
    if share is not None:
        loss, mass = share * loss, share * mass
    return loss.sum(), mass.sum()


class CrossEntropy(nn.Module):
    """`cross_entropy` with its class weights (N,) and label smoothing kept."""

    weight: Tensor | None

    def __init__(self, weight: Tensor | None = None, label_smoothing: float = 0.0) -> None:
        super().__init__()
        if not 0 <= label_smoothing <= 1:
            raise InputError(f"label smoothing must be between 0 and 1, not {label_smoothing}")
        if weight is not None and (weight.ndim != 1 or not bool((weight >= 0).all()) or not weight.any()):
            raise InputError("class weights must be one number a class, none negative, not all zero")
        # Not part of a checkpoint: weights follow from the training data, not from the model.
        self.register_buffer("weight", weight, persistent=False)
        self.label_smoothing = label_smoothing

    def forward(self, input: Tensor, target: Target) -> Tensor:
        """Logits (B, K) and a hard or mixed target -> scalar."""
        return cross_entropy(input, target, self.weight, self.label_smoothing)
