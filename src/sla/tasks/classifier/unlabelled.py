"""Images without labels, beside those of a run: from a folder, or the training images of a dataset."""

import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from sla.errors import InputError, SLAWarning, shown
from sla.images.cache_paths import cache_dir
from sla.images.content import dataset_keys
from sla.images.paths import Paths
from sla.images.storage import Storage, store_files
from sla.images.store import Dataset, Images, Pixels, Rows
from sla.runs.plan import Plan
from sla.tasks.classifier.config import ClassifierConfig


@dataclass(frozen=True)
class JoinedImages:
    """Two stores of images of one shape, the rows of the second after those of the first."""

    first: Images
    second: Images

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of every image."""
        return self.first.shape

    @property
    def in_memory(self) -> bool:
        """Whether both are."""
        return self.first.in_memory and self.second.in_memory

    def __len__(self) -> int:
        return len(self.first) + len(self.second)

    def read(self, rows: Rows) -> Pixels:
        """The images of these rows, in their order."""
        rows = np.asarray(rows, dtype=np.int64)
        later = rows >= len(self.first)
        parts = (self.first.read(rows[~later]), self.second.read(rows[later] - len(self.first)))
        order = torch.from_numpy(np.argsort(np.concatenate([np.flatnonzero(~later), np.flatnonzero(later)])))
        images, aspect = (torch.cat(both)[order] for both in zip(*parts, strict=True))
        return Pixels(images, aspect)

    def name(self, row: int) -> str:
        """The name in its own store."""
        count = len(self.first)
        return self.first.name(row) if row < count else self.second.name(row - count)


def join_datasets(labelled: Dataset, unlabelled: Dataset) -> Dataset:
    """The unlabelled images after the labelled ones; their targets are 0 and mean nothing."""
    images = JoinedImages(labelled.images, unlabelled.images)
    targets = np.concatenate([labelled.targets, np.zeros(len(unlabelled), np.int64)])
    rows = np.concatenate([labelled.rows, unlabelled.rows + len(labelled.images)])
    return Dataset(images, targets, labelled.classes, rows)


def find_unlabelled(plan: Plan[ClassifierConfig]) -> tuple[Dataset | None, np.ndarray]:
    """The unlabelled images of a plan, and their content keys; those that it evaluates on are left out."""
    source = plan.config.distil.unlabelled
    if source is None:
        return None, np.empty(0, np.uint64)
    dataset = _read(plan, source)
    if dataset.images.shape != plan.train.images.shape:
        shapes = f"{dataset.images.shape}, not {plan.train.images.shape}"
        raise InputError(f"{shown(source)}: its images are of another shape: {shapes}")
    keys = dataset_keys(dataset)
    judged = [dataset_keys(part) for part in (plan.val, plan.test) if part is not None]
    unseen = ~np.isin(keys, np.concatenate([np.empty(0, np.uint64), *judged]))
    if not unseen.all():
        count = f"{int((~unseen).sum()):,} of {len(keys):,}"
        warnings.warn(f"{shown(source)}: {count} images are held-out or test images: left out", SLAWarning)
    if not unseen.any():
        raise InputError(f"{shown(source)}: no image is left to learn from")
    return dataset.subset(np.flatnonzero(unseen)), keys[unseen]


def _read(plan: Plan[ClassifierConfig], source: str) -> Dataset:
    from sla.datasets.catalogue import CATALOGUE  # predicting needs no catalogue
    from sla.datasets.load import load
    from sla.datasets.scan import images_in

    data, (_, height, width) = plan.config.data, plan.train.images.shape
    if source in CATALOGUE:
        found = load(source, root=data.root, size=data.stored_size, on_bad_image=data.on_bad_image).train
    else:
        folder = Path(source).expanduser()
        if not folder.is_dir():
            raise InputError(
                f"{shown(source)}: neither a folder nor a dataset: distil.unlabelled needs images"
            )
        paths = Paths.of([str(path.relative_to(folder)) for path in images_in(folder)], folder)
        if not len(paths):
            raise InputError(f"{shown(source)}: no images in it")
        storage = Storage((height, width), data.on_bad_image, cache_dir() / "images" if data.cache else None)
        found, _ = store_files(folder, paths, np.zeros(len(paths), np.int64), ("image",), storage)
    return Dataset(found.images, np.zeros(len(found), np.int64), plan.train.classes, found.rows)
