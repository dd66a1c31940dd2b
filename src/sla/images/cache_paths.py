"""Where this package keeps what it can recreate: downloaded datasets, indices, caches."""

import hashlib
import os
import sys
from pathlib import Path


def cache_dir() -> Path:
    """The one folder for datasets, indices and caches: `SLA_DATA`, else the platform's cache folder."""
    if given := os.environ.get("SLA_DATA"):
        return Path(given).expanduser().absolute()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "sla"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "sla"
    given = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(given) if os.path.isabs(given) else Path.home() / ".cache"  # as the XDG specification says
    return base / "sla"


def index_file(path: str | Path, suffix: str = ".npz") -> Path:
    """Where the index of a folder or CSV is kept."""
    name = hashlib.blake2b(os.fsencode(os.path.realpath(path)), digest_size=12).hexdigest()
    return cache_dir() / "index" / f"{name}{suffix}"
