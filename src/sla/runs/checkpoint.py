"""Checkpoints: a folder that appears complete or not at all, with weights to use and state to resume from.

`checkpoint/last-00001234/weights.safetensors` is the model, of a classifier's run one for `sla.load`;
`state.safetensors` beside it has what else a resumed run needs: optimiser, moving average, sums since the
last row; of `best` and `averaged` it says only how far the run was. Neither can run code. `checksums.json`
has a checksum of each, compared whenever a run is opened or resumed. The random state is not needed: every
draw follows from seed and step.
"""

import hashlib
import json
import math
import os
import re
import secrets
import shutil
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sla.disk import replacing
from sla.errors import InputError, shown
from sla.model_file import read_description, read_model_file, write_model_file
from sla.trees import parse_json

WEIGHTS, STATE, CHECKSUMS = "weights.safetensors", "state.safetensors", "checksums.json"


@dataclass
class Position:
    """How far a run is, apart from its tensors."""

    step: int = 0  # steps done, those that were skipped too
    images: int = 0  # to train on
    seconds: float = 0.0  # of training, over all sessions
    best_step: int = -1
    best_accuracy: float = -1.0
    skipped: int = 0  # steps that there was no time for
    pace: str = ""  # when they were skipped: runs/deadline.py
    clock: float = 0.0  # seconds of the run's minutes that were used
    row: dict[str, float] = field(default_factory=dict)  # of this step, whose evaluation was left

    @property
    def taken(self) -> int:
        """Steps done that were not skipped."""
        return self.step - self.skipped


def save_checkpoint(
    folder: Path, name: str, position: Position, write_weights: Any, tensors: dict[str, Tensor]
) -> Path:
    """Write `<name>-<step>` below the folder, then remove older ones of this name.

    `write_weights(path)` writes the model; `tensors` are the state beside it.
    """
    target = folder / f"{name}-{position.step:08d}"
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        temporary = folder / f".{target.name}.{secrets.token_hex(6)}"
        try:
            temporary.mkdir()
            write_weights(temporary / WEIGHTS)
            write_model_file(temporary / STATE, tensors, asdict(position), "position")
            sums = {name: file_checksum(temporary / name) for name in (WEIGHTS, STATE)}
            with replacing(temporary / CHECKSUMS) as file:
                file.write(json.dumps(sums).encode())
            _folder_to_disk(temporary)
            os.replace(temporary, target)
            _folder_to_disk(folder)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
    for other in _all(folder, name):
        if other != target:
            shutil.rmtree(other, ignore_errors=True)
    return target


def remove_unfinished(folder: Path) -> None:
    """Take away what killed processes left of checkpoints they wrote or removed; the run must be locked."""
    for left in folder.glob(".*") if folder.is_dir() else ():
        shutil.rmtree(left, ignore_errors=True)
    for name in ("last", "best"):
        for older in _all(folder, name)[:-1]:
            shutil.rmtree(older, ignore_errors=True)


def step_of(checkpoint: Path) -> int:
    """The steps done when it was written, by its name."""
    return int(checkpoint.name.rpartition("-")[2])


def find_checkpoint(folder: Path, name: str) -> Path | None:
    """The newest checkpoint of a name (last, best, averaged); one that is there is complete."""
    found = _all(folder, name)
    return found[-1] if found else None


def read_state(checkpoint: Path) -> tuple[Position, dict[str, Tensor]]:
    """The position and the tensors that `save_checkpoint` got."""
    described, tensors = read_model_file(checkpoint / STATE, "the state of a run", "position")
    return _position(described, checkpoint), tensors


def read_position(checkpoint: Path) -> Position:
    """The position alone."""
    described = read_description(checkpoint / STATE, "the state of a run", "position")
    return _position(described, checkpoint)


def _position(described: dict[str, Any], checkpoint: Path) -> Position:
    try:
        found = Position(**described)
        number = (int, float)
        known = {"int": (int,), "float": number, "str": (str,)}
        kinds = {each.name: known.get(getattr(each.type, "__name__", ""), (dict,)) for each in fields(found)}
        valid = all(type(value) in kinds[name] for name, value in described.items())
        valid = valid and all(type(value) in number and math.isfinite(value) for value in found.row.values())
        valid = valid and found.step == step_of(checkpoint) and 0 <= found.skipped <= found.step
        if not valid or not all(map(math.isfinite, (found.seconds, found.best_accuracy, found.clock))):
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{shown(checkpoint / STATE)}: not the state of a run") from None
    return found


def check_file(path: Path, advice: str = "") -> None:
    """Refuse a file of a checkpoint that is not what was written; older checkpoints have no checksums."""
    try:
        written = parse_json((path.parent / CHECKSUMS).read_bytes())
        intact = path.name not in written or file_checksum(path) == written[path.name]
    except FileNotFoundError:
        return
    except (OSError, ValueError, TypeError):  # the checksums themselves are not readable
        intact = False
    if not intact:
        advice = advice or f"use another checkpoint{_intact(path)}, or train again"
        raise InputError(f"{shown(path)}: damaged: not what its {CHECKSUMS} says was written; {advice}")


def _intact(path: Path) -> str:
    """Which other checkpoint of the run has this file as it was written."""
    own, folder = path.parent.name.rpartition("-")[0], path.parent.parent
    for name in ("last", "best"):
        other = find_checkpoint(folder, name)
        if name == own or other is None:
            continue
        with suppress(InputError):
            check_file(other / path.name, "-")
            return f" (--checkpoint {name} is intact)"
    return ""


def file_checksum(path: Path) -> str:
    """A checksum of the bytes of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimiser's state as named tensors; groups and rates follow from the configuration."""
    state = optimizer.state_dict()["state"]
    return {
        f"optimizer.{number}.{key}": torch.as_tensor(value)
        for number, values in state.items()
        for key, value in values.items()
        if value is not None
    }


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Restore what `optimizer_tensors` took."""
    state: dict[int, dict[str, Tensor]] = {}
    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    for name, value in tensors.items():
        if found := re.fullmatch(r"optimizer\.(\d+)\.(\w+)", name):
            if value.shape != (() if found[2] == "step" else parameters[int(found[1])].shape):
                raise ValueError(f"{name} has another shape than its weights")
            state.setdefault(int(found[1]), {})[found[2]] = value
    if len({frozenset(values) for values in state.values()}) > 1:
        raise ValueError("a part of the optimiser's state is missing")
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def _all(folder: Path, name: str) -> list[Path]:
    """The checkpoints of a name in order; a copy under another is somebody's own."""
    found = folder.glob(f"{name}-*") if folder.is_dir() else ()
    return sorted(
        path for path in found if path.is_dir() and re.fullmatch(r"\d{8}", path.name[len(name) + 1 :])
    )


def _folder_to_disk(folder: Path) -> None:
    """Flush the names in a folder to the disk, where the platform can open folders."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
