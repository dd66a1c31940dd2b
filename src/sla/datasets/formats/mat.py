"""A small reader of MATLAB 5 files: the cells, text, numbers and structs that label lists are made of."""

import math
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from sla.disk import reason
from sla.errors import InputError

MAX_BYTES = 1 << 28  # of one decompressed variable; the known lists have a few MB
NUMBERS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
TEXTS = {16: "utf-8", 17: "utf-16", 18: "utf-32", 4: "utf-16", 2: "latin1", 1: "latin1"}
MATRIX, COMPRESSED = 14, 15
CELL, STRUCT, CHAR = 1, 2, 4
NUMERIC = range(6, 16)  # double, single, and the integers


def read_mat(path: Path) -> dict[str, Any]:
    """The variables of a MATLAB 5 file by name.

    Numbers come as arrays of MATLAB's shape, text as str, a cell array as a flat list in MATLAB's order,
    a struct array as a flat list of dicts.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: {reason(error)}") from None
    if len(data) < 128 or data[126:128] not in (b"IM", b"MI") or not data.startswith(b"MATLAB 5.0"):
        raise InputError(f"{path}: not a MATLAB 5 file")
    try:
        return _Mat("<" if data[126:128] == b"IM" else ">").variables(data[128:])
    except (struct.error, zlib.error, ValueError, KeyError, IndexError, RecursionError) as error:
        raise InputError(f"{path}: a damaged MATLAB file ({error})") from None


class _Mat:
    def __init__(self, order: str) -> None:
        self.order = order

    def variables(self, data: bytes) -> dict[str, Any]:
        found = {}
        for kind, body in self.elements(data):
            if kind == COMPRESSED:
                inflate = zlib.decompressobj()
                body = inflate.decompress(body, MAX_BYTES)
                if inflate.unconsumed_tail or not inflate.eof:
                    raise ValueError("a variable that is truncated or too large")
                ((kind, body),) = self.elements(body)
            if kind == MATRIX and body:
                name, value = self.matrix(body)
                found[name] = value
        return found

    def elements(self, data: bytes) -> list[tuple[int, bytes]]:
        found, at = [], 0
        while at + 8 <= len(data):
            kind, size = struct.unpack_from(f"{self.order}2I", data, at)
            start = at + 8
            if kind >> 16:  # small: its length and its bytes lie in the tag itself
                kind, size, start = kind & 0xFFFF, kind >> 16, at + 4
            if start + size > len(data):
                raise ValueError("it ends in the middle of an element")
            found.append((kind, data[start : start + size]))
            at = start + size if kind == COMPRESSED else start + size + -(start + size) % 8
        return found

    def matrix(self, data: bytes) -> tuple[str, Any]:
        (_, flags), (_, sizes), (_, name), *rest = self.elements(data)
        kind = struct.unpack(f"{self.order}I", flags[:4])[0] & 0xFF
        shape = struct.unpack(f"{self.order}{len(sizes) // 4}i", sizes)
        return name.decode("latin1"), self.value(kind, shape, rest)

    def value(self, kind: int, shape: tuple[int, ...], rest: list[tuple[int, bytes]]) -> Any:
        if kind == CELL:
            return [self.matrix(body)[1] for _, body in rest]
        if kind == STRUCT:
            width = struct.unpack(f"{self.order}i", rest[0][1])[0]
            raw = rest[1][1]
            names = [raw[i : i + width].split(b"\0")[0].decode("latin1") for i in range(0, len(raw), width)]
            values = [self.matrix(body)[1] for _, body in rest[2:]]
            return [dict(zip(names, values[i:], strict=False)) for i in range(0, len(values), len(names))]
        if kind == CHAR:
            stored, body = rest[0]
            return self.text(stored, body)
        if kind not in NUMERIC:
            raise ValueError(f"an array of class {kind}")
        stored, body = rest[0]
        numbers = np.frombuffer(body, np.dtype(self.order + NUMBERS[stored]))
        if len(numbers) != math.prod(shape):
            raise ValueError(f"{len(numbers)} numbers for an array of {shape}")
        return numbers.reshape(shape, order="F")

    def text(self, stored: int, body: bytes) -> str:
        coding = TEXTS[stored]
        if coding.startswith(("utf-16", "utf-32")):
            coding += "-le" if self.order == "<" else "-be"
        return body.decode(coding)
