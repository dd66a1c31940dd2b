"""One file for a model: tensors as safetensors, with a description in JSON. Nothing in it can run code."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from sla.disk import replacing
from sla.errors import InputError

KEY = "sla"  # under which the file's metadata has the description


def tensors_digest(tensors: dict[str, Tensor]) -> str:
    """A checksum of names, types, shapes and values, for the metadata of a file that has no other."""
    found = hashlib.blake2b(digest_size=16)
    for name, value in sorted(tensors.items()):
        found.update(f"{name} {value.dtype} {tuple(value.shape)};".encode())
        found.update(np.ascontiguousarray(value.detach().cpu().numpy()).tobytes())
    return found.hexdigest()


def write_model_file(path: str | Path, tensors: dict[str, Tensor], described: dict[str, Any]) -> None:
    """Write both; the file appears whole or not at all."""
    contiguous = {name: value.detach().contiguous() for name, value in tensors.items()}
    with replacing(Path(path)) as file:
        file.write(save(contiguous, {KEY: json.dumps(described)}))


def read_model_file(
    path: str | Path, what: str, keys: tuple[str, ...] = (KEY,)
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The description, under the first of `keys` that it has, and the tensors; refused if not `what`."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        described = json.loads(metadata[next(key for key in keys if key in metadata)])
    except (OSError, SafetensorError, StopIteration, json.JSONDecodeError):
        raise InputError(f"{path}: not {what}") from None
    if not isinstance(described, dict):
        raise InputError(f"{path}: its description is a {type(described).__name__}, not a table of values")
    return described, tensors
