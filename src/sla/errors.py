"""Errors for the user: one line that says what was wrong and what would be right."""

from collections.abc import Sequence
from pathlib import Path


class SLAError(Exception):
    """Base class of all errors of this package; the command line prints them as one line."""

    exit_code = 1


class LostProcessError(SLAError):
    """Another process of the run does not answer any more."""


class InputError(SLAError, ValueError):
    """Invalid input: a shape, a name, a file."""

    exit_code = 2


class MissingExtraError(InputError, ImportError):
    """An optional dependency is needed but not installed."""

    def __init__(self, what: str, extra: str) -> None:
        from sla.extras import install_command

        super().__init__(f"{what} needs an optional package: {install_command(extra)}")


class SLAWarning(UserWarning):
    """Something that works but is probably not intended."""


def nearest(name: str, choices: "list[str] | tuple[str, ...]") -> str:
    """`", did you mean 'rot4'?"` for the choice closest to name, or the list of choices."""
    from difflib import get_close_matches

    close = get_close_matches(str(name), choices, n=1, cutoff=0.5)
    return f", did you mean {close[0]!r}?" if close else f"; one of: {', '.join(choices)}"


def listed(names: Sequence[str], most: int = 5, separator: str = ", ") -> str:
    """The first few names, and how many more there are: `a, b, c, d, e, and 3 more`."""
    more = [f"and {len(names) - most:,} more"] if len(names) > most else []
    return separator.join([*names[:most], *more])


def shown(path: str | Path) -> str:
    """The path as one printable line, even if its name has line breaks or invalid bytes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(path))
