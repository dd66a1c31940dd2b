"""Pyramidal residual networks of CIFAR, in which every block is a little wider than the one before.

`pyramidnet200_240` has 200 layers and adds alpha = 240 channels on the way; any such name works.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from sla.backbones import register
from sla.backbones.checkpointing import run_blocks
from sla.backbones.resnet import ZeroPadShortcut
from sla.errors import InputError

STEM = 16  # channels
EXPANSION = 4  # of a bottleneck: output channels to width
BOTTLENECKS_FROM = 164  # layers: the published networks of 110 have basic blocks, those of 164 to 272 do not


class PyramidBlock(nn.Module):
    """Batch norm before every convolution and once more behind the last; no ReLU before the first.

    Two 3x3 convolutions, or as a bottleneck 1x1, 3x3 and 1x1; the first 3x3 has the stride. The shortcut has
    no parameters: 2x2 averages where the map is halved, then channels of zeros.
    """

    def __init__(self, in_channels: int, width: int, stride: int, bottleneck: bool) -> None:
        super().__init__()
        kernels = (1, 3, 1) if bottleneck else (3, 3)
        self.out_channels = width * EXPANSION if bottleneck else width
        outputs = [width] * (len(kernels) - 1) + [self.out_channels]
        strided = kernels.index(3)
        self.convs, self.norms = nn.ModuleList(), nn.ModuleList()
        channels = in_channels
        for place, (kernel, output) in enumerate(zip(kernels, outputs, strict=True)):
            step = stride if place == strided else 1
            self.norms.append(nn.BatchNorm2d(channels))
            self.convs.append(nn.Conv2d(channels, output, kernel, step, padding=kernel // 2, bias=False))
            channels = output
        self.last_norm = nn.BatchNorm2d(channels)
        pool = nn.AvgPool2d(stride, ceil_mode=True) if stride > 1 else nn.Identity()
        self.shortcut = nn.Sequential(pool, ZeroPadShortcut(in_channels, channels, stride=1))

    def forward(self, input: Tensor) -> Tensor:
        """(B, in_channels, H, W) -> (B, out_channels, H / stride, W / stride)."""
        hidden = input
        for place, (norm, conv) in enumerate(zip(self.norms, self.convs, strict=True)):
            hidden = norm(hidden)
            hidden = conv(F.relu(hidden, inplace=True) if place else hidden)
        return self.last_norm(hidden) + self.shortcut(input)


class PyramidNet(nn.Module):
    """A 3x3 stem of 16 channels, three stages of `blocks` blocks, batch norm, ReLU and the average.

    Block i of all K has a width of 16 + i * alpha / K, rounded. Every stage but the first halves the map.
    """

    def __init__(
        self, blocks: int, alpha: int, bottleneck: bool, in_channels: int, checkpointing: bool
    ) -> None:
        super().__init__()
        self.checkpointing = checkpointing
        self.conv1 = nn.Conv2d(in_channels, STEM, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(STEM)
        self.blocks = nn.ModuleList()
        channels = STEM
        for place in range(3 * blocks):
            width = round(STEM + (place + 1) * alpha / (3 * blocks))
            stride = 2 if place in (blocks, 2 * blocks) else 1
            block = PyramidBlock(channels, width, stride, bottleneck)
            self.blocks.append(block)
            channels = block.out_channels
        self.num_features = channels
        self.last_norm = nn.BatchNorm2d(channels)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward_features(self, input: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, num_features, H / 4, W / 4), rounded up."""
        hidden = run_blocks(self.blocks, self.bn1(self.conv1(input)), self.checkpointing)
        return F.relu(self.last_norm(hidden), inplace=True)

    def forward(self, input: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, num_features)."""
        return self.forward_features(input).mean((2, 3))


@register("pyramidnet20_48", "pyramidnet110_48", "pyramidnet200_240", pattern=r"pyramidnet\d{1,3}_\d{1,3}")
def pyramidnet(
    name: str, *, in_channels: int = 3, bottleneck: bool | None = None, checkpointing: bool = False
) -> PyramidNet:
    """The network of this depth and alpha; bottlenecks from 164 layers unless it is said.

    Its depth is 6n + 2 with basic blocks, 9n + 2 with bottlenecks.
    """
    depth, alpha = (int(number) for number in name.removeprefix("pyramidnet").split("_"))
    bottleneck = depth >= BOTTLENECKS_FROM if bottleneck is None else bottleneck
    layers = 9 if bottleneck else 6  # of three blocks, one a stage
    if depth < layers + 2 or (depth - 2) % layers or alpha < 1:
        kind = "bottlenecks" if bottleneck else "basic blocks"
        rule = f"pyramidnetD_A with {kind} has D = {layers}n + 2 layers and A from 1"
        raise InputError(f"backbone {name!r}: {rule}")
    return PyramidNet((depth - 2) // layers, alpha, bottleneck, in_channels, checkpointing)
