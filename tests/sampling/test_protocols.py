import os
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from refusals import refused
from sla.errors import InputError, SLAWarning
from sla.images.store import ArrayImages, Dataset
from sla.sampling import protocols


def make_dataset(targets, num_classes):
    """A dataset whose rows are not 0..n-1, so that places and rows cannot be confused."""
    rows = np.arange(len(targets))[::-1] + 5
    store = ArrayImages(torch.zeros(len(targets) + 5, 1, 1, 1, dtype=torch.uint8))
    return Dataset(store, np.asarray(targets), tuple(f"c{i}" for i in range(num_classes)), rows)


def make_counts(counts):
    targets = np.repeat(np.arange(len(counts)), counts)
    np.random.default_rng(0).shuffle(targets)
    return make_dataset(targets, len(counts))


@pytest.fixture(scope="module")
def cifar100(shared_data):
    """The real labels in the official order; four pixels hold each image's number."""
    labels = np.load(shared_data / "cifar100" / "labels.npz")["fine_train"]
    numbers = np.arange(50_000, dtype="<u4").view(np.uint8).reshape(50_000, 1, 1, 4)
    return Dataset(ArrayImages(torch.from_numpy(numbers)), labels, tuple(f"c{i}" for i in range(100)))


def test_hold_out_keeps_every_image_once_with_its_label():
    dataset = make_counts([40, 20, 100])
    label_of = dict(zip(dataset.rows.tolist(), dataset.targets.tolist(), strict=True))
    train, held_out = protocols.hold_out(dataset, 0.1, seed=3)
    assert held_out.counts().tolist() == [4, 2, 10]
    assert sorted([*train.rows, *held_out.rows]) == sorted(dataset.rows)
    for part in (train, held_out):
        assert [label_of[row] for row in part.rows.tolist()] == part.targets.tolist()
    again = protocols.hold_out(dataset, 0.1, seed=3)[1]
    other = protocols.hold_out(dataset, 0.1, seed=4)[1]
    assert np.array_equal(again.rows, held_out.rows)
    assert not np.array_equal(other.rows, held_out.rows)


@given(st.lists(st.integers(2, 60), min_size=1, max_size=12), st.floats(0.02, 0.9))
@pytest.mark.filterwarnings("ignore::sla.errors.SLAWarning")
def test_a_fraction_is_shared_out_to_the_nearest_image(counts, fraction):
    dataset = make_counts(counts)
    if round(fraction * len(dataset)) == 0:
        return
    train, held_out = protocols.hold_out(dataset, fraction, seed=0)
    exact = fraction * np.array(counts)
    assert (np.abs(held_out.counts() - exact) < 1 + 1e-6).all()
    assert (train.counts() >= 1).all()
    room = sum(min(int(np.ceil(e)), n - 1) for e, n in zip(exact, counts, strict=True))
    assert len(held_out) == min(round(exact.sum()), room)


def test_classes_too_small_to_spare_an_image_are_named_and_kept():
    with pytest.warns(SLAWarning, match=r"2 classes too small to spare 10% of the images.*'c1', 'c3'"):
        train, held_out = protocols.hold_out(make_counts([50, 1, 50, 0, 40]), 0.1)
    assert held_out.counts().tolist() == [5, 0, 5, 0, 4]
    assert train.counts().tolist() == [45, 1, 45, 0, 36]
    with pytest.warns(SLAWarning, match=r"7 classes too small to spare 9 .*'c1', .* 'c5' and 2 more"):
        train, held_out = protocols.hold_out(make_counts([10, 9, 8, 7, 6, 5, 4, 3]), per_class=9)
    assert held_out.counts().tolist() == [9] + [0] * 7
    assert train.counts().tolist() == [1, 9, 8, 7, 6, 5, 4, 3]


def test_a_class_that_only_lost_the_rounding_is_not_called_too_small():
    with pytest.warns(SLAWarning) as caught:
        _, held_out = protocols.hold_out(make_counts([5, 1, 5, 5]), 0.1)
    assert held_out.counts().tolist() == [1, 0, 1, 0]
    assert [str(one.message) for one in caught] == [
        "1 class left without a held-out image when 10% of the images was rounded: 'c3'",
        "1 class too small to spare 10% of the images; nothing is held out of 'c1'",
    ]


def test_what_cannot_be_held_out_is_refused():
    with pytest.raises(InputError, match=r"spare 10% of .* largest has 1; .*data\.hold_out=0.* val/"):
        protocols.hold_out(make_counts([1, 1]), 0.1)
    with pytest.raises(InputError, match="no class can spare 5 of its images: the largest has 5"):
        protocols.hold_out(make_counts([5, 3]), per_class=5)
    refused(r"between 0 and 1, not 1\.0", protocols.hold_out, make_counts([5, 3]), 1.0)
    refused("at least 1, not 0", protocols.hold_out, make_counts([5, 3]), per_class=0)


def test_limited_sets_are_nested():
    dataset = make_counts([300, 260, 280])
    sets = [protocols.limited(dataset, n, seed=1) for n in (25, 50, 100, 250)]
    for n, part in zip((25, 50, 100, 250), sets, strict=True):
        assert part.counts().tolist() == [n] * 3
    for small, large in pairwise(sets):
        assert set(small.rows.tolist()) < set(large.rows.tolist())
    assert not np.array_equal(protocols.limited(dataset, 25, seed=2).rows, sets[0].rows)
    refused(r"class 'c1' has 260 images, 270 are needed: lower per_class$", protocols.limited, dataset, 270)
    refused(r"class 'c0' has 300 .*\(2 more classes have too few\)", protocols.limited, dataset, 301)


def chosen_by_the_public_rule(targets, num_classes, ratio, n_max):
    """The benchmark's own steps, written out on numpy's global stream."""
    state = np.random.get_state()
    np.random.seed(0)
    chosen = []
    for c in range(num_classes):
        places = np.where(targets == c)[0]
        np.random.shuffle(places)
        chosen.extend(places[: int(n_max * (1 / ratio) ** (c / (num_classes - 1.0)))])
    np.random.set_state(state)
    return chosen


@pytest.mark.parametrize(("ratio", "total", "last"), [(100, 10_847, 5), (10, 19_573, 50)])
def test_long_tailed_cifar100_is_the_public_one(cifar100, ratio, total, last):
    train, left_out = protocols.long_tailed(cifar100, ratio)
    assert len(train) == total
    assert (train.counts()[0], train.counts()[-1]) == (500, last)
    assert set(train.rows.tolist()) == set(chosen_by_the_public_rule(cifar100.targets, 100, ratio, 500))
    assert sorted([*train.rows, *left_out.rows]) == list(range(50_000))
    again = protocols.long_tailed(cifar100, ratio)[0]
    pictures = [part.read(range(len(part))).images for part in (again, train)]
    assert torch.equal(*pictures)  # not only the same counts
    assert np.array_equal(cifar100.targets[train.rows], train.targets)


def test_protocols_on_cifar100_share_no_picture(cifar100):
    train, held_out = protocols.hold_out(cifar100, per_class=50)
    assert (len(train), len(held_out)) == (45_000, 5_000)
    assert set(held_out.counts().tolist()) == {50}
    assert not set(train.rows.tolist()) & set(held_out.rows.tolist())
    assert len(protocols.limited(train, 250)) == 25_000


@pytest.mark.parametrize(("ratio", "total"), [(100, 12_406), (10, 20_431)])
def test_long_tailed_counts_of_ten_classes(ratio, total):
    train, left_out = protocols.long_tailed(make_dataset(np.arange(50_000) % 10, 10), ratio)
    assert (len(train), len(left_out)) == (total, 50_000 - total)
    if ratio == 100:
        assert train.counts().tolist() == [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]


def test_long_tailed_real_cifar10():
    if not os.environ.get("SLA_DATA"):
        pytest.skip("set SLA_DATA to a folder that has cifar10 (`sla data get cifar10`)")
    from sla.datasets.load import load

    try:
        train = load("cifar10").train
    except InputError as error:
        pytest.skip(f"no cifar10 in SLA_DATA: {error}")
    for ratio, total in ((100, 12_406), (10, 20_431)):
        tail, _ = protocols.long_tailed(train, ratio)
        assert len(tail) == total
        public = chosen_by_the_public_rule(train.targets, 10, ratio, 5000)
        assert set(tail.rows.tolist()) == set(train.rows[public].tolist())


def test_data_to_select_on_comes_from_what_the_tail_left_out():
    train, left_out = protocols.long_tailed(make_dataset(np.arange(3000) % 3, 3), 10)
    assert train.counts().tolist() == [1000, 316, 100]
    with pytest.warns(SLAWarning, match="1 class with fewer than 50 images left out to select on: 'c0'"):
        selection = protocols.selection_set(left_out, 50)
    assert selection.counts().tolist() == [0, 50, 50]
    assert not set(selection.rows.tolist()) & set(train.rows.tolist())


def test_tails_that_cannot_be_are_refused():
    with pytest.raises(InputError, match="class 'c2' has 90 images, 100 are needed"):
        protocols.long_tailed(make_counts([1000, 400, 90]), 10, n_max=1000)
    with pytest.raises(InputError, match="ratio 100 leaves class 'c1' no image; n_max must be at least 100"):
        protocols.long_tailed(make_counts([50, 50]), 100)
    refused("at least 2 classes", protocols.long_tailed, make_counts([50]), 10)
    refused(r"ratio 0\.1", protocols.long_tailed, make_counts([50, 50]), 0.1)
    refused("n_max 0", protocols.long_tailed, make_counts([50, 50]), 10, n_max=0)


def test_a_class_subset_is_relabelled_in_the_given_order():
    dataset = make_counts([3, 4, 5, 6])
    label_of = dict(zip(dataset.rows.tolist(), dataset.targets.tolist(), strict=True))
    part = protocols.class_subset(dataset, ["c3", 0, "c2"])
    assert part.classes == ("c3", "c0", "c2")
    assert part.counts().tolist() == [6, 3, 5]
    for row, target in zip(part.rows.tolist(), part.targets.tolist(), strict=True):
        assert f"c{label_of[row]}" == part.classes[target]


def test_class_subsets_that_cannot_be_are_refused():
    dataset = make_counts([3, 4])
    refused("unknown class 'd1', did you mean 'c1'", protocols.class_subset, dataset, ["d1"])
    refused("class 2 is not one of 0 to 1", protocols.class_subset, dataset, [2])
    refused("class 1 is named twice", protocols.class_subset, dataset, [0, 1, "c1"])
    refused("at least one class", protocols.class_subset, dataset, [])
