"""Pickles of arrays, read without running them: placeholders replace every name that a pickle refers to."""

import mmap
import pickle
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from sla.errors import InputError, shown

MAX_BYTES = 8 << 30  # the largest pickle of the known datasets is under 1 GB
PLAIN_DTYPE = re.compile(r"[|<>=]?(?:[biuf][1248]|\?|[SU]\d{1,4})")


def load_pickle(path: str | Path) -> Any:
    """What a pickle holds: dicts, lists, text, numbers and numpy arrays; dict keys in bytes become text.

    Every other name in the file is refused, and nothing in it is called: arrays are built here
    from their bytes, so even a damaged array state never reaches numpy's own unpickling.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    if path.stat().st_size > MAX_BYTES:
        raise InputError(f"{path}: a pickle of more than {MAX_BYTES >> 30} GiB is not read")
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as held:
            return _settle(_Reader(held, path).load(), {})
    except InputError:
        raise
    except (MemoryError, RecursionError):
        raise InputError(f"{path}: claims more than memory holds; not a dataset's pickle") from None
    except Exception as error:  # a damaged pickle raises nearly anything
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{path}: a damaged pickle, or none ({shown(reason)})") from None


class _Reader(pickle._Unpickler):
    """Written in Python, over a map of the file: the compiled one allocates what a file claims to hold."""

    dispatch: ClassVar[dict[int, Callable[..., None]]] = dict(pickle._Unpickler.dispatch)

    def __init__(self, file: Any, path: Path) -> None:
        super().__init__(file, encoding="bytes")  # pickles of Python 2: their text is bytes
        self.path = path

    def load_bytearray8(self) -> None:
        """As the original, but never of more bytes than there are."""
        data = self.read(int.from_bytes(self.read(8), "little"))  # type: ignore[attr-defined]
        self.append(bytearray(data))  # type: ignore[attr-defined]

    dispatch[pickle.BYTEARRAY8[0]] = load_bytearray8

    def find_class(self, module: str, name: str) -> Any:
        maker = MAKERS.get(f"{module}.{name}")
        if maker is None:
            raise InputError(
                f"{self.path}: the pickle refers to {f'{module}.{name}'!r}, which is refused and not run; "
                "only arrays, numbers, text, lists and dicts are read"
            )
        return partial(maker)  # a new one each time: a pickle that modifies it cannot affect ours


@dataclass(slots=True)
class _Dtype:
    """What a pickle says of a dtype: its code, and the byte order that follows in its state."""

    code: str
    order: str = ""

    def __setstate__(self, state: Any) -> None:
        self.order = _text(state[1]).replace("|", "")

    def resolved(self) -> np.dtype:
        code = self.order + self.code.lstrip("|<>=") if self.order else self.code
        if not PLAIN_DTYPE.fullmatch(code):
            raise ValueError(f"an array of type {code!r}")
        return np.dtype(code)


@dataclass(slots=True)
class _Array:
    """What a pickle says of an array."""

    shape: tuple[int, ...] = (0,)
    dtype: Any = None
    order: str = "C"
    data: Any = b""

    def __setstate__(self, state: Any) -> None:
        _, self.shape, self.dtype, fortran, self.data = state
        self.order = "F" if fortran else "C"

    def built(self) -> np.ndarray:
        if not isinstance(self.dtype, _Dtype):
            raise ValueError("an array without a type")
        data = self.data.encode("latin1") if isinstance(self.data, str) else self.data
        flat = np.frombuffer(data, self.dtype.resolved())
        return flat.reshape(self.shape, order="F" if self.order == "F" else "C")


def _scalar(dtype: Any, data: Any) -> Any:
    return _Array((1,), dtype, "C", data).built()[0].item()


def _encode(text: str, encoding: str = "latin1") -> bytes:
    return text.encode("latin1" if _text(encoding) == "latin1" else "ascii")


def _no_use(*_arguments: Any) -> None:
    raise ValueError("an array made in an unknown way")


MAKERS: dict[str, Callable[..., Any]] = {
    "numpy.dtype": lambda code, *_flags: _Dtype(_text(code)),
    "numpy.ndarray": _no_use,  # named as an argument of _reconstruct, never called
    "_codecs.encode": _encode,
}
for _core in ("numpy.core", "numpy._core"):
    MAKERS[f"{_core}.multiarray._reconstruct"] = lambda *_type_and_shape: _Array()  # its state follows
    MAKERS[f"{_core}.multiarray.scalar"] = _scalar
    MAKERS[f"{_core}.numeric._frombuffer"] = lambda data, dtype, shape, order: _Array(
        shape, dtype, order, data
    )


def _text(value: Any) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(value)


def _settle(value: Any, seen: dict[int, Any]) -> Any:
    """The value with arrays built and keys as text; each object once, however often it is referenced."""
    if id(value) in seen:
        return seen[id(value)][1]
    if isinstance(value, _Array):
        settled: Any = value.built()
    elif isinstance(value, dict):
        settled = {}
        seen[id(value)] = value, settled
        for key, item in value.items():
            settled[_text(key) if isinstance(key, bytes) else _settle(key, seen)] = _settle(item, seen)
        return settled
    elif isinstance(value, list):
        settled = []
        seen[id(value)] = value, settled
        settled.extend(_settle(item, seen) for item in value)
        return settled
    elif isinstance(value, tuple):
        settled = tuple(_settle(item, seen) for item in value)
    elif value is None or isinstance(value, (bool, int, float, str, bytes, bytearray)):
        return value
    else:
        raise ValueError(f"it holds a {type(value).__name__}")
    seen[id(value)] = value, settled  # the value too: its id must not be reused
    return settled
