"""Before training: what is in the data, in a few lines, without reading more than is cheap."""

import os
from collections.abc import Iterator
from itertools import combinations
from typing import NamedTuple

import numpy as np

from sla.errors import shown
from sla.images.content import KeyKind, dataset_keys, key_kind
from sla.images.decode import BadImageError, read_size
from sla.images.store import Dataset, spread
from sla.runs.plan import Plan
from sla.tasks.classifier.config import ClassifierConfig

HEADERS = 64  # files whose headers say their size
HASHED = 1 << 30  # bytes of stored pixels compared between two splits
OPENED = 4000  # files compared, of a split that is not in memory
NAMES = {"train": "training", "val": "held-out", "test": "test"}


def describe_data(plan: Plan[ClassifierConfig]) -> Iterator[str]:
    """Lines about classes, counts, sizes, balance, and images that are in two splits."""
    splits = {name: part for name in NAMES if (part := getattr(plan, name)) is not None}
    counted = ", ".join(f"{len(part):,} {NAMES[name]}" for name, part in splits.items())
    yield f"{plan.train.num_classes:,} classes; images: {counted}"
    yield from _sizes(plan.train)
    yield from _balance(plan.train)
    yield from _shared(splits)


def _sizes(train: Dataset) -> Iterator[str]:
    channels, height, width = train.images.shape
    stored = f"stored at {height} x {width} pixels{', grey' if channels == 1 else ''}"
    sizes = []
    for place in spread(len(train), HEADERS):
        name = train.name(int(place))
        if not os.path.isabs(name):
            break  # a name made from its place, not a file
        try:
            sizes.append(read_size(name))
        except BadImageError:
            continue  # reading it will say so
    if not sizes:
        yield stored
        return
    low, high = min(sizes, key=np.prod), max(sizes, key=np.prod)
    span = "{} x {}".format(*low) + ("" if low == high else " to {} x {}".format(*high))
    yield f"pictures of {span} pixels (of {len(sizes)} sampled), {stored}"


def _balance(train: Dataset) -> Iterator[str]:
    counts = train.counts()
    low, high = int(counts.argmin()), int(counts.argmax())
    if counts[low] == counts[high]:
        yield f"{counts[low]:,} training images in every class"
        return
    least, most = (f"{counts[place]:,} ({shown(train.classes[place])})" for place in (low, high))
    yield f"training images per class: {least} to {most}"


class _Sample(NamedTuple):
    """Some images of a split, evenly spaced, by their content."""

    places: np.ndarray
    keys: np.ndarray


def _sample(part: Dataset, by: KeyKind) -> _Sample:
    places = spread(len(part), OPENED if by == "file" else max(HASHED // int(np.prod(part.images.shape)), 1))
    whole = len(places) == len(part)  # then the record of the run's images has the same keys
    return _Sample(places, dataset_keys(part if whole else part.subset(places), by=by))


def _shared(splits: dict[str, Dataset]) -> Iterator[str]:
    """Images that are in two splits, as far as comparing them is cheap."""
    by: KeyKind = "file" if "file" in map(key_kind, splits.values()) else "pixels"
    samples = {name: _sample(part, by) for name, part in splits.items()} if len(splits) > 1 else {}
    for first, second in combinations(samples, 2):
        a, b = samples[first], samples[second]
        known = dict(zip(a.keys.tolist(), a.places.tolist(), strict=True))
        found = zip(b.keys.tolist(), b.places.tolist(), strict=True)
        pairs = [(known[key], place) for key, place in found if key in known]
        sampled = ""
        if len(a.places) < len(splits[first]) or len(b.places) < len(splits[second]):
            sampled = f" (compared: {len(a.places):,} with {len(b.places):,} of them)"
        if pairs:
            names = (
                splits[split].name(place) for split, place in zip((first, second), pairs[0], strict=True)
            )
            here, there = (shown(os.path.basename(name)) for name in names)
            shared = f"{len(pairs):,} {NAMES[second]} images are also {NAMES[first]} images"
            yield f"{shared}: {there} is {here}; accuracy on them is meaningless{sampled}"
        elif sampled:
            yield f"no {NAMES[second]} image was found among the {NAMES[first]} images{sampled}"
