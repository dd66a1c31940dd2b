"""DropBlock: dropout of whole squares of a feature map, at a rate that rises over the training steps."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def drop_block(input: Tensor, rate: float | Tensor, block_size: int) -> Tensor:
    """Set squares of `block_size` pixels of each channel to zero and scale the rest up by what is left.

    A square starts at each place where it fits into the map (B, C, H, W) with probability
    gamma = rate / s^2 * H W / ((H - s + 1) (W - s + 1)), so that about the share `rate` is dropped: where
    squares overlap, less. The square is no larger than the map. `rate` may be a tensor of one number.
    """
    height, width = input.shape[2:]
    tall, wide = min(block_size, height), min(block_size, width)
    places = (height - tall + 1, width - wide + 1)
    gamma = rate * (height * width) / (tall * wide * places[0] * places[1])
    starts = torch.rand((*input.shape[:2], *places), device=input.device) < gamma
    # A pixel is dropped when a square starts less than a side before it.
    padded = F.pad(starts.float(), (wide - 1, wide - 1, tall - 1, tall - 1))
    kept = 1 - F.max_pool2d(padded, (tall, wide), stride=1)
    kept = kept * (kept.numel() / kept.sum().clamp(min=1))
    return input * kept.to(input.dtype)


class DropBlock(nn.Module):
    """`drop_block` in training; the rate rises from 0 to `rate` over `ramp_steps` training steps.

    It follows the steps of the run, not its own calls: a step may go forward several times.
    """

    steps: Tensor  # int64 (), training steps done; saved, so a resumed run has the same rate

    def __init__(self, rate: float, block_size: int, ramp_steps: int) -> None:
        super().__init__()
        self.rate, self.block_size, self.ramp_steps = rate, block_size, ramp_steps
        self.register_buffer("steps", torch.tensor(0))

    def on_step(self, step: int, steps: int) -> None:
        """Before step number `step`: so many steps are done."""
        self.steps.fill_(step)

    @property
    def current_rate(self) -> Tensor:
        """The share that is dropped in this step, ()."""
        return self.rate * (self.steps / self.ramp_steps).clamp(max=1.0)

    def forward(self, input: Tensor) -> Tensor:
        """(B, C, H, W) -> the same shape."""
        if not self.training or self.rate == 0:
            return input
        return drop_block(input, self.current_rate, self.block_size)
