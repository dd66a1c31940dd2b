"""Datasets by name, in every layout in which they lie about; and by folder."""

import hashlib
import os
import re
import subprocess
import sys
import warnings
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from made_data import cifar10_files, mnist_files, picture
from refusals import refused
from sla.datasets.catalogue import CATALOGUE
from sla.datasets.find import find, get
from sla.datasets.formats.wordnet import class_lists
from sla.datasets.load import load
from sla.errors import SLAWarning

DEBIAN = Path("/usr/share/datasets/fashion-mnist")


@pytest.fixture
def whole(monkeypatch):
    """Say that a made-up dataset is the whole one, so that nothing warns."""

    def say(name, classes, **splits):
        monkeypatch.setitem(CATALOGUE, name, replace(CATALOGUE[name], num_classes=classes, splits=splits))

    return say


def class_folders(root, splits, size=8):
    for split, names in splits.items():
        for name in names:
            picture(root / split / name / "a.png", sum(name.encode()) % 256, size)


@pytest.mark.parametrize(
    ("name", "below"),
    [("mnist", "."), ("mnist", "mnist"), ("mnist", "MNIST/raw"), ("fashion-mnist", "FashionMNIST/raw")]
    + [("cifar10", f"{place}cifar-10-batches-{kind}") for place in ("", "cifar10/") for kind in ("bin", "py")]
    + [("cifar10", ".")],
)
def test_arrays_are_found_where_they_lie(tmp_path, whole, name, below):
    if "mnist" in name:
        mnist_files(tmp_path / below, counts=(4, 4), shape=(28, 28))
        whole(name, 10, train=4, test=4)
    else:
        cifar10_files(tmp_path / below, python=below.endswith("py"))
        whole(name, 10, train=15, test=3)
    splits = load(name, root=tmp_path)
    assert splits.test.targets.tolist() == ([0, 1, 2, 3] if "mnist" in name else [5, 6, 7])
    assert splits.train.images.shape == CATALOGUE[name].shape
    assert splits.train.images.in_memory
    assert splits.mean == CATALOGUE[name].mean
    assert get(name, root=tmp_path).route == "already there"


def test_the_data_folder_of_the_environment_is_searched(data_folder, whole):
    refused(r"mnist: not in .*`sla data get mnist` downloads it", load, "mnist")
    mnist_files(data_folder / "MNIST" / "raw", counts=(4, 4), shape=(28, 28))
    whole("mnist", 10, train=4, test=4)
    assert len(load("mnist").train) == 4


TINY = ["n01443537", "n01641577", "n01770393"]
FOLDERS = {
    "cub200": ("CUB_200_2011", {"train": ["001.A", "002.B"], "test": ["001.A", "002.B"]}),
    "stanford-dogs": (
        "stanford_dogs",
        {"train": ["n02085620-A", "n02085782-B"], "test": ["n02085620-A", "n02085782-B"]},
    ),
    "mit67": ("MIT67", {"train": ["bar", "closet"], "test": ["bar", "closet"]}),
    "tiny-imagenet": ("tiny-imagenet-200", {"train": TINY, "val": TINY[1:]}),
    "imagenet": ("imagenet", {"train": TINY, "val": TINY}),
    "mini-imagenet": ("mini-imagenet", {s: names[:2] for s, names in class_lists("mini-imagenet").items()}),
}


@pytest.mark.parametrize("name", FOLDERS)
@pytest.mark.parametrize("straight", [False, True], ids=["below the root", "the root itself"])
def test_class_folders_under_a_datasets_name(tmp_path, name, straight):
    below, splits = FOLDERS[name]
    root = tmp_path if straight else tmp_path / below
    class_folders(root, splits)
    with pytest.warns(SLAWarning, match=rf"{name} in .*: \d+ of [\d,]+ classes, \d+ of [\d,]+ train images"):
        loaded = load(name, root=tmp_path)
    assert loaded.train.classes == tuple(sorted(splits["train"]))
    for part, names in (("train", splits["train"]), ("test", splits.get("test") or splits["val"])):
        data = getattr(loaded, part)
        assert len(data) == len(names)
        for index in range(len(data)):  # tiny-ImageNet's val has not all classes of train, but their numbers
            label = data.classes[data.targets[index]]
            assert data.read([index]).images[0, 0, 0, 0] == sum(label.encode()) % 256
    few_shot = name == "mini-imagenet"
    assert (loaded.val is not None) == few_shot
    assert set(loaded.test.classes).isdisjoint(loaded.train.classes) == few_shot


def test_size_memory_and_cache_reach_the_images(tmp_path):
    class_folders(tmp_path / "d" / "CUB_200_2011", FOLDERS["cub200"][1], size=40)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SLAWarning)
        assert load("cub200", root=tmp_path / "d").train.images.shape == (3, 40, 40)
        assert load("cub200", root=tmp_path / "d", size=24).train.images.shape == (3, 24, 24)
        assert load("cub200", root=tmp_path / "d", size=(16, 32)).train.images.shape == (3, 16, 32)
        assert not load("cub200", root=tmp_path / "d", memory_limit=0).train.images.in_memory
        load("cub200", root=tmp_path / "d", cache=tmp_path / "c")
    assert len(list((tmp_path / "c").glob("*.npy"))) == 2  # one of train, one of test


def test_corrupt_images_are_refused_or_skipped(tmp_path):
    root = tmp_path / "CUB_200_2011"
    class_folders(root, FOLDERS["cub200"][1])
    (root / "train" / "002.B" / "b.jpg").write_text("not a picture")
    refused(r"b\.jpg: not an image", load, "cub200", root=tmp_path)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", SLAWarning)
        kept = load("cub200", root=tmp_path, on_bad_image="skip")
    said = [str(warning.message) for warning in caught]
    assert any(re.search(r"skipped 1 of 3 images: .*b\.jpg", line) for line in said)
    assert any("2 of 5,994 train images" in line for line in said)
    assert len(kept.train) == 2
    refused("on_bad_image is 'refuse' or 'skip'", load, "digits", on_bad_image="ignore")


def test_a_folder_that_is_not_the_dataset_it_is_said_to_be(tmp_path):
    class_folders(tmp_path, {"train": ["cat", "dog"], "test": ["cat", "dog"], "val": ["cat", "dog"]})
    for name in ("cub200", "tiny-imagenet", "imagenet", "mini-imagenet", "stanford-dogs"):
        refused("class folder 'cat' is not of this dataset", load, name, root=tmp_path)
    for name in ("cifar10", "mnist", "inaturalist2018", "cifar-fs"):
        refused(f"{name}: not in .*: no ", load, name, root=tmp_path)
    refused(r"imagenet: not in .*; ask for it at image-net\.org", load, "imagenet", root=tmp_path / "empty")
    refused("imagenet: cannot be downloaded, .*: ask for it at", get, "imagenet", root=tmp_path / "empty")


def test_mnist_is_not_fashion_mnist(tmp_path, monkeypatch):
    mnist_files(tmp_path, shape=(28, 28))
    labels = (tmp_path / "train-labels-idx1-ubyte").read_bytes()
    known = {"train-labels-idx1-ubyte": hashlib.md5(labels).hexdigest()}
    monkeypatch.setitem(CATALOGUE, "mnist", replace(CATALOGUE["mnist"], checksums=known))
    refused("this is mnist, not fashion-mnist", load, "fashion-mnist", root=tmp_path)


def test_cifar_fs_and_fc100_are_cut_from_cifar100(tmp_path):
    names = sorted(name for split in class_lists("cifar-fs").values() for name in split)
    coarse = sorted(name for split in class_lists("fc100").values() for name in split)
    folder = tmp_path / "cifar-100-binary"
    folder.mkdir()
    (folder / "fine_label_names.txt").write_text("\n".join(names))
    (folder / "coarse_label_names.txt").write_text("\n".join(coarse))
    for split, first in (("train", 0), ("test", 100)):
        # picture i is of class 99 - i, painted with that number (and 100 more in test); coarse = fine // 5
        records = [bytes([f // 5, f]) + bytes([f + first]) * 3072 for f in reversed(range(100))]
        (folder / f"{split}.bin").write_bytes(b"".join(records))
    for name, sizes in (("cifar-fs", [64, 16, 20]), ("fc100", [60, 20, 20])):
        with pytest.warns(SLAWarning, match=f"{name} in .*100 of 100 classes"):
            splits = load(name, root=tmp_path)
        seen: set[str] = set()
        for part, size in zip((splits.train, splits.val, splits.test), sizes, strict=True):
            assert part.num_classes == size
            assert part.counts().tolist() == [2] * size  # one of train and one of test
            for index in range(len(part)):
                painted = int(part.read([index]).images[0, 0, 0, 0]) % 100
                assert names[painted] == part.classes[part.targets[index]]
            assert seen.isdisjoint(part.classes)
            seen |= set(part.classes)
    families = {coarse[names.index(name) // 5] for name in splits.train.classes}
    assert families == set(class_lists("fc100")["train"])
    records = (folder / "test.bin").read_bytes()
    (folder / "test.bin").write_bytes(records + bytes([3, 0]) + bytes(3072))  # class 0 is of 0 and of 3
    refused("a fine class has two coarse labels", load, "fc100", root=tmp_path)


def test_digits_are_there_whatever_the_root(tmp_path):
    splits = load("digits")
    assert (len(splits.train), len(splits.test), splits.train.images.shape) == (1437, 360, (1, 8, 8))
    assert (find("digits")[0] / "digits.npz").is_file()
    assert len(load("digits", root=tmp_path).train) == 1437
    np.savez(tmp_path / "digits.npz", images=np.zeros((3, 8, 8)))
    refused(r"digits\.npz: not the digits of this package", load, "digits", root=tmp_path)


def test_a_folder_a_csv_and_a_wrong_name(tmp_path, monkeypatch):
    class_folders(tmp_path, {"photos": ["cat", "dog"], "digits": ["cat", "dog"]})
    assert load(tmp_path / "photos").train.classes == ("cat", "dog")
    assert load(str(tmp_path / "photos"), size=12).train.images.shape == (3, 12, 12)
    (tmp_path / "list.csv").write_text("path,label\nphotos/cat/a.png,x\nphotos/dog/a.png,y\n")
    assert load(tmp_path / "list.csv").train.classes == ("x", "y")
    monkeypatch.chdir(tmp_path)
    assert load(f".{os.sep}digits").train.classes == ("cat", "dog")
    assert load("digits").train.num_classes == 10
    refused(r"'cifar-100' is neither a folder .*, did you mean 'cifar100'\?", load, "cifar-100")
    refused("no such folder", load, "./cifar-100")


# real images


@pytest.fixture(scope="module")
def shared(shared_data, tmp_path_factory):
    """The packed real datasets, in the layouts that come with them."""
    out = tmp_path_factory.mktemp("shared")
    for archive, folder in (
        ("cub200_2011_s96.zip", "CUB_200_2011"),
        ("tiny_imagenet_64_20classes.zip", "tiny-imagenet-200"),
        ("mini_imagenet_84_150.zip", "mini-imagenet"),
    ):
        with zipfile.ZipFile(shared_data / archive) as packed:
            packed.extractall(out / folder)
    return out


def balance(data):
    counts = data.counts()
    return len(data), data.num_classes, int(counts.min()), int(counts.max())


@pytest.mark.slow
def test_real_cub(shared):
    splits = load("cub200", root=shared)  # the whole dataset: no warning
    assert (balance(splits.train), balance(splits.test)) == ((5994, 200, 29, 30), (5794, 200, 11, 30))
    mean = splits.train.read(range(0, 5994, 10)).images.double().mean((0, 2, 3)) / 255
    assert mean.tolist() == pytest.approx([0.486, 0.500, 0.432], abs=0.01)  # birds before sky and leaves


@pytest.mark.slow
def test_real_tiny_imagenet_and_mini_imagenet(shared):
    with pytest.warns(SLAWarning, match=r"20 of 200 classes, 10,000 of 100,000 train images"):
        tiny = load("tiny-imagenet", root=shared, memory_limit=0)
    assert (balance(tiny.train), balance(tiny.test)) == ((10000, 20, 500, 500), (1000, 20, 50, 50))
    assert tiny.train.images.shape == (3, 64, 64)
    with pytest.warns(SLAWarning, match=r"100 of 100 classes, 9,600 of 38,400 train images"):
        mini = load("mini-imagenet", root=shared, memory_limit=0)
    parts = [balance(part) for part in (mini.train, mini.val, mini.test)]
    assert parts == [(9600, 64, 150, 150), (2400, 16, 150, 150), (3000, 20, 150, 150)]
    assert mini.train.images.shape == (3, 84, 84)


@pytest.mark.slow
def test_real_cifar100_and_what_is_cut_from_it(shared_data, tmp_path):
    command = [sys.executable, shared_data / "unpack.py", tmp_path, "cifar100"]
    subprocess.run(command, check=True, capture_output=True)
    splits = load("cifar100", root=tmp_path)
    assert (balance(splits.train), balance(splits.test)) == ((50000, 100, 500, 500), (10000, 100, 100, 100))
    pixels = splits.train.read(range(50000)).images.double() / 255
    assert pixels.mean((0, 2, 3)).tolist() == pytest.approx(splits.mean, abs=5e-5)
    assert pixels.std((0, 2, 3)).tolist() == pytest.approx(splits.std, abs=5e-5)
    for name, sizes in (("cifar-fs", (64, 16, 20)), ("fc100", (60, 20, 20))):
        few = load(name, root=tmp_path)
        for part, size in zip((few.train, few.val, few.test), sizes, strict=True):
            assert balance(part) == (600 * size, size, 600, 600)


@pytest.mark.network
@pytest.mark.skipif(not DEBIAN.is_dir(), reason="the Debian package dataset-fashion-mnist is not installed")
def test_real_fashion_mnist_from_its_debian_package():
    assert get("fashion-mnist").folder == DEBIAN
    splits = load("fashion-mnist")
    assert (balance(splits.train), balance(splits.test)) == ((60000, 10, 6000, 6000), (10000, 10, 1000, 1000))
    pixels = splits.train.read(range(60000)).images.double() / 255
    assert (pixels.mean().item(), pixels.std().item()) == pytest.approx((0.2860, 0.3530), abs=5e-5)
