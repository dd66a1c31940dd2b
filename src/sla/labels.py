"""The algebra of joint labels: (class y, view j) is y*M + j. The only module that knows this layout.

It is class-major, so new classes only append labels and those of the old classes do not change.
"""

from typing import NamedTuple, overload

import torch
from torch import Tensor

from sla.errors import InputError


class MixedTarget(NamedTuple):
    """Two hard targets with their proportions: `lam` of `a` and `1 - lam` of `b` (mixup, CutMix)."""

    a: Tensor  # (B,)
    b: Tensor  # (B,)
    lam: Tensor | float  # () or (B,), in [0, 1]


Target = Tensor | MixedTarget


@overload
def join_labels(target: Tensor, num_views: int, views: Tensor | None = None) -> Tensor: ...
@overload
def join_labels(target: MixedTarget, num_views: int, views: Tensor | None = None) -> MixedTarget: ...
def join_labels(target: Target, num_views: int, views: Tensor | None = None) -> Target:
    """Class labels (B,) -> joint labels (B*M,), interleaved as `expand_views` does: y*M + j.

    With `views` (B, k), the view numbers used for each image, (B,) -> (B*k,). Both parents of a
    `MixedTarget` have the same view.
    """
    check_num_views(num_views)
    if isinstance(target, MixedTarget):
        lam = shares(target).expand(target.a.shape)
        lam = lam.repeat_interleave(num_views if views is None else views.shape[1])
        return MixedTarget(
            join_labels(target.a, num_views, views), join_labels(target.b, num_views, views), lam
        )
    if views is None:
        views = torch.arange(num_views, device=target.device)
    elif views.ndim != 2 or views.shape[0] != target.shape[0]:
        raise InputError(
            f"view numbers must be (B, k) for {target.shape[0]} labels, not {tuple(views.shape)}"
        )
    # A joint label may be too large for the integer type of the class labels.
    return (target.long().unsqueeze(1) * num_views + views).flatten()


def split_labels(joint: Tensor, num_views: int) -> tuple[Tensor, Tensor]:
    """Joint labels -> (class labels, views)."""
    check_num_views(num_views)
    return joint // num_views, joint % num_views


def repeat_target(target: Target, count: int) -> Target:
    """Repeat the class label for each of `count` views of an image: (B,) -> (B*count,), interleaved."""
    check_num_views(count)
    if isinstance(target, MixedTarget):
        lam = shares(target).expand(target.a.shape)
        a, b = (part.long().repeat_interleave(count) for part in (target.a, target.b))
        return MixedTarget(a, b, lam.repeat_interleave(count))
    return target.long().repeat_interleave(count)


def split_target(target: Target, parts: int) -> list[Target]:
    """The target of each part of a batch, split as by `tensor_split`."""
    if not isinstance(target, MixedTarget):
        return list(target.tensor_split(parts))
    lam = shares(target).expand(target.a.shape)
    pieces = zip(*(part.tensor_split(parts) for part in (target.a, target.b, lam)), strict=True)
    return [MixedTarget(*piece) for piece in pieces]


def shares(target: MixedTarget) -> Tensor:
    """`lam` as a tensor on the device of the targets, () or (B,)."""
    lam = torch.as_tensor(target.lam, device=target.a.device)
    if lam.shape not in ((), target.a.shape):
        raise InputError(f"lam must be one number or {target.a.shape[0]}, not {tuple(lam.shape)}")
    return lam


def spread_classes(values: Tensor, num_labels: int) -> Tensor:
    """One value per class, (N,) -> one per label, (num_labels,): a joint label inherits its class's value."""
    if num_labels % len(values):
        raise InputError(f"{len(values)} values for classes do not fit {num_labels} labels")
    return values.repeat_interleave(num_labels // len(values))


def by_view(joint_logits: Tensor, num_views: int) -> Tensor:
    """Joint logits (..., N*M) -> (..., N, M)."""
    check_num_views(num_views)
    if joint_logits.shape[-1] % num_views:
        raise InputError(f"{joint_logits.shape[-1]} joint logits are not a multiple of {num_views} views")
    return joint_logits.unflatten(-1, (-1, num_views))


def check_num_views(num_views: int) -> None:
    """Raise an error if the number of views is below one."""
    if num_views < 1:
        raise InputError(f"there must be at least one view, not {num_views}")


@overload
def check_target(target: Tensor, num_classes: int, batch_size: int) -> Tensor: ...
@overload
def check_target(target: MixedTarget, num_classes: int, batch_size: int) -> MixedTarget: ...
def check_target(target: Target, num_classes: int, batch_size: int) -> Target:
    """The target in int64; raise an error unless it has `batch_size` class numbers below `num_classes`.

    Values are checked only if that needs no synchronisation: in eager mode, on the CPU.
    """
    if isinstance(target, MixedTarget):
        a, b = (check_target(part, num_classes, batch_size) for part in (target.a, target.b))
        lam = shares(target)
        if is_readable(lam) and not bool(((lam >= 0) & (lam <= 1)).all()):
            raise InputError(f"lam must be between 0 and 1, not {lam.tolist()}")
        return MixedTarget(a, b, lam)
    if not isinstance(target, Tensor):
        raise InputError(f"target must be a tensor of class numbers, not a {type(target).__name__}")
    wrong_type = target.is_floating_point() or target.is_complex() or target.dtype == torch.bool
    if target.shape != (batch_size,) or wrong_type:
        found = f"{target.dtype} {tuple(target.shape)}"
        raise InputError(f"target must be ({batch_size},) class numbers, not {found}")
    target = target.long()
    if batch_size and is_readable(target):
        low, high = int(target.min()), int(target.max())
        if low < 0 or high >= num_classes:
            wrong = low if low < 0 else high
            raise InputError(
                f"target {wrong} is out of range: {num_classes} classes are 0..{num_classes - 1}"
            )
    return target


def is_readable(values: Tensor) -> bool:
    """Whether values can be checked without waiting for a device or breaking a compiled graph."""
    return values.device.type == "cpu" and not torch.compiler.is_compiling()
