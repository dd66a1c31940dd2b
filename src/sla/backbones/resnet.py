"""Residual networks: the small ones of CIFAR and those of ImageNet with torchvision's names and shapes.

`resnet8` to `resnet110` have three stages of 16, 32 and 64 channels and shortcuts without parameters;
`resnet18`, `resnet34` and `resnet50` take torchvision's published weights once `fc.*` is dropped.
"""

from collections.abc import Callable, Sequence
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from sla.backbones import register
from sla.backbones.checkpointing import run_blocks
from sla.errors import InputError, nearest


class ZeroPadShortcut(nn.Module):
    """A shortcut without parameters (option A): every `stride`-th pixel, then channels of zeros.

    (B, in_channels, H, W) -> (B, out_channels, ceil(H / stride), ceil(W / stride)).
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.new_channels = out_channels - in_channels
        self.stride = stride

    def forward(self, input: Tensor) -> Tensor:
        """The input, thinned out, in front of the zeros."""
        kept = input[:, :, :: self.stride, :: self.stride]
        return F.pad(kept, (0, 0, 0, 0, 0, self.new_channels))


def projection(in_channels: int, out_channels: int, stride: int) -> nn.Module:
    """A shortcut with parameters (option B): a 1x1 convolution and batch norm."""
    convolution = nn.Conv2d(in_channels, out_channels, 1, stride, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(out_channels))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions around a shortcut; the first carries the stride."""

    expansion: ClassVar[int] = 1

    def __init__(self, in_channels: int, width: int, stride: int, downsample: nn.Module | None) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, width, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = downsample

    def forward(self, input: Tensor) -> Tensor:
        """(B, in_channels, H, W) -> (B, width, H / stride, W / stride)."""
        shortcut = input if self.downsample is None else self.downsample(input)
        hidden = F.relu(self.bn1(self.conv1(input)), inplace=True)
        return F.relu(self.bn2(self.conv2(hidden)) + shortcut, inplace=True)


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions around a shortcut; the 3x3 carries the stride, as in torchvision."""

    expansion: ClassVar[int] = 4

    def __init__(self, in_channels: int, width: int, stride: int, downsample: nn.Module | None) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, width * self.expansion, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(width * self.expansion)
        self.downsample = downsample

    def forward(self, input: Tensor) -> Tensor:
        """(B, in_channels, H, W) -> (B, 4 width, H / stride, W / stride)."""
        shortcut = input if self.downsample is None else self.downsample(input)
        hidden = F.relu(self.bn1(self.conv1(input)), inplace=True)
        hidden = F.relu(self.bn2(self.conv2(hidden)), inplace=True)
        return F.relu(self.bn3(self.conv3(hidden)) + shortcut, inplace=True)


Block = type[BasicBlock] | type[Bottleneck]


class ResNet(nn.Module):
    """A stem, stages of blocks (`depths` of them at `widths` channels) and the average over the map.

    The stem `imagenet` (7x7, stride 2, max-pool) makes the map four times smaller, `small` (3x3) keeps it.
    Every stage but the first halves it.
    """

    def __init__(
        self,
        block: Block,
        depths: Sequence[int],
        widths: Sequence[int],
        shortcut: Callable[[int, int, int], nn.Module],
        stem: str,
        in_channels: int,
        checkpointing: bool,
    ) -> None:
        super().__init__()
        self.checkpointing = checkpointing
        if stem not in STEMS:
            raise InputError(f"no stem is called {stem!r}{nearest(stem, STEMS)}")
        channels = widths[0]
        if stem == "imagenet":
            self.conv1 = nn.Conv2d(in_channels, channels, 7, stride=2, padding=3, bias=False)
            self.maxpool: nn.Module = nn.MaxPool2d(3, stride=2, padding=1)
        else:
            self.conv1 = nn.Conv2d(in_channels, channels, 3, padding=1, bias=False)
            self.maxpool = nn.Identity()
        self.bn1 = nn.BatchNorm2d(channels)
        self.stage_names = [f"layer{i + 1}" for i in range(len(depths))]
        for name, depth, width in zip(self.stage_names, depths, widths, strict=True):
            blocks: list[nn.Module] = []
            for place in range(depth):
                stride = 2 if place == 0 and name != "layer1" else 1
                out_channels = width * block.expansion
                changes = stride != 1 or channels != out_channels
                downsample = shortcut(channels, out_channels, stride) if changes else None
                blocks.append(block(channels, width, stride, downsample))
                channels = out_channels
            self.add_module(name, nn.Sequential(*blocks))
        self.num_features = channels
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward_features(self, input: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, num_features, h, w)."""
        hidden = self.maxpool(F.relu(self.bn1(self.conv1(input)), inplace=True))
        for name in self.stage_names:
            hidden = run_blocks(self.get_submodule(name).children(), hidden, self.checkpointing)
        return hidden

    def forward(self, input: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, num_features)."""
        return self.forward_features(input).mean((2, 3))


STEMS = ("imagenet", "small")

_IMAGENET: dict[str, tuple[Block, tuple[int, ...]]] = {
    "resnet18": (BasicBlock, (2, 2, 2, 2)),
    "resnet34": (BasicBlock, (3, 4, 6, 3)),
    "resnet50": (Bottleneck, (3, 4, 6, 3)),
}


@register(*_IMAGENET)
def imagenet_resnet(
    name: str, *, in_channels: int = 3, stem: str = "imagenet", checkpointing: bool = False
) -> ResNet:
    """ResNet-18, 34 or 50; `stem="small"` for images of about 32 to 64 pixels."""
    block, depths = _IMAGENET[name]
    return ResNet(block, depths, (64, 128, 256, 512), projection, stem, in_channels, checkpointing)


@register("resnet8", "resnet20", "resnet32", "resnet44", "resnet56", "resnet110")
def cifar_resnet(name: str, *, in_channels: int = 3, checkpointing: bool = False) -> ResNet:
    """A ResNet of 6n + 2 layers for images of 32 pixels."""
    depths = ((int(name.removeprefix("resnet")) - 2) // 6,) * 3
    return ResNet(BasicBlock, depths, (16, 32, 64), ZeroPadShortcut, "small", in_channels, checkpointing)
