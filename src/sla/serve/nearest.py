"""The training pictures nearest to a picture, by the cosine of their features: computed once, then cached."""

import io
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sla.disk import reason
from sla.errors import InputError, shown
from sla.images.cache_paths import cache_dir
from sla.images.content import content_keys, dataset_keys
from sla.images.store import Dataset, Pixels, spread
from sla.model_file import read_model_file, write_model_file
from sla.progress import QUIET, Progress
from sla.report.pictures import TINY, draw, short_name
from sla.runs.checkpoint import file_checksum
from sla.tasks.classifier.run import Run

MOST = 20_000  # training pictures; of more, so many evenly spaced ones
CHUNK = 32  # pictures read and embedded at a time
EDGE = 160  # pixels of a thumbnail's longer edge
KEY, VERSION = "nearest", 1  # of the cache files
WHAT = "features of training pictures"

Embed = Callable[[Pixels], Tensor]  # (B, D), each of length 1


class StoppedError(Exception):
    """The server ends before all features are there."""


class Found(NamedTuple):
    """A training picture and the cosine of its features with those asked for."""

    place: int
    similarity: float


class Neighbours(NamedTuple):
    """Training pictures, by place: features, names, classes and thumbnails."""

    features: Tensor  # float32 (n, D), each of length 1
    names: list[str]
    classes: list[str]
    thumbnails: list[bytes]  # JPEG or PNG files

    def nearest(self, features: Tensor, count: int) -> list[Found]:
        """The nearest pictures to one with these features (D,), of length 1, nearest first."""
        best = (self.features @ features).topk(min(count, len(self.names)))
        return [Found(*pair) for pair in zip(best.indices.tolist(), best.values.tolist(), strict=True)]


class NearestPictures:
    """The neighbours of a run, prepared in a thread of their own; `found` is None until then."""

    def __init__(self, run: Run, embed: Embed, progress: Progress = QUIET) -> None:
        self.run, self.embed, self.progress = run, embed, progress
        self.found: Neighbours | None = None
        self.done, self.total, self.note = 0, 0, ""
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._prepare, name="nearest", daemon=True)

    def start(self) -> None:
        """Begin to prepare them."""
        self._thread.start()

    def stop(self) -> None:
        """End soon, finished or not."""
        self._stopped.set()

    def wait(self, seconds: float | None = None) -> None:
        """Until they are prepared, or are known to be unavailable, or it has stopped."""
        self._thread.join(seconds)

    @property
    def state(self) -> str:
        """preparing, ready or unavailable."""
        return "ready" if self.found else "unavailable" if self.note else "preparing"

    def _prepare(self) -> None:
        file = cache_file(self.run)
        try:
            self.found = read_cache(file)
            if self.found is None:
                features, self.found = self._compute()
                _write_cache(file, features, self.found, self.progress)
        except (StoppedError, CancelledError):
            pass  # the server ends
        except Exception as error:  # the answers do without
            why = reason(error) if isinstance(error, OSError) else " ".join(str(error).split())
            self.note = f"no nearest training pictures: {why or type(error).__name__}"
            self.progress.message(self.note)

    def _compute(self) -> tuple[Tensor, Neighbours]:
        """Features as the cache keeps them, float16, and the neighbours that are read from it."""
        parts: list[tuple[Tensor, list[str], list[str], list[bytes]]] = []
        source = shown(self.run.config.data.source)
        for chunk, pixels in self._training_pictures():
            names = [short_name(chunk.name(place)) for place in range(len(chunk))]
            classes = [chunk.classes[target] for target in chunk.targets]
            thumbnails = [thumbnail(*one) for one in zip(pixels.images, pixels.aspect.tolist(), strict=True)]
            parts.append((self.embed(pixels), names, classes, thumbnails))
        if not parts:
            raise InputError(f"{source}: none of the run's training pictures is there")
        features, *lists = zip(*parts, strict=True)
        rounded = torch.cat(features).half()
        joined = (list(chain.from_iterable(found)) for found in lists)
        return rounded, Neighbours(_restored(rounded), *joined)

    def _training_pictures(self) -> Iterator[tuple[Dataset, Pixels]]:
        """What the run trained on, as far as it is still there, a few at a time."""
        watched, record = _Watched(self), self.run.record
        # Not into memory: every picture is read once.
        splits = self.run.load_splits(progress=watched, memory_limit=0)
        part, places = splits.train, spread(len(splits.train), MOST)
        self.total = len(places)
        for start in range(0, len(places), CHUNK):
            chunk = part.subset(places[start : start + CHUNK])
            pixels = chunk.read(range(len(chunk)))
            if record is not None:
                by_file = record.by == "file"
                keys = dataset_keys(chunk, by="file") if by_file else content_keys(pixels.images)
                kept = np.flatnonzero(record.trained_on(keys))
                chunk, pixels = chunk.subset(kept), Pixels(pixels.images[kept], pixels.aspect[kept])
            if len(chunk):
                yield chunk, pixels
            self.done = min(start + CHUNK, len(places))
            watched.advance(WHAT, self.done, self.total)


class _Watched(Progress):
    """Passes on how far it is; raises once the server ends."""

    def __init__(self, owner: NearestPictures) -> None:
        self.owner = owner

    def advance(self, what: str, done: int, total: int | None) -> None:
        if self.owner._stopped.is_set():
            raise StoppedError
        self.owner.progress.advance(what, done, total)


def thumbnail(image: Tensor, aspect: float) -> bytes:
    """A small file of a stored picture, uint8 (C, H, W), in its original proportions."""
    file, tiny = io.BytesIO(), max(image.shape[1:]) < TINY
    if tiny:
        draw(image).save(file, "PNG")
    else:
        draw(image, aspect, EDGE).convert("RGB").save(file, "JPEG", quality=85)
    return file.getvalue()


def cache_file(run: Run) -> Path:
    """Where they are kept, by the content of the weights: a run that is moved finds them again."""
    return cache_dir() / "nearest" / f"{file_checksum(run.model_file)}.safetensors"


def _write_cache(path: Path, features: Tensor, found: Neighbours, progress: Progress) -> None:
    joined = np.frombuffer(b"".join(found.thumbnails), np.uint8).copy()
    tensors = {
        "features": features,
        "thumbnails": torch.from_numpy(joined),
        "ends": torch.tensor([len(data) for data in found.thumbnails]).cumsum(0),
    }
    about: dict[str, Any] = {"version": VERSION, "names": found.names, "classes": found.classes}
    try:
        write_model_file(path, tensors, about, KEY, checksum=True)
    except OSError as error:
        progress.message(f"{shown(path)}: the nearest pictures are not cached: {reason(error)}")


def _restored(features: Tensor) -> Tensor:
    """float16 (n, D) as float32, each of length 1 again."""
    return F.normalize(features.float(), dim=-1)


def read_cache(path: Path) -> Neighbours | None:
    """What was kept; None where there is nothing, or nothing readable."""
    try:
        about, tensors = read_model_file(path, "cached features", KEY, checksum=True)
        if about["version"] != VERSION:
            return None
        joined, ends = tensors["thumbnails"].numpy().tobytes(), [0, *tensors["ends"].tolist()]
        thumbnails = [joined[start:end] for start, end in pairwise(ends)]
        return Neighbours(_restored(tensors["features"]), about["names"], about["classes"], thumbnails)
    except (InputError, KeyError, TypeError):
        return None
