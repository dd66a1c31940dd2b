"""Images that a classifier's run has not trained on, found by the record of its images.

Those of a run from before there was a record are found by their number.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sla.datasets.objects import source_name
from sla.errors import InputError, shown
from sla.images.channels import ConvertedImages
from sla.images.content import dataset_keys
from sla.images.store import Dataset, Splits
from sla.progress import Progress
from sla.runs.defaults import same_source
from sla.runs.images_record import TEST, TRAIN, UNUSED, VAL, ImagesRecord, Matched
from sla.tasks.classifier.config import ClassifierConfig
from sla.tasks.classifier.split import split_images

OTHER = "other"  # data of another source than the run's
WHAT = {TEST: "test images", VAL: "held-out images", OTHER: ""}


class FoundImages(NamedTuple):
    """Images to evaluate on, of which split, and notes on how they differ from what the run had."""

    dataset: Dataset
    split: str
    notes: list[str]

    @property
    def what(self) -> str:
        """What they are called in texts."""
        return WHAT[self.split]


def find_own(
    record: ImagesRecord, splits: Splits, source: str, folder: Path, progress: Progress
) -> FoundImages | None:
    """The run's test images, else its held-out ones; None where it has neither."""
    where = place(folder, source)
    if splits.test is not None:
        return find_test(record, splits.test, where, progress)
    if not record.count(VAL):
        return None
    found = find_held_out(record, splits, where, progress)
    if tested := record.count(TEST):
        gone = (
            f"{where}: its {tested:,} {WHAT[TEST]} are gone; the {WHAT[VAL]} are used, by which it was chosen"
        )
        found = found._replace(notes=[gone, *found.notes])
    return found


def find_named(
    record: ImagesRecord | None,
    splits: Splits,
    data: Any,
    config: ClassifierConfig,
    folder: Path,
    progress: Progress,
) -> FoundImages:
    """The test images of the data that are named, else all; `config`: of the run."""
    part = next(part for part in (splits.test, splits.val, splits.train) if part is not None)
    if len(config.model.mean or ()) == 1:  # files are read in colour, and would be taken for new images
        part = replace(part, images=ConvertedImages(part.images, 1))
    if record is not None:
        return find_other(record, part, place(folder, data), progress)
    learnt = splits.test is None and same_source(source_name(data), config.data.source)
    most = "the run learnt from most of these images; without naming them, those held out are taken"
    note = f"{shown(source_name(data))}: {most}" if learnt else unrecorded(folder)
    return FoundImages(part, OTHER, [note])


def find_by_number(
    config: ClassifierConfig, splits: Splits, before: dict[str, int], folder: Path, notes: list[str]
) -> FoundImages | None:
    """As `find_own`, without a record: refused where the number of images is not the one `before`.

    Which images are held out follows from all there are: with another number it would be others.
    """
    if splits.test is not None:
        return FoundImages(splits.test, TEST, notes)
    if splits.val is not None:
        return FoundImages(splits.val, VAL, notes)
    if not config.data.hold_out:
        return None
    train, held = split_images(config, splits, [])
    assert held is not None
    before = before or {"val": len(held)}
    if before.get("val") != len(held) or before.get("train") not in (None, len(train)):
        raise InputError(
            f"{shown(source_name(config.data.source))}: its images have changed since {shown(folder)} was "
            "trained, so which were held out is not known: name other data, which the run has not seen"
        )
    return FoundImages(held, VAL, notes)


def place(folder: Path, data: Any) -> str:
    """Which run on which data, as notes begin."""
    return f"{shown(folder)} on {shown(source_name(data))}"


def unrecorded(folder: Path) -> str:
    """The note on a run without a record."""
    return (
        f"{shown(folder)}: written before runs recorded their images: whether it trained on any of "
        "these is not known"
    )


def find_test(record: ImagesRecord, part: Dataset, where: str, progress: Progress) -> FoundImages:
    """The test images that are there now, without those that were trained on."""
    keys = dataset_keys(part, progress, record.by)
    matched = record.match(part, keys, [TEST])
    trained = matched.rest[record.trained_on(keys[matched.rest])]
    notes = _changes(record, matched, TEST, len(matched.rest) - len(trained), where)
    return _without(part, trained, TEST, where, notes)


def find_held_out(record: ImagesRecord, splits: Splits, where: str, progress: Progress) -> FoundImages:
    """The images that were held out, as far as they are still there, in the order that they had."""
    part, among = (splits.train, [TRAIN, VAL, UNUSED]) if splits.val is None else (splits.val, [VAL])
    matched = record.match(part, dataset_keys(part, progress, record.by), among)
    if not len(matched.places[VAL]):
        raise InputError(f"{where}: none of its {record.count(VAL):,} {WHAT[VAL]} was found: name other data")
    new = len(matched.rest)
    notes = _changes(record, matched, VAL, new, where, " and not used" if new else "")
    return FoundImages(part.subset(matched.places[VAL]), VAL, notes)


def find_other(record: ImagesRecord, part: Dataset, where: str, progress: Progress) -> FoundImages:
    """Other data, wherever it lies, without images that were trained on."""
    keys = dataset_keys(part, progress, record.by)
    rest = record.match(part, keys, [VAL, TEST]).rest
    return _without(part, rest[record.trained_on(keys[rest])], OTHER, where, [])


def _without(part: Dataset, trained: np.ndarray, split: str, where: str, notes: list[str]) -> FoundImages:
    count, total = len(trained), len(part)
    if count and count == total:
        raise InputError(
            f"{where}: all {total:,} images were trained on: name data that the run has not seen"
        )
    if not count:
        return FoundImages(part, split, notes)
    verbs = ("was trained on and is", "were trained on and are")
    note = f"{where}: {count:,} of the {total:,} images {verbs[count > 1]} left out"
    return FoundImages(part.subset(np.setdiff1d(np.arange(total), trained)), split, [*notes, note])


def _changes(
    record: ImagesRecord, matched: Matched, split: str, new: int, where: str, use: str = ""
) -> list[str]:
    """One line with the counts of images that are gone, new or in another class; nothing where none is."""
    gone, relabelled, what = matched.gone[split], matched.relabelled[split], WHAT[split]
    parts = []
    if gone:
        parts.append(f"{gone:,} of its {record.count(split):,} {what} {'is' if gone == 1 else 'are'} gone")
    if new:
        parts.append(f"{new:,} {'image is' if new == 1 else 'images are'} new{use}")
    if relabelled:
        parts.append(f"{relabelled:,} of its {what} {'has' if relabelled == 1 else 'have'} another class now")
    return [f"{where}: {'; '.join(parts)}"] if parts else []
