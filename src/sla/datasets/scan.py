"""Finds labelled images: in class folders, below train/ val/ test/, or listed in a CSV."""

import csv
import errno
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np

from sla.datasets.entry import SPLIT_NAMES
from sla.datasets.index import Index, IndexBuilder, load_index, save_index, stamp
from sla.datasets.spreadsheet_cells import unescape_cell
from sla.errors import InputError, SLAWarning, listed, nearest, shown
from sla.images.cache_paths import index_file
from sla.images.paths import Paths

EXTENSIONS = {"jpg", "jpeg", "jpe", "jfif", "png", "webp", "bmp", "gif", "tif", "tiff"}
EXTENSIONS |= {"ppm", "pgm", "pbm", "pnm"}
SPLITS = {"train": 0, "val": 1, "valid": 1, "validation": 1, "test": 2}  # by their usual names
PATH_COLUMNS = ("path", "file", "filename", "image")
LABEL_COLUMNS = ("label", "class", "target")
SYSTEM = {"__macosx", "@eadir", "$recycle.bin", "system volume information", "thumbs.db", "desktop.ini"}
NOWHERE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG}  # where a link may lead

RECENT = 4  # indices held in memory: a command opens the same folder several times
_recent: dict[tuple[Path, str], Index] = {}


def open_index(path: str | Path, least_classes: int = 2) -> Index:
    """The index of a folder or CSV: an earlier one while none of its folders has changed, else a new one.

    It is held in memory, and saved in the package's cache folder, never in the data. Fewer classes than
    `least_classes` are refused.
    """
    file = index_file(path)
    key = file, os.path.abspath(path)
    index = _recent.pop(key, None)
    if index is None or not index.is_current():
        index = load_index(file, path)
        if index is None:
            index = read_csv(path) if os.path.isfile(path) else scan_folder(path)
            save_index(index, file)
        if index.beside:
            names = listed([shown(name) for name in index.beside])
            note = "class folders beside train/ are ignored; what to train on belongs in train/"
            warnings.warn(f"{shown(path)}: {note}: {names}", SLAWarning)
    _recent[key] = index
    while len(_recent) > RECENT:
        del _recent[next(iter(_recent))]
    if len(index.classes) < least_classes:
        name = shown(index.classes[0])
        raise InputError(f"{shown(path)}: only one class, {name!r}; a classifier needs at least two")
    return index


def is_hidden(name: str) -> bool:
    """Whether a file or folder is not the user's: hidden, or made by a file manager or an archiver."""
    return name.startswith(".") or name.lower() in SYSTEM


def images_in(folder: Path) -> list[Path]:
    """Every image file in and below a folder, in order, without what `is_hidden`."""
    found = (path for path in sorted(folder.rglob("*")) if path.suffix[1:].lower() in EXTENSIONS)
    return [
        path for path in found if path.is_file() and not any(map(is_hidden, path.relative_to(folder).parts))
    ]


def scan_folder(path: str | Path) -> Index:
    """Read `path/<class>/**/*.jpg`, or the same below `path/train`, `val` and `test`.

    Classes are sorted by name, files by folder and name. Links are followed, each folder once per class.
    Hidden files and folders, and those of file managers and archivers (`__MACOSX`), are ignored. No file is
    opened: a corrupt one is found when it is decoded.
    """
    if not os.path.isdir(path):
        raise InputError(f"{shown(path)}: {'not a folder' if os.path.exists(path) else 'no such folder'}")
    scan, rows = _Scan(os.path.abspath(path)), IndexBuilder()
    for split, folder in sorted(scan.split_folders().items()):
        folders, images = scan.listing(folder)
        where = shown(os.path.join(path, folder))
        if not folders and images:
            raise InputError(f"{where}: images but no class folders; each class needs a folder of its own")
        if not folders:
            raise InputError(f"{where}: no images; expected <class>/*.jpg below it, or train/ val/ test/")
        for name in folders:
            before = len(rows)
            for image in scan.images_below(folder, name):
                rows.add(image, name, split)
            if len(rows) == before and split == 0:
                raise InputError(f"{where}: class folder {shown(name)!r} has no images: add or remove it")
    sources = Paths.of(scan.folders, scan.root)
    found, _ = scan.listed.get("", ([], []))  # still there if the root's folders are not the classes
    beside = tuple(name for name in found if name in rows.classes and name.lower() not in SPLITS)
    return rows.index(path, scan.root, sources, np.array(scan.stamps), scan.ignored, beside)


def scan_pictures(path: str | Path) -> Paths:
    """Every image below a folder, in whatever folders; where it has a folder `train`, those below that one.

    Sorted by folder and name. Links are followed, each folder once.
    """
    if not os.path.isdir(path):
        raise InputError(f"{shown(path)}: {'not a folder' if os.path.exists(path) else 'no such folder'}")
    scan = _Scan(os.path.abspath(path))
    found = Paths.of(scan.images_from(scan.split_folders()[0]), scan.root)
    if not len(found):
        raise InputError(f"{shown(path)}: no images in it")
    return found


def read_csv(path: str | Path) -> Index:
    """Read a CSV with a header: path (file, filename, image), label (class, target) and maybe split.

    Relative paths start at the CSV's folder. Fields are separated by commas, semicolons or tabs.
    """
    try:
        info = os.stat(path)
        open(path, "rb").close()
    except OSError as error:
        raise InputError(f"{shown(path)}: the CSV cannot be read: {error.strerror}") from None
    root = os.path.dirname(os.path.abspath(path))
    stamps, rows = np.array([stamp(info, time.time_ns())]), IndexBuilder()
    labels: dict[str, tuple[str, int]] = {}  # of each file, with the line
    for line, image, label, split in _csv_lines(path):
        where = f"{shown(path)} line {line}"
        if not label:
            raise InputError(f"{where}: {shown(image)} has an empty label")
        if split not in SPLITS:
            raise InputError(f"{where}: unknown split {split!r}{nearest(split, SPLIT_NAMES)}")
        if not os.path.isfile(os.path.join(root, image)):
            raise InputError(f"{where}: no such file: {shown(os.path.join(root, image))}")
        other, before = labels.setdefault(os.path.normpath(image), (label, line))
        if other != label:
            both = f"{shown(other)!r} in line {before} and {shown(label)!r} here"
            raise InputError(f"{where}: {shown(image)} has two labels: {both}")
        rows.add(image, label, SPLITS[split])
    if not len(rows):
        raise InputError(f"{shown(path)}: no images listed below the header")
    return rows.index(path, root, Paths.of([os.path.basename(path)], root), stamps)


class _Scan:
    """Lists folders below a root and records when each was modified; paths are relative, with `/`."""

    def __init__(self, root: str) -> None:
        self.root, self.started = root, time.time_ns()
        self.folders: list[str] = []
        self.stamps: list[tuple[int, int]] = []
        self.ignored = 0
        self.listed: dict[str, tuple[list[str], list[str]]] = {}

    def listing(self, folder: str) -> tuple[list[str], list[str]]:
        """The names of the folders and images directly in a folder, sorted."""
        if folder in self.listed:
            return self.listed.pop(folder)
        folders, images, others = [], [], 0
        changed = stamp(self._stat(folder), self.started)  # before listing: a later change must show
        path = os.path.join(self.root, folder)
        try:
            with os.scandir(path) as entries:
                for entry in entries:
                    name = entry.name
                    if is_hidden(name):
                        others += 1
                    elif _holds(entry.is_dir):
                        folders.append(name)
                    elif name.rpartition(".")[2].lower() in EXTENSIONS and _holds(entry.is_file):
                        images.append(name)
                    else:
                        others += 1
        except OSError as error:
            raise InputError(f"{shown(path)}: the folder cannot be read: {error.strerror}") from None
        self.folders.append(folder)
        self.stamps.append(changed)
        self.ignored += others
        return sorted(folders), sorted(images)

    def split_folders(self) -> dict[int, str]:
        """Which folder holds which split; the root itself is train unless it has a folder `train`.

        A folder called train may also be a class of vehicles: it then holds images, and has other classes
        beside it.
        """
        folders, _ = self.listed[""] = self.listing("")
        named = [name for name in folders if name.lower() in SPLITS]
        train = [name for name in named if name.lower() == "train"]
        for name in train:
            self.listed[name] = self.listing(name)
        inner, images = self.listed[train[0]] if train else ([], [])
        if not named or (len(named) < len(folders) and (images or not inner)):
            return {0: ""}
        by_split = {SPLITS[name.lower()]: name for name in named}
        if not train:
            raise InputError(f"{shown(self.root)}: {', '.join(named)} but no train folder beside it")
        if len(by_split) < len(named):
            raise InputError(f"{shown(self.root)}: two folders for one split: {', '.join(named)}")
        return by_split

    def images_below(self, parent: str, name: str) -> Iterator[str]:
        """The images of a class: in its folder and all folders below it."""
        above = {self._identity(""), self._identity(parent)}  # a link may lead back up
        yield from self.images_from(f"{parent}/{name}" if parent else name, above)

    def images_from(self, first: str, seen: Iterable[tuple[int, int]] = ()) -> Iterator[str]:
        """The images in a folder and all folders below it, but for those `seen`."""
        seen, waiting = set(seen), [first]
        while waiting:
            folder = waiting.pop()
            identity = self._identity(folder)
            if identity in seen:
                continue
            seen.add(identity)
            folders, images = self.listing(folder)
            below = f"{folder}/" if folder else ""
            yield from (below + image for image in images)
            waiting.extend(below + inner for inner in reversed(folders))

    def _identity(self, folder: str) -> tuple[int, int]:
        info = self._stat(folder)
        return info.st_dev, info.st_ino

    def _stat(self, folder: str) -> os.stat_result:
        path = os.path.join(self.root, folder)
        try:
            return os.stat(path)
        except OSError as error:
            raise InputError(f"{shown(path)}: the folder cannot be read: {error.strerror}") from None


def _holds(check: Callable[[], bool]) -> bool:
    """What a check of a folder's entry says: False of a link that leads nowhere, be it to itself."""
    try:
        return check()
    except OSError as error:
        if error.errno in NOWHERE:
            return False
        raise


def _csv_lines(path: str | Path) -> Iterator[tuple[int, str, str, str]]:
    """Line number, path, label and split (lower case, `train` where there is no such column)."""
    with open(path, newline="", encoding="utf-8-sig") as file:
        try:
            header = file.readline()
            delimiter = max(",;\t", key=header.count)
            file.seek(0)
            rows = csv.reader(file, delimiter=delimiter, skipinitialspace=True)
            columns = [name.strip().lower() for name in next(rows, [])]
            image, label = _column(path, columns, PATH_COLUMNS), _column(path, columns, LABEL_COLUMNS)
            split = _column(path, columns, ("split",)) if "split" in columns else None
            for row in rows:
                if not row:
                    continue
                if len(row) != len(columns):
                    where = f"{shown(path)} line {rows.line_num}"
                    raise InputError(f"{where}: {len(row)} fields, but the header has {len(columns)}")
                name = "train" if split is None else row[split].strip().lower()
                yield rows.line_num, row[image], unescape_cell(row[label].strip()), name
        except UnicodeDecodeError:
            raise InputError(f"{shown(path)}: not UTF-8 text; save the CSV as UTF-8") from None
        except csv.Error as error:
            raise InputError(f"{shown(path)} line {rows.line_num}: not a CSV row: {error}") from None


def _column(path: str | Path, columns: list[str], names: tuple[str, ...]) -> int:
    found = [place for place, name in enumerate(columns) if name in names]
    if len(found) != 1:
        problem = "no" if not found else "more than one"
        header = shown(", ".join(columns))
        raise InputError(f"{shown(path)}: {problem} column {' or '.join(names)}; the header is: {header}")
    return found[0]
