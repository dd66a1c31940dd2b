import numpy as np
import pytest
import torch

from refusals import refused
from sla.errors import InputError
from sla.images.store import ArrayImages, Dataset
from sla.sampling.episodes import Episodes


def make_dataset(counts):
    targets = np.repeat(np.arange(len(counts)), counts)
    np.random.default_rng(0).shuffle(targets)
    store = ArrayImages(torch.zeros(len(targets), 1, 1, 1, dtype=torch.uint8))
    return Dataset(store, targets, tuple(f"c{i}" for i in range(len(counts))))


def test_an_episode_is_a_task_of_way_classes_with_disjoint_support_and_query():
    dataset = make_dataset([30, 25, 40, 22, 21, 50, 33])
    episodes = Episodes(dataset, way=5, shot=3, query=15, seed=1)
    for number in range(50):
        episode = episodes.episode(number)
        assert episode.support.shape == episode.support_targets.shape == (15,)
        assert episode.query.shape == episode.query_targets.shape == (75,)
        images = np.concatenate([episode.support, episode.query])
        assert len(set(images.tolist())) == 90
        real = []
        for label in range(5):
            mine = images[np.concatenate([episode.support_targets, episode.query_targets]) == label]
            assert len(mine) == 18
            assert len(set(dataset.targets[mine].tolist())) == 1
            real.append(dataset.targets[mine[0]])
        assert len(set(real)) == 5
        assert all(array.dtype == np.int64 for array in episode)


def test_an_episode_follows_from_seed_and_number_alone():
    dataset = make_dataset([20] * 6)
    first = Episodes(dataset, 5, 1, 15, seed=4)
    later = Episodes(dataset, 5, 1, 15, seed=4)
    for _ in range(3):
        first.episode(0)
    assert all(np.array_equal(a, b) for a, b in zip(first.episode(9), later.episode(9), strict=True))
    assert not np.array_equal(first.episode(9).support, first.episode(8).support)
    assert not np.array_equal(first.episode(9).support, Episodes(dataset, 5, 1, 15, 5).episode(9).support)


def test_classes_and_images_are_drawn_evenly():
    dataset = make_dataset([10] * 8)
    episodes = Episodes(dataset, way=2, shot=1, query=1, seed=0)
    support = episodes.batch(0, 2000).support
    assert (abs(np.bincount(dataset.targets[support].ravel()) - 500) < 110).all()
    assert (np.bincount(support.ravel(), minlength=80) > 15).all()


def test_a_batch_is_its_episodes_stacked():
    episodes = Episodes(make_dataset([9] * 4), way=3, shot=2, query=4, seed=0)
    batch = episodes.batch(5, 6)
    assert batch.support.shape == batch.support_targets.shape == (6, 6)
    assert batch.query.shape == batch.query_targets.shape == (6, 12)
    for i in range(6):
        for stacked, single in zip(batch, episodes.episode(5 + i), strict=True):
            assert np.array_equal(stacked[i], single)


def test_what_cannot_be_an_episode_is_refused():
    with pytest.raises(InputError, match="15 images; 1 shots and 15 queries need 16: lower shot or query"):
        Episodes(make_dataset([20, 15, 20]), 2, 1, 15)
    with pytest.raises(InputError, match="5-way episodes need 5 classes; there are 3: lower way"):
        Episodes(make_dataset([20, 20, 20]), 5, 1, 15)
    refused("at least 2 classes", Episodes, make_dataset([20]), 1, 1, 15)
    refused("at least 2 classes, 1 shot and 1 query, not 2, 0, 5", Episodes, make_dataset([20, 20]), 2, 0, 5)
    refused("at least 1 episode", Episodes(make_dataset([20, 20]), 2, 1, 5).batch, 0, 0)
