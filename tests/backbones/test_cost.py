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
