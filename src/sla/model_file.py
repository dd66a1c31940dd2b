"""One file of tensors, as safetensors, with a description in JSON. Nothing in it can run code."""

import hashlib
import json
import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load as load_tensors
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from sla.disk import replacing
from sla.errors import InputError, MissingExtraError
from sla.trees import parse_json

KEY = "sla"  # under which the file's metadata has the description
CHECKSUM = "checksum"  # of a description
SPARE = 1 << 22  # elements of new tensors that need not be weights
MAKERS = (torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn)


class SizeLimit(TorchFunctionMode):
    """Within the block no larger network is built than these weights can fill; each size is checked first."""

    def __init__(self, weights: dict[str, Tensor]) -> None:
        super().__init__()
        self.left = SPARE + 2 * sum(value.numel() for value in weights.values())

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count what is made anew."""
        if func in MAKERS:
            size = (kwargs or {}).get("size", args[0] if args and not isinstance(args[0], int) else args)
            self.left -= math.prod(one for one in size if isinstance(one, int))
            if self.left < 0:
                raise InputError("it describes a larger network than its weights are of")
        return func(*args, **(kwargs or {}))


M = TypeVar("M", bound=nn.Module)


def write_model_file(
    path: Path, tensors: dict[str, Tensor], described: dict[str, Any], key: str = KEY, checksum: bool = False
) -> None:
    """Write both, with a checksum of the tensors if asked; the file appears whole or not at all."""
    if checksum:
        described = {**described, CHECKSUM: _digest(tensors)}
    with replacing(path) as file:
        try:
            save_file(_apart(tensors), file.name, {key: json.dumps(described)})
        except SafetensorError as error:
            number = re.search(r"\(os error (\d+)\)", str(error))
            if number is None:
                raise
            raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from None


def _apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous, each in memory of its own: tied weights are written under each of their names."""
    found: dict[str, Tensor] = {}
    known: set[int] = set()
    for name, value in tensors.items():
        value = value.detach().contiguous()
        place = value.untyped_storage().data_ptr()
        found[name] = value.clone() if place in known else value
        known.add(place)
    return found


def read_model_file(
    path: Path, what: str, *keys: str, checksum: bool = False
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The description, under the first of `keys` (or KEY) that is there, and the tensors of `what`.

    Refused if it is another file and, with `checksum`, if its tensors are not those that were written.
    """
    described, tensors = _read(path, what, keys or (KEY,), with_tensors=True)
    if checksum and described.pop(CHECKSUM, None) != _digest(tensors):
        raise InputError(f"{path}: damaged: its tensors are not those that were written")
    return described, tensors


def restore_model(
    path: Path,
    about: dict[str, Any],
    weights: dict[str, Tensor],
    build: Callable[[dict[str, Any]], M],
    options: str,
    form: int,
) -> M:
    """What `build` makes of a file's description, with the file's weights; one line on what is wrong with it.

    options: where the description has those of its backbone. form: the format that is read.
    """
    try:
        if about["format"] != form:
            written = f"{about['format']!r:.40}"
            raise InputError(f"{path}: written in format {written}, this version reads {form}")
        about[options].pop("pretrained", None)  # a file must not have us download something
        with SizeLimit(weights):
            model = build(about)
        model.load_state_dict(weights)
    except (MissingExtraError, InputError):
        raise
    except Exception as error:  # whatever a damaged description leads to
        raise InputError(f"{path}: its description is damaged ({type(error).__name__})") from error
    return model


def read_description(path: Path, what: str, *keys: str) -> dict[str, Any]:
    """The description alone, as `read_model_file` gives it."""
    return _read(path, what, keys or (KEY,), with_tensors=False)[0]


def _read(
    path: Path, what: str, keys: tuple[str, ...], with_tensors: bool
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    if not path.is_file():
        hint = "a folder; sla.open_run opens a run" if path.is_dir() else "no such file"
        raise InputError(f"{path}: {hint}")
    try:
        if with_tensors:
            metadata, tensors = _parse(path.read_bytes())
        else:
            tensors = {}
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
        described = parse_json(metadata[next(key for key in keys if key in metadata)])
    except (KeyError, OSError, SafetensorError, StopIteration, ValueError):
        raise InputError(f"{path}: not {what}") from None
    if not isinstance(described, dict):
        raise InputError(f"{path}: its description is a {type(described).__name__}, not a table of values")
    return described, tensors


def _parse(content: bytes) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Metadata and tensors of a whole file: `safe_open` loses 64 bytes with each tensor that it gives."""
    tensors = dict(sorted(load_tensors(content).items()))  # has checked the header
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    return header.get("__metadata__") or {}, tensors  # it may be null


def _digest(tensors: dict[str, Tensor]) -> str:
    """A checksum of names, types, shapes and values."""
    found = hashlib.blake2b(digest_size=16)
    for name, value in sorted(tensors.items()):
        found.update(f"{name} {value.dtype} {tuple(value.shape)};".encode())
        found.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()
