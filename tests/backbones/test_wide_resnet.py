"""The wide residual networks against published counts, counts by hand and plain functions."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from refusals import refused
from sla.backbones import create_backbone
from sla.backbones.cost import count_parameters


def count_by_hand(depth, width, num_classes, bias=0):
    """Convolutions, batch norms before each of them but the stem and the shortcuts, and the classifier."""
    total = 3 * 16 * 9 + 16 * bias
    channels = 16
    for out in (16 * width, 32 * width, 64 * width):
        for place in range((depth - 4) // 6):
            total += 2 * channels + channels * out * 9 + 2 * out + out * out * 9 + 2 * out * bias
            if place == 0 and channels != out:
                total += channels * out + out * bias
            channels = out
    return total + 2 * channels + (channels + 1) * num_classes


@pytest.mark.parametrize(
    ("depth", "width", "millions"),
    [(40, 2, 2.24), (28, 10, 36.48), (16, 4, 2.75), (10, 1, 0.08), (22, 3, None)],
)
def test_counts(depth, width, millions):
    backbone = create_backbone(f"wrn{depth}_{width}")
    found = count_parameters(backbone) + (backbone.num_features + 1) * 10
    assert found == count_by_hand(depth, width, 10)
    assert millions is None or round(found / 1e6, 2) == millions


def test_biases_of_convolutions():
    found = count_parameters(create_backbone("wrn40_2", variant="fast-autoaugment")) + 129 * 10
    assert found == count_by_hand(40, 2, 10, bias=1)


@pytest.mark.parametrize("public", [False, True])
def test_against_plain_functions(public):
    """The original network, and Fast AutoAugment's: strides, shortcuts and biases differ."""
    torch.manual_seed(0)
    variant = "fast-autoaugment" if public else "original"
    backbone = create_backbone("wrn10_1", in_channels=2, variant=variant)
    for parameter in backbone.parameters():
        nn.init.normal_(parameter, std=0.3)
    images = torch.randn(3, 2, 9, 11)
    state = dict(backbone.named_parameters())

    def conv(hidden, name, stride):
        weight = state[f"{name}.weight"]
        return F.conv2d(hidden, weight, state.get(f"{name}.bias"), stride, padding=weight.shape[-1] // 2)

    def active(hidden, name):
        mean, variance = hidden.mean((0, 2, 3), keepdim=True), hidden.var((0, 2, 3), False, keepdim=True)
        scale, shift = (state[f"{name}.{part}"][:, None, None] for part in ("weight", "bias"))
        return torch.relu((hidden - mean) / (variance + 1e-5).sqrt() * scale + shift)

    assert ("conv1.bias" in state) is public
    hidden = conv(images, "conv1", 1)
    for number, stride in enumerate((1, 2, 2)):
        block = f"blocks.{number}"
        strides = (1, stride) if public else (stride, 1)
        first = active(hidden, f"{block}.bn1")
        inner = active(conv(first, f"{block}.conv1", strides[0]), f"{block}.bn2")
        inner = conv(inner, f"{block}.conv2", strides[1])
        seen = hidden if public else first
        hidden = inner + (hidden if number == 0 else conv(seen, f"{block}.shortcut", stride))
    expected = active(hidden, "bn")
    assert expected.shape == (3, 64, 3, 3)
    torch.testing.assert_close(backbone.forward_features(images), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(backbone(images), expected.flatten(2).mean(2), rtol=1e-4, atol=1e-4)


def test_the_public_network_starts_as_torch_does():
    torch.manual_seed(0)
    weight = create_backbone("wrn10_1", variant="fast-autoaugment").blocks[2].conv2.weight
    assert weight.abs().max() <= (weight[0].numel()) ** -0.5  # uniform within 1 / sqrt(fan in)


def test_momentum_of_batch_norm():
    backbone = create_backbone("wrn10_1", variant="fast-autoaugment").train()
    images = torch.randn(4, 3, 8, 8)
    backbone(images)
    seen = backbone.conv1(images).mean((0, 2, 3))
    torch.testing.assert_close(backbone.blocks[0].bn1.running_mean, 0.9 * seen)


def test_dropout_is_in_training_alone():
    backbone = create_backbone("wrn10_1", dropout=0.5)
    images = torch.randn(4, 3, 8, 8)
    assert not torch.equal(backbone(images), backbone(images))
    backbone.eval()
    assert torch.equal(backbone(images), backbone(images))


@pytest.mark.parametrize("name", ["wrn41_2", "wrn4_1", "wrn10_0", "wrn0_1"])
def test_depths_and_widths_that_are_none(name):
    refused(f"'{name}': wrnD_K has D = 6n \\+ 4", create_backbone, name)


@pytest.mark.parametrize("option", [{"dropout": 1.0}, {"dropout": -0.1}, {"variant": "public"}])
def test_options_out_of_range(option):
    refused(f"{next(iter(option))} of backbone 'wrn10_1'", create_backbone, "wrn10_1", **option)
