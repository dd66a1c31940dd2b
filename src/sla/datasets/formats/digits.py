"""The 8x8 digits that come with this package, so that real data is available without a download."""

from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from sla.datasets.formats import Arrays
from sla.errors import InputError

TEST_PER_CLASS = 36
HIGHEST = 16  # the value of a full pixel in the original


def read_digits(folder: Path) -> dict[str, Arrays]:
    """Digits (n, 1, 8, 8), 1,437 train and 360 test; pixel v of 0..16 becomes round(v * 255 / 16).

    The split is fixed: a legacy numpy stream of seed 0 shuffles the classes in order, and the first 36
    of each are the test part; each part is in the original order.
    """
    path = folder / "digits.npz"
    try:
        with np.load(path, allow_pickle=False) as held:
            pixels = np.round(held["images"] * (255 / HIGHEST)).astype(np.uint8)[:, None]
            targets = held["targets"].astype(np.int64)
    except (OSError, ValueError, KeyError, TypeError, BadZipFile):
        raise InputError(f"{path}: not the digits of this package") from None
    stream = np.random.RandomState(0)
    test = np.zeros(len(targets), bool)
    for digit in range(10):
        test[stream.permutation(np.flatnonzero(targets == digit))[:TEST_PER_CLASS]] = True
    classes = tuple(str(digit) for digit in range(10))
    parts = {"train": ~test, "test": test}
    return {split: Arrays(pixels[rows], targets[rows], classes) for split, rows in parts.items()}
