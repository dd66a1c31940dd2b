"""The exponential moving average of a model's weights."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class Ema:
    """ema <- decay * ema + (1 - decay) * weights after every step; buffers are taken as they are.

    In the first steps the decay is (1 + t) / (10 + t) where that is smaller: a short run forgets its start.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.weights = {name: value.detach().clone() for name, value in model.state_dict().items()}

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        """Take in the weights after step number `step`, counted from 0."""
        decay = min(self.decay, (1 + step) / (10 + step))
        trained = dict(model.named_parameters())
        for name, value in model.state_dict().items():
            if name in trained:
                self.weights[name].lerp_(value, 1 - decay)
            else:
                self.weights[name].copy_(value)

    @contextmanager
    def applied(self, model: nn.Module) -> Iterator[None]:
        """The model with the averaged weights, inside the block."""
        own = {name: value.detach().clone() for name, value in model.state_dict().items()}
        try:
            model.load_state_dict(self.weights)
            yield
        finally:
            model.load_state_dict(own)

    def tensors(self) -> dict[str, Tensor]:
        """The averaged weights by name, for a checkpoint."""
        return {f"ema.{name}": value for name, value in self.weights.items()}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Take back what `tensors` gave."""
        for name, value in self.weights.items():
            value.copy_(tensors[f"ema.{name}"])
