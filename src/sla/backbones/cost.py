"""What a module costs: its parameters, and the floating-point operations of one image."""

import copy

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode


def count_parameters(module: nn.Module) -> int:
    """The numbers a module learns; buffers are not among them."""
    return sum(parameter.numel() for parameter in module.parameters())


def count_flops(module: nn.Module, shape: tuple[int, int, int]) -> int:
    """Floating-point operations of one image of shape (C, H, W) going forward in evaluation.

    A multiply-add is two. Convolutions and matrix products count; norms, activations and pooling do not.
    """
    # Shapes are enough to count: a copy on the meta device computes nothing and leaves the module as it is.
    try:
        return _count(copy.deepcopy(module).to("meta").eval(), shape, "meta")
    except RuntimeError:  # it reads values, such as `if x.sum() > 0`: it must compute
        return _count(copy.deepcopy(module).to("cpu").eval(), shape, "cpu")


def _count(module: nn.Module, shape: tuple[int, int, int], device: str) -> int:
    parameter = next(module.parameters(), None)
    dtype = torch.get_default_dtype() if parameter is None else parameter.dtype
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        module(torch.zeros(1, *shape, device=device, dtype=dtype))
    return counter.get_total_flops()
