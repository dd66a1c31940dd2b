"""MATLAB files, read by scipy: the cells, text, numbers and structs that label lists are made of."""

import contextlib
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from sla.disk import reason
from sla.errors import InputError, MissingExtraError, shown

MAX_BYTES = 16 << 20  # the known lists have less than 1 MB
MAX_MEMORY = 4 << 30  # of the process that reads it
TIMEOUT = 60.0  # seconds


def read_mat(path: Path) -> dict[str, Any]:
    """The variables of a MATLAB file by name.

    Numbers come as nested lists of MATLAB's shape, text as str, a cell array as a flat list in MATLAB's
    order, a struct array as a flat list of dicts.
    """
    if find_spec("scipy") is None:
        raise MissingExtraError(f"{path}: reading a MATLAB file", "mat")
    try:
        if path.stat().st_size > MAX_BYTES:
            raise InputError(f"{path}: a MATLAB file of more than {MAX_BYTES >> 20} MiB is not read")
    except OSError as error:
        raise InputError(f"{path}: {reason(error)}") from None
    # In a process of its own: at some damaged files scipy's compiled reader crashes instead of raising.
    command = [sys.executable, "-m", __name__, str(path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    try:
        done = subprocess.run(command, capture_output=True, timeout=TIMEOUT, env=environment)
        if done.returncode == 0:
            return json.loads(done.stdout)
        said = done.stderr.decode(errors="replace").strip().splitlines()
        why = said[-1] if said and done.returncode > 0 else "reading it crashed"
    except subprocess.TimeoutExpired:
        why = f"reading it took more than {TIMEOUT:.0f} seconds"
    raise InputError(f"{path}: a damaged MATLAB file, or none ({shown(why)})")


def read_here(path: Path) -> dict[str, Any]:
    """The same in this process, which some damaged files end."""
    from scipy.io import loadmat

    held = loadmat(path, appendmat=False)
    return {name: _plain(value) for name, value in held.items() if not name.startswith("__")}


def _plain(value: Any) -> Any:
    if not isinstance(value, np.ndarray):
        return value
    if value.dtype.names:
        return [{name: _plain(row[name]) for name in value.dtype.names} for row in value.ravel("F")]
    if value.dtype == object:
        return [_plain(item) for item in value.ravel("F")]
    return "".join(value.ravel("F")) if value.dtype.kind == "U" else value.tolist()


if __name__ == "__main__":
    with contextlib.suppress(ImportError):  # no such limits on Windows
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
    print(json.dumps(read_here(Path(sys.argv[1]))))
