"""Criteria for imbalanced classes, from the number of training images per class: weights, margins, priors.

Counts (N,) are per class. Joint labels inherit the values of their class, so each criterion works with any
method: repeating the count of a class for its M labels does not change weights and margins, and shifts log
priors by a constant, which does not affect a softmax.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from sla.criteria import (
    Criterion,
    CrossEntropy,
    check_shapes,
    cross_entropy,
    log_probabilities,
    mean_over_labels,
    without_half,
)
from sla.errors import InputError
from sla.heads import SCALE
from sla.labels import Target, spread_classes
from sla.linear_loss import linear_cross_entropy

BETA = 0.9999  # of the effective number of images
LARGEST_MARGIN = 0.5  # of the rarest class

ABSENT = -1e4  # log prior of a class without images
Counts = Sequence[int] | Tensor


def class_balanced_weights(counts: Counts, beta: float = BETA) -> Tensor:
    """w_c = (1 - beta) / (1 - beta^n_c), the inverse of the effective number, scaled to sum to N; (N,)."""
    if not 0 <= beta < 1:
        raise InputError(f"beta must be at least 0 and below 1, not {beta}")
    numbers = check_counts(counts)
    # 1 - beta^n, without cancellation for small n.
    effective = -torch.expm1(numbers * math.log(beta)) if beta else torch.ones_like(numbers)
    weights = 1 / effective
    return (weights * len(weights) / weights.sum()).float()


def ldam_margins(counts: Counts, largest: float = LARGEST_MARGIN) -> Tensor:
    """m_c = largest * n_c^(-1/4) / max_k n_k^(-1/4): the rarer the class, the larger its margin; (N,)."""
    if not 0 <= largest < math.inf:
        raise InputError(f"the largest margin must be at least 0, not {largest}")
    numbers = check_counts(counts)
    return (largest * (numbers.min() / numbers) ** 0.25).float()


def log_priors(counts: Counts) -> Tensor:
    """log(n_c / sum_k n_k), (N,)."""
    numbers = check_counts(counts)
    return (numbers.log() - numbers.sum().log()).float()


def check_counts(counts: Counts) -> Tensor:
    """Images per class in float64, (N,); raises an error for a class without any."""
    numbers = torch.as_tensor(counts, dtype=torch.float64).cpu()
    if numbers.ndim != 1 or not len(numbers):
        raise InputError(f"counts must be one number per class, not of shape {tuple(numbers.shape)}")
    wrong = ((numbers >= 1) & numbers.isfinite()).logical_not().nonzero().flatten().tolist()
    if wrong:
        found, more = f"{numbers[wrong[0]]:g}", f" ({len(wrong) - 1} more like it)" if len(wrong) > 1 else ""
        raise InputError(
            f"class {wrong[0]} has {found} training images{more}: its weight or margin needs at least one"
        )
    return numbers


def ldam(
    input: Tensor,
    target: Target,
    margins: Tensor,
    scale: float = SCALE,
    weight: Tensor | None = None,
    label_smoothing: float = 0.0,
) -> Tensor:
    """Cross entropy after subtracting scale * m_y from the target's logit (label-distribution-aware margin).

    Args:
        input: logits (B, K) of a cosine head, scale * cos.
        target: (B,) labels below K, or a `MixedTarget`: each parent has its own margin.
        margins: (N,), K a multiple of N; see `ldam_margins`.
        scale: of the head.
        weight: (N,) class weights.
        label_smoothing: as in `cross_entropy`, on the logits after subtracting the margin.
    """
    logits = without_half(input)
    shifts = scale * spread_classes(margins.to(logits), logits.shape[-1])

    def scores(labels: Tensor) -> Tensor:
        check_shapes(logits, labels)
        columns = labels.long().unsqueeze(1)
        return logits.scatter_add(1, columns, -shifts[columns]).log_softmax(-1)

    return mean_over_labels(scores, target, weight, label_smoothing)


def focal_loss(
    input: Tensor,
    target: Target,
    gamma: float = 2.0,
    weight: Tensor | None = None,
    label_smoothing: float = 0.0,
) -> Tensor:
    """Cross entropy with (1 - p)^gamma * -log p in place of -log p: confident predictions count little."""
    log_prob = log_probabilities(input)
    # At p = 1 the gradient of a power below 1 is infinite; that of the clamp is 0.
    unsure = (-torch.expm1(log_prob)).clamp(min=torch.finfo(log_prob.dtype).tiny)
    scores = unsure**gamma * log_prob
    return mean_over_labels(lambda labels: scores, target, weight, label_smoothing)


def logit_adjusted_loss(
    input: Tensor,
    target: Target,
    log_prior: Tensor,
    tau: float = 1.0,
    weight: Tensor | None = None,
    label_smoothing: float = 0.0,
) -> Tensor:
    """Cross entropy of logits + tau * log prior (N,): the logits themselves then fit balanced classes.

    Inference uses the unadjusted logits.
    """
    logits = without_half(input)
    shift = tau * spread_classes(log_prior.to(logits), logits.shape[-1])
    return cross_entropy(logits + shift, target, weight, label_smoothing)


class LDAM(CrossEntropy):
    """`ldam` with margins from counts (N,), for a cosine head; with `weight` and `start`, LDAM-DRW."""

    per_class: Mapping[str, str] = MappingProxyType({**CrossEntropy.per_class, "margins": "margins"})
    margins: Tensor

    def __init__(
        self,
        counts: Counts,
        weight: Tensor | None = None,
        label_smoothing: float = 0.0,
        start: float = 0.0,
        largest: float = LARGEST_MARGIN,
    ) -> None:
        super().__init__(weight, label_smoothing, start)
        self.register_buffer("margins", ldam_margins(counts, largest), persistent=False)

    def forward(self, input: Tensor, target: Target) -> Tensor:
        """Logits (B, K) of a cosine head and a hard or mixed target -> scalar."""
        return ldam(input, target, self.margins, SCALE, self.weight, self.label_smoothing)

    def of_linear(self, input: Tensor, weight: Tensor, bias: Tensor | None, target: Target) -> Tensor:
        """The same of logits that are never all held at once."""
        margins = SCALE * self.margins
        return linear_cross_entropy(input, weight, bias, target, self.weight, self.label_smoothing, margins)


class Focal(CrossEntropy):
    """`focal_loss` with a fixed gamma."""

    def __init__(
        self,
        gamma: float = 2.0,
        weight: Tensor | None = None,
        label_smoothing: float = 0.0,
        start: float = 0.0,
    ) -> None:
        super().__init__(weight, label_smoothing, start)
        if not 0 <= gamma < math.inf:
            raise InputError(f"gamma must be at least 0, not {gamma}")
        self.gamma = gamma

    def forward(self, input: Tensor, target: Target) -> Tensor:
        """Logits (B, K) and a hard or mixed target -> scalar."""
        return focal_loss(input, target, self.gamma, self.weight, self.label_smoothing)


class LogitAdjusted(CrossEntropy):
    """`logit_adjusted_loss` with log priors from counts (N,)."""

    per_class: Mapping[str, str] = MappingProxyType({**CrossEntropy.per_class, "log_prior": "class priors"})
    log_prior: Tensor

    def __init__(
        self,
        counts: Counts,
        tau: float = 1.0,
        weight: Tensor | None = None,
        label_smoothing: float = 0.0,
        start: float = 0.0,
    ) -> None:
        super().__init__(weight, label_smoothing, start)
        self.register_buffer("log_prior", log_priors(counts), persistent=False)
        self.tau = tau

    def forward(self, input: Tensor, target: Target) -> Tensor:
        """Logits (B, K) and a hard or mixed target -> scalar."""
        return logit_adjusted_loss(input, target, self.log_prior, self.tau, self.weight, self.label_smoothing)

    def of_linear(self, input: Tensor, weight: Tensor, bias: Tensor | None, target: Target) -> Tensor:
        """The same of logits that are never all held at once: the log prior is part of the bias."""
        shift = self.tau * spread_classes(self.log_prior.to(weight), len(weight))
        bias = shift if bias is None else bias + shift
        return linear_cross_entropy(input, weight, bias, target, self.weight, self.label_smoothing)


def _adjusted(counts: Counts, smooth: float) -> LogitAdjusted:
    """Classes without images, as a grown model may have, play no part in the loss of the others."""
    numbers = torch.as_tensor(counts)
    adjusted = LogitAdjusted(numbers.clamp(min=1), label_smoothing=smooth)
    adjusted.log_prior[numbers == 0] = ABSENT
    return adjusted


class Declared(NamedTuple):
    """How a criterion is made of (counts (N,), label smoothing, start of deferred weights), and its head."""

    make: Callable[[Counts, float, float], CrossEntropy]
    head: str = "linear"


CRITERIA = {  # by the names of `method.imbalance`
    "none": Declared(lambda counts, smooth, start: CrossEntropy(label_smoothing=smooth)),
    "cb": Declared(lambda counts, smooth, start: CrossEntropy(class_balanced_weights(counts), smooth)),
    "ldam-drw": Declared(
        lambda counts, smooth, start: LDAM(counts, class_balanced_weights(counts), smooth, start),
        "cosine",
    ),
    "focal": Declared(lambda counts, smooth, start: Focal(label_smoothing=smooth)),
    "logit-adjust": Declared(lambda counts, smooth, start: _adjusted(counts, smooth)),
}


def check_head(kind: str, criterion: Criterion) -> None:
    """Raise an error for LDAM on a linear head."""
    if isinstance(criterion, LDAM) and kind != "cosine":
        raise InputError(
            f"LDAM needs a cosine head, not a {kind} one: its margins are parts of a cosine, and "
            "logits without a bound outgrow them: head='cosine' (method.head=cosine)"
        )
