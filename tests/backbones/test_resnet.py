"""The residual networks against published counts, a hand-written shortcut and torchvision."""

import pytest
import torch
from torch import nn

from sla.backbones import create_backbone
from sla.backbones.cost import count_parameters
from sla.backbones.resnet import ZeroPadShortcut
from sla.backbones.torchvision_import import import_torchvision
from sla.errors import MissingExtraError


def torchvision_models():
    try:
        return import_torchvision().models
    except MissingExtraError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("depth", [8, 20, 32, 44, 56, 110])
def test_cifar_counts_by_hand(depth):
    convolutions = 3 * 16 * 9  # the stem
    norms = 16
    channels = 16
    for width in (16, 32, 64):
        for _ in range(2 * (depth - 2) // 6):
            convolutions += channels * width * 9
            norms += width
            channels = width
    assert count_parameters(create_backbone(f"resnet{depth}")) == convolutions + 2 * norms


@pytest.mark.parametrize(("height", "width"), [(8, 8), (7, 5), (1, 6)])
def test_zero_pad_shortcut_by_hand(height, width):
    images = torch.randn(2, 3, height, width)
    expected = torch.zeros(2, 7, (height + 1) // 2, (width + 1) // 2)
    for channel in range(3):
        for row in range(0, height, 2):
            for column in range(0, width, 2):
                expected[:, channel, row // 2, column // 2] = images[:, channel, row, column]
    shortcut = ZeroPadShortcut(3, 7, stride=2)
    assert torch.equal(shortcut(images), expected)
    assert not list(shortcut.parameters())


def test_shortcut_carries_the_signal_where_the_blocks_are_silent():
    backbone = create_backbone("resnet8").eval()
    for module in backbone.modules():
        if hasattr(module, "bn2"):
            nn.init.zeros_(module.bn2.weight)
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        stem = torch.relu(backbone.bn1(backbone.conv1(images)))
        maps = backbone.forward_features(images)
    assert torch.equal(maps[:, :16], stem[:, :, ::4, ::4])
    assert not maps[:, 16:].any()


def test_kaiming_start():
    for name in ("resnet8", "resnet18"):
        for key, module in create_backbone(name).named_modules():
            if isinstance(module, nn.Conv2d) and module.weight.numel() > 5000:
                expected = (2 / (module.out_channels * module.kernel_size[0] ** 2)) ** 0.5
                assert module.weight.std().item() == pytest.approx(expected, rel=0.05), key


@pytest.mark.parametrize(
    ("name", "options", "size", "map_size"),
    [
        ("resnet8", {}, (32, 32), (8, 8)),
        ("resnet8", {}, (33, 30), (9, 8)),
        ("resnet18", {}, (64, 64), (2, 2)),
        ("resnet18", {}, (65, 97), (3, 4)),
        ("resnet18", {"stem": "small"}, (32, 32), (4, 4)),
        ("resnet50", {"stem": "small"}, (17, 16), (3, 2)),
    ],
)
def test_map_sizes(name, options, size, map_size):
    backbone = create_backbone(name, **options).eval()
    with torch.no_grad():
        maps = backbone.forward_features(torch.randn(1, 3, *size))
    assert maps.shape == (1, backbone.num_features, *map_size)


@pytest.mark.parametrize("name", ["resnet18", "resnet34", "resnet50"])
def test_names_and_shapes_of_torchvision(name):
    theirs = getattr(torchvision_models(), name)().state_dict()
    shapes = {key: tensor.shape for key, tensor in theirs.items() if not key.startswith("fc.")}
    assert {key: tensor.shape for key, tensor in create_backbone(name).state_dict().items()} == shapes


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_features_of_torchvision(name):
    torch.manual_seed(0)
    theirs = getattr(torchvision_models(), name)()
    theirs.fc = nn.Identity()
    theirs.train()(torch.randn(8, 3, 64, 64))  # running statistics that are not those of the start
    ours = create_backbone(name)
    ours.load_state_dict(theirs.state_dict())
    images = torch.randn(2, 3, 65, 97)
    with torch.no_grad():
        torch.testing.assert_close(ours.eval()(images), theirs.eval()(images), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_compiled_output_and_gradients():
    torch.manual_seed(0)
    backbone = create_backbone("resnet8")
    images = torch.randn(4, 3, 32, 32)
    outcomes = []
    for module in (backbone, torch.compile(backbone, fullgraph=True)):
        backbone.zero_grad()
        features = module(images)
        features.square().sum().backward()
        outcomes.append((features.detach(), backbone.conv1.weight.grad.clone()))
    torch.testing.assert_close(outcomes[1], outcomes[0], rtol=1e-3, atol=1e-3)
