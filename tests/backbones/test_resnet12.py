"""ResNet-12 and DropBlock against plain functions, closed forms and counts by hand."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from refusals import refused
from sla.backbones import create_backbone
from sla.backbones.dropblock import DropBlock, drop_block
from sla.errors import InputError
from sla.hooks import follow_step


@pytest.mark.parametrize(("resolution", "num_features"), [(32, 2560), (84, 16000), (8, 640)])
def test_features_without_pooling(resolution, num_features):
    options = {"pool": False, "resolution": resolution}
    backbone = create_backbone("resnet12", **options).eval()
    assert backbone.num_features == num_features
    small = create_backbone("resnet12", width=0.125, **options).eval()
    images = torch.randn(2, 3, resolution, resolution)
    features = small(images)
    assert features.shape == (2, num_features // 8)
    assert torch.equal(features, small.forward_features(images).flatten(1))


def test_another_size_needs_another_network():
    backbone = create_backbone("resnet12", width=0.125, pool=False)
    with pytest.raises(InputError, match=r"maps of 2x2; images of 84x84 give 5x5: set resolution=84"):
        backbone.eval()(torch.randn(1, 3, 84, 84))
    pooled = create_backbone("resnet12", width=0.125).eval()
    assert pooled(torch.randn(1, 3, 84, 50)).shape == (1, pooled.num_features) == (1, 80)


def test_against_plain_functions():
    torch.manual_seed(0)
    backbone = create_backbone("resnet12", in_channels=2, width=0.0625, pool=False, resolution=33)
    images = torch.randn(3, 2, 33, 33)
    backbone.train()(images)  # running statistics that are not those of the start
    state = backbone.eval().state_dict()

    def conv(hidden, name, norm):
        weight = state[f"{name}.weight"]
        hidden = F.conv2d(hidden, weight, padding=weight.shape[-1] // 2)
        parts = (state[f"{norm}.{key}"] for key in ("running_mean", "running_var", "weight", "bias"))
        return F.batch_norm(hidden, *parts)

    hidden = images
    for number in range(4):
        block = f"blocks.{number}"
        inner = hidden
        for place in range(3):
            inner = conv(inner, f"{block}.convs.{place}", f"{block}.norms.{place}")
            if place < 2:
                inner = torch.where(inner > 0, inner, 0.1 * inner)
        inner = inner + conv(hidden, f"{block}.shortcut.0", f"{block}.shortcut.1")
        hidden = F.max_pool2d(torch.where(inner > 0, inner, 0.1 * inner), 2)
    assert hidden.shape == (3, 40, 2, 2)
    torch.testing.assert_close(backbone(images), hidden.flatten(1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("size", "side"), [((10, 10), 5), ((6, 9), 2), ((5, 5), 5), ((7, 7), 1)])
def test_dropped_share_in_closed_form(size, side):
    """A pixel stays when none of the squares that would cover it starts: (1 - gamma) to their number."""
    torch.manual_seed(0)
    rate, (height, width) = 0.3, size
    gamma = rate / side**2 * height * width / ((height - side + 1) * (width - side + 1))
    dropped = (drop_block(torch.ones(400, 50, *size), rate, side) == 0).float().mean((0, 1))
    for row in range(height):
        for column in range(width):
            rows = min(row, height - side) - max(row - side + 1, 0) + 1
            columns = min(column, width - side) - max(column - side + 1, 0) + 1
            expected = 1 - (1 - gamma) ** (rows * columns)
            # 20,000 draws: a standard error of at most 0.0036.
            assert dropped[row, column].item() == pytest.approx(expected, abs=0.02)
    if side in (1, height):  # squares cannot overlap
        assert dropped.mean().item() == pytest.approx(rate, abs=0.01)


def test_dropped_are_whole_squares():
    torch.manual_seed(0)
    maps = drop_block(torch.ones(50, 4, 6, 7), 0.1, 3)
    assert 0 < (maps == 0).sum() < maps.numel() / 4
    for image in maps.flatten(0, 1):
        covered = torch.zeros(6, 7, dtype=torch.bool)
        for row in range(4):
            for column in range(5):
                square = (slice(row, row + 3), slice(column, column + 3))
                if not image[square].any():
                    covered[square] = True
        assert torch.equal(covered, image == 0)


def test_what_stays_makes_up_for_what_is_dropped():
    torch.manual_seed(0)
    input = torch.ones(8, 4, 10, 10, requires_grad=True)
    output = drop_block(input, 0.3, 5)
    assert output.mean().item() == pytest.approx(1.0)
    left = (output > 0).float().mean().item()
    assert 0.5 < left < 0.95
    assert output.max().item() == pytest.approx(1 / left)
    output.sum().backward()
    assert torch.equal(input.grad, output.detach())


def test_none_all_and_small_maps():
    maps = torch.randn(2, 3, 4, 4)
    assert torch.equal(drop_block(maps, 0.0, 2), maps)
    assert torch.equal(drop_block(maps, 1.0, 4), torch.zeros_like(maps))
    torch.manual_seed(0)
    whole = drop_block(torch.ones(100, 3, 2, 2), 0.5, 5).flatten(2)
    assert ((whole == 0).all(2) | (whole > 0).all(2)).all()
    assert drop_block(maps.bfloat16(), torch.tensor(0.5), 2).dtype is torch.bfloat16


def test_rate_follows_steps_and_not_calls():
    layer = DropBlock(0.2, 2, ramp_steps=4)
    model = nn.Sequential(nn.Identity(), layer)
    maps = torch.ones(200, 20, 4, 4)
    rates = []
    for step in range(6):
        follow_step(model, step, 6)
        rates.append(layer.current_rate.item())
        model(maps), model(maps)  # support and query
        model.eval()(maps)
        model.train()
    assert rates == pytest.approx([0.0, 0.05, 0.1, 0.15, 0.2, 0.2])
    assert (model(maps) == 0).any()
    assert torch.equal(model.eval()(maps), maps)
    copy = DropBlock(0.2, 2, ramp_steps=4)
    copy.load_state_dict(layer.state_dict())
    assert copy.current_rate.item() == pytest.approx(0.2)


def test_where_numbers_and_where_squares_are_dropped():
    backbone = create_backbone("resnet12", width=0.0625, drop_rate=0.4, resolution=84)
    kinds = [type(block.drop) for block in backbone.blocks]
    assert kinds == [nn.Dropout, nn.Dropout, DropBlock, DropBlock]
    assert [block.drop.block_size for block in backbone.blocks[2:]] == [5, 5]
    backbone = create_backbone("resnet12", width=0.0625)
    assert [block.drop.block_size for block in backbone.blocks[2:]] == [2, 2]
    assert [block.drop.p for block in backbone.blocks[:2]] == [0.1, 0.1]
    quiet = create_backbone("resnet12", width=0.0625, drop_rate=0.0)
    images = torch.randn(4, 3, 16, 16)
    assert torch.equal(quiet(images), quiet(images))


@pytest.mark.parametrize(
    "option", [{"width": 0}, {"drop_rate": 1.0}, {"resolution": 0}, {"dropblock_size": 0}, {"ramp_steps": 0}]
)
def test_options_out_of_range(option):
    refused(f"{next(iter(option))} of backbone 'resnet12'", create_backbone, "resnet12", **option)
