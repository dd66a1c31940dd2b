"""The pyramidal networks against published counts, counts by hand and plain functions."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sla.backbones import create_backbone
from sla.backbones.cost import count_parameters
from sla.errors import InputError


def count_by_hand(depth, alpha, num_classes, bottleneck):
    """A batch norm before every convolution, one behind each block and one at the end; no biases."""
    blocks = (depth - 2) // (3 if bottleneck else 2)
    total = 3 * 16 * 9 + 2 * 16
    channels = 16
    for number in range(1, blocks + 1):
        width = math.floor(16 + alpha * number / blocks + 0.5)
        if bottleneck:
            total += 2 * channels + channels * width + 2 * width + width * width * 9
            total += 2 * width + width * 4 * width + 2 * 4 * width
            channels = 4 * width
        else:
            total += 2 * channels + channels * width * 9 + 2 * width + width * width * 9 + 2 * width
            channels = width
    return total + 2 * channels + (channels + 1) * num_classes


@pytest.mark.parametrize(
    ("name", "num_classes", "bottleneck", "millions"),
    [
        ("pyramidnet200_240", 10, True, 26.75),
        ("pyramidnet200_240", 100, True, 26.84),
        ("pyramidnet110_48", 10, False, 1.77),
        ("pyramidnet110_270", 10, False, 28.49),
        ("pyramidnet20_48", 10, False, None),
        ("pyramidnet29_30", 10, True, None),
    ],
)
def test_counts(name, num_classes, bottleneck, millions):
    depth, alpha = (int(number) for number in name.removeprefix("pyramidnet").split("_"))
    options = {"bottleneck": True} if depth == 29 else {}
    backbone = create_backbone(name, **options)
    found = count_parameters(backbone) + (backbone.num_features + 1) * num_classes
    assert found == count_by_hand(depth, alpha, num_classes, bottleneck)
    assert millions is None or round(found / 1e6, 2) == millions


@pytest.mark.parametrize("bottleneck", [False, True])
def test_against_plain_functions(bottleneck):
    torch.manual_seed(0)
    name = "pyramidnet11_9" if bottleneck else "pyramidnet8_9"
    backbone = create_backbone(name, in_channels=2, bottleneck=bottleneck)
    for parameter in backbone.parameters():
        nn.init.normal_(parameter, std=0.3)
    images = torch.randn(3, 2, 9, 11)
    state = dict(backbone.named_parameters())

    def norm(hidden, name):
        mean, variance = hidden.mean((0, 2, 3), keepdim=True), hidden.var((0, 2, 3), False, keepdim=True)
        scale, shift = (state[f"{name}.{part}"][:, None, None] for part in ("weight", "bias"))
        return (hidden - mean) / (variance + 1e-5).sqrt() * scale + shift

    def conv(hidden, name, stride=1):
        weight = state[f"{name}.weight"]
        return F.conv2d(hidden, weight, None, stride, padding=weight.shape[-1] // 2)

    def halved(maps):
        rows, columns = (maps.shape[2] + 1) // 2, (maps.shape[3] + 1) // 2
        result = torch.zeros(*maps.shape[:2], rows, columns)
        for row, column in np.ndindex(rows, columns):
            window = maps[:, :, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2]
            result[:, :, row, column] = window.mean((2, 3))
        return result

    hidden = norm(conv(images, "conv1"), "bn1")
    for number, stride in enumerate((1, 2, 2)):
        block, strides = f"blocks.{number}", (1, stride, 1) if bottleneck else (stride, 1)
        inner = hidden
        for place, step in enumerate(strides):
            inner = norm(inner, f"{block}.norms.{place}")
            inner = conv(torch.relu(inner) if place > 0 else inner, f"{block}.convs.{place}", step)
        inner = norm(inner, f"{block}.last_norm")
        assert inner.shape[1] == (19 + 3 * number) * (4 if bottleneck else 1)
        shortcut = hidden if stride == 1 else halved(hidden)
        inner[:, : shortcut.shape[1]] += shortcut
        hidden = inner
    expected = torch.relu(norm(hidden, "last_norm"))
    assert expected.shape[2:] == (3, 3)
    torch.testing.assert_close(backbone.forward_features(images), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(backbone(images), expected.flatten(2).mean(2), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("pyramidnet21_48", {}),
        ("pyramidnet2_48", {}),
        ("pyramidnet20_0", {}),
        ("pyramidnet165_10", {}),
        ("pyramidnet26_10", {"bottleneck": True}),
    ],
)
def test_depths_that_are_none(name, options):
    with pytest.raises(InputError, match=f"'{name}': pyramidnetD_A with (basic|bottle).* D = [69]n \\+ 2"):
        create_backbone(name, **options)
