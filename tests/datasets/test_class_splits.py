import numpy as np
import pytest
import torch
from PIL import Image

from refusals import refused
from sla.datasets.class_splits import load_class_splits, split_classes
from sla.errors import InputError
from sla.images.store import ArrayImages, Dataset, Splits


def write(folder, names, images=2, size=(6, 6)):
    for name in names:
        (folder / name).mkdir(parents=True)
        for number in range(images):
            Image.new("RGB", size, (number, 0, 0)).save(folder / name / f"{number}.png")


def make(count):
    store = ArrayImages(torch.zeros(3 * count, 1, 2, 2, dtype=torch.uint8))
    return Splits("some", Dataset(store, np.arange(3 * count) % count, tuple(f"c{i}" for i in range(count))))


def test_classes_are_split_by_the_seed_and_every_class_is_in_one_part():
    splits = split_classes(make(50), way=5, seed=1)
    parts = [splits.train, splits.val, splits.test]
    assert [part.num_classes for part in parts] == [32, 8, 10]
    assert sorted(name for part in parts for name in part.classes) == sorted(make(50).train.classes)
    whole = make(50).train
    for part in parts:
        for place in range(len(part)):
            assert part.classes[part.targets[place]] == whole.classes[whole.targets[part.rows[place]]]
    assert split_classes(make(50), 5, seed=1).test.classes == splits.test.classes
    assert split_classes(make(50), 5, seed=2).test.classes != splits.test.classes


def test_few_classes_go_without_validation_and_fewer_are_refused():
    splits = split_classes(make(11), way=5)
    assert (splits.train.num_classes, splits.val, splits.test.num_classes) == (6, None, 5)
    with pytest.raises(InputError, match="some has 9 classes: 5 to train on and 5 others to test on need 10"):
        split_classes(make(9), way=5)


def test_folders_train_val_test_with_classes_of_their_own(tmp_path):
    write(tmp_path / "train", ["ant", "bee"], size=(6, 6))
    write(tmp_path / "val", ["cat", "dog"], size=(9, 9))
    write(tmp_path / "test", ["eel", "fox"], size=(5, 7))
    splits = load_class_splits(tmp_path, 2)
    assert (splits.train.classes, splits.val.classes) == (("ant", "bee"), ("cat", "dog"))
    assert splits.test.classes == ("eel", "fox")
    assert {part.images.shape for part in (splits.train, splits.val, splits.test)} == {(3, 6, 6)}
    write(tmp_path / "test", ["ant"])
    refused(r"test has classes of train \(ant\); few-shot splits have none", load_class_splits, tmp_path, 2)


def test_one_folder_is_split_and_one_class_is_refused(tmp_path):
    write(tmp_path / "many", [f"k{i}" for i in range(6)])
    splits = load_class_splits(tmp_path / "many", 2, seed=3)
    names = [part.classes for part in (splits.train, splits.val, splits.test)]
    assert [len(some) for some in names] == [2, 2, 2]
    assert len({name for some in names for name in some}) == 6
    write(tmp_path / "one", ["only"])
    refused("only one class", load_class_splits, tmp_path / "one", 2)
    refused("no such folder", load_class_splits, tmp_path / "none" / "there", 2)
