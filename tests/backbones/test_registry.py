"""What every backbone promises, and what the registry says when it is asked wrongly."""

import pytest
import torch

from refusals import refused
from sla import backbones
from sla.backbones import create_backbone, list_backbones, register
from sla.errors import InputError

OURS = [
    "convnet4", "efficientnet_lite0", "pyramidnet20_48", "pyramidnet110_48", "pyramidnet200_240",
    "resnet8", "resnet12", "resnet18", "resnet20", "resnet32", "resnet34", "resnet44", "resnet50",
    "resnet56", "resnet110", "wrn10_1", "wrn16_4", "wrn28_10", "wrn40_2",
]  # fmt: skip


def test_list_is_in_a_readers_order_and_complete():
    listed = list_backbones()
    assert [name for name in listed if name in OURS] == OURS
    assert not any(":" in name for name in listed)


@pytest.mark.parametrize("name", list_backbones())
def test_the_smallest_input_gives_a_vector_an_image_and_every_weight_learns(name):
    torch.manual_seed(0)
    backbone = create_backbone(name, in_channels=1)
    with torch.no_grad():
        images = torch.randn(2, 1, 8, 8)
        features, maps = backbone.eval()(images), backbone.forward_features(images)
    assert features.shape == (2, backbone.num_features) == maps.shape[:2]
    assert maps.ndim == 4
    assert features.isfinite().all()
    assert features.std() > 0
    backbone.train()(torch.randn(4, 1, 16, 16)).square().sum().backward()
    for key, parameter in backbone.named_parameters():
        if not parameter.requires_grad:  # fixed by design
            continue
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all(), key
        if key.endswith("weight"):
            assert parameter.grad.abs().max() > 0, key


@pytest.mark.parametrize(
    "name",
    ["convnet4", "efficientnet_lite0", "pyramidnet20_48", "resnet8", "resnet12", "resnet18", "wrn10_1"],
)
@pytest.mark.parametrize("size", [(37, 37), (33, 50)])
def test_features_are_the_mean_of_the_map_and_alone_in_evaluation(name, size):
    torch.manual_seed(0)
    backbone = create_backbone(name)
    images = torch.randn(4, 3, *size)
    together = backbone.train()(images)
    assert not torch.allclose(together[:2], backbone(images[:2]), atol=1e-3)  # batch norm saw other images
    backbone.eval()
    with torch.no_grad():
        maps, features = backbone.forward_features(images), backbone(images)
        alone = torch.cat([backbone(image[None]) for image in images])
    by_hand = torch.stack([image.flatten(1).double().mean(1) for image in maps])
    torch.testing.assert_close(features.double(), by_hand, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(alone, features, rtol=1e-4, atol=1e-5)


def test_unknown_names_and_options_say_what_is_meant():
    refused(r"'resnt32', did you mean 'resnet32'\?", create_backbone, "resnt32")
    with pytest.raises(InputError, match=r"'resnet18' has no option 'steam', did you mean 'stem'\?"):
        create_backbone("resnet18", steam="small")
    refused(r"'wrn10_1': invalid options {'dropout': 'high'}: ", create_backbone, "wrn10_1", dropout="high")
    refused("'convnet4': no weights are published with it here", create_backbone, "convnet4", pretrained=True)
    refused("'resnet32' has no option 'stem'; one of: in_channels", create_backbone, "resnet32", stem="small")
    refused(r"no stem is called 'smal', did you mean 'small'\?", create_backbone, "resnet18", stem="smal")
    refused("no backbone is called 'tim:resnet18'", create_backbone, "tim:resnet18")


@pytest.mark.parametrize("channels", [0, -1, 1.0, "3", None])
def test_channels_must_be_a_whole_number(channels):
    refused("in_channels", create_backbone, "resnet8", in_channels=channels)


def test_a_family_of_ones_own(monkeypatch):
    monkeypatch.setattr(backbones, "_FACTORIES", dict(backbones._FACTORIES))

    monkeypatch.setattr(backbones, "_PATTERNS", dict(backbones._PATTERNS))

    @register("twice", "mine:", pattern=r"pixels\d+")
    def pixels(name, *, in_channels=3, scale=1.0):
        return torch.nn.Flatten() if name == "twice" else torch.nn.Linear(in_channels, len(name))

    assert "twice" in list_backbones()
    assert isinstance(create_backbone("twice", scale=2.0), torch.nn.Flatten)
    assert create_backbone("mine:12", in_channels=5).weight.shape == (7, 5)
    assert create_backbone("pixels64").weight.shape == (8, 3)
    assert "pixels64" not in list_backbones()
    for name in ("pixels", "pixels64a", "my_pixels64"):
        refused(f"no backbone is called '{name}'", create_backbone, name)
    refused("'resnet8' is registered twice", register("resnet8"), pixels)
