"""The losses of the paper's equations, as pure functions on logits."""

import torch
import torch.nn.functional as F
from torch import Tensor

from sla.criteria import Criterion, cross_entropy
from sla.errors import InputError, nearest
from sla.inference import aggregate_views, average_views, select_view
from sla.labels import Target, join_labels, repeat_target

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
        joint_logits: (B*M, N*M), interleaved as `expand_views` lays the images out.
        target: (B,) class labels, or a `MixedTarget`.
        num_views: M.
        criterion: any criterion; it sees joint logits and joint labels.
        view_reduction: "sum" leaves out the 1/M, as is done at ImageNet scale.
        views: (B, k), when each image was seen through these views only; joint_logits is then (B*k, N*M).
    """
    loss = criterion(joint_logits, join_labels(target, num_views, views))
    if view_reduction == "mean":
        return loss
    if view_reduction == "sum":
        return loss * (num_views if views is None else views.shape[1])
    raise InputError(f"unknown view_reduction {view_reduction!r}{nearest(view_reduction, VIEW_REDUCTIONS)}")


def data_augmentation_loss(
    class_logits: Tensor, target: Target, num_views: int, criterion: Criterion = cross_entropy
) -> Tensor:
    """L_DA = 1/M sum_j CE(sigma(z_j; u), y): every view keeps the class label. Logits (B*M, N)."""
    return criterion(class_logits, repeat_target(target, num_views))


def multi_task_loss(
    class_logits: Tensor,
    view_logits: Tensor,
    target: Target,
    num_views: int,
    criterion: Criterion = cross_entropy,
) -> Tensor:
    """L_MT = L_DA + 1/M sum_j CE(sigma(z_j; v), j). Logits (B*M, N) and (B*M, M).

    The criterion is for classes; the view is always learnt by plain cross entropy.
    """
    return data_augmentation_loss(class_logits, target, num_views, criterion) + view_loss(view_logits)


def distillation_loss(
    joint_logits: Tensor,
    student_logits: Tensor,
    num_views: int,
    temperature: float = 1.0,
    views: Tensor | None = None,
) -> Tensor:
    """KL(P_aggregated || sigma(z; u)), mean over the batch, times T^2; the teacher carries no gradient.

    Args:
        joint_logits: (B*M, N*M), or (B*k, N*M) with `views` (B, k).
        student_logits: (B, N), of the plain images.
        num_views: M.
        temperature: T divides both logits.
        views: as in `sla_loss`.
    """
    if views is None:
        teacher = aggregate_views(joint_logits.detach(), num_views)
    else:
        own = select_view(joint_logits.detach(), views.flatten(), num_views)
        teacher = average_views(own.unflatten(0, views.shape))
    student, teacher = (x.div(temperature).log_softmax(-1) for x in (student_logits, teacher))
    return F.kl_div(student, teacher, reduction="batchmean", log_target=True) * temperature**2


def view_loss(view_logits: Tensor) -> Tensor:
    """1/M sum_j CE(sigma(z_j; v), j): which view is this? Logits (B*M, M), interleaved."""
    num_views = view_logits.shape[1]
    views = torch.arange(num_views, device=view_logits.device)
    return cross_entropy(view_logits, views.repeat(view_logits.shape[0] // num_views))
