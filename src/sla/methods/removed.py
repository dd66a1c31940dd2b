"""What methods of earlier versions had: files that name it are read if it changed nothing, else refused."""

from collections.abc import Collection, Mapping
from typing import Any

from sla.errors import InputError

REMOVED_OPTIONS = {"stop_gradient": False, "student_from": 0.0}  # and their defaults
REMOVED_METHODS = ("sla+ema",)


def refuse_removed(name: str) -> None:
    """Raise an error for a method that no longer exists."""
    if name in REMOVED_METHODS:
        raise InputError(f"method {name!r} no longer exists; others with a student: sla+sd, sla+memory")


def drop_removed(options: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
    """Options without those that no longer exist and had their default; `known`: those that still do."""
    gone = (REMOVED_OPTIONS.keys() & options.keys()).difference(known)
    for name in sorted(gone):
        if options[name] != REMOVED_OPTIONS[name]:
            raise InputError(f"option {name!r} no longer exists, so it cannot be {options[name]!r}")
    return {name: value for name, value in options.items() if name not in gone}
