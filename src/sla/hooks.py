"""The two hooks of a training loop, found on any module of a model: backbone, head or criterion."""

import torch
from torch import Tensor, nn


def follow_step(model: nn.Module, step: int, steps: int) -> None:
    """Call `on_step(step, steps)` on every module that has it, before step number `step` of `steps`, from 0.

    Call it once more after the last step, with step == steps: that is the state the model is kept in.
    What a module does there must follow from the two numbers alone, so that a resumed run is the same run.
    """
    for module in model.modules():
        if hasattr(module, "on_step"):
            module.on_step(step, steps)  # type: ignore[operator]


def wants_data(model: nn.Module) -> bool:
    """Whether a module of the model is initialised from training images."""
    return any(hasattr(module, "init_from_data") for module in model.modules())


@torch.no_grad()
def init_from_data(model: nn.Module, images: Tensor) -> None:
    """Call `init_from_data(images)` on every module that has it, once, before the first step of a new run.

    images: (n, C, H, W), training images as the model sees them in evaluation.
    """
    for module in model.modules():
        if hasattr(module, "init_from_data"):
            module.init_from_data(images)  # type: ignore[operator]
