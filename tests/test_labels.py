import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import sla
from refusals import refused
from sla.errors import InputError
from sla.labels import by_view, check_target, repeat_target, spread_classes


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.integers(1, 7))
def test_join_is_y_times_m_plus_j_interleaved_and_split_undoes_it(classes, num_views):
    joint = sla.join_labels(torch.tensor(classes), num_views)
    assert joint.tolist() == [y * num_views + j for y in classes for j in range(num_views)]
    target, view = sla.split_labels(joint, num_views)
    assert target.tolist() == [y for y in classes for _ in range(num_views)]
    assert view.tolist() == list(range(num_views)) * len(classes)


def test_joint_labels_match_the_layout_of_expanded_views():
    """Paint class and view into the pixels; each expanded image must carry its own joint label."""
    views = sla.CustomViews(plus_one=lambda x: x + 1, plus_two=lambda x: x + 2)
    target = torch.tensor([4, 0, 3])
    images = (target * 3).float().view(-1, 1, 1, 1).expand(-1, 1, 2, 2)
    painted = sla.expand_views(images, views)[:, 0, 0, 0].long()
    assert torch.equal(painted, sla.join_labels(target, 3))


def test_mixed_targets_keep_both_parents_on_the_same_view():
    target = sla.MixedTarget(torch.tensor([0, 2]), torch.tensor([1, 1]), torch.tensor([0.25, 0.9]))
    joint = sla.join_labels(target, 2)
    assert joint.a.tolist() == [0, 1, 4, 5]
    assert joint.b.tolist() == [2, 3, 2, 3]
    assert joint.lam.tolist() == pytest.approx([0.25, 0.25, 0.9, 0.9])
    one = sla.join_labels(target._replace(lam=torch.tensor(0.5)), 2)
    assert one.lam.tolist() == [0.5] * 4


def test_chosen_views_give_the_labels_of_those_views():
    target, views = torch.tensor([1, 3]), torch.tensor([[0, 2], [3, 1]])
    assert sla.join_labels(target, 4, views).tolist() == [4, 6, 15, 13]
    mixed = sla.join_labels(sla.MixedTarget(target, target.flip(0), torch.tensor([0.1, 0.2])), 4, views)
    assert mixed.b.tolist() == [12, 14, 7, 5]
    assert mixed.lam.tolist() == pytest.approx([0.1, 0.1, 0.2, 0.2])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32])
def test_labels_in_small_integers_do_not_overflow(dtype):
    target = torch.tensor([99, 3], dtype=dtype)
    assert sla.join_labels(target, 4).tolist() == [396, 397, 398, 399, 12, 13, 14, 15]
    views = torch.tensor([[3], [0]], dtype=dtype)
    assert sla.join_labels(target, 4, views).tolist() == [399, 12]
    assert repeat_target(target, 2).dtype == torch.int64
    assert check_target(target, 100, 2).dtype == torch.int64
    mixed = sla.join_labels(sla.MixedTarget(target, target.flip(0), 0.25), 4)
    assert mixed.b.tolist() == [12, 13, 14, 15, 396, 397, 398, 399]
    assert mixed.lam.tolist() == [0.25] * 8


def test_repeat_and_spread():
    assert repeat_target(torch.tensor([1, 2]), 3).tolist() == [1, 1, 1, 2, 2, 2]
    assert spread_classes(torch.tensor([1.0, 5.0]), 6).tolist() == [1, 1, 1, 5, 5, 5]
    assert spread_classes(torch.tensor([1.0, 5.0]), 2).tolist() == [1, 5]
    assert by_view(torch.arange(6), 3).tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (torch.tensor([0, 5]), "target 5 is out of range: 5 classes are 0..4"),
        (torch.tensor([0, -1]), "target -1 is out of range"),
        (torch.tensor([0.0, 1.0]), "class numbers, not torch.float32 (2,)"),
        (torch.tensor([[0, 1]]), "must be (2,) class numbers"),
        (torch.tensor([True, False]), "class numbers, not torch.bool"),
        (sla.MixedTarget(torch.tensor([0, 1]), torch.tensor([0, 9]), torch.tensor(0.5)), "target 9"),
        (sla.MixedTarget(torch.tensor([0, 1]), torch.tensor([0, 1]), torch.rand(3)), "lam must be"),
        (sla.MixedTarget(torch.tensor([0, 1]), torch.tensor([0, 1]), 1.5), "lam must be between 0 and 1"),
        (
            sla.MixedTarget(torch.tensor([0, 1]), torch.tensor([0, 1]), torch.tensor([0.5, float("nan")])),
            "lam must be between 0 and 1, not [0.5, nan]",
        ),
        ([0, 1], "must be a tensor of class numbers, not a list"),
        (np.array([0, 1]), "must be a tensor of class numbers, not a ndarray"),
        (torch.tensor([0j, 1j]), "class numbers, not torch.complex64"),
    ],
)
def test_wrong_targets_are_refused_in_one_clear_line(target, words):
    refused(words, check_target, target, num_classes=5, batch_size=2)


def test_widths_that_do_not_fit_are_refused():
    refused("not a multiple of 4 views", by_view, torch.zeros(2, 6), 4)
    refused("do not fit 7 labels", spread_classes, torch.ones(3), 7)
    for call in (sla.join_labels, sla.split_labels, repeat_target, by_view):
        refused("at least one view, not 0", call, torch.tensor([1, 2]), 0)
    with pytest.raises(InputError, match=r"\(B, k\) for 2 labels, not \(1, 4\)"):
        sla.join_labels(torch.tensor([1, 2]), 4, torch.arange(4).unsqueeze(0))
    refused(r"(B, k) for 2 labels, not (2,)", sla.join_labels, torch.tensor([1, 2]), 4, torch.tensor([0, 3]))


def test_a_mixed_target_at_its_limits_comes_back_as_it_is():
    a, b = torch.tensor([0, 4], dtype=torch.int8), torch.tensor([3, 1], dtype=torch.int8)
    for lam in (torch.tensor([0.0, 1.0]), 0, 1):
        found = check_target(sla.MixedTarget(a, b, lam), num_classes=5, batch_size=2)
        assert (found.a.tolist(), found.b.tolist()) == ([0, 4], [3, 1])
        assert torch.equal(found.lam, torch.as_tensor(lam))
    assert [part.dtype for part in repeat_target(sla.MixedTarget(a, b, 0.5), 2)[:2]] == [torch.int64] * 2
    assert check_target(torch.empty(0, dtype=torch.int64), num_classes=5, batch_size=0).shape == (0,)


def test_one_share_for_all_is_where_the_labels_are():
    labels = torch.empty(3, dtype=torch.int64, device="meta")
    for make in (repeat_target, sla.join_labels):
        assert make(sla.MixedTarget(labels, labels, 0.3), 2).lam.device.type == "meta"
