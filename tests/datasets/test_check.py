"""Checking a dataset: a folder whose faults are known."""

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from made_data import cifar10_files, picture
from sla.datasets.catalogue import CATALOGUE
from sla.datasets.check import check, write_sheet
from sla.datasets.download import DownloadError
from sla.datasets.load import load


@pytest.fixture
def faulty(tmp_path):
    root = tmp_path / "photos"
    colours = {f"train/cat/{i}": (10 * i, 0, 0) for i in range(4)}
    colours |= {f"train/dog/{i}": (0, 100 + i, 0) for i in range(2)}
    colours |= {"train/dog/again": (0, 101, 0)}  # as dog/1
    colours |= {"train/dog/cat in the kennel": (20, 0, 0)}  # as cat/2
    colours |= {"test/cat/new": (200, 200, 200), "test/dog/new": (0, 200, 0)}
    colours |= {"test/cat/seen": (30, 0, 0)}  # as train's cat/3
    for name, colour in colours.items():
        picture(root / f"{name}.png", colour, 32)
    (root / "train" / "dog" / "text.jpg").write_text("no picture")
    whole = (root / "train" / "cat" / "0.png").read_bytes()
    (root / "train" / "cat" / "cut.png").write_bytes(whole[: len(whole) // 2])
    return root


def names(pairs):
    return [(Path(first).name, Path(second).name) for first, second in pairs]


def test_every_fault_is_found(faulty):
    found = check(faulty)
    train, test = found.splits
    assert (train.name, train.images, train.classes, train.expected) == ("train", 10, 2, None)
    assert (train.fewest, train.most) == (("cat", 5), ("cat", 5))
    assert [Path(path).name for path, _ in train.corrupt] == ["cut.png", "text.jpg"]
    assert "not an image" in train.corrupt[1][1]
    pairs = sorted(sorted(pair) for pair in names(train.repeated))
    assert pairs == [["1.png", "again.png"], ["2.png", "cat in the kennel.png"]]
    assert train.mislabelled == 1
    assert (test.images, test.corrupt, test.repeated) == (3, [], [])
    assert (test.fewest, test.most) == (("dog", 1), ("cat", 2))
    [(splits, shared)] = found.shared.items()
    assert (splits, names(shared)) == (("train", "test"), [("3.png", "seen.png")])
    assert not found.passed
    # mean of the eight readable pictures of train, by hand
    red = (0 + 10 + 20 + 30 + 20) / 8 / 255
    assert train.mean == pytest.approx((red, (100 + 101 + 101) / 8 / 255, 0))
    values = np.array([0, 10, 20, 30, 20, 0, 0, 0]) / 255
    assert train.std[0] == pytest.approx(values.std())


def test_without_pixels_nothing_is_decoded(faulty):
    found = check(faulty, pixels=False)
    assert found.splits[0].images == 10
    assert found.splits[0].corrupt == []
    assert found.splits[0].mean is None
    assert not found.decoded


def test_digits():
    found = check("digits")
    train, test = found.splits
    assert (train.images, test.images, train.expected, test.fewest[1]) == (1437, 360, 1437, 36)
    assert found.shared == {("train", "test"): []}
    assert train.mean == pytest.approx(CATALOGUE["digits"].mean, abs=5e-5)
    assert train.std == pytest.approx(CATALOGUE["digits"].std, abs=5e-5)


def test_checksums_of_a_named_dataset(tmp_path, monkeypatch):
    cifar10_files(tmp_path, count=1)
    sums = {path.name: hashlib.md5(path.read_bytes()).hexdigest() for path in tmp_path.iterdir()}
    made = replace(CATALOGUE["cifar10"], checksums=sums, splits={"train": 5, "test": 1})
    monkeypatch.setitem(CATALOGUE, "cifar10", made)
    assert sorted(path.name for path in check("cifar10", root=tmp_path).checksums) == sorted(sums)
    (tmp_path / "data_batch_4.bin").write_bytes(b"\x03" + b"\x01" * 3072)
    with pytest.raises(DownloadError, match=r"data_batch_4\.bin: md5 .* damaged or another file"):
        check("cifar10", root=tmp_path)


def test_the_sheet_shows_each_class_in_its_row(faulty, tmp_path):
    check(faulty, sheet=tmp_path / "sheet.png")
    sheet = np.asarray(Image.open(tmp_path / "sheet.png").convert("RGB"))
    half = len(sheet) // 2
    right = sheet[:, 176:]
    painted = right[(right != 255).all(2)]
    assert len(painted) == 8 * 64 * 64  # every readable image, twice its size
    cats, dogs = right[:half], right[half:]
    assert (cats[(cats != 255).all(2)][:, 1] == 0).all()  # no green in the cats' row
    seen = {tuple(pixel) for pixel in dogs[(dogs != 255).all(2)].tolist()}
    assert seen == {(0, 100, 0), (0, 101, 0), (20, 0, 0)}


def test_a_sheet_of_grey_pictures(tmp_path):
    write_sheet(load("digits"), tmp_path / "digits.png")
    with Image.open(tmp_path / "digits.png") as sheet:
        assert sheet.size == (176 + 10 * 66, 10 * 66)
