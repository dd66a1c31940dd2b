"""ResNet-9, the short and wide network of the DAWNBench entries: `resnet9_16` starts with 16 channels.

Any first width has a name; `resnet9` is the published one, 64.
"""

from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from sla.backbones import register
from sla.errors import InputError, nearest

POOLS = ("max", "avg")


def _layer(in_channels: int, out_channels: int) -> nn.Sequential:
    """A 3x3 convolution, batch norm and ReLU; the map keeps its size."""
    return nn.Sequential(
        nn.Conv2d(in_channels, out_channels, 3, padding=1, bias=False),
        nn.BatchNorm2d(out_channels),
        nn.ReLU(inplace=True),
    )


class ResNet9(nn.Module):
    """Channels w, 2w, 4w, 8w; a max-pool after each but the first; residual pairs at 2w and 8w."""

    def __init__(self, width: int, in_channels: int = 3, pool: Literal["max", "avg"] = "max") -> None:
        super().__init__()
        self.num_features, self.pool = 8 * width, pool
        self.stem = _layer(in_channels, width)
        self.layers = nn.ModuleList(_layer(width << i, width << (i + 1)) for i in range(3))
        self.residuals = nn.ModuleDict({str(i): _pair(width << (i + 1)) for i in (0, 2)})

    def forward_features(self, input: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, 8w, H / 8, W / 8), rounded down; a map of one pixel is not pooled."""
        hidden = self.stem(input)
        for number, layer in enumerate(self.layers):
            hidden = layer(hidden)
            if min(hidden.shape[2:]) > 1:
                hidden = F.max_pool2d(hidden, 2)
            if str(number) in self.residuals:
                hidden = hidden + self.residuals[str(number)](hidden)
        return hidden

    def forward(self, input: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, 8w)."""
        found = self.forward_features(input)
        return found.amax((2, 3)) if self.pool == "max" else found.mean((2, 3))


def _pair(channels: int) -> nn.Sequential:
    return nn.Sequential(_layer(channels, channels), _layer(channels, channels))


@register("resnet9", "resnet9_16", "resnet9_32", pattern=r"resnet9_\d{1,4}")
def resnet9(name: str, *, in_channels: int = 3, pool: str = "max") -> ResNet9:
    """ResNet-9 of this first width, 64 if none is named; the map is pooled by its maximum or its mean."""
    width = int(name.partition("_")[2] or 64)
    if width < 1:
        raise InputError(f"backbone {name!r}: resnet9_W has W from 1 channel on")
    if pool not in POOLS:
        raise InputError(f"pool of backbone {name!r}: {pool!r}{nearest(str(pool), POOLS)}")
    return ResNet9(width, in_channels, pool)  # type: ignore[arg-type]
