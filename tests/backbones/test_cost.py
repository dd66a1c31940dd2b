"""Costs against counts by hand and published ones."""

import torch
from torch import nn

from sla.backbones import create_backbone
from sla.backbones.cost import count_flops, count_parameters


def test_resnet32_by_hand():
    multiply_adds = 3 * 16 * 9 * 32 * 32
    channels = 16
    for width, size in ((16, 32), (32, 16), (64, 8)):
        for _ in range(10):
            multiply_adds += channels * width * 9 * size * size
            channels = width
    flops = count_flops(create_backbone("resnet32"), (3, 32, 32))
    assert flops == 2 * multiply_adds
    assert round(flops / 2e6, 1) == 68.9


def test_one_pixel_in_training_mode_counts():
    model = nn.Sequential(nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2)).train()
    assert count_flops(model, (3, 1, 1)) == 2 * 3 * 2  # batch norm would refuse it in training


def test_counting_leaves_the_module_alone():
    model = nn.Sequential(nn.Conv2d(3, 2, 1, bias=False), nn.BatchNorm2d(2), nn.Dropout(0.5)).double()
    model[1].eval()
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    assert count_flops(model, (3, 5, 4)) == 2 * 3 * 2 * 5 * 4
    assert [module.training for module in model] == [True, False, True]
    assert all(torch.equal(tensor, before[key]) for key, tensor in model.state_dict().items())
    assert count_parameters(model) == 6 + 4


def test_wide_resnet_28_10_by_hand():
    """6n+4 layers: n = 4 blocks of two 3x3 convolutions in each of three groups, a 1x1 at each new width."""
    multiply_adds, channels = 3 * 16 * 9 * 32 * 32, 16
    for width, size in ((160, 32), (320, 16), (640, 8)):
        multiply_adds += channels * width * size * size  # the shortcut
        for _ in range(4):
            multiply_adds += (channels + width) * width * 9 * size * size
            channels = width
    flops = count_flops(create_backbone("wrn28_10"), (3, 32, 32))
    assert flops == 2 * multiply_adds
    assert round(flops / 2e9, 1) == 5.2  # as published, in billions of multiply-adds


def test_resnet34_by_hand_and_as_published():
    multiply_adds, channels = 3 * 64 * 49 * 112 * 112, 64
    for width, size, blocks in ((64, 56, 3), (128, 28, 4), (256, 14, 6), (512, 7, 3)):
        if width != channels:
            multiply_adds += channels * width * size * size
        for _ in range(blocks):
            multiply_adds += (channels + width) * width * 9 * size * size
            channels = width
    flops = count_flops(create_backbone("resnet34"), (3, 224, 224))
    assert flops == 2 * multiply_adds
    assert round(flops / 2e9, 1) == 3.7  # torchvision: 3.66 GFLOPS (multiply-adds) with the head of ImageNet
