"""What commands that read data share: a file to write where a person says, and how far they are."""

import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from sla.errors import InputError, shown

if TYPE_CHECKING:
    from sla.datasets.download import Progress


class _TriedError(Exception):
    pass


def check_writable(path: Path, suffix: str | None = None) -> None:
    """Refuse, before the work, a file that could not be written after it, or with a name of another kind."""
    from sla.disk import reason, replacing

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
def showing_progress(patience: float = 0.0) -> Iterator["Progress"]:
    """A bar on a terminal; elsewhere a line a part, of what is not done within `patience` seconds."""
    begun: dict[str, Any] = {}
    start = time.monotonic()
    if not sys.stderr.isatty():

        def tell(what: str, done: int, total: int | None) -> None:
            if what not in begun and time.monotonic() - start >= patience:
                begun[what] = True
                typer.echo(f"{what} ...", err=True)

        yield tell
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:

        def show(what: str, done: int, total: int | None) -> None:
            if what not in begun:
                begun[what] = bars.add_task(what, total=total)
            bars.update(begun[what], completed=done, total=total)

        yield show
