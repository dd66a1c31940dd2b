"""The images of a SimCLR run: those to train on, without labels, and labelled ones to score features on."""

import warnings
from typing import NamedTuple

import numpy as np

from sla.datasets.catalogue import CATALOGUE
from sla.datasets.folder import choose_size
from sla.datasets.load import load
from sla.datasets.scan import scan_pictures
from sla.datasets.unlabelled import has_labels, load_pictures
from sla.errors import InputError, SLAWarning, shown
from sla.images.cache_paths import cache_dir
from sla.images.content import dataset_keys, key_kind
from sla.images.storage import Storage
from sla.images.store import Dataset, Splits
from sla.progress import QUIET, Progress
from sla.runs.defaults import native_size
from sla.sampling.draws import seed_of
from sla.sampling.protocols import hold_out
from sla.tasks.simclr.config import SimCLRConfig, SimCLRData


class Chosen(NamedTuple):
    """Images to train on, and held-out labelled ones; the pool that both, or the first alone, are from."""

    train: Dataset
    val: Dataset | None
    pool: Dataset
    holds_out: bool


def find_size(source: str) -> tuple[bool, int]:
    """Whether pictures are grey, and their pixels a side."""
    known = CATALOGUE.get(source)
    if known is None and not has_labels(source):
        return False, max(choose_size(scan_pictures(source)))
    return known is not None and known.shape[0] == 1, native_size(source)


def load_images(data: SimCLRData, progress: Progress = QUIET, source: str | None = None) -> Splits:
    """The images that a configuration names, or others, at its stored size; one class without labels."""
    source, size = source or data.source, data.stored_size
    cache = cache_dir() / "images" if data.cache else None
    if has_labels(source):
        options = {
            "on_bad_image": data.on_bad_image,
            "cache": cache,
            "progress": progress,
            "least_classes": 1,
        }
        return load(source, root=data.root, size=size, **options)  # type: ignore[arg-type]
    storage = Storage((size, size) if size else None, data.on_bad_image, cache, progress=progress)
    return Splits(source, load_pictures(source, storage))


def choose_images(
    config: SimCLRConfig, splits: Splits, reasons: list[str], progress: Progress = QUIET
) -> Chosen:
    """What is trained on and what is held out, with the reasons."""
    data, pool = config.data, splits.train
    train, val, holds_out = pool, None, False
    if data.labelled is not None:
        val = load_images(data, progress, data.labelled).train
        if val.num_classes < 2:
            raise InputError(f"{shown(data.labelled)}: no labels: data.labelled needs a folder per class")
        train = _without(train, val, shown(data.labelled))
        reasons.append(f"{len(val):,} labelled images of {shown(data.labelled)} judge the features")
    elif pool.num_classes > 1 and splits.val is not None:
        val = splits.val
        reasons.append(f"the {len(val):,} labelled images of val judge the features")
    elif pool.num_classes > 1 and data.hold_out:
        train, val = hold_out(train, data.hold_out, seed=data.hold_out_seed)
        holds_out = True
        reasons.append(f"{len(val):,} of the images are held out: their labels judge the features")
    else:
        reasons.append("no labelled images, so no scores: --labelled FOLDER names some")
    if data.images is not None:
        if data.images > len(train):
            raise InputError(f"data.images: {data.images:,} of {len(train):,} images")
        order = np.random.default_rng(seed_of(config.run.seed, "images")).permutation(len(train))
        train = train.subset(np.sort(order[: data.images]))
    reasons.append(f"{len(train):,} images to train on, without labels")
    return Chosen(train, val, pool, holds_out)


def _without(train: Dataset, val: Dataset, named: str) -> Dataset:
    """The training images that are not among the labelled ones, by content."""
    by = "file" if "file" in (key_kind(train), key_kind(val)) else "pixels"
    new = ~np.isin(dataset_keys(train, by=by), dataset_keys(val, by=by))  # type: ignore[arg-type]
    if not new.any():
        raise InputError(f"{named}: has all images of the run: none is left to train on")
    if not new.all():
        count = f"{int((~new).sum()):,} of {len(new):,}"
        warnings.warn(f"{count} images are in {named} too: they are not trained on", SLAWarning)
    return train.subset(np.flatnonzero(new))
