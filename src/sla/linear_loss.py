"""Cross entropy of a linear head whose logits are never all in memory: for thousands of labels.

The rows go through a part at a time. A part's logits become its probabilities and then its gradient, in one
buffer, and the gradients of features and head are summed up in the forward pass: three matrix products per
row as in plain cross entropy, and exact. Only the factor of the backward pass is left for later.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from sla.errors import InputError
from sla.labels import MixedTarget, Target, shares, spread_classes

LARGE = 1 << 22  # logits from which on the parts pay: below, plain cross entropy is as fast and holds 50 MB
PARTS = 6  # of a batch, if they are not too small to be fast or larger than is of use; two at least
LEAST_ROWS, MOST_ROWS = 48, 256  # of a part
BLOCK = 4096  # labels of the head's gradient that are summed up at a time in half precision


def linear_cross_entropy(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Target,
    class_weight: Tensor | None = None,
    label_smoothing: float = 0.0,
    margins: Tensor | None = None,
) -> Tensor:
    """`cross_entropy(F.linear(input, weight, bias), target, ...)` in the memory of some rows of logits.

    Differentiable once, in features, weight and bias.

    Args:
        input: features (B, D).
        weight: of the head, (K, D).
        bias: (K,) or None.
        target: (B,) labels below K, or a `MixedTarget` of two.
        class_weight: (N,), K a multiple of N; `weight` of `cross_entropy`.
        label_smoothing: as in `cross_entropy`.
        margins: (N,) to subtract from the logit of each parent's label, as in `ldam`; times the scale.
    """
    labels, wide = weight.shape[0], torch.promote_types(input.dtype, torch.float32)
    parents = _parents(target, input, wide)
    per_label = None if class_weight is None else spread_classes(class_weight.to(wide), labels)
    shift = None if margins is None else spread_classes(margins.to(wide), labels)
    smooth = None
    if label_smoothing:
        even = torch.ones(labels, dtype=wide, device=input.device) if per_label is None else per_label
        smooth = even * (label_smoothing / labels)
    masses = [share if per_label is None else share * per_label[label] for label, share in parents]
    terms = [((1 - label_smoothing) * mass, label) for mass, (label, _) in zip(masses, parents, strict=True)]
    mass = torch.stack([each.sum() for each in masses]).sum()
    device, compute = input.device.type, input.dtype
    casts = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
    if casts:
        compute = torch.get_autocast_dtype(device)
    how = (compute, torch.is_grad_enabled())
    with torch.autocast(device, enabled=False) if casts else nullcontext():
        if shift is None:
            flat = [part for term in terms for part in term] + [None, None] * (2 - len(terms))
            loss = _Sum.apply(input, weight, bias, *flat, smooth, None, None, *how)
        else:  # the margin differs by parent, so each has a softmax of its own
            each = [
                _Sum.apply(input, weight, bias, *term, None, None, smooth, share, shift[term[1]], *how)
                for term, (_, share) in zip(terms, parents, strict=True)
            ]
            loss = torch.stack(each).sum()
    return loss / mass


def _parents(target: Target, input: Tensor, wide: torch.dtype) -> list[tuple[Tensor, Tensor]]:
    """Labels (B,) and their shares (B,), of one parent or two."""
    hard = (target.a, target.b) if isinstance(target, MixedTarget) else (target,)
    for labels in hard:
        if input.ndim != 2 or labels.shape != input.shape[:1]:
            shapes = f"{tuple(input.shape)} and {tuple(labels.shape)}"
            raise InputError(f"cross entropy needs features (B, D) and a target (B,), not {shapes}")
    if not isinstance(target, MixedTarget):
        return [(target.long(), torch.ones(target.shape, dtype=wide, device=input.device))]
    lam = shares(target).to(input.device, wide).expand(target.a.shape)
    return [(target.a.long(), lam), (target.b.long(), 1 - lam)]


class _Sum(torch.autograd.Function):
    """The loss summed over the rows, each with its factors."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> Tensor:
        *tensors, compute, training = given
        ctx.compute, ctx.wanted = compute, [training and needed for needed in ctx.needs_input_grad[:3]]
        ctx.save_for_backward(*tensors)
        loss, ctx.gradients = _sum_and_gradients(tensors, compute, ctx.wanted)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *outer: Tensor) -> tuple[Any, ...]:
        (factor,) = outer
        gradients, ctx.gradients = ctx.gradients, None
        if gradients is None:  # a second backward pass (retain_graph): the first has used them up
            _, gradients = _sum_and_gradients(ctx.saved_tensors, ctx.compute, ctx.wanted)
        # In place: another copy of the head's gradient would be as large as the logits.
        scaled = [None if each is None else each.mul_(factor) for each in gradients]
        return (*scaled, *[None] * 9)


def _sum_and_gradients(
    tensors: Sequence[Any], compute: torch.dtype, wanted: list[bool]
) -> tuple[Tensor, list[Tensor | None]]:
    """sum_r first_r * -log p_a + second_r * -log p_b + share_r * sum_c smooth_c * -log p_c; its gradients.

    The gradient of a row's logits is (first + second + share * sum smooth) * p, less first at label a,
    second at label b, and share * smooth. `shift` (B,) is subtracted from the logits at label a beforehand.
    """
    features, weight, bias, first, first_label, second, second_label, smooth, share, shift = tensors
    rows, wide = len(features), first.dtype
    narrow, matrix = features.to(compute), weight.to(compute)
    offset = None if bias is None else bias.to(compute)
    made = [
        torch.zeros_like(tensor, dtype=wide) if tensor is not None and want else None
        for tensor, want in zip((features, weight, bias), wanted, strict=True)
    ]
    total = first.new_zeros(())
    some = min(max(-(-rows // PARTS), min(LEAST_ROWS, -(-rows // 2))), MOST_ROWS)
    for start in range(0, rows, some):
        part = slice(start, start + some)
        terms = [(first_label[part, None], first[part, None])]
        if second is not None:
            terms.append((second_label[part, None], second[part, None]))
        own = torch.ones_like(first[part]) if share is None else share[part]
        logits = F.linear(narrow[part], matrix, offset).to(wide)
        if shift is not None:
            logits.scatter_add_(1, terms[0][0], -shift[part, None])
        total = total + _differentiate_(logits, terms, smooth, own)
        if any(wanted):
            _add_products(made, part, logits, narrow[part], matrix)
        del logits  # before the next part's are made
    return total, made


def _differentiate_(
    logits: Tensor, terms: list[tuple[Tensor, Tensor]], smooth: Tensor | None, own: Tensor
) -> Tensor:
    """The loss summed over some rows; in place of their logits, its gradient."""
    logits.sub_(logits.amax(1, keepdim=True))
    factor = torch.stack([mass for _, mass in terms]).sum(0)
    loss = -torch.stack([mass * logits.gather(1, label) for label, mass in terms]).sum(0)
    if smooth is not None:
        factor = factor + own[:, None] * smooth.sum()
        loss = loss - (own * (logits @ smooth))[:, None]
    sums = logits.exp_().sum(1, keepdim=True)
    logits.mul_(factor / sums)
    for label, mass in terms:
        logits.scatter_add_(1, label, -mass)
    if smooth is not None:
        logits.addr_(own, smooth, alpha=-1)
    return (loss + factor * sums.log()).sum()


def _add_products(
    made: list[Tensor | None], part: slice, gradient: Tensor, features: Tensor, matrix: Tensor
) -> None:
    """Add what a part's logits, whose gradient is given, contribute to those of features, weight and bias."""
    of_features, of_weight, of_bias = made
    if of_bias is not None:
        of_bias.add_(gradient.sum(0))
    gradient = gradient.to(matrix.dtype)
    if of_features is not None:
        of_features[part] = (gradient @ matrix).to(of_features.dtype)
    if of_weight is None:
        return
    if matrix.dtype == of_weight.dtype:
        of_weight.addmm_(gradient.mT, features)
        return
    for some, columns in zip(of_weight.split(BLOCK), gradient.split(BLOCK, 1), strict=True):
        some.add_(columns.mT @ features)
