"""Corrected answers: a copy of each picture, and corrections.csv, which `sla train` reads."""

import csv
import hashlib
import io
import threading
from collections.abc import Sequence
from pathlib import Path

from sla.datasets.scan import is_hidden
from sla.datasets.spreadsheet_cells import escape_cell
from sla.disk import exclusive, reason, replacing
from sla.errors import InputError, SLAError, nearest, shown
from sla.images.decode import read_format

CSV, FOLDER, LOCK = "corrections.csv", "corrections", ".corrections.lock"
HEADER = ["path", "label"]
EXTENSIONS = {"JPEG": "jpg", "TIFF": "tif"}  # of other formats, their name
MOST = 10_000  # pictures that are kept
LONGEST_FOLDER = 255  # bytes
HIDDEN = "in a hidden folder because of the class's name: train on corrections.csv, copying adds nothing"


class Corrections:
    """The corrections of a run, in its folder: one row for each picture, known by its content.

    The pictures lie in a folder for each class, so that they can also be copied into a training folder. Those
    of a class whose name no folder can have are in a hidden one, which is no class where it is copied to.
    """

    def __init__(self, folder: Path, classes: Sequence[str]) -> None:
        self.folder, self.classes, self.csv = folder, list(classes), folder / CSV
        self.saved = 0  # in this session
        self._lock = threading.Lock()

    def check_label(self, label: str) -> None:
        """Refuse what is no class of the run."""
        if label not in self.classes:
            short = label[:100]
            raise InputError(f"unknown class {shown(short)!r}{nearest(short, self.classes)}")

    def save(self, data: bytes, label: str) -> str:
        """Keep a picture, the bytes of a readable image file, under this class; its path in the run's folder.

        A picture that was corrected before gets the new class.
        """
        self.check_label(label)
        kind = read_format(io.BytesIO(data))
        key = hashlib.blake2b(data, digest_size=10).hexdigest()
        path = f"{FOLDER}/{self._folder_of(label)}/{key}.{EXTENSIONS.get(kind, kind.lower())}"
        try:
            with self._lock, exclusive(self.folder / LOCK):
                rows = self._read()
                old = [row for row in rows if Path(row[0]).stem == key]
                rows = [row for row in rows if row not in old]
                if len(rows) >= MOST:
                    raise SLAError(f"{shown(self.csv)}: the limit of {MOST:,} corrections: train with them")
                with replacing(self.folder / path) as file:
                    file.write(data)
                self._write([*rows, [path, escape_cell(label)]])
                for before, _ in old:
                    if before != path:
                        self._remove(before)
        except OSError as error:
            raise SLAError(f"{shown(self.folder)}: a correction cannot be written: {reason(error)}") from None
        self.saved += 1
        return path

    def _remove(self, path: str) -> None:
        """Only what lies among the corrections: the CSV may have been edited."""
        found = (self.folder / path).resolve()
        if found.is_relative_to((self.folder / FOLDER).resolve()):
            found.unlink(missing_ok=True)

    def note(self, label: str) -> str:
        """What to know before the pictures of a class are copied, if anything."""
        return "" if _is_folder_name(label) else HIDDEN

    def _folder_of(self, label: str) -> str:
        return label if _is_folder_name(label) else f".class {self.classes.index(label)}"

    def _read(self) -> list[list[str]]:
        if not self.csv.exists():
            return []
        try:
            with open(self.csv, newline="", encoding="utf-8") as file:
                header, *rows = list(csv.reader(file)) or [HEADER]
        except (UnicodeDecodeError, csv.Error):
            header, rows = [], []
        if header != HEADER or any(len(row) != 2 for row in rows if row):
            raise SLAError(f"{shown(self.csv)}: its columns must be path and label, and no others")
        return [row for row in rows if row]

    def _write(self, rows: list[list[str]]) -> None:
        text = io.StringIO(newline="")
        csv.writer(text, lineterminator="\n").writerows([HEADER, *rows])
        with replacing(self.csv) as file:
            file.write(text.getvalue().encode())


def _is_folder_name(label: str) -> bool:
    """Whether a folder can have the name of a class, and is read as that class."""
    if not label or is_hidden(label) or len(label.encode()) > LONGEST_FOLDER:
        return False
    return not set(label) & set("/\0") and label != "checkpoint"  # a run's checkpoints are in */checkpoint
