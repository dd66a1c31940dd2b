"""Labels of any kind, numbers or names, as class numbers with class names."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from sla.errors import InputError, nearest, shown

MISSING = ("NoneType", "NAType", "NaTType")  # types of values that stand for no label


def encode_labels(
    labels: Iterable[Any],
    what: str,
    classes: Sequence[str] | None = None,
    known: Sequence[Any] | None = None,
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Class numbers, int64 (n,), and the names of the classes.

    Labels are names, or whole numbers. `classes` are the names of 0, 1, 2, ..., and every label must be one
    of them; `known` are names that may be there as well, used where they fit. Without either, the classes
    are the labels that occur, sorted, and the names of numbers are their digits.
    """
    values: list[Any] = [_plain(label, row, what) for row, label in enumerate(labels)]
    kinds = {type(value) for value in values}
    if len(kinds) > 1:
        names = " and ".join(sorted(kind.__name__ for kind in kinds))
        raise InputError(f"{what}: labels of two kinds, {names}: they must be all names or all whole numbers")
    if classes is None and known is not None and _fits(values, known):
        classes = _distinct(known)
    if classes is None:
        found = sorted(set(values))
        place = {value: number for number, value in enumerate(found)}
        return np.array([place[value] for value in values], np.int64), tuple(str(value) for value in found)
    if len(set(classes)) < len(classes):
        raise InputError(f"classes: {shown(_repeated(classes))!r} is there twice")
    if kinds == {str}:
        place = {name: number for number, name in enumerate(classes)}
        for row, value in enumerate(values):
            if value not in place:
                hint = nearest(value, tuple(classes))
                raise InputError(f"{what}: the label of image {row}, {shown(value)!r}, is no class{hint}")
        return np.array([place[value] for value in values], np.int64), tuple(classes)
    for row, value in enumerate(values):
        if not 0 <= value < len(classes):
            raise InputError(
                f"{what}: the label of image {row} is {value}, but there are {len(classes)} classes, from 0"
            )
    return np.array(values, np.int64), tuple(classes)


def _plain(label: Any, row: int, what: str) -> int | str:
    """A label as a whole number or a text."""
    if not isinstance(label, str | int) and getattr(label, "size", None) != 0 and hasattr(label, "item"):
        try:
            label = label.item()  # of numpy, of torch
        except (ValueError, RuntimeError, TypeError):
            shape = tuple(getattr(label, "shape", ()))
            raise InputError(
                f"{what}: the label of image {row} has shape {shape}: one number or name per image is needed "
                "(of one-hot labels, y.argmax(1))"
            ) from None
    if type(label).__name__ in MISSING or (isinstance(label, float) and math.isnan(label)):
        raise InputError(f"{what}: the label of image {row} is missing ({label})")
    if isinstance(label, bool):
        return str(label)
    if isinstance(label, float) and label.is_integer():
        return int(label)
    if isinstance(label, str):
        return str(label)
    if isinstance(label, int):
        return int(label)
    raise InputError(
        f"{what}: the label of image {row} is a {type(label).__name__} ({shown(str(label))[:40]}): a whole "
        "number or a name is needed"
    )


def _fits(values: Sequence[int | str], known: Sequence[Any]) -> bool:
    names = {str(name) for name in known}
    return all(value in names if isinstance(value, str) else 0 <= value < len(known) for value in values)


def _distinct(known: Sequence[Any]) -> tuple[str, ...]:
    """The names as text; one that several classes have gets the number of its class."""
    names = [", ".join(map(str, name)) if isinstance(name, tuple | list) else str(name) for name in known]
    counts = {name: names.count(name) for name in set(names)}
    return tuple(f"{name} ({i})" if counts[name] > 1 else name for i, name in enumerate(names))


def _repeated(names: Sequence[str]) -> str:
    return next(name for place, name in enumerate(names) if name in names[:place])
