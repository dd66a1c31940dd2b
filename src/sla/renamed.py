"""Old names, accepted with a warning for one version."""

import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from sla.errors import SLAWarning

P = ParamSpec("P")
T = TypeVar("T")


def renamed_arguments(**names: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorate a function so that `old=new` of `names` maps an old keyword to its new one, with a warning."""

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        @wraps(function)
        def call(*args: Any, **given: Any) -> T:
            for old in names.keys() & given.keys():
                warn_renamed(f"argument {old!r} of {function.__name__}", repr(names[old]))
                given[names[old]] = given.pop(old)
            return function(*args, **given)

        return call

    return decorate


def warn_renamed(old: str, new: str) -> None:
    """Say that something has a new name; the old one works in this version and not in the next."""
    warnings.warn(
        f"{old} is now {new}; the old name will be removed in the next version", SLAWarning, stacklevel=3
    )
