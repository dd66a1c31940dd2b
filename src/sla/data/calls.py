"""The small text language of augmentations and mixing: `autoaugment, crop(4), cutmix(1.0, 0.5)`."""

import math
import re
from collections.abc import Collection

from sla.errors import InputError, nearest

Argument = float | str
Call = tuple[str, list[Argument]]


def parse_calls(text: str, most: dict[str, int], what: str, words: Collection[str] = ()) -> list[Call]:
    """`a, b(1, 2), c(file.json)` -> [("a", []), ("b", [1.0, 2.0]), ("c", ["file.json"])]; each name once.

    most: how many arguments each name takes. words: names that take words beside numbers; a word has no
    comma and no bracket in it. `none` is nothing.
    """
    found: list[Call] = []
    parts = (part.strip() for part in re.findall(r"[^,()]+(?:\([^()]*\))?|[()]", text))
    for part in filter(None, parts):
        call = re.fullmatch(r"(\w+)\s*(?:\(([^()]*)\))?", part)
        name = call[1] if call else part
        if call is None or name not in (*most, "none"):
            raise InputError(f"unknown {what} {name!r} in {text!r}{nearest(name, (*most, 'none'))}")
        given = [_argument(word.strip()) for word in (call[2] or "").split(",") if word.strip()]
        if name not in words and any(isinstance(argument, str) for argument in given):
            raise InputError(f"{what} {part!r} in {text!r}: only numbers go between brackets")
        if name == "none":
            continue
        if any(name == other for other, _ in found):
            raise InputError(f"{what} {name!r} is named twice in {text!r}")
        if len(given) > most[name]:
            things = "arguments" if name in words else "numbers"
            raise InputError(f"{what} {part!r} in {text!r}: {name} takes up to {most[name]} {things}")
        found.append((name, given))
    return found


def _argument(word: str) -> Argument:
    try:
        number = float(word)
    except ValueError:
        return word
    return number if math.isfinite(number) else word
