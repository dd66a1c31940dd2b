"""The files that commands write where a person says."""

import contextlib
from pathlib import Path

from sla.errors import InputError, shown


class _TriedError(Exception):
    pass


def check_writable(path: Path) -> None:
    """Refuse, before the work, a file that could not be written after it."""
    from sla.disk import reason, replacing

    try:
        if path.is_dir():
            raise InputError(f"{shown(path)}: a folder, not a file to write")
        with contextlib.suppress(_TriedError), replacing(path):
            raise _TriedError  # the file there, if any, stays as it is
    except OSError as error:
        raise InputError(f"{shown(path)}: cannot be written: {reason(error)}") from None
