"""The four-layer convolutional network of few-shot learning."""

import torch.nn.functional as F
from torch import Tensor, nn

from sla.backbones import register
from sla.errors import InputError


class ConvNet(nn.Module):
    """Four blocks of 3x3 convolution, batch norm, ReLU and 2x2 max-pool, then the average over the map.

    A map that is one pixel high or wide is not pooled further, so 8x8 images work too. Without batch norm an
    image's features do not depend on the rest of its batch.
    """

    def __init__(self, in_channels: int, width: int, norm: bool = True) -> None:
        super().__init__()
        self.num_features = width
        # The bias does nothing before batch norm; it is there in the published network and its counts.
        self.blocks = nn.ModuleList()
        for channels in (in_channels, width, width, width):
            convolution = nn.Conv2d(channels, width, 3, padding=1)
            last = nn.BatchNorm2d(width) if norm else nn.Identity()
            self.blocks.append(nn.Sequential(convolution, last, nn.ReLU()))

    def forward_features(self, input: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, width, H // 16, W // 16), at least one pixel."""
        for block in self.blocks:
            input = block(input)
            if min(input.shape[2:]) > 1:
                input = F.max_pool2d(input, 2)
        return input

    def forward(self, input: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, width)."""
        return self.forward_features(input).mean((2, 3))


@register("convnet4")
def convnet4(name: str, *, in_channels: int = 3, width: int = 64, norm: bool = True) -> ConvNet:
    """The network with `width` channels in every layer, with or without batch norm."""
    if not isinstance(width, int) or width < 1:
        raise InputError(f"width of backbone {name!r} must be a whole number from 1, not {width!r}")
    return ConvNet(in_channels, width, norm)
