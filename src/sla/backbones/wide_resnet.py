"""Wide residual networks of CIFAR: `wrn40_2` has 40 layers, two times the channels of a ResNet.

Any depth of 6n + 4 and any width factor has a name: `wrn10_1`, `wrn16_4`, `wrn28_10`, ...
"""

import torch.nn.functional as F
from torch import Tensor, nn

from sla.backbones import register
from sla.backbones.checkpointing import run_blocks
from sla.errors import InputError


class WideBlock(nn.Module):
    """Batch norm, ReLU and 3x3 convolution, twice, around a shortcut; the first convolution has the stride.

    Where the shape changes, the shortcut is a 1x1 convolution of the activated input.
    """

    def __init__(
        self,
        in_channels: int,
        width: int,
        stride: int,
        *,
        dropout: float = 0.0,
        conv_bias: bool = False,
        norm_momentum: float = 0.1,
    ) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(in_channels, momentum=norm_momentum)
        self.conv1 = nn.Conv2d(in_channels, width, 3, stride, padding=1, bias=conv_bias)
        self.bn2 = nn.BatchNorm2d(width, momentum=norm_momentum)
        self.dropout = nn.Dropout(dropout)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=conv_bias)
        changes = stride != 1 or in_channels != width
        self.shortcut = nn.Conv2d(in_channels, width, 1, stride, bias=conv_bias) if changes else None

    def forward(self, input: Tensor) -> Tensor:
        """(B, in_channels, H, W) -> (B, width, H / stride, W / stride)."""
        active = F.relu(self.bn1(input), inplace=True)
        hidden = F.relu(self.bn2(self.conv1(active)), inplace=True)
        hidden = self.conv2(self.dropout(hidden))
        return hidden + (input if self.shortcut is None else self.shortcut(active))


class WideResNet(nn.Module):
    """A 3x3 stem of 16 channels, three stages of 16k, 32k and 64k, batch norm, ReLU and the average.

    Every stage but the first halves the map.
    """

    def __init__(
        self,
        depth: int,
        width: int,
        *,
        in_channels: int = 3,
        dropout: float = 0.0,
        conv_bias: bool = False,
        norm_momentum: float = 0.1,
        checkpointing: bool = False,
    ) -> None:
        super().__init__()
        self.checkpointing = checkpointing
        self.num_features = 64 * width
        self.conv1 = nn.Conv2d(in_channels, 16, 3, padding=1, bias=conv_bias)
        self.blocks = nn.ModuleList()
        channels = 16
        for stage, out_channels in enumerate((16 * width, 32 * width, 64 * width)):
            for place in range((depth - 4) // 6):
                block = WideBlock(
                    channels,
                    out_channels,
                    stride=2 if stage > 0 and place == 0 else 1,
                    dropout=dropout,
                    conv_bias=conv_bias,
                    norm_momentum=norm_momentum,
                )
                self.blocks.append(block)
                channels = out_channels
        self.bn = nn.BatchNorm2d(channels, momentum=norm_momentum)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward_features(self, input: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, num_features, H / 4, W / 4), rounded up."""
        hidden = run_blocks(self.blocks, self.conv1(input), self.checkpointing)
        return F.relu(self.bn(hidden), inplace=True)

    def forward(self, input: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, num_features)."""
        return self.forward_features(input).mean((2, 3))


@register("wrn10_1", "wrn16_4", "wrn28_10", "wrn40_2", pattern=r"wrn\d{1,3}_\d{1,2}")
def wide_resnet(
    name: str,
    *,
    in_channels: int = 3,
    dropout: float = 0.0,
    conv_bias: bool = False,
    norm_momentum: float = 0.1,
    checkpointing: bool = False,
) -> WideResNet:
    """The network of this depth and width.

    Fast AutoAugment's has biases in its convolutions and batch norm that keeps a tenth of what it knew:
    `conv_bias=True, norm_momentum=0.9`.
    """
    depth, width = (int(number) for number in name.removeprefix("wrn").split("_"))
    if depth < 10 or (depth - 4) % 6 or width < 1:
        raise InputError(f"backbone {name!r}: wrnD_K has D = 6n + 4 layers (10, 16, 22, ...) and K from 1")
    if not 0 <= dropout < 1:
        raise InputError(f"dropout of backbone {name!r} must be from 0 to below 1, not {dropout!r}")
    if not 0 < norm_momentum <= 1:
        raise InputError(
            f"norm_momentum of backbone {name!r} must be over 0, 1 at most, not {norm_momentum!r}"
        )
    return WideResNet(
        depth,
        width,
        in_channels=in_channels,
        dropout=dropout,
        conv_bias=conv_bias,
        norm_momentum=norm_momentum,
        checkpointing=checkpointing,
    )
