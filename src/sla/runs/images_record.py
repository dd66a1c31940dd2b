"""Which images a run trained on and which it held out, by content: RUN/images.safetensors.

For each split the keys of its images and their classes, in the run's order. `unused` are those of the source
that a run left out (`per_class`, `long_tail`), `unlabelled` those that it trained on without labels, `seen`
those that the runs trained on which its weights come from, and those that only a student learns from. Names
and folders play no part: a picture is found again wherever it lies, and one that was trained on is never
taken for unseen.
"""

import warnings
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
import torch

from sla.errors import InputError, SLAWarning, shown
from sla.images.content import KeyKind, dataset_keys, key_kind
from sla.images.store import Dataset
from sla.model_file import read_model_file, write_model_file
from sla.progress import QUIET, Progress
from sla.runs.folder import IMAGES
from sla.runs.plan import Plan

TRAIN, VAL, TEST, UNUSED, UNLABELLED = "train", "val", "test", "unused", "unlabelled"
SEEN = "seen"


class Matched(NamedTuple):
    """Images of a dataset that are recorded: their places by split, in the recorded order, and the rest."""

    places: dict[str, np.ndarray]
    gone: dict[str, int]  # recorded images that the dataset lacks
    relabelled: dict[str, int]  # of those found, how many have another class
    rest: np.ndarray  # places of images that are not recorded in these splits


@dataclass(frozen=True)
class ImagesRecord:
    """By split: content keys uint64 (n,), class numbers (n,), and the names of the classes."""

    by: KeyKind  # what the keys are of
    keys: dict[str, np.ndarray]
    targets: dict[str, np.ndarray]
    classes: dict[str, tuple[str, ...]]

    def is_whole(self) -> bool:
        """Whether every image has a key and a class, and the training images are there."""
        return self.by in get_args(KeyKind) and TRAIN in self.keys and all(map(self._is_split, self.keys))

    def _is_split(self, split: str) -> bool:
        keys, targets, names = self.keys[split], self.targets[split], self.classes[split]
        fits = keys.ndim == 1 and keys.shape == targets.shape and targets.dtype.kind == "i"
        in_range = fits and (targets >= 0).all() and (targets < len(names)).all()
        return bool(in_range) and all(isinstance(name, str) for name in names)

    def count(self, split: str) -> int:
        """How many images the run had in a split."""
        return len(self.keys.get(split, ()))

    def match(self, dataset: Dataset, keys: np.ndarray, splits: Sequence[str]) -> Matched:
        """Where the images of these splits are in a dataset with these keys; a copy counts once.

        Images with their recorded class are matched first.
        """
        names = [dataset.classes[target] for target in dataset.targets]
        left: dict[Any, list[int]] = defaultdict(list)
        for place, label in reversed(list(enumerate(zip(keys.tolist(), names, strict=True)))):
            left[label].append(place)
        found = {split: np.full(self.count(split), -1) for split in splits}
        for split in splits:
            for number, label in enumerate(self._labels(split)):
                if places := left.get(label):
                    found[split][number] = places.pop()
        by_key: dict[Any, list[int]] = defaultdict(list)
        for (key, _), places in left.items():
            by_key[key] += places
        relabelled = dict.fromkeys(splits, 0)
        for split in splits:
            for number in np.flatnonzero(found[split] < 0).tolist():
                if places := by_key.get(int(self.keys[split][number]), []):
                    found[split][number] = places.pop()
                    relabelled[split] += 1
        gone = {split: int((places < 0).sum()) for split, places in found.items()}
        kept = {split: places[places >= 0] for split, places in found.items()}
        rest = np.setdiff1d(np.arange(len(dataset)), np.concatenate([np.empty(0, int), *kept.values()]))
        return Matched(kept, gone, relabelled, rest)

    def trained_on(self, keys: np.ndarray) -> np.ndarray:
        """Which of these are keys of images that it trained on, with or without labels, bool (n,)."""
        return np.isin(keys, self.keys_of(TRAIN, UNLABELLED, SEEN))

    def keys_of(self, *splits: str) -> np.ndarray:
        """The keys of all images of these splits."""
        return np.concatenate(
            [np.empty(0, np.uint64), *(self.keys[split] for split in splits if split in self.keys)]
        )

    def _labels(self, split: str) -> Iterable[tuple[Any, str]]:
        if split not in self.keys:
            return ()
        names = [self.classes[split][target] for target in self.targets[split]]
        return zip(self.keys[split].tolist(), names, strict=True)


def make_record(plan: Plan[Any], progress: Progress = QUIET) -> ImagesRecord:
    """The record of a plan's images; each is read once, or not at all where a cache has its key."""
    by = key_kind(plan.train)
    parts = {
        TRAIN: plan.train,
        VAL: plan.val,
        TEST: plan.test,
        UNUSED: _unused(plan),
        UNLABELLED: plan.unlabelled,
    }
    held = {split: part for split, part in parts.items() if part is not None and len(part)}
    record = ImagesRecord(
        by,
        {split: dataset_keys(part, progress, by) for split, part in held.items()},
        {split: part.targets for split, part in held.items()},
        {split: part.classes for split, part in held.items()},
    )
    return _with_seen(record, plan, progress)


def _with_seen(record: ImagesRecord, plan: Plan[Any], progress: Progress) -> ImagesRecord:
    """With what its weights have seen before and what its student learns from, as far as keys compare."""
    taught = [] if plan.taught is None else [dataset_keys(plan.taught, progress, record.by)]
    folder = Path(plan.config.earlier_run() or "none")
    earlier = read_record(folder) if folder.is_dir() else None
    if earlier is not None and earlier.by == record.by:
        taught.append(earlier.keys_of(TRAIN, UNLABELLED, SEEN))
        _warn_of_seen(record, earlier, folder)
    if not taught:
        return record
    keys = np.unique(np.concatenate(taught))
    none = np.zeros(len(keys), np.int64)
    return replace(
        record,
        keys=record.keys | {SEEN: keys},
        targets=record.targets | {SEEN: none},
        classes=record.classes | {SEEN: ("image",)},
    )


def _warn_of_seen(record: ImagesRecord, earlier: ImagesRecord, folder: Path) -> None:
    """Warn of held-out and test images that the run trained on which the weights come from."""
    copies = earlier.keys_of(VAL, TEST)  # it had them in two splits, and so did this run
    for split, what in ((VAL, "held-out"), (TEST, "test")):
        keys = record.keys_of(split)
        if count := int((earlier.trained_on(keys) & ~np.isin(keys, copies)).sum()):
            warnings.warn(
                f"{shown(folder)}, which this run starts from, trained on {count:,} of the {len(keys):,} "
                f"{what} images: accuracies on them may be too high",
                SLAWarning,
            )


def with_recorded_images(
    plan: Plan[Any], record: ImagesRecord, folder: Path, progress: Progress = QUIET
) -> Plan[Any]:
    """The plan of a resumed run with the images that it began with, in their order.

    Refused where one is gone, is new or has another class.
    """
    source, val = plan.pool or plan.train, (plan.val, [VAL])
    pools: list[tuple[Dataset | None, list[str]]] = [
        *([(source, [TRAIN, VAL, UNUSED])] if plan.holds_out else [(source, [TRAIN, UNUSED]), val]),
        (plan.test, [TEST]),
        (plan.unlabelled, [UNLABELLED]),
    ]
    found: dict[str, Dataset | None] = {VAL: None, TEST: None, UNLABELLED: None}
    gone = new = relabelled = 0
    for pool, splits in pools:
        if pool is None:
            gone += sum(record.count(split) for split in splits)
            continue
        matched = record.match(pool, dataset_keys(pool, progress, record.by), splits)
        gone, new = gone + sum(matched.gone.values()), new + len(matched.rest)
        relabelled += sum(matched.relabelled.values())
        found |= {split: pool.subset(places) for split, places in matched.places.items() if len(places)}
    if gone or new or relabelled:
        raise InputError(
            f"{shown(folder)}: the data has changed since the run began: "
            f"{_differences(gone, new, relabelled)}; restore it, or train in another folder"
        )
    train = found[TRAIN]
    assert train is not None
    return replace(plan, train=train, val=found[VAL], test=found[TEST], unlabelled=found[UNLABELLED])


def _differences(gone: int, new: int, relabelled: int) -> str:
    parts = ((gone, "is gone", "are gone"), (new, "is new", "are new"))
    labels = (relabelled, "has another class", "have another class")
    return ", ".join(
        f"{count:,} {one if count == 1 else more}" for count, one, more in (*parts, labels) if count
    )


def _unused(plan: Plan[Any]) -> Dataset | None:
    if plan.pool is None:
        return None
    used = np.isin(plan.pool.rows, plan.train.rows)
    if plan.val is not None and plan.holds_out:
        used |= np.isin(plan.pool.rows, plan.val.rows)
    return plan.pool.subset(np.flatnonzero(~used))


def write_record(folder: Path, record: ImagesRecord) -> None:
    """Write it into a run's folder."""
    tensors = {f"keys.{s}": torch.from_numpy(keys.view(np.int64).copy()) for s, keys in record.keys.items()}
    tensors |= {f"targets.{s}": torch.from_numpy(t.astype(np.int32)) for s, t in record.targets.items()}
    about = {"by": record.by, "classes": record.classes}
    write_model_file(folder / IMAGES, tensors, about, "images", checksum=True)


def read_record(folder: Path) -> ImagesRecord | None:
    """The record of a run; None of one that was written before there were records."""
    path = folder / IMAGES
    if not path.is_file():
        return None
    try:
        about, tensors = read_model_file(path, "a record of images", "images", checksum=True)
        found = ImagesRecord(
            about["by"],
            {s: tensors[f"keys.{s}"].numpy().view(np.uint64) for s in about["classes"]},
            {s: tensors[f"targets.{s}"].numpy() for s in about["classes"]},
            {s: tuple(names) for s, names in about["classes"].items()},
        )
        if not found.is_whole():
            raise ValueError
        return found
    except (AttributeError, KeyError, TypeError, ValueError):
        raise InputError(
            f"{shown(path)}: damaged: which images the run trained on is not known; without this file they "
            "are compared by their number alone"
        ) from None
