"""Before training: what is in the data, in a few lines, without reading more than is cheap."""

import hashlib
import os
from collections.abc import Iterator

import numpy as np

from sla.errors import shown
from sla.images.cache import CachedImages
from sla.images.decode import BadImageError, read_size
from sla.images.files import FileImages
from sla.images.store import Dataset
from sla.runs.plan import Plan
from sla.tasks.classifier.config import ClassifierConfig
from sla.tasks.classifier.view_accuracy import spread

HEADERS = 64  # files whose headers say their size
HASHED = 1 << 30  # bytes of stored pixels compared between two splits
OPENED = 4000  # files compared, of a split that is not in memory
TAIL = 4096  # bytes at the end of a file: compressed pixels, which no two photographs share
NAMES = {"train": "training", "val": "held-out", "test": "test"}


def describe_data(plan: Plan[ClassifierConfig]) -> Iterator[str]:
    """Lines about classes, counts, sizes, balance, and images that are in two splits."""
    splits = {name: part for name in NAMES if (part := getattr(plan, name)) is not None}
    counted = ", ".join(f"{len(part):,} {NAMES[name]}" for name, part in splits.items())
    yield f"{plan.train.num_classes:,} classes; images: {counted}"
    yield from _sizes(plan.train)
    yield from _balance(plan.train)
    names = list(splits)
    for place, first in enumerate(names):
        for second in names[place + 1 :]:
            yield from _shared(first, splits[first], second, splits[second])


def _sizes(train: Dataset) -> Iterator[str]:
    channels, height, width = train.images.shape
    stored = f"kept at {height} x {width} pixels{', grey' if channels == 1 else ''}"
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


def _shared(first: str, a: Dataset, second: str, b: Dataset) -> Iterator[str]:
    most = _affordable(a), _affordable(b)
    looked = [spread(len(part), limit) for part, limit in zip((a, b), most, strict=True)]
    known = dict(zip(_keys(a, looked[0]), looked[0].tolist(), strict=True))
    pairs = [
        (known[key], place)
        for key, place in zip(_keys(b, looked[1]), looked[1].tolist(), strict=True)
        if key in known
    ]
    sampled = ""
    if len(looked[0]) < len(a) or len(looked[1]) < len(b):
        sampled = f" (compared: {len(looked[0]):,} with {len(looked[1]):,} of them)"
    if pairs:
        here, there = (shown(os.path.basename(p.name(i))) for p, i in zip((a, b), pairs[0], strict=True))
        shared = f"{len(pairs):,} {NAMES[second]} images are {NAMES[first]} images too"
        yield f"{shared}: {there} is {here}; accuracy on them says nothing{sampled}"
    elif sampled:
        yield f"no {NAMES[second]} image was found among the {NAMES[first]} images{sampled}"


def _affordable(dataset: Dataset) -> int:
    return OPENED if _on_disk(dataset) else max(HASHED // int(np.prod(dataset.images.shape)), 1)


def _on_disk(dataset: Dataset) -> bool:
    return isinstance(dataset.images, FileImages) and not isinstance(dataset.images, CachedImages)


def _keys(dataset: Dataset, places: np.ndarray) -> Iterator[bytes]:
    """For each image a key that its copies share: of its stored pixels, or of its file."""
    if _on_disk(dataset):
        yield from (_file_key(dataset.name(int(place))) for place in places)
        return
    for start in range(0, len(places), 256):
        for pixels in dataset.read(places[start : start + 256]).images.numpy():
            yield hashlib.blake2b(pixels.tobytes(), digest_size=16).digest()


def _file_key(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - TAIL, 0))
            return b"%d:" % size + hashlib.blake2b(file.read(), digest_size=16).digest()
    except OSError:
        return path.encode(errors="surrogateescape")  # like no other
