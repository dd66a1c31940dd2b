"""The command that installs an optional part of this package, from wherever the package itself came."""

import json
import re
import shlex
import shutil
import sys
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlsplit

NAME = "sla-torch"
HERE = Path(__file__).resolve()


def install_command(extra: str) -> str:
    """What to type: from the checkout that this package runs or was installed from, else by package names."""
    tree = _checkout()
    if tree is None:
        wanted = _requirements(extra) or [f"{NAME}[{extra}]"]
        return f"{_pip()} install {shlex.join(wanted)}"
    inside = tree == Path.cwd()
    editable = "-e " if HERE.is_relative_to(tree) else ""
    constraints = "constraints.txt" if inside else shlex.quote(str(tree / "constraints.txt"))
    place = shlex.quote(f"{'.' if inside else tree}[{extra}]")
    return f"{_pip()} install -c {constraints} {editable}{place}"


def _checkout() -> Path | None:
    """The folder with the project's pyproject.toml: around this file, or where pip took it from."""
    origin = _origin()
    for folder in (HERE.parents[2], *([origin] if origin else [])):
        project, constraints = folder / "pyproject.toml", folder / "constraints.txt"
        if project.is_file() and constraints.is_file() and f'name = "{NAME}"' in project.read_text("utf-8"):
            return folder
    return None


def _origin() -> Path | None:
    """The folder that pip installed the package from, as it recorded it."""
    try:
        recorded = json.loads(metadata.distribution(NAME).read_text("direct_url.json") or "{}")
        url = urlsplit(recorded.get("url", ""))
    except (metadata.PackageNotFoundError, ValueError, AttributeError):
        return None
    return Path(unquote(url.path)) if url.scheme == "file" else None


def _requirements(extra: str) -> list[str]:
    """The packages of an extra, as the installed package declares them."""
    try:
        declared = metadata.requires(NAME) or []
    except metadata.PackageNotFoundError:
        return []
    wanted = re.compile(rf"""extra\s*==\s*['"]{re.escape(extra)}['"]""")
    return [line.partition(";")[0].strip() for line in declared if wanted.search(line)]


def _pip() -> str:
    """`pip` where that is the one of this Python, else this Python's own by its path."""
    found = shutil.which("pip")
    own = found is not None and Path(found).absolute().parent == Path(sys.executable).absolute().parent
    return "pip" if own else f"{shlex.quote(sys.executable)} -m pip"
