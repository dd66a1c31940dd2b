"""ResNet-9 and the network of airbench: counts by hand, plain functions, and whitening by its definition."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import sla
from refusals import refused
from sla.backbones import create_backbone
from sla.backbones.cost import count_flops, count_parameters


@pytest.mark.parametrize("width", [16, 64, 5])
def test_resnet9_has_the_parameters_counted_by_hand(width):
    found = count_parameters(create_backbone(f"resnet9_{width}" if width != 64 else "resnet9"))
    pairs = [
        (3, 1),
        (1, 2),
        (2, 2),
        (2, 2),
        (2, 4),
        (4, 8),
        (8, 8),
        (8, 8),
    ]  # in units of the width, but for 3
    convolutions = sum(9 * (a if a == 3 else a * width) * b * width for a, b in pairs)
    norms = sum(2 * b * width for _, b in pairs)
    assert found == convolutions + norms
    assert width != 64 or round(found / 1e6, 2) == 6.57  # as published, without its classifier
    assert width != 16 or round(found / 1e6, 2) == 0.41


def test_resnet9_against_plain_functions():
    torch.manual_seed(0)
    backbone = create_backbone("resnet9_4", in_channels=2).eval()
    images = torch.randn(3, 2, 16, 16)

    def layer(hidden, part):
        conv, norm, _ = part
        return torch.relu(F.conv2d(hidden, conv.weight, padding=1) / (1 + norm.eps) ** 0.5)

    hidden = layer(images, backbone.stem)
    for number, part in enumerate(backbone.layers):
        hidden = F.max_pool2d(layer(hidden, part), 2)
        if number in (0, 2):
            first, second = backbone.residuals[str(number)]
            hidden = hidden + layer(layer(hidden, first), second)
    torch.testing.assert_close(backbone(images), hidden.flatten(2).max(2).values)
    mean = create_backbone("resnet9_4", in_channels=2, pool="avg").eval()
    mean.load_state_dict(backbone.state_dict())
    torch.testing.assert_close(mean(images), hidden.flatten(2).mean(2))


@pytest.mark.parametrize("name", ["resnet9_8", "airbench"])
@pytest.mark.parametrize("size", [8, 9, 32, 40])
def test_any_size_and_number_of_channels(name, size):
    backbone = create_backbone(name, in_channels=1)
    assert backbone(torch.randn(2, 1, size, size)).shape == (2, backbone.num_features)


def test_airbench_has_the_published_counts():
    """1.97 M parameters with its classifier; 0.36 GFLOP of multiply-adds per image at 32 pixels."""
    backbone = create_backbone("airbench")
    hand = sum(
        9 * a * b + 2 * b for a, b in [(24, 64), (64, 64), (64, 256), (256, 256), (256, 256), (256, 256)]
    )
    assert count_parameters(backbone) == hand + 24
    assert backbone.forward_features(torch.randn(2, 3, 32, 32)).shape == (2, 256, 3, 3)
    places = [(24, 64, 31), (64, 64, 15), (64, 256, 15), (256, 256, 7), (256, 256, 7), (256, 256, 3)]
    expected = sum(9 * a * b * size**2 for a, b, size in places) + 24 * 12 * 31**2
    assert count_flops(backbone, (3, 32, 32)) == 2 * expected
    trained = {name for name, p in backbone.named_parameters() if p.requires_grad}
    assert "whitening.bias" in trained
    assert not any("norm" in name and name.endswith("weight") for name in trained)


def test_convolutions_of_airbench_start_as_the_identity():
    group = create_backbone("airbench", width=0.5).groups[1]
    images = torch.randn(2, 32, 6, 6)
    torch.testing.assert_close(group.conv1(images)[:, :32], images)


def test_whitened_patches_are_uncorrelated_and_of_variance_one():
    torch.manual_seed(0)
    backbone = create_backbone("airbench")
    smooth = F.avg_pool2d(torch.randn(200, 3, 20, 20), 3, 1) * torch.tensor([1.0, 3.0, 0.5])[:, None, None]
    sla.init_from_data(backbone, smooth)
    outputs = backbone.whitening(smooth).detach()[:, :12].transpose(0, 1).flatten(1).double()
    covariance = np.cov(outputs.numpy())
    # Where a variance is not far above EPSILON, less than 1 is left of it.
    assert np.abs(covariance - np.diag(np.diag(covariance))).max() < 1e-2
    assert np.diag(covariance).max() <= 1.001
    assert np.diag(covariance)[:9].min() > 0.9
    torch.testing.assert_close(backbone.whitening.weight[12:], -backbone.whitening.weight[:12])


def test_a_run_whitens_by_its_own_images_and_keeps_it(tmp_path):
    settings = {"run__iterations": 2, "run__compile": False, "model__backbone": "airbench"}
    settings |= {"model__options": {"width": 0.1, "in_channels": 1}, "run__batch_size": 16}
    run = sla.fit("digits", tmp_path / "run", method__name="sla", **settings)
    other = sla.fit("digits", tmp_path / "other", method__name="sla", run__seed=1, **settings)
    weight = run.model.backbone.whitening.weight
    torch.testing.assert_close(weight, other.model.backbone.whitening.weight)  # the same images, another seed
    assert (run.model.backbone.groups[0].norm1.weight == 1).all()  # fixed, also by a run
    assert not torch.equal(weight, create_backbone("airbench", in_channels=1).whitening.weight)


@pytest.mark.parametrize(
    ("name", "option", "words"),
    [
        ("resnet9_0", {}, "from 1 channel"),
        ("resnet9", {"pool": "mean"}, "pool"),
        ("airbench", {"width": 0}, "width"),
    ],
)
def test_options_out_of_range(name, option, words):
    refused(words, create_backbone, name, **option)
