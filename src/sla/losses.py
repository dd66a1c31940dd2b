"""The losses of the paper's equations, as pure functions on logits."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sla.criteria import Criterion, CrossEntropy, cross_entropy, log_probabilities
from sla.errors import InputError, nearest
from sla.heads import JointHead, PlainHead
from sla.inference import aggregate_views, average_views, select_view
from sla.labels import MixedTarget, Target, by_view, join_labels, repeat_target
from sla.linear_loss import LARGE, linear_cross_entropy

VIEW_REDUCTIONS = ("mean", "sum")


def sla_loss(
    joint_logits: Tensor,
    target: Target,
    num_views: int,
    criterion: Criterion = cross_entropy,
    view_reduction: str = "mean",
    views: Tensor | None = None,
) -> Tensor:
    """L_SLA = 1/M sum_j CE(rho(z_j), (y, j)): one cross entropy over all N*M joint labels.

    Args:
        joint_logits: (B*M, N*M), interleaved in the order of `expand_views`.
        target: (B,) class labels, or a `MixedTarget`.
        num_views: M.
        criterion: any criterion; it is called with joint logits and joint labels.
        view_reduction: "sum" omits the 1/M, as is done at ImageNet scale.
        views: (B, k), if only these views of each image are used; joint_logits is then (B*k, N*M).
    """
    by_view(joint_logits, num_views)  # refuses columns that are not N*M
    _check_rows("joint logits", joint_logits, target, num_views if views is None else views.shape[-1])
    loss = criterion(joint_logits, join_labels(target, num_views, views))
    return _reduce_views(loss, view_reduction, num_views if views is None else views.shape[1])


def sla_head_loss(
    head: JointHead,
    features: Tensor,
    target: Target,
    criterion: Criterion = cross_entropy,
    view_reduction: str = "mean",
    views: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """`sla_loss` of a joint head and features (B*M, D), and its logits as `head_loss` gives them."""
    count = head.num_views if views is None else views.shape[-1]
    _check_rows("features", features, target, count)
    loss, logits = head_loss(head, features, join_labels(target, head.num_views, views), criterion)
    return _reduce_views(loss, view_reduction, count), logits


def head_loss(
    head: nn.Module, features: Tensor, target: Target, criterion: Criterion = cross_entropy
) -> tuple[Tensor, Tensor | None]:
    """The criterion of a head's logits, and these; None in place of logits that are too many to hold.

    Args:
        head: its forward is not called where there are too many.
        features: (rows, D).
        target: labels of the head, (rows,), or a `MixedTarget`.
        criterion: too many logits are held nevertheless if it needs them: one of your own without
            `of_linear`, or `Focal`.
    """
    of_linear = _of_linear(criterion, target)
    known = isinstance(head, JointHead) and type(head) in (JointHead, PlainHead)
    if known and of_linear is not None and features.shape[0] * len(head.weight) >= LARGE:  # type: ignore[arg-type]
        return of_linear(*head.linear_form(features), target), None  # type: ignore[operator]
    logits = head(features)
    return criterion(logits, target), logits


def first_logits(
    head: nn.Module, features: Tensor, logits: Tensor | None, count: int = 1, views: Tensor | None = None
) -> Tensor:
    """Class logits (B, N) of the first of each image's `count` rows, without gradient.

    Args:
        head: joint or plain.
        features: (B*count, D).
        logits: of `head_loss`.
        count: rows per image.
        views: (B, count) view numbers; None if the first row is view 0.
    """
    if not isinstance(head, JointHead) or head.num_views == 1:
        with torch.no_grad():
            return head(features[::count]) if logits is None else logits[::count].detach()
    first = None if logits is None else logits[::count]
    if views is None:
        views = torch.zeros(features.shape[0] // count, 1, dtype=torch.long, device=features.device)
    return own_logits(head, features[::count], first, views[:, :1])


@torch.no_grad()
def own_logits(
    head: JointHead, features: Tensor, joint_logits: Tensor | None, views: Tensor | None = None
) -> Tensor:
    """Class logits (B, N): the mean of each view's own block, without gradient.

    From the joint logits of `sla_head_loss`, or from the features where it held none.
    """
    if joint_logits is None:
        return head.mean_of_blocks(features, views)
    if views is None:
        return aggregate_views(joint_logits, head.num_views)
    return average_views(select_view(joint_logits, views.flatten(), head.num_views).unflatten(0, views.shape))


def _of_linear(criterion: Criterion, target: Target) -> Callable[..., Tensor] | None:
    """How to compute this criterion without all logits, if there is a way."""
    if isinstance(target, MixedTarget) and isinstance(target.lam, Tensor) and target.lam.requires_grad:
        return None
    if criterion is cross_entropy:
        return linear_cross_entropy
    if not isinstance(criterion, CrossEntropy) or any(p.requires_grad for p in criterion.parameters()):
        return None
    # Not one that is inherited: it would be the loss of the parent class.
    return criterion.of_linear if "of_linear" in vars(type(criterion)) else None


def _reduce_views(loss: Tensor, view_reduction: str, count: int) -> Tensor:
    if view_reduction not in VIEW_REDUCTIONS:
        hint = nearest(view_reduction, VIEW_REDUCTIONS)
        raise InputError(f"unknown view_reduction {view_reduction!r}{hint}")
    return loss * count if view_reduction == "sum" else loss


def data_augmentation_loss(
    class_logits: Tensor, target: Target, num_views: int, criterion: Criterion = cross_entropy
) -> Tensor:
    """L_DA = 1/M sum_j CE(sigma(z_j; u), y): every view keeps the class label. Logits (B*M, N)."""
    _check_rows("class logits", class_logits, target, num_views)
    return criterion(class_logits, repeat_target(target, num_views))


def multi_task_loss(
    class_logits: Tensor,
    view_logits: Tensor,
    target: Target,
    num_views: int,
    criterion: Criterion = cross_entropy,
    views: Tensor | None = None,
) -> Tensor:
    """L_MT = L_DA + 1/M sum_j CE(sigma(z_j; v), j). Logits (B*M, N) and (B*M, M).

    The criterion applies to the classes; the view is always learnt with plain cross entropy. With
    `views` (B, k), as in `sla_loss`, there are k rows per image.
    """
    count = num_views if views is None else views.shape[-1]
    loss = data_augmentation_loss(class_logits, target, count, criterion)
    if view_logits.shape != (class_logits.shape[0], num_views):
        wanted, found = (class_logits.shape[0], num_views), tuple(view_logits.shape)
        raise InputError(f"view logits must be {wanted}, not {found}")
    return loss + view_loss(view_logits, views)


def distillation_loss(
    joint_logits: Tensor,
    student_logits: Tensor,
    num_views: int,
    temperature: float = 1.0,
    views: Tensor | None = None,
) -> Tensor:
    """KL(P_aggregated || sigma(z; u)), mean over the batch, times T^2; no gradient flows through the teacher.

    Args:
        joint_logits: (B*M, N*M), or (B*k, N*M) with `views` (B, k).
        student_logits: (B, N), of the unchanged images.
        num_views: M.
        temperature: T divides both logits.
        views: as in `sla_loss`.
    """
    if views is None:
        teacher = aggregate_views(joint_logits.detach(), num_views)
    else:
        own = select_view(joint_logits.detach(), views.flatten(), num_views)
        teacher = average_views(own.unflatten(0, views.shape))
    return teacher_loss(teacher, student_logits, temperature)


def teacher_loss(teacher_logits: Tensor, student_logits: Tensor, temperature: float = 1.0) -> Tensor:
    """KL(sigma(teacher) || sigma(student)), mean over the batch, times T^2, of class logits (B, N) each."""
    if not 0 < temperature < math.inf:
        raise InputError(f"temperature must be a number above 0, not {temperature}")
    if student_logits.shape != teacher_logits.shape:
        shapes = f"{tuple(teacher_logits.shape)}, not {tuple(student_logits.shape)}"
        raise InputError(f"student logits must be (B, N) as the aggregated ones, {shapes}")
    both = (student_logits, teacher_logits.detach())
    student, teacher = (log_probabilities(x / temperature) for x in both)
    return F.kl_div(student, teacher, reduction="batchmean", log_target=True) * temperature**2


def view_loss(view_logits: Tensor, views: Tensor | None = None) -> Tensor:
    """1/M sum_j CE(sigma(z_j; v), j): which view is this? Logits (B*M, M), interleaved; `views` (B, k)."""
    if views is not None:
        return cross_entropy(view_logits, views.flatten())
    if view_logits.ndim != 2 or view_logits.shape[0] % max(view_logits.shape[1], 1):
        raise InputError(f"view logits must be (B*M, M), not {tuple(view_logits.shape)}")
    num_views = view_logits.shape[1]
    numbers = torch.arange(num_views, device=view_logits.device)
    return cross_entropy(view_logits, numbers.repeat(view_logits.shape[0] // num_views))


def _check_rows(what: str, logits: Tensor, target: Target, count: int) -> None:
    """Raise an error unless the logits have one row for each of `count` views of each image."""
    labels = target.a if isinstance(target, MixedTarget) else target
    if logits.ndim != 2 or logits.shape[0] != labels.shape[0] * count:
        wanted = f"{labels.shape[0]} images x {count} views"
        raise InputError(f"{what} must have a row for each of {wanted}, not shape {tuple(logits.shape)}")
