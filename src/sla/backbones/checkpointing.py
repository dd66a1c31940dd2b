"""Gradient checkpointing: blocks keep their inputs alone and compute the rest again in the backward pass."""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


def run_blocks(blocks: Iterable[nn.Module], input: Tensor, checkpointing: bool) -> Tensor:
    """The blocks one after another; checkpointed where there will be a backward pass through them.

    Gradients, dropout and the running statistics of batch norm are those of a run without checkpoints: what
    is computed again draws the same random numbers and leaves the buffers alone.
    """
    checkpointing = checkpointing and torch.is_grad_enabled()
    for block in blocks:
        if not (checkpointing and block.training):
            input = block(input)
        elif torch.compiler.is_compiling():
            # The compiler computes again in its own graph, in which buffers change once.
            input = checkpoint(block, input, use_reentrant=False)
        else:
            input = checkpoint(block, input, use_reentrant=False, context_fn=partial(_contexts, block))
    return input


def _contexts(block: nn.Module) -> tuple[AbstractContextManager, AbstractContextManager]:
    """Around the forward pass, and around its repetition."""
    return nullcontext(), _kept(block)


@contextmanager
def _kept(block: nn.Module) -> Iterator[None]:
    """Lend the block copies of its buffers: batch norm has counted this batch already."""
    modules = list(block.modules())
    own = [dict(module._buffers) for module in modules]
    for module in modules:
        for name, value in module._buffers.items():
            module._buffers[name] = None if value is None else value.clone()
    try:
        yield
    finally:
        for module, buffers in zip(modules, own, strict=True):
            module._buffers.update(buffers)
