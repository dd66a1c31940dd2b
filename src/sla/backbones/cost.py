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
    shadow = copy.deepcopy(module).to("meta").eval()
    parameter = next(shadow.parameters(), None)
    dtype = torch.get_default_dtype() if parameter is None else parameter.dtype
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        shadow(torch.empty(1, *shape, device="meta", dtype=dtype))
    return counter.get_total_flops()
