"""Datasets whose classes are WordNet numbers: ImageNet, tiny-ImageNet, mini-ImageNet; and class folders."""

import csv
import json
import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from sla.datasets.entry import SPLIT_NAMES
from sla.datasets.formats import Arrays, Listing, labels_in_range, listing, read_lines
from sla.datasets.formats.mat import read_mat
from sla.datasets.scan import open_index
from sla.datasets.unpickle import load_pickle
from sla.errors import InputError

WORDNET = r"n\d{8}"
CACHED, CATEGORIES = "mini-imagenet-cache-{}.pkl", "miniImageNet_category_split_{}.pickle"
PHASE = "train_phase_train"  # of CATEGORIES: the images to train on


def class_lists(name: str) -> dict[str, list[str]]:
    """The classes of a few-shot dataset by split: CIFAR-FS, mini-ImageNet (Ravi), and FC100's coarse ones."""
    text = files("sla.datasets").joinpath("class_lists.json").read_text(encoding="utf-8")
    return json.loads(text)[name]


def read_folders(folder: Path, splits: dict[str, str], pattern: str, example: str) -> dict[str, Listing]:
    """Plain `<split>/<class>/<image>`; `splits` says which folder is which split.

    Class folders must be named as in this dataset, or it is another one.
    """
    parts = {}
    for split, name in splits.items():
        index = open_index(folder / name)
        strange = [label for label in index.classes if not re.fullmatch(pattern, label)]
        if strange:
            other = f"class folder {strange[0]!r} is not of this dataset, e.g. {example}"
            raise InputError(f"{folder / name}: {other}")
        parts[split] = Listing(index.paths, index.targets, index.classes)
    return parts


def read_tiny(folder: Path) -> dict[str, Listing]:
    """tiny-ImageNet as published: `val_annotations.txt` has the labels of val, the test part."""
    train = read_folders(folder, {"train": "train"}, WORDNET, "'n01443537'")["train"]
    return {"train": train, "test": _tiny_val(folder, train.classes)}


def _tiny_val(folder: Path, classes: Sequence[str]) -> Listing:
    notes = folder / "val" / "val_annotations.txt"
    rows = [line.split("\t") for line in read_lines(notes)]
    if wrong := next((row for row in rows if len(row) < 2), None):
        raise InputError(f"{notes}: {wrong[0]!r} has no class beside it")
    return _labelled(notes, folder / "val" / "images", [(row[0], row[1]) for row in rows], classes)


def read_imagenet(folder: Path) -> dict[str, Listing]:
    """ILSVRC 2012: train by class folder; val too, or flat with the owner's labels; val is the test part."""
    train = read_folders(folder, {"train": "train"}, WORDNET, "'n01440764'")["train"]
    if any(path.is_dir() for path in (folder / "val").iterdir()):
        return {"train": train} | read_folders(folder, {"test": "val"}, WORDNET, "'n01440764'")
    source, pairs = _imagenet_val(folder)
    return {"train": train, "test": _labelled(source, folder / "val", pairs, train.classes)}


def read_mini_cached(folder: Path) -> dict[str, Arrays]:
    """mini-ImageNet's pickles of images and rows by class."""
    lists, files = class_lists("mini-imagenet"), _pickles(folder, CACHED, "train")
    return {split: _cached_pickle(path, lists[split]) for split, path in files.items()}


def read_mini_categories(folder: Path) -> dict[str, Arrays]:
    """mini-ImageNet's pickles of images and labels."""
    files = _pickles(folder, CATEGORIES, PHASE)
    return {split: _category_pickle(path) for split, path in files.items()}


def read_mini_csv(folder: Path) -> dict[str, Listing]:
    """mini-ImageNet's csv lists, with `images/`."""
    lists = class_lists("mini-imagenet")
    return {split: _mini_csv(folder / f"{split}.csv", lists[split]) for split in SPLIT_NAMES}


def read_mini_folders(folder: Path) -> dict[str, Listing]:
    """mini-ImageNet as class folders by split."""
    lists = class_lists("mini-imagenet")
    parts = read_folders(folder, {split: split for split in SPLIT_NAMES}, WORDNET, "'n01532829'")
    for split, part in parts.items():
        _in_list(folder / split, part.classes, lists[split], split)
    return parts


def _labelled(source: Path, root: Path, pairs: Sequence[tuple[str, str]], classes: Sequence[str]) -> Listing:
    place = {name: index for index, name in enumerate(classes)}
    if stray := next((pair for pair in pairs if pair[1] not in place), None):
        raise InputError(f"{source}: {stray[0]!r} is of class {stray[1]!r}, which is missing from train")
    return listing(source, root, [name for name, _ in pairs], [place[label] for _, label in pairs], classes)


def _imagenet_val(folder: Path) -> tuple[Path, list[tuple[str, str]]]:
    """(file, class) of the flat val folder, from whichever of the owner's label files exists."""
    top = folder.parent.parent  # of ILSVRC/Data/CLS-LOC
    for solution in (top.parent / "LOC_val_solution.csv", top / "LOC_val_solution.csv"):
        if solution.is_file():
            rows = [row for row in _csv_rows(solution) if len(row) >= 2 and row[0] != "ImageId"]
            return solution, [(f"{row[0]}.JPEG", row[1].split(" ")[0]) for row in rows]
    notes = top / "Annotations" / "CLS-LOC" / "val"
    if notes.is_dir():
        texts = ((path.stem, "\n".join(read_lines(path))) for path in sorted(notes.iterdir()))
        found = ((name, re.search(rf"<name>({WORDNET})</name>", text)) for name, text in texts)
        return notes, [(f"{name}.JPEG", label[1]) for name, label in found if label]
    truth = folder / "ILSVRC2012_devkit_t12" / "data" / "ILSVRC2012_validation_ground_truth.txt"
    if truth.is_file():
        wordnet = _wordnet_names(truth.parent / "meta.mat")
        labels = [wordnet.get(int(line) if line.isdigit() else -1, line) for line in read_lines(truth)]
        return truth, [(f"ILSVRC2012_val_{i:08}.JPEG", label) for i, label in enumerate(labels, 1)]
    raise InputError(
        f"{folder / 'val'}: neither class folders nor labels beside it (LOC_val_solution.csv, "
        "Annotations/CLS-LOC/val or ILSVRC2012_devkit_t12/data)"
    )


def _wordnet_names(path: Path) -> dict[int, str]:
    """The WordNet number of each class number of ImageNet's devkit."""
    rows = read_mat(path).get("synsets")
    try:
        found = {int(np.ravel(row["ILSVRC2012_ID"])[0]): row["WNID"] for row in rows}  # type: ignore[union-attr]
        if all(isinstance(name, str) for name in found.values()):
            return found
    except (TypeError, KeyError, IndexError, ValueError, OverflowError):
        pass
    raise InputError(f"{path}: needs 'synsets' with ILSVRC2012_ID and WNID, as ImageNet's devkit has")


def _pickles(folder: Path, pattern: str, train: str) -> dict[str, Path]:
    """The file of each split, by its usual names."""
    held = {}
    for split, names in {"train": (train,), "val": ("val", "validation"), "test": ("test",)}.items():
        files = [folder / pattern.format(name) for name in names]
        if not any(path.is_file() for path in files):
            raise InputError(f"{folder}: no {files[0].name} beside the train part")
        held[split] = next(path for path in files if path.is_file())
    return held


def _cached_pickle(path: Path, expected: list[str]) -> Arrays:
    """`image_data` (n, 84, 84, 3) and `class_dict`: class -> rows."""
    held = load_pickle(path)
    images = _pictures(path, held, "image_data")
    rows = held.get("class_dict")
    if not isinstance(rows, dict) or not all(isinstance(name, str) for name in rows):
        raise InputError(f"{path}: has no 'class_dict' of class names; not mini-ImageNet's pickle")
    classes = tuple(sorted(rows))
    _in_list(path, classes, expected, path.stem)
    targets = np.full(len(images), -1, np.int64)
    for index, name in enumerate(classes):
        targets[labels_in_range(path, rows[name], len(images))] = index
    if (targets < 0).any():
        raise InputError(f"{path}: image {int(np.argmin(targets))} is in no class")
    return Arrays(images, targets, classes)


def _category_pickle(path: Path) -> Arrays:
    """`data` (n, 84, 84, 3) and `labels`, numbered over the whole dataset."""
    held = load_pickle(path)
    images = _pictures(path, held, "data")
    labels = labels_in_range(path, held.get("labels", []), 1_000_000)
    if labels.shape != (len(images),):
        raise InputError(f"{path}: {len(images)} images but {labels.size} labels")
    numbers, targets = np.unique(labels, return_inverse=True)
    return Arrays(images, targets.astype(np.int64), tuple(str(number) for number in numbers))


def _pictures(path: Path, held: Any, key: str) -> np.ndarray:
    images: Any = held.get(key) if isinstance(held, dict) else None
    is_bytes = isinstance(images, np.ndarray) and images.dtype == np.uint8
    if not is_bytes or images.ndim != 4 or images.shape[3] != 3:
        raise InputError(f"{path}: has no {key!r} of uint8 (n, H, W, 3); not mini-ImageNet's pickle")
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2))


def _mini_csv(path: Path, expected: list[str]) -> Listing:
    rows = _csv_rows(path)
    if not rows or rows[0] != ["filename", "label"] or any(len(row) != 2 for row in rows):
        raise InputError(f"{path}: needs rows of filename and label below that header")
    classes = sorted({label for _, label in rows[1:]})
    _in_list(path, classes, expected, path.stem)
    return _labelled(path, path.parent / "images", [(name, label) for name, label in rows[1:]], classes)


def _csv_rows(path: Path) -> list[list[str]]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return [row for row in csv.reader(file) if row]
    except (UnicodeDecodeError, csv.Error):
        raise InputError(f"{path}: not a table of text (CSV)") from None


def _in_list(source: Path, classes: Sequence[str], expected: list[str], split: str) -> None:
    if strange := sorted(set(classes) - set(expected)):
        wrong = f"class {strange[0]!r} is not one of mini-ImageNet's {split} classes (Ravi's split)"
        raise InputError(f"{source}: {wrong}")
