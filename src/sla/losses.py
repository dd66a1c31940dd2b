"""The losses of the paper's equations, as pure functions on logits.

Methods call them with what `head_logits` gives: a tensor, or `LinearLogits`, of which they compute the same
from the features, some rows at a time.
"""

import math
from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sla.criteria import Criterion, CrossEntropy, cross_entropy, log_probabilities
from sla.errors import InputError, nearest
from sla.heads import JointHead, PlainHead
from sla.inference import aggregate_views, average_views, marginal_over_classes, select_view
from sla.labels import MixedTarget, Target, by_view, join_labels, repeat_target
from sla.linear_loss import LARGE, linear_cross_entropy

VIEW_REDUCTIONS = ("mean", "sum")


class LinearLogits:
    """Logits that are too many to hold: their head and features (rows, D), in their place."""

    def __init__(self, head: JointHead, features: Tensor) -> None:
        self.head, self.features = head, features
        self.ndim, self.shape = 2, (features.shape[0], head.weight.shape[0])
        self.device = features.device

    def __getitem__(self, rows: slice) -> "LinearLogits":
        return LinearLogits(self.head, self.features[rows])


Logits = Tensor | LinearLogits


def head_logits(
    head: nn.Module, features: Tensor, target: Target, criterion: Criterion = cross_entropy
) -> Logits:
    """The logits of a head for the losses here; `LinearLogits` where they are too many to hold.

    Args:
        head: its forward is not called where there are too many.
        features: (rows, D).
        target: of the images.
        criterion: too many logits are held nevertheless if it needs them: one of your own without
            `of_linear`, or `Focal`.
    """
    known = isinstance(head, JointHead) and type(head) in (JointHead, PlainHead)
    if known and features.shape[0] * len(head.weight) >= LARGE and _of_linear(criterion, target) is not None:  # type: ignore[arg-type]
        return LinearLogits(head, features)  # type: ignore[arg-type]
    return head(features)


@torch.no_grad()
def first_logits(logits: Logits, num_views: int = 1, count: int = 1, views: Tensor | None = None) -> Tensor:
    """Class logits (B, N) of the first of each image's `count` rows, without gradient.

    Args:
        logits: of `head_logits`, (B*count, N*num_views).
        num_views: M of a joint head; 1 for class logits.
        count: rows per image.
        views: (B, count) view numbers; None if the first row is view 0.
    """
    first = logits[::count]
    if num_views == 1:
        return first.head(first.features) if isinstance(first, LinearLogits) else first.detach()
    if views is None:
        views = torch.zeros(first.shape[0], 1, dtype=torch.long, device=first.device)
    return own_logits(first, num_views, views[:, :1])


@torch.no_grad()
def own_logits(joint_logits: Logits, num_views: int, views: Tensor | None = None) -> Tensor:
    """Class logits (B, N): the mean of each view's own block, without gradient."""
    if isinstance(joint_logits, LinearLogits):
        return joint_logits.head.mean_of_blocks(joint_logits.features, views)
    if views is None:
        return aggregate_views(joint_logits, num_views)
    return average_views(select_view(joint_logits, views.flatten(), num_views).unflatten(0, views.shape))


def apply_criterion(criterion: Criterion, logits: Logits, target: Target) -> Tensor:
    """The criterion of logits (rows, N) and their labels."""
    if not isinstance(logits, LinearLogits):
        loss = criterion(logits, target)
        if not isinstance(loss, Tensor) or loss.ndim:
            name = getattr(criterion, "__name__", type(criterion).__name__)
            found = f"tensor {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
            raise InputError(f"the criterion {name} returned a {found}, not a scalar tensor")
        return loss
    of_linear = _of_linear(criterion, target)
    assert of_linear is not None
    return of_linear(*logits.head.linear_form(logits.features), target)


def sla_loss(
    joint_logits: Logits,
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
    if isinstance(joint_logits, Tensor):
        by_view(joint_logits, num_views)  # refuses columns that are not N*M
    count = num_views if views is None else views.shape[-1]
    _check_rows("joint logits", joint_logits, target, count)
    loss = apply_criterion(criterion, joint_logits, join_labels(target, num_views, views))
    if view_reduction not in VIEW_REDUCTIONS:
        hint = nearest(view_reduction, VIEW_REDUCTIONS)
        raise InputError(f"unknown view_reduction {view_reduction!r}{hint}")
    return loss * count if view_reduction == "sum" else loss


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


def data_augmentation_loss(
    class_logits: Logits, target: Target, num_views: int, criterion: Criterion = cross_entropy
) -> Tensor:
    """L_DA = 1/M sum_j CE(sigma(z_j; u), y): every view keeps the class label. Logits (B*M, N)."""
    _check_rows("class logits", class_logits, target, num_views)
    return apply_criterion(criterion, class_logits, repeat_target(target, num_views))


def multi_task_loss(
    class_logits: Logits,
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
    of_class, of_view = multi_task_parts(class_logits, view_logits, target, num_views, criterion, views)
    return of_class + of_view


def multi_task_parts(
    class_logits: Logits,
    view_logits: Tensor,
    target: Target,
    num_views: int,
    criterion: Criterion = cross_entropy,
    views: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The two terms of `multi_task_loss`: of the class and of the view."""
    count = num_views if views is None else views.shape[-1]
    of_class = data_augmentation_loss(class_logits, target, count, criterion)
    wanted, found = (class_logits.shape[0], num_views), tuple(view_logits.shape)
    if found != wanted:
        raise InputError(f"view logits must be {wanted}, not {found}")
    return of_class, view_loss(view_logits, views)


def distillation_loss(
    joint_logits: Logits,
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
    return teacher_loss(own_logits(joint_logits, num_views, views), student_logits, temperature)


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


def marginal_view_loss(joint_logits: Tensor, num_views: int, views: Tensor | None = None) -> Tensor:
    """1/M sum_j -log sum_i P(i, j | x_j): which view is this? For images without labels.

    P is the softmax over all N*M joint labels, summed over the classes i. Where the joint head is a sum of
    two, w_ij = u_i + v_j, this is `view_loss` of the logits v_j.

    Args:
        joint_logits: (B*M, N*M), or (B*k, N*M) with `views` (B, k).
        num_views: M.
        views: as in `sla_loss`.
    """
    return view_loss(marginal_over_classes(joint_logits, num_views), views)


def consistency_loss(
    joint_logits: Tensor, answers: Tensor, num_views: int, confidence: float, views: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The joint loss of images without labels, whose class is a confident answer; and the share of those.

    1/B sum_b [max_i p_bi >= c] 1/M sum_j CE(rho(z_bj), (argmax_i p_bi, j)), p = softmax(answers): images
    whose answer is less confident count as 0.

    Args:
        joint_logits: (B*M, N*M) of images that were augmented strongly, or (B*k, N*M) with `views` (B, k).
        answers: (B, N) class logits of the same images, augmented weakly; no gradient flows into them.
        num_views: M.
        confidence: c, from 0 to 1.
        views: as in `sla_loss`.
    """
    count = num_views if views is None else views.shape[-1]
    probability, answer = answers.detach().softmax(-1).max(-1)
    _check_rows("joint logits", joint_logits, answer, count)
    wanted = join_labels(answer, num_views, views).unsqueeze(1)
    losses = -log_probabilities(joint_logits).gather(1, wanted).unflatten(0, (-1, count)).mean((1, 2))
    confident = (probability >= confidence).to(losses)
    return (confident * losses).mean(), confident.mean()


def growth_loss(before: Mapping[str, Tensor], now: Mapping[str, Tensor], temperature: float = 1.0) -> Tensor:
    """T^2 KL(sigma(before / T) || sigma(now / T)) among the old labels, summed over the heads.

    Args:
        before: logits (rows, L) of each class head before it grew, by name.
        now: logits (rows, L') of the same heads now, on the same rows: the first L labels are the old ones.
        temperature: T.
    """
    return torch.stack(
        [teacher_loss(old, now[name][:, : old.shape[1]], temperature) for name, old in before.items()]
    ).sum()


def _check_rows(what: str, logits: Logits, target: Target, count: int) -> None:
    """Raise an error unless the logits have one row for each of `count` views of each image."""
    labels = target.a if isinstance(target, MixedTarget) else target
    if logits.ndim != 2 or logits.shape[0] != labels.shape[0] * count:
        wanted = f"{labels.shape[0]} images x {count} views"
        raise InputError(f"{what} must have a row for each of {wanted}, not shape {tuple(logits.shape)}")
