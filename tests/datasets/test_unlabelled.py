"""Pictures without labels: which of a folder's files they are, and when a folder has labels."""

import pytest

from made_data import picture
from refusals import refused
from sla.datasets.scan import scan_pictures
from sla.datasets.unlabelled import NO_LABEL, has_labels, load_pictures
from sla.images.storage import Storage


def made(folder, *names):
    for number, name in enumerate(names):
        picture(folder / name, number)
    return folder


def found(folder):
    paths = scan_pictures(folder)
    return [paths.relative(row) for row in range(len(paths))]


FLAT = ("b.png", "a.jpg", "c.JPG")
CLASSES = ("cat/1.png", "cat/more/2.png", "dog/3.png")


@pytest.mark.parametrize(
    ("names", "expected", "labels"),
    [
        (FLAT, ["a.jpg", "b.png", "c.JPG"], False),
        (CLASSES, list(CLASSES), True),
        (("loose.png", *CLASSES), ["loose.png", *CLASSES], False),  # a picture without a class
        (("2021/1.png",), ["2021/1.png"], False),  # one class tells nothing
        (("train/1.png", "train/2.png", "test/3.png"), ["train/1.png", "train/2.png"], False),
        (tuple(f"train/{name}" for name in CLASSES), [f"train/{name}" for name in CLASSES], True),
    ],
)
def test_every_picture_is_found_and_labels_are_only_where_all_have_one(tmp_path, names, expected, labels):
    folder = made(tmp_path / "photos", *names)
    (folder / "notes.txt").write_text("no picture")
    made(folder, ".hidden/4.png")
    assert found(folder) == expected
    assert has_labels(folder) is labels


def test_a_link_back_up_is_followed_once(tmp_path):
    folder = made(tmp_path / "photos", "a/1.png", "b/2.png")
    (folder / "b" / "up").symlink_to(folder)
    assert found(folder) == ["a/1.png", "b/2.png"]


def test_pictures_are_loaded_at_one_size_with_one_class(tmp_path):
    folder = made(tmp_path / "photos", *FLAT)
    dataset = load_pictures(folder, Storage((4, 4)))
    assert dataset.classes == (NO_LABEL,)
    assert dataset.targets.tolist() == [0, 0, 0]
    images = dataset.read([0, 1, 2]).images
    assert images.shape == (3, 3, 4, 4)
    assert images[:, 0, 0, 0].tolist() == [1, 0, 2]  # in the order of their names


def test_what_has_no_pictures_is_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    refused("empty: no images in it", scan_pictures, tmp_path / "empty")
    refused("gone: no such folder", scan_pictures, tmp_path / "gone")
    refused("neither a folder, a CSV nor the name of a dataset", has_labels, "no-such-thing")
    assert has_labels("cifar10")
