"""The four-layer network against a hand-written one, on large and on tiny images."""

import pytest
import torch
import torch.nn.functional as F

from refusals import refused
from sla.backbones import create_backbone
from sla.backbones.cost import count_parameters


def test_published_count():
    assert count_parameters(create_backbone("convnet4")) == 113_088


def test_against_plain_functions():
    torch.manual_seed(0)
    backbone = create_backbone("convnet4", in_channels=2, width=8)
    images = torch.randn(3, 2, 84, 84)
    backbone.train()(images)  # running statistics that are not those of the start
    state = list(backbone.state_dict().values())
    hidden = images
    for layer in range(4):
        weight, bias, scale, shift, mean, variance, _ = state[7 * layer : 7 * layer + 7]
        hidden = F.conv2d(hidden, weight, bias, padding=1)
        hidden = F.batch_norm(hidden, mean, variance, scale, shift)
        hidden = F.max_pool2d(torch.relu(hidden), 2)
    assert hidden.shape == (3, 8, 5, 5)
    with torch.no_grad():
        features = backbone.eval()(images)
    torch.testing.assert_close(features, hidden.flatten(2).mean(2), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("size", "map_size"),
    [
        ((8, 8), (1, 1)),
        ((1, 1), (1, 1)),
        ((1, 9), (1, 9)),
        ((9, 20), (1, 2)),
        ((28, 28), (1, 1)),
        ((33, 64), (2, 4)),
    ],
)
def test_pools_only_while_there_is_something_to_pool(size, map_size):
    backbone = create_backbone("convnet4", in_channels=1, width=4).eval()
    assert backbone.forward_features(torch.randn(2, 1, *size)).shape == (2, 4, *map_size)
    assert backbone(torch.randn(2, 1, *size)).shape == (2, backbone.num_features)


@pytest.mark.parametrize("width", [0, 2.5, "64"])
def test_width_must_be_a_whole_number(width):
    refused("width", create_backbone, "convnet4", width=width)
