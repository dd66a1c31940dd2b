"""From joint logits back to classes: the only module where labels return to the class space."""

import math

import torch
from torch import Tensor

from sla.errors import InputError, nearest
from sla.labels import by_view, check_num_views

INFERENCES = (
    "single",
    "aggregated",
    "anytime",
    "distilled",
)  # of the built-in methods; your own may add others
AVERAGES = ("logits", "probabilities", "marginal")


def select_view(joint_logits: Tensor, view: int | Tensor, num_views: int) -> Tensor:
    """Class logits of images in a known view: (B, N*M) -> (B, N).

    `view` is one number for all, or (B,) numbers. The softmax is P(i | x_j, j), as in single inference.
    """
    blocks = by_view(joint_logits, num_views)
    if isinstance(view, int):
        if not 0 <= view < num_views:
            raise InputError(f"view {view} is out of range: {num_views} views are 0..{num_views - 1}")
        return blocks[..., view]
    if joint_logits.ndim != 2 or view.shape != joint_logits.shape[:1]:
        shapes = f"{tuple(joint_logits.shape)} and {tuple(view.shape)}"
        raise InputError(f"a view for each image needs logits (B, N*M) and numbers (B,), not {shapes}")
    index = view.long().view(-1, 1, 1).expand(-1, blocks.shape[1], 1)
    return blocks.gather(2, index).squeeze(2)


def aggregate_views(joint_logits: Tensor, num_views: int, average: str = "logits") -> Tensor:
    """Class logits from all views of each image, interleaved: (B*M, N*M) -> (B, N).

    average="logits" is the paper's s_i = 1/M sum_j w_ij^T z_j; "probabilities" averages P(i | x_j, j);
    "marginal" averages sum_l P(i, l | x_j), which ignores that the view is known.
    The last two return log probabilities.
    """
    check_average(average)
    check_num_views(num_views)
    if joint_logits.ndim != 2:
        raise InputError(f"joint logits must be (B*M, N*M), not {tuple(joint_logits.shape)}")
    if joint_logits.shape[0] % num_views:
        raise InputError(f"{joint_logits.shape[0]} rows are not a multiple of {num_views} views")
    blocks = by_view(
        joint_logits.unflatten(0, (-1, num_views)), num_views
    )  # (B, M, N, M): view, class, label
    if average == "marginal":
        log_joint = blocks.flatten(2).log_softmax(-1).view_as(blocks)
        return _log_mean_exp(log_joint.logsumexp(-1))
    return average_views(blocks.diagonal(dim1=1, dim2=3).transpose(1, 2), average)


def marginal_over_classes(joint_logits: Tensor, num_views: int) -> Tensor:
    """Log probability of each view, summed over classes: (B, N*M) -> (B, M), log sum_i P(i, j | x)."""
    return by_view(joint_logits.log_softmax(-1), num_views).logsumexp(-2)


def average_views(class_logits: Tensor, average: str = "logits") -> Tensor:
    """Class logits of each view, (B, M, N), averaged over the views: (B, N)."""
    check_average(average)
    if average == "marginal":
        raise InputError("the marginal over views needs the joint logits: only a joint head has them")
    if average == "logits":
        return class_logits.mean(1)
    return _log_mean_exp(class_logits.log_softmax(-1))


def check_inference(inference: str, available: tuple[str, ...]) -> None:
    """Raise an error for an inference that is unknown or that this model was not trained for."""
    if inference in available:
        return
    if inference == "anytime" and "aggregated" in available:
        raise InputError(
            "this model has no anytime rule: one is calibrated on held-out images (docs/anytime.md); "
            f"it has {', '.join(available)} inference"
        )
    if inference in INFERENCES:
        raise InputError(f"this model has no {inference} inference: its method gives {', '.join(available)}")
    raise InputError(f"unknown inference {inference!r}{nearest(inference, available)}")


def check_average(average: str) -> None:
    """Raise an error for an unknown average."""
    if average not in AVERAGES:
        raise InputError(f"unknown average {average!r}{nearest(average, AVERAGES)}")


def _log_mean_exp(log_prob: Tensor) -> Tensor:
    """(B, M, N) -> (B, N): the log of the mean probability."""
    return torch.logsumexp(log_prob, 1) - math.log(log_prob.shape[1])
