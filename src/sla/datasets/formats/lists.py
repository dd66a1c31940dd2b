"""Datasets whose owners give lists of files: CUB-200-2011, Stanford Dogs, MIT67, iNaturalist 2018."""

from pathlib import Path
from typing import Any

import numpy as np

from sla.datasets.formats import Listing, labels_in_range, listing, read_lines
from sla.datasets.formats.mat import read_mat
from sla.disk import reason
from sla.errors import InputError
from sla.trees import parse_json


def read_cub(folder: Path) -> dict[str, Listing]:
    """CUB-200-2011: `images.txt`, `image_class_labels.txt`, `train_test_split.txt` and `classes.txt`."""
    names = _numbered(folder / "images.txt")
    labels, split = _numbered(folder / "image_class_labels.txt"), _numbered(folder / "train_test_split.txt")
    classes = _numbered(folder / "classes.txt")
    for source, ids in (("image_class_labels.txt", labels), ("train_test_split.txt", split)):
        if ids.keys() != names.keys():
            raise InputError(f"{folder / source}: {len(ids)} images, not the {len(names)} of images.txt")
    place = {number: index for index, number in enumerate(classes)}
    if unknown := next((label for label in labels.values() if label not in place), None):
        raise InputError(f"{folder / 'image_class_labels.txt'}: class {unknown!r} is not in classes.txt")
    if wrong := next((value for value in split.values() if value not in ("0", "1")), None):
        raise InputError(f"{folder / 'train_test_split.txt'}: {wrong!r} is neither 1 (train) nor 0 (test)")
    parts, images = {}, folder / "images.txt"
    for part, mark in (("train", "1"), ("test", "0")):
        chosen = [image for image in names if split[image] == mark]
        files, targets = [names[image] for image in chosen], [place[labels[image]] for image in chosen]
        parts[part] = listing(images, folder / "images", files, targets, list(classes.values()))
    return parts


def read_dogs(folder: Path) -> dict[str, Listing]:
    """Stanford Dogs: `train_list.mat` and `test_list.mat`, images below `Images/`."""
    lists = {part: _dog_list(folder / f"{part}_list.mat") for part in ("train", "test")}
    count = max(int(labels.max(initial=0)) for _, labels in lists.values())
    classes: dict[int, str] = {}
    for names, labels in lists.values():
        for name, label in zip((name.split("/")[0] for name in names), labels.tolist(), strict=True):
            if classes.setdefault(label, name) != name:
                raise InputError(f"{folder}: label {label} is {classes[label]!r} and {name!r}")
    if set(classes) != set(range(1, count + 1)):
        missing = min(set(range(1, count + 1)) - set(classes), default=0)
        raise InputError(f"{folder / 'train_list.mat'}: labels go up to {count}, but {missing} is missing")
    ordered = tuple(classes[label] for label in sorted(classes))
    return {
        part: listing(folder / f"{part}_list.mat", folder / "Images", names, (labels - 1).tolist(), ordered)
        for part, (names, labels) in lists.items()
    }


def read_mit67(folder: Path) -> dict[str, Listing]:
    """MIT67: `TrainImages.txt` and `TestImages.txt`, `class/file` per line, images below `Images/`."""
    parts: dict[str, Listing] = {}
    place: dict[str, int] = {}
    for part in ("train", "test"):
        source = folder / f"{part.title()}Images.txt"
        lines = read_lines(source)
        if wrong := next((line for line in lines if line.count("/") != 1), None):
            raise InputError(f"{source}: {wrong!r} is not class/file")
        labels = [line.split("/")[0] for line in lines]
        place = place or {name: index for index, name in enumerate(sorted(set(labels)))}
        if strays := [line for line, label in zip(lines, labels, strict=True) if label not in place]:
            raise InputError(f"{source}: the class of {strays[0]!r} is not in TrainImages.txt")
        targets = [place[label] for label in labels]
        parts[part] = listing(source, folder / "Images", lines, targets, list(place))
    return parts


def read_inaturalist(folder: Path) -> dict[str, Listing]:
    """iNaturalist 2018: `train2018.json` and `val2018.json`; the labelled val is the test part."""
    sources = {"train": folder / "train2018.json", "test": folder / "val2018.json"}
    held = {part: _json(source) for part, source in sources.items()}
    categories = sorted(held["train"]["categories"], key=lambda category: category["id"])
    place = {category["id"]: index for index, category in enumerate(categories)}
    names = [str(category.get("name", category["id"])) for category in categories]
    if len(set(names)) != len(names):
        names = [str(category["id"]) for category in categories]
    parts = {}
    for part, source in sources.items():
        label = {note["image_id"]: note["category_id"] for note in held[part]["annotations"]}
        images = held[part]["images"]
        for image in images:
            if label.get(image["id"]) not in place:
                raise InputError(f"{source}: {image['file_name']!r} has no category of the list")
        targets = [place[label[image["id"]]] for image in images]
        parts[part] = listing(source, folder, [image["file_name"] for image in images], targets, names)
    return parts


def _numbered(path: Path) -> dict[str, str]:
    """Lines of `number rest`."""
    pairs = [line.split(maxsplit=1) for line in read_lines(path)]
    if wrong := next((pair for pair in pairs if len(pair) != 2), None):
        raise InputError(f"{path}: {' '.join(wrong)!r} is not a number and a value")
    if len({number for number, _ in pairs}) != len(pairs):
        raise InputError(f"{path}: a number occurs twice")
    return dict(pairs)


def _dog_list(path: Path) -> tuple[list[str], np.ndarray]:
    held = read_mat(path)
    names, labels = held.get("file_list"), held.get("labels")
    rows = labels if isinstance(labels, list) else []
    labels = [label for row in rows for label in (row if isinstance(row, list) else [row])]
    if not isinstance(names, list) or len(names) != len(labels):
        raise InputError(f"{path}: needs 'file_list' and 'labels' of one length, as Stanford Dogs' have")
    if not all(isinstance(name, str) and name.count("/") == 1 for name in names):
        raise InputError(f"{path}: 'file_list' does not hold paths of class/file")
    return names, labels_in_range(path, labels, 10_000)


def _json(path: Path) -> dict[str, Any]:
    try:
        held = parse_json(path.read_bytes())
    except OSError as error:
        raise InputError(f"{path}: {reason(error)}") from None
    except ValueError:
        raise InputError(f"{path}: not JSON, or truncated") from None
    wanted: dict[str, dict[str, type]] = {
        "images": {"id": int, "file_name": str},
        "annotations": {"image_id": int, "category_id": int},
        "categories": {"id": int},
    }
    for key, fields in wanted.items():
        rows = held.get(key) if isinstance(held, dict) else None
        if not isinstance(rows, list) or not all(_has(row, fields) for row in rows):
            raise InputError(f"{path}: needs a list {key!r} with {' and '.join(fields)}, as iNaturalist's")
    return held


def _has(row: Any, fields: dict[str, type]) -> bool:
    return isinstance(row, dict) and all(isinstance(row.get(name), kind) for name, kind in fields.items())
