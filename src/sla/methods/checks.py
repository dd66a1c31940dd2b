"""What a method of one's own returns, checked: one line that says what was wrong and what would be right.

Only types and shapes are checked: no value is read, so no step waits for a device.
"""

from torch import Tensor, nn

from sla.errors import InputError
from sla.labels import MixedTarget, Target
from sla.methods.base import Method, StepContext
from sla.methods.distilled import Distilled


def compute_losses(
    method: Method, heads: nn.ModuleDict, features: Tensor, target: Target, context: StepContext, classes: int
) -> dict[str, Tensor]:
    """The losses of a method, of which `loss` must have a gradient and `output` be class logits (B, N)."""
    what = f"{type(method).__name__}.losses"
    if context.memory is not None and context.indices is None:
        raise InputError("a memory is of training images: pass their places, StepContext(indices=...), too")
    if context.memory is None and type(method).build_memory is not Method.build_memory:
        losses = _without_memory(method, heads, features, target, context)
    else:
        losses = method.losses(heads, features, target, context)
    check_losses(losses, what, "loss", "output")
    count = len(target.a if isinstance(target, MixedTarget) else target)
    if losses["output"].shape != (count, classes):
        found = tuple(losses["output"].shape)
        raise InputError(f"{what}: 'output' is a tensor {found}, not class logits {(count, classes)}")
    if features.requires_grad and not losses["loss"].requires_grad:
        raise InputError(f"{what}: 'loss' has no gradient, so nothing can be learnt: do not detach it")
    return losses


def create_memory(method: Method, num_images: int, num_classes: int) -> nn.Module | None:
    """The memory of a method, None if it has none."""
    memory = method.build_memory(num_images, num_classes)
    if not isinstance(memory, nn.Module | None):
        what = f"{type(method).__name__}.build_memory returned a {type(memory).__name__}"
        raise InputError(f"{what}, not a module with buffers, which checkpoints can keep")
    return memory


def refuse_teacher(method: Method, where: str) -> None:
    """Raise an error for a method that learns from a teacher, which only `sla.fit` has."""
    if isinstance(method, Distilled):
        raise InputError(
            f"{type(method).__name__} learns from a teacher, which {where} does not have: sla.fit trains it, "
            "or take sla+sd"
        )


def check_losses(losses: object, what: str, *names: str) -> None:
    """Raise an error unless this is a dict of scalar tensors, `output` apart, that has these names."""
    if not isinstance(losses, dict):
        raise InputError(f"{what} returned a {type(losses).__name__}, not a dict with {' and '.join(names)}")
    for name in names:
        if name not in losses:
            there = ", ".join(map(repr, losses)) or "nothing"
            raise InputError(f"{what}: its dict lacks {name!r}; it has {there}")
    for name, value in losses.items():
        if not isinstance(name, str):
            raise InputError(f"{what}: the name of a part of the loss is a text, not {name!r}")
        if not isinstance(value, Tensor):
            raise InputError(f"{what}: {name!r} is a {type(value).__name__}, not a tensor")
        if name != "output" and (value.ndim or not value.is_floating_point()):
            found = f"{value.dtype} {tuple(value.shape)}"
            raise InputError(f"{what}: {name!r} is {found}, not a scalar: average over the images")


def check_logits(logits: object, what: str, num_classes: int) -> None:
    """Raise an error unless these are class logits (B, N)."""
    if not isinstance(logits, Tensor) or logits.shape[1:] != (num_classes,):
        found = tuple(logits.shape) if isinstance(logits, Tensor) else f"a {type(logits).__name__}"
        raise InputError(f"{what} returned {found}, not class logits (B, {num_classes})")


def _without_memory(
    method: Method, heads: nn.ModuleDict, features: Tensor, target: Target, context: StepContext
) -> dict[str, Tensor]:
    """The losses of a step that did not get the memory; a method may do without."""
    try:
        return method.losses(heads, features, target, context)
    except (AttributeError, TypeError) as error:
        if "NoneType" not in str(error):  # of something else than None in its place
            raise
        raise InputError(
            f"{type(method).__name__} keeps a memory of each training image, which this step did not get: "
            "sla.fit passes it; in your own loop call model(images, targets, StepContext(indices=..., "
            "memory=method.build_memory(num_images, num_classes)))"
        ) from error
