"""Where on disk a dataset may lie and how it is read there: the owners' layouts and class folders."""

from collections.abc import Iterable
from functools import partial
from pathlib import Path

from sla.datasets.entry import ClassFolders, Entry, Layout
from sla.datasets.formats import cifar, wordnet
from sla.datasets.formats.digits import read_digits
from sla.datasets.formats.idx import read_mnist
from sla.datasets.formats.lists import read_cub, read_dogs, read_inaturalist, read_mit67
from sla.errors import InputError, nearest

TOPS = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat")
FASHION = (*TOPS, "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
DIGITS = tuple(str(digit) for digit in range(10))
IDX = ("train-images*ubyte*", "train-labels*ubyte*", "t10k-images*ubyte*", "t10k-labels*ubyte*")

LAYOUTS = {
    "mnist": Layout(IDX, partial(read_mnist, classes=DIGITS)),
    "fashion-mnist": Layout(IDX, partial(read_mnist, classes=FASHION)),
    "digits": Layout(("digits.npz",), read_digits),
    "cifar10-binary": Layout(("data_batch_1.bin", "test_batch.bin"), cifar.read_cifar10_binary),
    "cifar10-python": Layout(("data_batch_1", "test_batch"), cifar.read_cifar10_python),
    "cifar100-binary": Layout(("train.bin", "test.bin", "fine_label_names.txt"), cifar.read_cifar100_binary),
    "cifar100-python": Layout(("train", "test", "meta"), cifar.read_cifar100_python),
    "cub": Layout(("images/", "images.txt", "train_test_split.txt"), read_cub),
    "mit67": Layout(("Images/", "TrainImages.txt", "TestImages.txt"), read_mit67),
    "dogs": Layout(("Images/", "train_list.mat", "test_list.mat"), read_dogs),
    "tiny-imagenet": Layout(("train/", "val/val_annotations.txt"), wordnet.read_tiny),
    "imagenet": Layout(("train/", "val/"), wordnet.read_imagenet),
    "inaturalist": Layout(("train2018.json", "val2018.json"), read_inaturalist),
    "mini-cached": Layout((wordnet.CACHED.format("train"),), wordnet.read_mini_cached),
    "mini-categories": Layout((wordnet.CATEGORIES.format(wordnet.PHASE),), wordnet.read_mini_categories),
    "mini-csv": Layout(("images/", "train.csv", "val.csv", "test.csv"), wordnet.read_mini_csv),
    "mini-folders": Layout(("train/", "val/", "test/"), wordnet.read_mini_folders),
}


def layouts_of(entry: Entry) -> list[Layout]:
    """The ways a dataset may lie on disk, in the order in which they are tried."""
    found = []
    for layout in entry.layouts:
        if isinstance(layout, str) and layout not in LAYOUTS:
            raise InputError(f"{entry.name}: unknown layout {layout!r}{nearest(layout, list(LAYOUTS))}")
        found.append(LAYOUTS[layout] if isinstance(layout, str) else layout)
    if entry.class_folders or not found:
        found.append(_class_folders(entry, entry.class_folders or ClassFolders()))
    return found


def find_layout(entry: Entry, roots: Iterable[Path]) -> tuple[Path, Layout] | None:
    """The first folder in or below these that has a layout of this dataset."""
    for root in roots:
        for folder in (*(root / name for name in entry.folders), root):
            for layout in layouts_of(entry):
                if layout.fits(folder):
                    return folder, layout
    return None


def expected_layout(entry: Entry) -> str:
    """The layouts that are searched for, in words."""
    marks = (" and ".join(mark.rstrip("*") for mark in layout.marks) for layout in layouts_of(entry))
    return f"{entry.folders[0]}/ with {' or '.join(marks)}"


def _class_folders(entry: Entry, given: ClassFolders) -> Layout:
    splits = given.splits or {split: split for split in entry.splits}
    read = partial(wordnet.read_folders, splits=splits, pattern=given.pattern, example=repr(given.example))
    return Layout(tuple(f"{folder}/" for folder in splits.values()), read)
