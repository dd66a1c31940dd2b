"""Changes of bytes, of text and of trees of plain values; all draws come from the `Random` that is passed."""

import contextlib
import copy
import json
import struct
from collections.abc import Sequence
from random import Random
from typing import Any

LONGEST = 1 << 14  # bytes of an input, so that 100,000 of them take minutes
EXTREMES = (0, 1, 2, 3, 7, 16, 127, 128, 255, 256, 1000, 0x7FFF, 0x8000, 0xFFFF, 1 << 16, 1 << 24, 1 << 28)
EXTREMES += (0x7FFFFFFF, 1 << 31, 0xFFFFFFFF, 1 << 32, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
TRAP = "fuzz_trap"  # a module in the current folder that no reader may import
WORDS = (
    *(
        "",
        "\n",
        "\r",
        "\0",
        "\x1b[31m",
        "\u2028",
        "\ufeff",
        "\ud800",
        "é",
        "../x",
        "/etc/passwd",
        "a\nb",
        "-1",
    ),
    *("0", "1", "1e999", "nan", "inf", "-inf", "9" * 5000, "0x" + "f" * 5000, "1:" * 50 + "1", "x" * 3000),
    *(f"{TRAP}:Name", f"object.backbone:{TRAP}", f"policy({TRAP}.json)", "timm:resnet18", "true", "null"),
)
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 255, 10**9, 2**31, 2**63, -(2**63), 2**64, 10**30, 10**4000),
    *(0.5, -0.5, 1e-300, 1e308, float("inf"), float("-inf"), float("nan"), [], {}, [[]], [None], {"": None}),
    *([0], [1, 2], ["a"], {"a": 1}, {"name": 1}, [1.5] * 50, "last", "rot4", "none", "9", "1.5", *WORDS),
)


def mutate_bytes(rng: Random, data: bytes, others: Sequence[bytes] = ()) -> bytes:
    """One to four small changes."""
    held = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 4))):
        _change(rng, held, others)
    return bytes(held[:LONGEST])


def _change(rng: Random, held: bytearray, others: Sequence[bytes]) -> None:
    size = len(held)
    place = rng.randrange(size + 1) if rng.random() < 0.5 else rng.randrange(min(size, 64) + 1)
    span = rng.choice((1, 1, 2, 4, 8, 16, 64, 300))
    kind = rng.randrange(9)
    if kind == 0 and place < size:
        held[place] ^= 1 << rng.randrange(8)
    elif kind == 1 and place < size:
        held[place] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
    elif kind in (2, 3):
        form = rng.choice("<>") + rng.choice("BHIQ")
        number = rng.choice(EXTREMES) & ((1 << 8 * struct.calcsize(form)) - 1)
        held[place : place + struct.calcsize(form)] = struct.pack(form, number)
    elif kind == 4:
        del held[place : place + span]
    elif kind == 5:
        held[place:place] = rng.randbytes(span)
    elif kind == 6:
        start = rng.randrange(size + 1)
        held[place:place] = held[start : start + span] * rng.choice((1, 1, 2, 50))
    elif kind == 7 and others:
        other = rng.choice(others)
        held[place:] = other[rng.randrange(len(other) + 1) :]
    else:
        del held[place:]


def mutate_text(rng: Random, text: str, tokens: Sequence[str] = ()) -> str:
    """One to four changes of characters, lines, numbers and words."""
    for _ in range(rng.choice((1, 1, 2, 3, 4))):
        place, kind = rng.randrange(len(text) + 1), rng.randrange(7)
        if kind == 0:
            text = text[:place] + text[place + rng.choice((1, 1, 2, 10)) :]
        elif kind in (1, 2):
            text = text[:place] + rng.choice((*tokens, *WORDS)) + text[place + rng.choice((0, 0, 1, 3)) :]
        elif kind == 3:
            lines = text.splitlines(keepends=True) or [""]
            lines.insert(rng.randrange(len(lines) + 1), rng.choice(lines) * rng.choice((1, 1, 2, 40)))
            text = "".join(lines)
        elif kind == 4:
            lines = text.splitlines(keepends=True) or [""]
            del lines[rng.randrange(len(lines))]
            text = "".join(lines)
        elif kind == 5:
            text = text[:place]
        else:
            text = text[:place] + chr(
                rng.choice((rng.randrange(32), rng.randrange(128), 0x85, 0x2028, 0xFEFF))
            )
            text += text[place : place + 20]
    return text[:LONGEST]


def encoded(rng: Random, text: str) -> bytes:
    """Mostly UTF-8; now and then with bytes that are none, or in another encoding."""
    if rng.random() < 0.03:
        return text.encode("utf-16", "replace")
    data = text.encode("utf-8", "surrogatepass")
    return mutate_bytes(rng, data) if rng.random() < 0.1 else data


def mutate_tree(rng: Random, tree: Any, values: Sequence[Any] = ()) -> Any:
    """One to three changes of a tree of dicts and lists: its values, its keys, its shape."""
    tree = copy.deepcopy(tree)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        with contextlib.suppress(
            RecursionError, ValueError, OverflowError
        ):  # too deep to copy, a number too long to write
            tree = _change_tree(rng, tree, (*values, *VALUES))
    return tree


def _change_tree(rng: Random, tree: Any, values: Sequence[Any]) -> Any:
    parts = containers(tree)
    if not parts or rng.random() < 0.02:
        return copy.deepcopy(rng.choice(values))
    part = rng.choice(parts)
    keys = list(part) if isinstance(part, dict) else list(range(len(part)))
    kind = rng.randrange(10)
    if kind == 0 or not keys:
        key, value = rng.choice((*WORDS, "name", "a")), copy.deepcopy(rng.choice(values))
        part.update({key: value}) if isinstance(part, dict) else part.append(value)
        return tree
    key = rng.choice(keys)
    if kind == 1:
        del part[key]
    elif kind == 2:
        part[key] = nested(rng, part[key])
    elif kind == 3:
        part[key] = copy.deepcopy(rng.choice(parts))
    elif kind == 4:
        part[key] = str(part[key])
    elif kind == 5 and isinstance(part[key], str):
        part[key] = mutate_text(rng, part[key])
    elif kind == 6 and isinstance(part[key], int | float):
        part[key] = rng.choice((-part[key], part[key] + 1, part[key] * 1000, part[key] / 3, str(part[key])))
    elif kind == 7 and isinstance(part, list):
        part[key:key] = part[key : key + 1] * rng.choice((1, 2, 30))
    else:
        part[key] = copy.deepcopy(rng.choice(values))
    return tree


def containers(tree: Any) -> list[Any]:
    """The dicts and lists of a tree, the outer ones first."""
    found = [tree] if isinstance(tree, dict | list) else []
    for part in found:
        inner = part.values() if isinstance(part, dict) else part
        found += [one for one in inner if isinstance(one, dict | list)]
        if len(found) > 500:
            break
    return found


def nested(rng: Random, value: Any) -> Any:
    """The value inside many lists or dicts; some are as deep as Python's own limits."""
    in_list = rng.random() < 0.5
    for _ in range(rng.choice((1, 1, 3, 99, 101, 300, 900, rng.randrange(940, 1000)))):
        value = [value] if in_list else {"a": value}
    return value


def json_text(rng: Random, tree: Any) -> str:
    """As JSON, also where it is deeper than the writer goes; sometimes its text is changed further."""
    try:
        text = json.dumps(tree)
    except (RecursionError, ValueError):  # too deep, or a number of too many digits
        depth = rng.randrange(900, 5000)
        text = rng.choice(("[" * depth + "]" * depth, '{"a":' * depth + "1" + "}" * depth, "1" * depth))
    return mutate_text(rng, text, ("{", "}", "[", "]", ",", ":", '"', "NaN")) if rng.random() < 0.15 else text
