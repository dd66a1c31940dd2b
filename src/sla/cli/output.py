"""What commands share: a line on the terminal, a file to write where a person says, and how far they are."""

import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sla.disk import reason, replacing
from sla.errors import InputError, shown
from sla.progress import Progress


def say(line: str, *, err: bool = False, flush: bool = False) -> None:
    """Print a line; names of files and classes in it cannot control the terminal."""
    print(shown(line), file=sys.stderr if err else sys.stdout, flush=flush)


class _TriedError(Exception):
    pass


def check_writable(path: Path, suffix: str | None = None) -> None:
    """Refuse, before the work, a file that could not be written after it, or with a name of another kind."""
    try:
        if path.is_dir():
            raise InputError(f"{shown(path)}: a folder, not a file to write")
        if suffix is not None and path.suffix.lower() != suffix:
            raise InputError(f"{shown(path)}: what is written here has a name that ends in {suffix}")
        with contextlib.suppress(_TriedError), replacing(path):
            raise _TriedError  # the file there, if any, stays as it is
    except OSError as error:
        raise InputError(f"{shown(path)}: cannot be written: {reason(error)}") from None


@contextlib.contextmanager
def showing_progress(patience: float = 0.0) -> Iterator[Progress]:
    """A bar on a terminal; elsewhere a line per pass that is not done within `patience` seconds."""
    if not sys.stderr.isatty():
        yield _Lines(patience)
        return
    from rich.console import Console
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    named = TextColumn("{task.description}", markup=False)
    columns = (named, BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        yield _Bars(bars)


class _Lines(Progress):
    def __init__(self, patience: float) -> None:
        self.announced: set[str] = set()
        self.start = time.monotonic() + patience

    def message(self, text: str) -> None:
        say(text, err=True)

    def advance(self, what: str, done: int, total: int | None) -> None:
        if what not in self.announced and time.monotonic() >= self.start:
            self.announced.add(what)
            say(f"{what} ...", err=True)


class _Bars(Progress):
    def __init__(self, bars: Any) -> None:
        self.bars, self.tasks = bars, dict[str, Any]()

    def message(self, text: str) -> None:
        self.bars.console.print(shown(text), markup=False, highlight=False)

    def advance(self, what: str, done: int, total: int | None) -> None:
        if what not in self.tasks:
            self.tasks[what] = self.bars.add_task(shown(what), total=total)
        self.bars.update(self.tasks[what], completed=done, total=total)
