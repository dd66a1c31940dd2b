import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import sla
from refusals import refused

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
