"""Pickles: instructions that name, call and claim what they should not."""

import pickle
import struct
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from fuzzing.guard import Reader
from fuzzing.mutate import EXTREMES, TRAP, mutate_bytes
from sla.datasets.unpickle import load_pickle

PLAIN = (dict, list, tuple, str, bytes, bytearray, int, float, bool, type(None), np.ndarray)


@cache
def pickle_seeds() -> list[bytes]:
    array = np.arange(6, dtype=np.uint8).reshape(2, 3)
    shared = [1, "a"]
    values: list[Any] = [
        {"data": array, "labels": [1, 0]},
        {b"data": np.asfortranarray(array), b"labels": [0, 1], "names": [b"cat", "dog"]},
        [np.int64(3), np.float32(0.5), np.array(["a", "bc"]), np.array([b"x"]), bytearray(b"ab")],
        (shared, shared, {"a": {"b": (1, 2.5, None, True)}}, 10**30, "é" * 20),
    ]
    return [pickle.dumps(value, protocol) for value in values for protocol in (0, 2, 4, 5)]


NAMES = ("os\nsystem", f"{TRAP}\nName", "builtins\nexec", "numpy\nndarray", "numpy\ndtype", "_codecs\nencode")
NAMES += (
    "numpy.core.multiarray\n_reconstruct",
    "numpy._core.numeric\n_frombuffer",
    "copyreg\n_reconstructor",
)
NAMES += ("numpy.core.multiarray\nscalar", "functools\npartial", "sla.datasets.unpickle\n_Array")


def opcode(rng: Random) -> bytes:
    """One instruction of a pickle, with an argument that may lie."""
    number = rng.choice(EXTREMES)
    small, large = struct.pack("<I", number & 0xFFFFFFFF), struct.pack("<Q", number)
    short = bytes([number & 255])
    return rng.choice(
        (
            *(b"(", b".", b"0", b"1", b"2", b"N", b"a", b"b", b"d", b"}", b"e", b"l", b"]", b"s", b"t", b")"),
            *(b"u", b"R", b"o", b"Q", b"\x81", b"\x85", b"\x86", b"\x87", b"\x88", b"\x92", b"\x8f", b"\x91"),
            *(b"\x90", b"\x93", b"\x94", b"\x97", b"\x98", b"K" + short, b"J" + small, b"B" + small + b"ab"),
            *(
                b"\x8e" + large,
                b"\x96" + large + b"ab",
                b"\x8d" + large,
                b"X" + small,
                b"T" + small,
                b"r" + small,
            ),
            *(
                b"q" + short,
                b"h" + short,
                b"j" + small,
                b"p%d\n" % number,
                b"g%d\n" % number,
                b"\x8b" + small,
            ),
            *(
                b"I%d\n" % number,
                b"L%dL\n" % number,
                b"F1e999\n",
                b"\x95" + large,
                b"\x82\1",
                b"C\2ab",
                b"P1\n",
            ),
            *(b"c" + rng.choice(NAMES).encode() + b"\n", b"i" + rng.choice(NAMES).encode() + b"\n"),
            *(b"\x8c\2os\x8c\6system\x93", b"U\5latin", b"S'a'\n", b"Va\n", b"I" + b"9" * 5000 + b"\n"),
        )
    )


def make_pickle(rng: Random) -> bytes:
    kind = rng.random()
    if kind < 0.2:
        body = b"".join(opcode(rng) for _ in range(rng.randrange(1, 30)))
        return b"\x80" + bytes([rng.choice((2, 4, 5))]) + body + b"."
    data = rng.choice(pickle_seeds())
    if kind < 0.3:
        return mutate_bytes(rng, data, pickle_seeds())
    for _ in range(rng.randrange(1, 4)):
        place = rng.randrange(len(data))
        data = data[:place] + opcode(rng) + data[place + rng.choice((0, 0, 1, 2, 5)) :]
    return data


def check_plain(value: Any) -> None:
    """Only plain values and arrays, however they refer to each other."""
    waiting, seen = [value], set[int]()
    while waiting:
        one = waiting.pop()
        assert type(one) in PLAIN, type(one)
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, dict):
            waiting += [*one.keys(), *one.values()]
        elif isinstance(one, list | tuple):
            waiting += one
        elif isinstance(one, np.ndarray):
            assert one.dtype.kind in "biufSU"


def open_pickle(_: Path):
    return lambda path: check_plain(load_pickle(path))


READERS = [Reader("pickle", make_pickle, open_pickle)]
