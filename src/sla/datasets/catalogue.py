"""The datasets known by name: those of `catalogue.yaml`, the user's own, and those of installed packages.

A dataset in class folders needs only an entry: in `catalogue.yaml` here, or in a file of that name in the
data folder. One with a format of its own is one Python file that calls `register`. The command line knows it
too if an installed package names that module as an entry point of the group `sla.datasets`.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from sla.datasets.entry import Entry, Layout
from sla.disk import reason
from sla.errors import InputError, nearest, shown
from sla.images.cache_paths import cache_dir
from sla.trees import parse_yaml

CATALOGUE: dict[str, Entry] = {}
OWN_FILE = "catalogue.yaml"  # in the data folder
GROUP = "sla.datasets"


def register(entry: Entry, read: Callable[[Path], Any] | None = None, marks: Sequence[str] = ()) -> Entry:
    """Add a dataset.

    `read(folder)` returns a `formats.Arrays` (pixels) or `formats.Listing` (image files) per split, from a
    folder in which all `marks` exist: file names, or folder names that end in `/`. Without it the images
    lie in class folders, or as the entry's `layouts` say.
    """
    if entry.name in CATALOGUE:
        raise InputError(f"there is already a dataset called {entry.name!r}")
    if read is not None:
        if not marks:
            raise InputError(f"{entry.name}: `read` needs `marks`, by which its folder is recognised")
        entry = replace(entry, layouts=(Layout(tuple(marks), read), *entry.layouts))
    CATALOGUE[entry.name] = entry
    return entry


def read_catalogue(path: Path) -> list[Entry]:
    """The entries of a catalogue file; what is wrong is one line with the file, the entry and the field."""
    try:
        held = parse_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{shown(path)}: {reason(error)}") from None
    except ValueError as error:
        raise InputError(f"{shown(path)}: not YAML: {error}") from None
    if not isinstance(held, dict):
        raise InputError(f"{shown(path)}: needs entries of datasets by their names")
    entries = []
    for name, fields in held.items():
        if str(name).startswith("_"):
            continue
        try:
            entry = _ENTRY.validate_python({**_full_addresses(fields), "name": name})
        except (ValidationError, AttributeError, TypeError, KeyError) as error:
            raise InputError(f"{shown(path)}: {shown(str(name))}: {_first_problem(error)}") from None
        entries.append(replace(entry, installed=tuple(str(path.parent / at) for at in entry.installed)))
    return entries


def find_entry(name: str) -> Entry:
    """The entry of this name, or one line with the nearest one."""
    if name not in CATALOGUE:
        raise InputError(f"no dataset is called {name!r}{nearest(name, list(CATALOGUE))}")
    return CATALOGUE[name]


def source_of(entry: Entry) -> Entry:
    """The entry from whose files a dataset is made, mostly its own."""
    return CATALOGUE[entry.made_of] if entry.made_of else entry


_ENTRY = TypeAdapter(Entry)


def _full_addresses(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields with the `base` of a route before the addresses of its files."""
    routes = []
    for route in fields.get("routes", ()):
        if isinstance(route, dict) and "base" in route:
            files = [{**file, "url": route["base"] + file["url"]} for file in route["files"]]
            route = {"title": route["title"], "files": files}
        routes.append(route)
    return {**fields, "routes": routes}


def _first_problem(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return "needs fields such as title and splits, as in sla's own catalogue.yaml"
    problem = error.errors()[0]
    place = ".".join(str(part) for part in problem["loc"])
    message = problem["msg"].removeprefix("Value error, ")
    return shown(f"{place}: {message}" if place else message)


def _load() -> None:
    for path in (Path(__file__).with_name("catalogue.yaml"), cache_dir() / OWN_FILE):
        if path.is_file():
            for entry in read_catalogue(path):
                register(entry)
    for plugin in entry_points(group=GROUP):
        plugin.load()


_load()
