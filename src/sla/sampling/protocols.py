"""Subsets of a training set for experiments: hold-out, limited, long-tailed, some of the classes."""

import warnings
from collections.abc import Iterable, Sequence

import numpy as np

from sla.errors import InputError, SLAWarning, nearest
from sla.images.store import Dataset
from sla.sampling.draws import seed_of

NAMED = 5  # classes listed in a message


def hold_out(
    dataset: Dataset, fraction: float = 0.1, *, per_class: int | None = None, seed: int = 0
) -> tuple[Dataset, Dataset]:
    """(train, held out): `fraction` of every class, or `per_class` images of each, chosen by the seed.

    Fractions of an image are rounded down, and the classes with the largest remainders give one more, so that
    the total is right. A class that gives none stays in train entirely, with a warning.
    """
    counts = dataset.counts()
    if per_class is not None:
        if per_class < 1:
            raise InputError(f"per_class must be at least 1, not {per_class}")
        wanted, what = np.where(counts > per_class, per_class, 0), f"{per_class}"
    else:
        if not 0 < fraction < 1:
            raise InputError(f"the held-out fraction must be between 0 and 1, not {fraction}")
        wanted, what = _fractions(counts, fraction), f"{fraction:.0%}"
    if not wanted.any():
        way = "hold out nothing (data.hold_out=0), or add a val/ folder"
        largest = f"the largest has {counts.max(initial=0)}"
        raise InputError(f"no class can spare {what} of its images: {largest}; {way}")
    rounded = (wanted == 0) & np.isin(counts, counts[wanted > 0])  # another one of that size gives an image
    _warn_of(dataset, rounded, f"left without a held-out image when {what} of the images was rounded:")
    too_small = f"too small to spare {what} of the images; nothing is held out of"
    _warn_of(dataset, (wanted == 0) & ~rounded, too_small)
    held_out = _choose(dataset, wanted, seed, "hold-out")
    return _without(dataset, held_out), dataset.subset(held_out)


def limited(dataset: Dataset, per_class: int, seed: int = 0) -> Dataset:
    """`per_class` images of every class, chosen by the seed; a smaller set is always part of a larger one."""
    if per_class < 1:
        raise InputError(f"per_class must be at least 1, not {per_class}")
    _require(dataset, np.full(dataset.num_classes, per_class), "per_class")
    return dataset.subset(_choose(dataset, np.full(dataset.num_classes, per_class), seed, "limited"))


def long_tailed_counts(num_classes: int, n_max: int, ratio: float) -> np.ndarray:
    """n_c = int(n_max * ratio^(-c / (C - 1))), the images of class c; (C,)."""
    if num_classes < 2 or ratio < 1 or n_max < 1:
        raise InputError(
            "a long tail needs at least 2 classes, a ratio of at least 1 and n_max of at least 1, "
            f"not {num_classes} classes, ratio {ratio} and n_max {n_max}"
        )
    return np.array([int(n_max * ratio ** (-c / (num_classes - 1))) for c in range(num_classes)])


def long_tailed(dataset: Dataset, ratio: float, n_max: int | None = None) -> tuple[Dataset, Dataset]:
    """(train, left out): class c keeps n_c images, the first classes most; n_max defaults to the mean count.

    The images are those of the public benchmark: one legacy numpy stream with seed 0 over the classes in
    order; each class's places are shuffled and the first n_c are used.
    """
    if n_max is None:
        n_max = len(dataset) // max(dataset.num_classes, 1)
    counts = long_tailed_counts(dataset.num_classes, n_max, ratio)
    if not counts.all():
        empty = dataset.classes[int(np.argmin(counts))]
        raise InputError(f"ratio {ratio:g} leaves class {empty!r} no image; n_max must be at least {ratio:g}")
    _require(dataset, counts, "n_max (data.long_tail_max)")
    stream = np.random.RandomState(0)
    kept = []
    for places, count in zip(places_by_class(dataset), counts, strict=True):
        stream.shuffle(places)
        kept.append(places[:count])
    chosen = np.sort(np.concatenate(kept))
    return dataset.subset(chosen), _without(dataset, chosen)


def selection_set(left_out: Dataset, per_class: int, seed: int = 0) -> Dataset:
    """Up to `per_class` images of every class, to select on, from images that a long tail left out.

    Classes with fewer give what they have, with a warning: the largest classes leave nothing out.
    """
    counts = left_out.counts()
    _warn_of(left_out, counts < per_class, f"with fewer than {per_class} images left out to select on:")
    return left_out.subset(_choose(left_out, np.minimum(counts, per_class), seed, "selection"))


def class_subset(dataset: Dataset, classes: Sequence[str | int]) -> Dataset:
    """Only these classes, by name or number; the first one given becomes class 0, and so on."""
    labels = [_label(dataset, name) for name in classes]
    if len(set(labels)) < len(labels):
        twice = next(name for name, label in zip(classes, labels, strict=True) if labels.count(label) > 1)
        raise InputError(f"class {twice!r} is named twice")
    if not labels:
        raise InputError("a subset needs at least one class")
    new = np.full(dataset.num_classes, -1)
    new[labels] = np.arange(len(labels))
    chosen = np.flatnonzero(new[dataset.targets] >= 0)
    names = tuple(dataset.classes[label] for label in labels)
    return Dataset(dataset.images, new[dataset.targets[chosen]], names, dataset.rows[chosen])


def places_by_class(dataset: Dataset) -> list[np.ndarray]:
    """For each class the places of its images, in order."""
    ends = np.cumsum(dataset.counts())
    return np.split(np.argsort(dataset.targets, kind="stable"), ends[:-1])


def _label(dataset: Dataset, name: str | int) -> int:
    if isinstance(name, str):
        if name not in dataset.classes:
            raise InputError(f"unknown class {name!r}{nearest(name, dataset.classes)}")
        return dataset.classes.index(name)
    if not 0 <= name < dataset.num_classes:
        raise InputError(f"class {name} is not one of 0 to {dataset.num_classes - 1}")
    return int(name)


def _fractions(counts: np.ndarray, fraction: float) -> np.ndarray:
    """Images to hold out of each class: rounded down, then one more for the largest remainders; never all."""
    owed = fraction * counts
    wanted = np.minimum(np.floor(owed + 1e-9).astype(np.int64), np.maximum(counts - 1, 0))
    spare = np.flatnonzero(wanted < counts - 1)
    more = max(round(owed.sum()) - int(wanted.sum()), 0)
    most_owed = spare[np.argsort((wanted - owed)[spare], kind="stable")]
    wanted[most_owed[:more]] += 1
    return wanted


def _choose(dataset: Dataset, wanted: np.ndarray, seed: int, use: str) -> np.ndarray:
    """Places of wanted[c] images of each class c, in order: the first of the class's own permutation."""
    chosen = [np.empty(0, np.int64)]
    for label, (places, count) in enumerate(zip(places_by_class(dataset), wanted, strict=True)):
        chosen.append(np.random.default_rng(seed_of(seed, use, label)).permutation(places)[:count])
    return np.sort(np.concatenate(chosen))


def _without(dataset: Dataset, places: np.ndarray) -> Dataset:
    keep = np.ones(len(dataset), bool)
    keep[places] = False
    return dataset.subset(np.flatnonzero(keep))


def _require(dataset: Dataset, wanted: np.ndarray, named: str) -> None:
    counts = dataset.counts()
    short = np.flatnonzero(counts < wanted)
    if len(short):
        first = short[0]
        others = f" ({len(short) - 1} more classes have too few)" if len(short) > 1 else ""
        has = f"class {dataset.classes[first]!r} has {counts[first]} images"
        raise InputError(f"{has}, {wanted[first]} are needed{others}: lower {named}")


def _warn_of(dataset: Dataset, which: Iterable[bool], what: str) -> None:
    names = [repr(name) for name, one in zip(dataset.classes, which, strict=True) if one]
    if names:
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        kind, some = "class" if len(names) == 1 else "classes", ", ".join(names[:NAMED])
        warnings.warn(f"{len(names)} {kind} {what} {some}{more}", SLAWarning, stacklevel=3)
