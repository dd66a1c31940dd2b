"""Many paths below one folder, stored compactly; imports no torch."""

import hashlib
import os
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import overload

import numpy as np


class Paths(Sequence[str]):
    """Paths of files below a root, in two arrays.

    The bytes of all names lie end to end. A million of 40 bytes take 48 MB, pickle in one copy, and stay
    shared with forked workers, where a list of str would be copied page by page by reference counting.
    """

    def __init__(self, root: str | Path, names: np.ndarray, ends: np.ndarray) -> None:
        self.root = os.fspath(root)
        self.names = names  # uint8: the relative paths, in the file system's encoding
        self.ends = ends  # int64 (n,): where in `names` each one ends

    @classmethod
    def of(cls, relative: Iterable[str], root: str | Path = "") -> "Paths":
        """From paths relative to the root; absolute ones stay as they are."""
        names, ends = bytearray(), array("q")
        for path in relative:
            names += os.fsencode(path)
            ends.append(len(names))
        return cls(root, np.frombuffer(bytes(names), np.uint8), np.array(ends, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.ends)

    @overload
    def __getitem__(self, row: int) -> str: ...
    @overload
    def __getitem__(self, row: slice) -> list[str]: ...
    def __getitem__(self, row: int | slice) -> str | list[str]:
        if isinstance(row, slice):
            return [self[i] for i in range(*row.indices(len(self)))]
        return os.path.join(self.root, self.relative(row))

    def relative(self, row: int) -> str:
        """The path of a row, relative to the root."""
        row = range(len(self))[row]
        start = self.ends[row - 1] if row else 0
        return os.fsdecode(self.names[start : self.ends[row]].tobytes())

    def keep(self, mask: np.ndarray) -> "Paths":
        """Only the paths where the mask, bool (n,), is true."""
        lengths = np.diff(self.ends, prepend=0)
        return Paths(self.root, self.names[np.repeat(mask, lengths)], np.cumsum(lengths[mask]))

    def keys(self) -> np.ndarray:
        """uint64 (n,) from name, size and modification time: a change gives another key. 0: no such file."""
        digests, root, names, start = bytearray(), os.fsencode(self.root), self.names.tobytes(), 0
        for end in self.ends:
            name, start = names[start:end], end
            try:
                info = os.stat(os.path.join(root, name))
            except OSError:
                digests += bytes(8)
                continue
            text = b"%b %d %d" % (name, info.st_size, info.st_mtime_ns)
            digests += hashlib.blake2b(text, digest_size=8).digest()
        return np.frombuffer(digests, "<u8")
