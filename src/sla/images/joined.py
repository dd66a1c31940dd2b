"""Several stores of images of one shape as one: the rows of one come after those of the one before."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from sla.errors import InputError
from sla.images.store import Dataset, Images, Pixels, Rows


@dataclass(frozen=True)
class JoinedImages:
    """Stores of images of one shape, one after the other."""

    stores: tuple[Images, ...]

    def __post_init__(self) -> None:
        shapes = {store.shape for store in self.stores}
        if len(shapes) > 1:
            raise InputError(f"images of different shapes: {' and '.join(map(str, sorted(shapes)))}")

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of every image."""
        return self.stores[0].shape

    @property
    def in_memory(self) -> bool:
        """Whether all are."""
        return all(store.in_memory for store in self.stores)

    @property
    def starts(self) -> np.ndarray:
        """The first row of each store."""
        return np.cumsum([0, *(len(store) for store in self.stores[:-1])])

    def __len__(self) -> int:
        return sum(len(store) for store in self.stores)

    def read(self, rows: Rows) -> Pixels:
        """The images of these rows, in their order."""
        rows = np.asarray(rows, dtype=np.int64)
        numbers = np.searchsorted(self.starts, rows, side="right") - 1
        places = [np.flatnonzero(numbers == number) for number in range(len(self.stores))]
        parts = [
            store.read(rows[some] - start)
            for store, start, some in zip(self.stores, self.starts, places, strict=True)
        ]
        order = torch.from_numpy(np.argsort(np.concatenate(places)))
        images, aspect = (torch.cat(all_of)[order] for all_of in zip(*parts, strict=True))
        return Pixels(images, aspect)

    def name(self, row: int) -> str:
        """The name in its own store."""
        number = int(np.searchsorted(self.starts, row, side="right")) - 1
        return self.stores[number].name(row - int(self.starts[number]))


class Joiner:
    """Datasets as parts of one: each store once, classes by their names in one list."""

    def __init__(self, datasets: Sequence[Dataset], classes: Sequence[str]) -> None:
        stores = {id(dataset.images): dataset.images for dataset in datasets}
        self.classes, self.numbers = tuple(classes), {name: number for number, name in enumerate(classes)}
        self.images: Images = next(iter(stores.values()))
        if len(stores) > 1:
            self.images = JoinedImages(tuple(stores.values()))
        starts = self.images.starts if isinstance(self.images, JoinedImages) else [0]
        self.starts = {id(self.images): 0} | dict(zip(stores, starts, strict=True))

    def join(self, datasets: Sequence[Dataset]) -> Dataset:
        """The images of these datasets, in their order; their stores were given, or are the joined one."""
        targets, rows = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for dataset in datasets:
            numbers = np.array([self.numbers[name] for name in dataset.classes], np.int64)
            targets.append(numbers[dataset.targets])
            rows.append(dataset.rows + self.starts[id(dataset.images)])
        return Dataset(self.images, np.concatenate(targets), self.classes, np.concatenate(rows))
