"""Datasets by name: where one lies on this machine, and downloading one; imports no torch."""

from functools import partial
from pathlib import Path
from typing import NamedTuple

from sla.datasets.catalogue import find_entry, source_of
from sla.datasets.download import obtain
from sla.datasets.entry import Entry, Layout, Web
from sla.datasets.layouts import expected_layout, find_layout
from sla.disk import exclusive
from sla.errors import InputError, SLAError
from sla.images.cache_paths import cache_dir
from sla.progress import QUIET, Progress


class Got(NamedTuple):
    """Where a dataset lies, and where it came from."""

    folder: Path
    route: str


def find(name: str, *, root: str | Path | None = None) -> tuple[Path, Layout] | None:
    """The folder in which a dataset already lies, and its layout: below the root, else as installed."""
    source, base = source_of(find_entry(name)), Path(root) if root else cache_dir()
    return find_layout(source, [base / source.name, base, *map(Path, source.installed)])


def get(name: str, *, root: str | Path | None = None, progress: Progress = QUIET) -> Got:
    """Make sure that a dataset is on disk; of several processes that ask at once, one does the work."""
    entry = find_entry(name)
    source, base = source_of(entry), Path(root) if root else cache_dir()
    if found := find(name, root=root):
        included = not source.routes and not source.agreement
        return Got(found[0], "part of this package" if included else "already there")
    if not source.routes:
        way = entry.agreement or f"put it there as {expected_layout(source)}"
        raise InputError(f"{name}: cannot be downloaded, and is not in {base}: {way}")
    try:
        with exclusive(base / f".{source.name}.lock"):
            if found := find(name, root=root):
                return Got(found[0], "already there")
            route = obtain(source, base / source.name, progress, partial(_accept, source))
    except OSError as error:
        raise SLAError(f"{base}: cannot be written: {error.strerror}") from None
    found = find(name, root=root)
    assert found is not None
    return Got(found[0], route)


def _accept(entry: Entry, folder: Path) -> None:
    found = find_layout(entry, [folder])
    if found is None:
        raise InputError(f"the download is not {expected_layout(entry)}")
    files = [file for route in entry.routes if isinstance(route, Web) for file in route.files]
    if any(file.checksum is None for file in files):
        found[1].read(found[0])  # without checksums, its lists must at least name the files that exist
