"""Wide residual networks of CIFAR: `wrn40_2` has 40 layers, two times the channels of a ResNet.

Any depth of 6n + 4 and any width factor has a name: `wrn10_1`, `wrn16_4`, `wrn28_10`, ...
"""

import torch.nn.functional as F
from torch import Tensor, nn

from sla.backbones import register
from sla.backbones.checkpointing import run_blocks
from sla.errors import InputError, nearest

VARIANTS = ("original", "fast-autoaugment")


class WideBlock(nn.Module):
    """Batch norm, ReLU and 3x3 convolution, twice, around a shortcut.

    In the original network the first convolution has the stride, and where the shape changes, the shortcut is
    a 1x1 convolution of the activated input. In Fast AutoAugment's the second convolution has the stride, the
    shortcut sees the input as it is, and convolutions have biases.
    """

    def __init__(
        self, in_channels: int, width: int, stride: int, dropout: float = 0.0, variant: str = "original"
    ) -> None:
        super().__init__()
        self.public = variant == "fast-autoaugment"
        first, second = (1, stride) if self.public else (stride, 1)
        self.bn1 = _batch_norm(in_channels, variant)
        self.conv1 = nn.Conv2d(in_channels, width, 3, first, padding=1, bias=self.public)
        self.bn2 = _batch_norm(width, variant)
        self.dropout = nn.Dropout(dropout)
        self.conv2 = nn.Conv2d(width, width, 3, second, padding=1, bias=self.public)
        changes = stride != 1 or in_channels != width
        self.shortcut = nn.Conv2d(in_channels, width, 1, stride, bias=self.public) if changes else None

    def forward(self, input: Tensor) -> Tensor:
        """(B, in_channels, H, W) -> (B, width, H / stride, W / stride)."""
        active = F.relu(self.bn1(input), inplace=True)
        hidden = self.conv1(active)
        # Dropout lies behind the first convolution in both; Fast AutoAugment has it before the batch norm.
        if self.public:
            hidden = F.relu(self.bn2(self.dropout(hidden)), inplace=True)
        else:
            hidden = self.dropout(F.relu(self.bn2(hidden), inplace=True))
        hidden = self.conv2(hidden)
        if self.shortcut is None:
            return hidden + input
        return hidden + self.shortcut(input if self.public else active)


def _batch_norm(channels: int, variant: str) -> nn.BatchNorm2d:
    """Fast AutoAugment's keeps a tenth of what it knew: torch's momentum is the share of the new batch."""
    return nn.BatchNorm2d(channels, momentum=0.9 if variant == "fast-autoaugment" else 0.1)


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
        variant: str = "original",
        checkpointing: bool = False,
    ) -> None:
        super().__init__()
        self.checkpointing = checkpointing
        self.num_features = 64 * width
        public = variant == "fast-autoaugment"
        self.conv1 = nn.Conv2d(in_channels, 16, 3, padding=1, bias=public)
        self.blocks = nn.ModuleList()
        channels = 16
        for stage, out_channels in enumerate((16 * width, 32 * width, 64 * width)):
            for place in range((depth - 4) // 6):
                stride = 2 if stage > 0 and place == 0 else 1
                self.blocks.append(WideBlock(channels, out_channels, stride, dropout, variant))
                channels = out_channels
        self.bn = _batch_norm(channels, variant)
        for module in self.modules():
            if isinstance(module, nn.Conv2d) and not public:  # there, torch's own initialisation stays
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

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
    variant: str = "original",
    checkpointing: bool = False,
) -> WideResNet:
    """The network of this depth and width.

    `variant="fast-autoaugment"` is the network of that paper's public code, which differs from the original
    in strides, shortcuts, biases, initialisation and batch norm.
    """
    depth, width = (int(number) for number in name.removeprefix("wrn").split("_"))
    if depth < 10 or (depth - 4) % 6 or width < 1:
        raise InputError(f"backbone {name!r}: wrnD_K has D = 6n + 4 layers (10, 16, 22, ...) and K from 1")
    if not 0 <= dropout < 1:
        raise InputError(f"dropout of backbone {name!r} must be from 0 to below 1, not {dropout!r}")
    if variant not in VARIANTS:
        raise InputError(f"variant of backbone {name!r}: {variant!r}{nearest(str(variant), VARIANTS)}")
    return WideResNet(
        depth, width, in_channels=in_channels, dropout=dropout, variant=variant, checkpointing=checkpointing
    )
