"""The small text language of augmentations and mixing: `autoaugment, crop(4), cutmix(1.0, 0.5)`."""

import math
import re
from collections.abc import Collection

from sla.errors import InputError, nearest

Argument = float | str
Call = tuple[str, list[Argument]]
INNER = r'\(((?:[^()"]|"[^"]*")*)\)'  # the text between brackets; in quotes it may contain brackets
QUOTING = 'put a name with commas or brackets in double quotes, as in policy("a (1).json")'


def quoted(name: str) -> str:
    """A name, quoted if the language needs that."""
    return f'"{name}"' if re.search("[,()]", name) else name


def parse_calls(text: str, most: dict[str, int], what: str, words: Collection[str] = ()) -> list[Call]:
    """`a, b(1, 2), c(file.json)` -> [("a", []), ("b", [1.0, 2.0]), ("c", ["file.json"])]; each name once.

    most: how many arguments each name takes. words: names that take words as well as numbers; a word with
    commas or brackets must be in double quotes. `none` is nothing.
    """
    found: list[Call] = []
    parts = (match[0].strip() for match in re.finditer(rf"[^,()\"]+(?:{INNER})?|[()\"]", text))
    for part in filter(None, parts):
        if part in ("(", ")", '"'):
            raise InputError(f"{what} {text!r}: {part} is unmatched; {QUOTING}")
        call = re.fullmatch(rf"(\w+)\s*(?:{INNER})?", part)
        name = call[1] if call else part
        if call is None or name not in (*most, "none"):
            raise InputError(f"unknown {what} {name!r} in {text!r}{nearest(name, (*most, 'none'))}")
        inner = (word.strip() for word in re.findall(r'(?:[^,"]|"[^"]*")+', call[2] or ""))
        given = [_argument(word) for word in inner if word]
        if name not in words and any(isinstance(argument, str) for argument in given):
            raise InputError(f"{what} {part!r} in {text!r}: only numbers are allowed in brackets")
        if name == "none":
            continue
        if any(name == other for other, _ in found):
            raise InputError(f"{what} {name!r} is named twice in {text!r}")
        if len(given) > most[name]:
            things = f"arguments; {QUOTING}" if name in words else "numbers"
            raise InputError(f"{what} {part!r} in {text!r}: {name} takes up to {most[name]} {things}")
        found.append((name, given))
    return found


def _argument(word: str) -> Argument:
    if word[0] == word[-1] == '"':
        return word[1:-1]
    try:
        number = float(word)
    except ValueError:
        return word
    return number if math.isfinite(number) else word
