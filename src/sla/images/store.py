"""Data as the rest of the package sees it: uint8 images by row, targets, class names."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from sla.errors import InputError

Rows = Sequence[int] | np.ndarray


class Pixels(NamedTuple):
    """Some images, all at the stored size.

    An image of another shape was resized ignoring its aspect ratio; `aspect` has it, so that crops are drawn
    in the proportions of the original.
    """

    images: Tensor  # uint8 (B, C, H, W)
    aspect: Tensor  # float32 (B,): width / height of the original image


class Images(Protocol):
    """A store of images of one size, read by row."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of every stored image."""

    @property
    def in_memory(self) -> bool:
        """Whether a read needs neither decoding nor the disk."""

    def __len__(self) -> int: ...

    def read(self, rows: Rows) -> Pixels:
        """The images of these rows, in their order."""

    def name(self, row: int) -> str:
        """The file an image comes from, or a name made from its row."""


@dataclass(frozen=True)
class ArrayImages:
    """Images in memory: one uint8 tensor (n, C, H, W)."""

    in_memory: ClassVar[bool] = True
    pixels: Tensor
    label: str = "image"
    aspect: Tensor | None = None
    names: Sequence[str] | None = None

    def __post_init__(self) -> None:
        if self.pixels.dtype != torch.uint8 or self.pixels.ndim != 4:
            shape = tuple(self.pixels.shape)
            raise InputError(f"images must be uint8 (n, C, H, W), not {self.pixels.dtype} {shape}")

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of every image."""
        _, channels, height, width = self.pixels.shape
        return channels, height, width

    def __len__(self) -> int:
        return len(self.pixels)

    def read(self, rows: Rows) -> Pixels:
        """The images of these rows, in their order."""
        index = torch.as_tensor(np.asarray(rows, dtype=np.int64), device=self.pixels.device)
        aspect = torch.ones(len(index)) if self.aspect is None else self.aspect[index]
        # Ten times faster than pixels[index] on a CPU.
        return Pixels(self.pixels.index_select(0, index), aspect)

    def name(self, row: int) -> str:
        """The image's own name, or one made from its row."""
        return self.names[row] if self.names is not None else f"{self.label}/{row}"


@dataclass(frozen=True)
class Dataset:
    """Labelled images: a store, and which of its rows belong to this dataset with which class.

    Row i of the dataset is row `rows[i]` of the store. Subsets share the store.
    """

    images: Images
    targets: np.ndarray  # int64 (n,)
    classes: tuple[str, ...]
    rows: np.ndarray = field(default=None)  # type: ignore[arg-type]  # int64 (n,); default: all, in order

    def __post_init__(self) -> None:
        rows = np.arange(len(self.images)) if self.rows is None else self.rows
        object.__setattr__(self, "rows", np.asarray(rows, dtype=np.int64))
        object.__setattr__(self, "targets", np.asarray(self.targets, dtype=np.int64))
        if self.rows.shape != self.targets.shape or self.targets.ndim != 1:
            raise InputError(f"{len(self.rows)} images but {len(self.targets)} labels")
        if len(self.targets) and not 0 <= self.targets.min() <= self.targets.max() < len(self.classes):
            low, high = self.targets.min(), self.targets.max()
            raise InputError(f"labels run from {low} to {high} but there are {len(self.classes)} classes")

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def num_classes(self) -> int:
        """N."""
        return len(self.classes)

    def read(self, indices: Rows) -> Pixels:
        """The images at these places of the dataset, in their order."""
        return self.images.read(self.rows[np.asarray(indices, dtype=np.int64)])

    def name(self, index: int) -> str:
        """The name of the image at this place."""
        return self.images.name(int(self.rows[index]))

    def counts(self) -> np.ndarray:
        """Images per class, (N,)."""
        return np.bincount(self.targets, minlength=len(self.classes))

    def subset(self, indices: Rows) -> "Dataset":
        """The images at these places, in their order, from the same store."""
        index = np.asarray(indices, dtype=np.int64)
        return replace(self, targets=self.targets[index], rows=self.rows[index])


@dataclass(frozen=True)
class Splits:
    """A whole dataset. `val` is None unless its owner gives one: hold-out makes it from train.

    `unlabelled` has images whose targets mean nothing.
    """

    name: str
    train: Dataset
    val: Dataset | None = None
    test: Dataset | None = None
    mean: tuple[float, ...] | None = None  # of the pixels in [0, 1], per channel; None: unknown
    std: tuple[float, ...] | None = None
    unlabelled: Dataset | None = None


def spread(count: int, most: int) -> np.ndarray:
    """At most `most` of `count` places, evenly spaced."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).astype(np.int64))
