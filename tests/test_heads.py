import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import sla
from refusals import refused
from sla.heads import check_device

KINDS = pytest.mark.parametrize("kind", ["linear", "cosine"])


@KINDS
def test_logits_by_hand(kind):
    torch.manual_seed(0)
    head = sla.JointHead(5, 3, 2, kind, scale=7.0).double()
    features = torch.randn(4, 5, dtype=torch.float64)
    logits = head(features)
    for b in range(4):
        for row in range(6):
            dot = sum(features[b, d] * head.weight[row, d] for d in range(5))
            lengths = [vector.square().sum().sqrt() for vector in (features[b], head.weight[row])]
            expected = dot + head.bias[row] if kind == "linear" else 7.0 * dot / (lengths[0] * lengths[1])
            assert logits[b, row].item() == pytest.approx(expected.item(), abs=1e-12)


@KINDS
def test_block_is_the_slice_of_the_full_logits(kind):
    torch.manual_seed(0)
    head = sla.JointHead(8, 5, 3, kind)
    features = torch.randn(4, 8)
    full = head(features).view(4, 5, 3)
    for view in range(3):
        torch.testing.assert_close(head.block(features, view), full[:, :, view])


@KINDS
def test_own_blocks_are_the_diagonal_of_the_full_logits(kind):
    torch.manual_seed(0)
    head = sla.JointHead(8, 5, 3, kind).double()
    features = torch.randn(2 * 3, 8, dtype=torch.float64, requires_grad=True)
    full = head(features)
    own = head.own_blocks(features)
    by_hand = torch.stack([torch.stack([full[b * 3 + j, j::3] for j in range(3)]) for b in range(2)])
    torch.testing.assert_close(own, by_hand)
    for a, b in zip(
        torch.autograd.grad(own.square().sum(), [features, head.weight], retain_graph=True),
        torch.autograd.grad(by_hand.square().sum(), [features, head.weight]),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


def multiply_adds(call):
    with FlopCounterMode(display=False) as counter:
        call()
    return counter.get_total_flops() // 2


def test_blocks_compute_only_the_logits_they_use():
    batch, width, num_classes, num_views = 3, 16, 10, 4
    head = sla.JointHead(width, num_classes, num_views)
    plain, expanded = torch.randn(batch, width), torch.randn(batch * num_views, width)
    assert multiply_adds(lambda: head.block(plain, 2)) == batch * width * num_classes
    assert multiply_adds(lambda: head.own_blocks(expanded)) == batch * num_views * width * num_classes
    assert multiply_adds(lambda: head(expanded)) == batch * num_views * width * num_classes * num_views


@KINDS
def test_growing_leaves_old_logits_untouched(kind):
    torch.manual_seed(0)
    head = sla.JointHead(6, 3, 4, kind)
    features = torch.randn(5, 6)
    before = head(features).detach()
    head.grow(2)
    after = head(features)
    assert after.shape == (5, 20)
    torch.testing.assert_close(after[:, :12], before)
    assert head.num_classes == 5
    assert len(list(head.parameters())) == (2 if kind == "linear" else 1)
    after.sum().backward()
    assert head.weight.grad is not None
    assert head.weight.grad[12:].abs().sum() > 0


def test_a_plain_head_is_a_joint_head_of_one_view():
    torch.manual_seed(0)
    plain = sla.PlainHead(4, 3)
    features = torch.randn(2, 4)
    torch.testing.assert_close(plain(features), features @ plain.weight.T + plain.bias)
    assert plain(features).shape == (2, 3)


def test_new_heads_start_as_torch_linear_layers_do():
    torch.manual_seed(0)
    head = sla.JointHead(400, 100, 4)
    assert head.weight.abs().max() <= 1 / 20
    assert head.weight.std().item() == pytest.approx(1 / 20 / 3**0.5, rel=0.02)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: sla.JointHead(4, 0, 2), "num_classes of at least 1"),
        (lambda: sla.JointHead(4, 3, 0), "num_views of at least 1"),
        (lambda: sla.JointHead(4, 3, 2, "cosin"), "did you mean 'cosine'"),
        (lambda: sla.JointHead(4, 3, 2).block(torch.zeros(1, 4), 2), "view 2 is out of range"),
        (lambda: sla.JointHead(4, 3, 2).block(torch.zeros(1, 4), -1), "view -1 is out of range"),
        (lambda: sla.JointHead(4, 3, 2).grow(0), "at least one class"),
        (lambda: sla.JointHead(4, 3, 2).grow(1.5), "a whole number, not 1.5"),
        (lambda: sla.JointHead(4, 2.5, 2), "num_classes of at least 1, a whole number, not 2.5"),
        (lambda: sla.JointHead(4, 3, 2).own_blocks(torch.zeros(5, 4)), r"\(B\*2, 4\), not \(5, 4\)"),
        (lambda: sla.JointHead(4, 3, 2).own_blocks(torch.zeros(6, 3)), r"\(B\*2, 4\), not \(6, 3\)"),
    ],
)
def test_wrong_heads_are_refused(call, words):
    refused(words, call)


def test_a_cosine_head_starts_with_rows_of_length_one_also_when_it_grows():
    torch.manual_seed(0)
    head = sla.JointHead(7, 5, 4, kind="cosine")
    torch.testing.assert_close(head.weight.norm(dim=1), torch.ones(20))
    head.grow(2)
    torch.testing.assert_close(head.weight.norm(dim=1), torch.ones(28))
    assert head.weight.requires_grad


def test_weights_and_biases_also_those_of_new_classes_start_within_one_over_the_root_of_the_width():
    torch.manual_seed(0)
    head = sla.JointHead(400, 50, 4)
    head.grow(50)
    for new in (head.weight, head.weight[200:], head.bias, head.bias[200:]):
        assert new.abs().max() <= 1 / 20
        assert new.std().item() == pytest.approx(1 / 20 / 3**0.5, rel=0.1)
        assert new.mean().item() == pytest.approx(0, abs=0.005)


def test_rows_of_a_cosine_head_point_everywhere():
    torch.manual_seed(0)
    weight = sla.JointHead(400, 50, 4, "cosine").weight
    assert weight.mean().item() == pytest.approx(0, abs=1e-3)  # of entries of 1/20
    assert (weight @ weight.T - torch.eye(200)).abs().max() < 0.3


def test_a_frozen_head_stays_frozen_when_it_grows():
    head = sla.JointHead(6, 3, 4).requires_grad_(False)
    head.grow(1)
    assert [parameter.requires_grad for parameter in head.parameters()] == [False, False]
    assert [tuple(parameter.shape) for parameter in head.parameters()] == [(16, 6), (16,)]


def test_the_smallest_head_whole_numbers_of_numpy_and_what_is_printed():
    assert sla.JointHead(1, 1, 1)(torch.ones(2, 1)).shape == (2, 1)
    assert sla.PlainHead(np.int64(4), np.int32(3)).num_views == 1
    plain = sla.PlainHead(4, 3, "cosine", 7.0)
    assert plain(plain.weight).diagonal().tolist() == pytest.approx([7.0] * 3)
    assert str(plain) == "PlainHead(4, 3 classes x 1 views, cosine, scale=7)"
    assert str(sla.JointHead(4, 3, 2)) == "JointHead(4, 3 classes x 2 views, linear)"


def test_features_of_all_views_are_a_matrix():
    refused(r"must be \(B\*2, 4\), not \(2, 4, 4\)", sla.JointHead(4, 3, 2).own_blocks, torch.zeros(2, 4, 4))


def test_devices_that_are_not_there_are_refused():
    for device in ("cpu", torch.device("meta")):
        check_device(device)
    for device in ("nonsense", "cuda:99", "cpu:x"):
        refused(f"no device '{device}'", check_device, device)
