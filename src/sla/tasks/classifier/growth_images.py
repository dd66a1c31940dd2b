"""Which images a grown run has: those of its new classes, kept ones of the old, and the old held-out ones."""

import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sla.classifier import Classifier
from sla.errors import InputError, SLAWarning, listed, shown
from sla.factory import load, read_saved
from sla.images.content import dataset_keys
from sla.images.joined import Joiner
from sla.images.store import Dataset, Splits
from sla.progress import QUIET, Progress
from sla.runs.defaults import override
from sla.runs.folder import find_known_weights
from sla.runs.images_record import TRAIN, UNUSED, VAL, ImagesRecord, read_record
from sla.runs.preprocessing import read_preprocessing
from sla.sampling.protocols import places_by_class
from sla.tasks.classifier.config import ClassifierConfig
from sla.tasks.classifier.frozen import embed
from sla.tasks.classifier.split import join_splits, load_parts, split_images, training_images


class GrownImages(NamedTuple):
    """All data of a grown run, what it trains on and what it holds out; classes are the old, then the new."""

    splits: Splits
    train: Dataset
    val: Dataset | None


def earlier_file(config: ClassifierConfig) -> tuple[Path, str]:
    """The weights of the run that this one adds classes to, and their checksum."""
    part = config.grow
    return find_known_weights(Path(part.run or ""), part.checkpoint, part.checksum)


def read_earlier_record(config: ClassifierConfig) -> ImagesRecord:
    """Which images the run had that this one adds classes to."""
    folder = Path(config.grow.run or "")
    record = read_record(folder)
    if record is None:
        raise InputError(f"{shown(folder)}: written before runs recorded their images: train it again first")
    return record


def find_grown_images(
    config: ClassifierConfig, reasons: list[str], progress: Progress = QUIET
) -> tuple[ClassifierConfig, GrownImages]:
    """The images of a run that adds classes, and its configuration with the earlier data that is there."""
    weights, checksum = earlier_file(config)
    old_classes = read_saved(weights)[0]["classes"]
    config = override(config, "grow", checksum=checksum)
    config, parts = _load_parts(config, progress)
    *earlier, new = parts
    if both := [name for name in new.train.classes if name in old_classes]:
        some, run = listed([shown(name) for name in both]), shown(config.grow.run or "")
        raise InputError(f"{shown(config.data.source)}: {run} has {some} already: it grows by new classes")
    classes = (*old_classes, *new.train.classes)
    joiner = Joiner(training_images(parts), classes)
    train, val = split_images(config, new, reasons)
    trained, held = [train], [] if val is None else [val]
    if earlier:
        kept, old_held = _old_images(config, joiner.join(training_images(earlier)), weights, progress)
        trained, held = [kept, *trained], [old_held, *held]
    reasons.append(_describe(config, len(old_classes), new.train.num_classes, trained))
    val = joiner.join(held) if any(map(len, held)) else None
    return config, GrownImages(join_splits(parts, classes), joiner.join(trained), val)


def herd(features: Tensor, count: int) -> list[int]:
    """Up to `count` of the rows (n, D), one after the other, so that their mean stays nearest to that of all.

    Rows are scaled to length 1: herding, as iCaRL chooses its exemplars.
    """
    unit = F.normalize(features.double(), dim=1)
    mean, total, chosen = unit.mean(0), torch.zeros_like(unit[0]), list[int]()
    left = torch.ones(len(unit), dtype=torch.bool)
    for number in range(1, min(count, len(unit)) + 1):
        distance = (mean - (total + unit) / number).norm(dim=1)
        best = int(distance.masked_fill(~left, math.inf).argmin())
        chosen.append(best)
        left[best] = False
        total += unit[best]
    return chosen


def embedded_images(counts: np.ndarray, keep: int) -> int:
    """Images whose features are computed to choose those that are kept, of so many per class (N,)."""
    return int(counts.sum()) if keep and counts.max(initial=0) > keep else 0


@torch.inference_mode()
def choose_kept(
    model: Classifier, dataset: Dataset, keep: int, workers: int = 0, progress: Progress = QUIET
) -> Dataset:
    """`keep` images of each class by `herd`, all where there are no more."""
    if not embedded_images(dataset.counts(), keep):
        return dataset.subset(np.arange(len(dataset)) if keep else [])
    pipeline = read_preprocessing(model.about).eval_pipeline()
    # Never by a faster copy: rounding could choose other images.
    passing = {"workers": workers, "progress": progress, "what": "images to keep"}
    features = embed(model, dataset, pipeline, fast=False, **passing)
    places = [some[herd(features[some], keep)] for some in places_by_class(dataset) if len(some)]
    return dataset.subset(np.sort(np.concatenate(places)))


def _load_parts(config: ClassifierConfig, progress: Progress) -> tuple[ClassifierConfig, list[Splits]]:
    """The earlier data and the new; where nothing is kept of the earlier, it may be gone."""
    try:
        return config, load_parts(config.data, progress=progress)
    except InputError as error:
        alone = override(config, "data", earlier=())
        parts = load_parts(alone.data, progress=progress)  # what is wrong may be the new data
        if config.grow.keep:
            raise InputError(f"{error}; --keep 0 grows without images of the old classes") from None
        warnings.warn(f"{error}: old classes are neither held out nor tested", SLAWarning)
        return alone, parts


def _old_images(
    config: ClassifierConfig, old: Dataset, weights: Path, progress: Progress
) -> tuple[Dataset, Dataset]:
    """The images of old classes that are kept, and those that the earlier run held out."""
    record, name = read_earlier_record(config), shown(config.grow.run or "")
    matched = record.match(old, dataset_keys(old, progress, record.by), [TRAIN, VAL, UNUSED])
    if gone := matched.gone[TRAIN] + matched.gone[VAL]:
        if config.grow.keep and matched.gone[TRAIN] == record.count(TRAIN):
            raise InputError(
                f"{name}: none of the images that it trained on is left in its data, at "
                f"{old.images.shape[2]} pixels; --keep 0 grows without images of the old classes"
            )
        warnings.warn(f"{gone:,} of the images that {name} trained on or held out are gone", SLAWarning)
    trained, workers = old.subset(matched.places[TRAIN]), config.data.workers or 0
    kept = choose_kept(load(weights), trained, config.grow.keep, workers, progress)
    return kept, old.subset(matched.places[VAL])


def _describe(config: ClassifierConfig, old: int, new: int, trained: Sequence[Dataset]) -> str:
    part = config.grow
    images = len(trained[0]) if len(trained) > 1 else 0
    kept = f"{images:,} images kept of old classes" if images else "no images kept of old classes"
    taught = f"distillation of weight {part.weight:g}" if part.weight else "no distillation: fine-tuning"
    classes = f"{new} new class{'es' if new > 1 else ''}"
    return f"{classes} beside {old} of {shown(part.run or '')}; {kept}; {taught}"
