"""Checks of a dataset: counts, checksums, balance, corrupt and repeated images, and a sheet of images."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from sla.datasets.catalogue import CATALOGUE, source_of
from sla.datasets.download import verify_files
from sla.datasets.entry import SPLIT_NAMES
from sla.datasets.find import find
from sla.datasets.load import load
from sla.disk import replacing
from sla.images.decode import BadImageError
from sla.images.files import in_threads
from sla.images.store import Dataset, Rows, Splits, spread
from sla.progress import QUIET, Progress

SHEET_CLASSES, SHEET_IMAGES = 12, 10
TILE = 64  # the smallest edge of an image on the sheet


@dataclass
class SplitCheck:
    """What was found in one split."""

    name: str
    images: int
    expected: int | None  # None: unknown
    classes: int
    fewest: tuple[str, int]  # class and its number of images
    most: tuple[str, int]
    corrupt: list[tuple[str, str]] = field(default_factory=list)  # file and reason
    repeated: list[tuple[str, str]] = field(default_factory=list)  # an image, and an identical earlier one
    mislabelled: int = 0  # of the repeated: those with another label
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None


@dataclass
class Check:
    """What was found in a dataset."""

    name: str
    folder: Path
    splits: list[SplitCheck]
    checksums: list[Path]  # the files that were compared and agree
    shared: dict[tuple[str, str], list[tuple[str, str]]]  # by two splits: images that are in both
    decoded: bool  # whether images were decoded

    @property
    def problems(self) -> dict[str, int]:
        """How many images are corrupt, in two splits, or have two labels in one split."""
        return {
            "corrupt": sum(len(split.corrupt) for split in self.splits),
            "in two splits": sum(len(pairs) for pairs in self.shared.values()),
            "with two labels": sum(split.mislabelled for split in self.splits),
        }

    @property
    def passed(self) -> bool:
        """Whether there are no problems; repeated images with one label are not counted as one."""
        return not any(self.problems.values())


def check(
    data: str | Path,
    *,
    root: str | Path | None = None,
    sheet: Path | None = None,
    pixels: bool = True,
    progress: Progress = QUIET,
) -> Check:
    """Check a dataset, by name or folder; wrong checksums and layouts are refused as in `load`.

    With `pixels` every image is decoded and compared by its exact pixels. `sheet` is a PNG to write.
    """
    entry = CATALOGUE.get(data) if isinstance(data, str) else None
    splits = load(data, root=root, memory_limit=0, progress=progress)
    found = find(entry.name, root=root) if entry else None
    folder = found[0] if found else Path(data)
    compared = verify_files(source_of(entry), folder) if entry else []
    parts = {name: part for name in SPLIT_NAMES if (part := getattr(splits, name)) is not None}
    whole = entry.splits if entry else {}
    checks = [_check_split(name, part, whole.get(name)) for name, part in parts.items()]
    keys = {one.name: _read_split(one, parts[one.name], progress) if pixels else {} for one in checks}
    shared = {}
    for a, b in combinations(parts, 2):
        places = sorted((keys[a][key], keys[b][key]) for key in keys[a].keys() & keys[b].keys())
        shared[a, b] = [(parts[a].name(here), parts[b].name(there)) for here, there in places]
    if sheet is not None:
        write_sheet(splits, sheet)
    return Check(splits.name, folder, checks, compared, shared, pixels)


def write_sheet(splits: Splits, path: Path) -> None:
    """A PNG of some classes, a row each, with images of train; corrupt ones are skipped."""
    data = splits.train
    chosen = spread(data.num_classes, SHEET_CLASSES)
    _, height, width = data.images.shape
    scale = max(1, -(-TILE // max(height, width)))
    tile, label = (width * scale, height * scale), 176
    image = Image.new("RGB", (label + SHEET_IMAGES * (tile[0] + 2), len(chosen) * (tile[1] + 2)), "white")
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(13)
    for line, target in enumerate(chosen):
        top = line * (tile[1] + 2)
        draw.text((4, top + tile[1] // 2 - 7), data.classes[target][:22], "black", font)
        rows = np.flatnonzero(data.targets == target)
        for column, pixels in enumerate(_readable(data, rows[:: max(1, len(rows) // SHEET_IMAGES)])):
            picture = Image.fromarray(pixels.squeeze()).resize(tile, Image.Resampling.NEAREST)
            image.paste(picture, (label + column * (tile[0] + 2), top))
    with replacing(path) as file:
        image.save(file, "PNG")


def _check_split(name: str, data: Dataset, expected: int | None) -> SplitCheck:
    """What can be said of a split without decoding it."""
    counts = data.counts()
    low, high = ((data.classes[c], int(counts[c])) for c in (counts.argmin(), counts.argmax()))
    return SplitCheck(name, len(data), expected, data.num_classes, low, high)


def _read_split(found: SplitCheck, data: Dataset, progress: Progress) -> dict[bytes, int]:
    """Decode every image; returns a key for each distinct one, with its first place."""
    first: dict[bytes, int] = {}
    total = np.zeros((3, data.images.shape[0]))  # of ones, pixels and squares, by channel
    passes = in_threads(
        partial(_keys, data), range(len(data)), progress=progress, what=f"checking {found.name}"
    )
    for part, (keys, bad, sums) in passes:
        found.corrupt += bad
        total += sums
        for place, key in zip(part, keys, strict=True):
            if key is not None and (before := first.setdefault(key, place)) != place:
                found.repeated.append((data.name(place), data.name(before)))
                found.mislabelled += int(data.targets[place] != data.targets[before])
    if total[0, 0]:
        mean = total[1] / total[0]
        found.mean = tuple(mean.tolist())
        found.std = tuple(np.sqrt(np.maximum(total[2] / total[0] - mean**2, 0)).tolist())
    return first


def _keys(data: Dataset, places: Rows) -> tuple[list[bytes | None], list[tuple[str, str]], np.ndarray]:
    """A key of each image, None for a corrupt one; the corrupt ones and why; and sums over the pixels."""
    keys: list[bytes | None] = []
    bad, sums = [], np.zeros((3, data.images.shape[0]))
    for place in places:
        try:
            pixels = data.read([place]).images[0].numpy()
        except BadImageError as error:
            keys.append(None)
            bad.append((error.path, error.reason))
            continue
        keys.append(hashlib.blake2b(pixels.tobytes(), digest_size=16).digest())
        flat = pixels.reshape(len(pixels), -1) / 255
        sums += [np.full(len(pixels), flat.shape[1]), flat.sum(1), (flat**2).sum(1)]
    return keys, bad, sums


def _readable(data: Dataset, places: np.ndarray) -> Iterator[np.ndarray]:
    for place in places[:SHEET_IMAGES]:
        try:
            yield data.read([place]).images[0].permute(1, 2, 0).numpy()
        except BadImageError:
            continue
