"""The ResNet-12 of few-shot learning: four wide blocks of three convolutions, DropBlock in the last two."""

import torch.nn.functional as F
from torch import Tensor, nn

from sla.backbones import register
from sla.backbones.checkpointing import run_blocks
from sla.backbones.dropblock import DropBlock
from sla.errors import InputError

CHANNELS = (64, 160, 320, 640)
SLOPE = 0.1  # of the leaky ReLU
RAMP_STEPS = 20_000  # 20 epochs of 1,000 batches of episodes


class Block12(nn.Module):
    """Three 3x3 convolutions with batch norm around a 1x1 shortcut, 2x2 max-pool, then `drop`.

    A map that is one pixel high or wide is not pooled further.
    """

    def __init__(self, in_channels: int, width: int, drop: nn.Module) -> None:
        super().__init__()
        self.convs, self.norms = nn.ModuleList(), nn.ModuleList()
        for channels in (in_channels, width, width):
            self.convs.append(nn.Conv2d(channels, width, 3, padding=1, bias=False))
            self.norms.append(nn.BatchNorm2d(width))
        convolution = nn.Conv2d(in_channels, width, 1, bias=False)
        self.shortcut = nn.Sequential(convolution, nn.BatchNorm2d(width))
        self.drop = drop

    def forward(self, input: Tensor) -> Tensor:
        """(B, in_channels, H, W) -> (B, width, H // 2, W // 2), at least one pixel."""
        hidden = input
        for place, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            hidden = norm(conv(hidden))
            if place == 2:
                hidden = hidden + self.shortcut(input)
            hidden = F.leaky_relu(hidden, SLOPE)
        if min(hidden.shape[2:]) > 1:
            hidden = F.max_pool2d(hidden, 2)
        return self.drop(hidden)


class ResNet12(nn.Module):
    """Four blocks; the features are the average of the last map, or all of it where `map_size` is given.

    `map_size` is the side of that map: its features then belong to images of one size.
    """

    def __init__(
        self,
        channels: tuple[int, ...],
        drops: list[nn.Module],
        in_channels: int,
        map_size: int | None,
        checkpointing: bool,
    ) -> None:
        super().__init__()
        self.map_size, self.checkpointing = map_size, checkpointing
        inputs = (in_channels, *channels[:-1])
        self.blocks = nn.ModuleList(
            Block12(before, width, drop) for before, width, drop in zip(inputs, channels, drops, strict=True)
        )
        self.num_features = channels[-1] * (map_size or 1) ** 2
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, SLOPE, mode="fan_out", nonlinearity="leaky_relu")

    def forward_features(self, input: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, channels, H // 16, W // 16), at least one pixel."""
        return run_blocks(self.blocks, input, self.checkpointing)

    def forward(self, input: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, num_features)."""
        maps = self.forward_features(input)
        if self.map_size is None:
            return maps.mean((2, 3))
        if maps.shape[2:] != (self.map_size, self.map_size):
            size, given, found = self.map_size, input.shape[2:], maps.shape[2:]
            raise InputError(
                f"resnet12 without pooling was made for maps of {size}x{size}; images of "
                f"{given[0]}x{given[1]} give {found[0]}x{found[1]}: set resolution={given[0]}, or pool=true"
            )
        return maps.flatten(1)


@register("resnet12")
def resnet12(
    name: str,
    *,
    in_channels: int = 3,
    width: float = 1.0,
    pool: bool = True,
    resolution: int = 32,
    drop_rate: float = 0.1,
    dropblock_size: int | None = None,
    ramp_steps: int = RAMP_STEPS,
    checkpointing: bool = False,
) -> ResNet12:
    """ResNet-12 with `width` times its channels (64, 160, 320, 640).

    Few-shot learning takes it with `pool=False`: every number of the last map is a feature, and `resolution`
    says how many there are (2,560 at 32 pixels, 16,000 at 84). Dropout in the first two blocks, DropBlock in
    the others, which reaches `drop_rate` after `ramp_steps` steps; its squares are of 5 pixels from a
    resolution of 84 on, else of 2.
    """
    if width <= 0 or round(CHANNELS[0] * width) < 1:
        raise InputError(f"width of backbone {name!r} must be a factor such as 0.25, not {width!r}")
    if not 0 <= drop_rate < 1:
        raise InputError(f"drop_rate of backbone {name!r} must be from 0 to below 1, not {drop_rate!r}")
    size = (5 if resolution >= 84 else 2) if dropblock_size is None else dropblock_size
    whole = {"resolution": resolution, "dropblock_size": size, "ramp_steps": ramp_steps}
    for option, value in whole.items():
        if not isinstance(value, int) or value < 1:
            raise InputError(f"{option} of backbone {name!r} must be a whole number from 1, not {value!r}")
    drops: list[nn.Module] = [nn.Dropout(drop_rate), nn.Dropout(drop_rate)]
    drops += [DropBlock(drop_rate, size, ramp_steps) for _ in range(2)]
    channels = tuple(round(count * width) for count in CHANNELS)
    map_size = None if pool else max(resolution // 16, 1)
    return ResNet12(channels, drops, in_channels, map_size, checkpointing)
