"""The 8x8 digits that come with this package, so that something real is there without a download."""

from importlib.resources import files

import numpy as np

from sla.data.formats import Arrays

TEST_PER_CLASS = 36
HIGHEST = 16  # the value of a full pixel in the original


def read_digits() -> dict[str, Arrays]:
    """Digits (n, 1, 8, 8), 1,437 train and 360 test; pixel v of 0..16 becomes round(v * 255 / 16).

    The split is fixed: a legacy numpy stream of seed 0 shuffles the classes in order, and the first 36
    of each are the test part; within a part the original order is kept.
    """
    with files("sla.data").joinpath("digits.npz").open("rb") as file:
        held = np.load(file, allow_pickle=False)
        images, targets = held["images"], held["targets"].astype(np.int64)
    pixels = np.round(images * (255 / HIGHEST)).astype(np.uint8)[:, None]
    stream = np.random.RandomState(0)
    test = np.zeros(len(targets), bool)
    for digit in range(10):
        test[stream.permutation(np.flatnonzero(targets == digit))[:TEST_PER_CLASS]] = True
    classes = tuple(str(digit) for digit in range(10))
    return {
        "train": Arrays(pixels[~test], targets[~test], classes),
        "test": Arrays(pixels[test], targets[test], classes),
    }
