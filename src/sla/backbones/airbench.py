"""The network of cifar10-airbench94: patches whitened by training images, then three pairs of convolutions.

The published widths are 64, 256, 256; `width` scales them.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sla.backbones import register
from sla.errors import InputError

PATCH = 2  # pixels per side that are whitened together
EPSILON = 5e-4  # added to the variances, of which the smallest are noise
WIDTHS = (64, 256, 256)


class Whitening(nn.Module):
    """A fixed 2x2 convolution to uncorrelated patches of variance 1, each with both signs, and a learnt bias.

    The filters are the eigenvectors of the patches' covariance over the square roots of their variances, made
    by `init_from_data`; before that they are random and orthogonal.
    """

    weight: Tensor  # (2 * C * 4, C, 2, 2)

    def __init__(self, in_channels: int) -> None:
        super().__init__()
        size = in_channels * PATCH**2
        filters = nn.init.orthogonal_(torch.empty(size, size)).unflatten(1, (in_channels, PATCH, PATCH))
        self.register_buffer("weight", torch.cat([filters, -filters]))
        self.bias = nn.Parameter(torch.zeros(2 * size))

    def init_from_data(self, images: Tensor) -> None:
        """Filters from training images (n, C, H, W)."""
        patches = (
            F.unfold(images.float(), PATCH).transpose(1, 2).flatten(0, 1).double()
        )  # (n * places, C * 4)
        patches = patches - patches.mean(0)
        variances, vectors = torch.linalg.eigh(patches.T @ patches / len(patches))
        filters = (vectors / (variances + EPSILON).sqrt()).T.flip(0).to(self.weight)
        filters = filters.unflatten(1, self.weight.shape[1:])
        self.weight.copy_(torch.cat([filters, -filters]))

    def forward(self, input: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, 8C, H - 1, W - 1)."""
        return F.conv2d(input, self.weight, self.bias)


class Group(nn.Module):
    """Convolution, max-pool, batch norm and GELU, then convolution, batch norm and GELU.

    A convolution starts as the identity of its first channels; batch norm learns its bias alone.
    """

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.conv1 = _identity_conv(in_channels, out_channels)
        self.norm1 = _batch_norm(out_channels)
        self.conv2 = _identity_conv(out_channels, out_channels)
        self.norm2 = _batch_norm(out_channels)

    def forward(self, input: Tensor) -> Tensor:
        """(B, in_channels, H, W) -> (B, out_channels, H / 2, W / 2), at least one pixel."""
        hidden = self.conv1(input)
        if min(hidden.shape[2:]) > 1:
            hidden = F.max_pool2d(hidden, 2)
        hidden = F.gelu(self.norm1(hidden))
        return F.gelu(self.norm2(self.conv2(hidden)))


def _identity_conv(in_channels: int, out_channels: int) -> nn.Conv2d:
    conv = nn.Conv2d(in_channels, out_channels, 3, padding=1, bias=False)
    with torch.no_grad():
        nn.init.dirac_(conv.weight[:in_channels])
    return conv


def _batch_norm(channels: int) -> nn.BatchNorm2d:
    norm = nn.BatchNorm2d(channels, eps=1e-12, momentum=0.4)
    norm.weight.requires_grad_(False)
    return norm


class Airbench(nn.Module):
    """Whitening, GELU, three groups, and the maximum over the map."""

    def __init__(self, widths: tuple[int, ...], in_channels: int = 3) -> None:
        super().__init__()
        self.num_features = widths[-1]
        self.whitening = Whitening(in_channels)
        channels = (2 * in_channels * PATCH**2, *widths)
        self.groups = nn.ModuleList(Group(*pair) for pair in zip(channels, widths, strict=False))

    def forward_features(self, input: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, num_features, h, w); 3 x 3 for 32 pixels."""
        hidden = F.gelu(self.whitening(input))
        for group in self.groups:
            hidden = group(hidden)
        return hidden

    def forward(self, input: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, num_features)."""
        return self.forward_features(input).amax((2, 3))


@register("airbench")
def airbench(name: str, *, in_channels: int = 3, width: float = 1.0) -> Airbench:
    """The network, its published widths times `width`."""
    if not 0 < width <= 16:
        raise InputError(f"width of backbone {name!r} must be over 0, 16 at most, not {width!r}")
    return Airbench(tuple(max(round(width * each), 1) for each in WIDTHS), in_channels)
