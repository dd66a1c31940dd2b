"""Where on disk a dataset may lie and how it is read there: the owners' layouts and the usual others."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sla.datasets.formats import Parts, cifar, wordnet
from sla.datasets.formats.digits import read_digits
from sla.datasets.formats.idx import read_mnist
from sla.datasets.formats.lists import read_cub, read_dogs, read_inaturalist, read_mit67

TOPS = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat")
FASHION = (*TOPS, "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
DIGITS = tuple(str(digit) for digit in range(10))


@dataclass(frozen=True)
class Layout:
    """One way a dataset lies on disk: what must be in its folder, and the reader.

    A mark that ends in `/` is a folder, others are files; `*` stands for any letters.
    """

    marks: tuple[str, ...]
    read: Callable[[Path], Parts]

    def fits(self, folder: Path) -> bool:
        """Whether everything that marks this layout is in the folder."""
        return all(any(_is(path, mark) for path in folder.glob(mark.rstrip("/"))) for mark in self.marks)


@dataclass(frozen=True)
class Place:
    """The names of folders below a data folder that usually hold a dataset, and its layouts."""

    folders: tuple[str, ...]
    layouts: tuple[Layout, ...]


def find_layout(name: str, roots: Iterable[Path]) -> tuple[Path, Layout] | None:
    """The first folder in or below these that lies as this dataset does."""
    place = PLACES[name]
    for root in roots:
        for folder in (*(root / name for name in place.folders), root):
            for layout in place.layouts:
                if layout.fits(folder):
                    return folder, layout
    return None


def expected_layout(name: str) -> str:
    """What would have been found, in words."""
    place = PLACES[name]
    marks = " or ".join(" and ".join(mark.rstrip("*") for mark in layout.marks) for layout in place.layouts)
    return f"{place.folders[0]}/ with {marks}"


def _is(path: Path, mark: str) -> bool:
    return path.is_dir() if mark.endswith("/") else path.is_file()


def _folders(pattern: str, example: str, test: str = "test") -> Layout:
    splits = {"train": "train", "test": test}
    read = partial(wordnet.read_folders, splits=splits, pattern=pattern, example=example)
    return Layout(("train/", f"{test}/"), read)


def _idx(folders: Sequence[str], classes: tuple[str, ...]) -> Place:
    marks = ("train-images*ubyte*", "train-labels*ubyte*", "t10k-images*ubyte*", "t10k-labels*ubyte*")
    return Place(tuple(folders), (Layout(marks, partial(read_mnist, classes=classes)),))


_IMAGENET = ("ILSVRC/Data/CLS-LOC", "Data/CLS-LOC", "imagenet", "ImageNet", "ILSVRC2012")
PLACES = {
    "mnist": _idx(("mnist", "MNIST/raw", "MNIST"), DIGITS),
    "fashion-mnist": _idx(("fashion-mnist", "FashionMNIST/raw", "FashionMNIST"), FASHION),
    "digits": Place(("digits",), (Layout(("digits.npz",), read_digits),)),
    "cifar10": Place(
        ("cifar-10-batches-bin", "cifar-10-batches-py"),
        (
            Layout(("data_batch_1.bin", "test_batch.bin"), cifar.read_cifar10_binary),
            Layout(("data_batch_1", "test_batch"), cifar.read_cifar10_python),
        ),
    ),
    "cifar100": Place(
        ("cifar-100-binary", "cifar-100-python"),
        (
            Layout(("train.bin", "test.bin", "fine_label_names.txt"), cifar.read_cifar100_binary),
            Layout(("train", "test", "meta"), cifar.read_cifar100_python),
        ),
    ),
    "cub200": Place(
        ("CUB_200_2011", "cub200"),
        (
            Layout(("images/", "images.txt", "train_test_split.txt"), read_cub),
            _folders(r"\d{3}\..+", "'001.Black_footed_Albatross'"),
        ),
    ),
    "mit67": Place(
        ("indoorCVPR_09", "mit67", "MIT67"),
        (
            Layout(("Images/", "TrainImages.txt", "TestImages.txt"), read_mit67),
            _folders(r"[a-z_]+", "'airport_inside'"),
        ),
    ),
    "stanford-dogs": Place(
        ("stanford-dogs", "stanford_dogs", "StanfordDogs"),
        (
            Layout(("Images/", "train_list.mat", "test_list.mat"), read_dogs),
            _folders(r"n\d{8}-.+", "'n02085620-Chihuahua'"),
        ),
    ),
    "tiny-imagenet": Place(
        ("tiny-imagenet-200", "tiny-imagenet"),
        (
            Layout(("train/", "val/val_annotations.txt"), wordnet.read_tiny),
            _folders(wordnet.WORDNET, "'n01443537'", test="val"),
        ),
    ),
    "imagenet": Place(
        (*_IMAGENET, "imagenet/ILSVRC/Data/CLS-LOC"),
        (Layout(("train/", "val/"), wordnet.read_imagenet),),
    ),
    "inaturalist2018": Place(
        ("inaturalist2018", "iNaturalist2018", "inat2018"),
        (Layout(("train2018.json", "val2018.json"), read_inaturalist),),
    ),
    "mini-imagenet": Place(
        ("mini-imagenet", "miniImageNet", "miniimagenet", "mini_imagenet"),
        (
            Layout((wordnet.CACHED.format("train"),), wordnet.read_mini_cached),
            Layout((wordnet.CATEGORIES.format("train_phase_train"),), wordnet.read_mini_categories),
            Layout(("images/", "train.csv", "val.csv", "test.csv"), wordnet.read_mini_csv),
            Layout(("train/", "val/", "test/"), wordnet.read_mini_folders),
        ),
    ),
}
