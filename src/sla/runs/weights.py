"""First weights of a backbone: from a run, a saved model or a file of bare weights."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from sla.errors import InputError
from sla.runs.checkpoint import WEIGHTS, check_file, find_checkpoint
from sla.runs.config import TrainingConfig

M = TypeVar("M", bound=nn.Module)
OWN = "own"  # model.weights: those that a module passed from Python has, worth keeping


def with_first_weights(build: Callable[[bool], M], config: TrainingConfig, first: bool) -> M:
    """The model that `build(pretrained)` makes, its random weights from the seed, first ones where asked for.

    Not `first`: it resumes from a checkpoint and needs none.
    """
    weights = (config.model.weights or "none") if first else "none"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.run.seed)
        model = build(weights == "pretrained")
    if weights not in ("none", "pretrained", OWN):
        load_backbone(model.backbone, weights)  # type: ignore[arg-type]
    return model


def load_backbone(backbone: nn.Module, source: str) -> None:
    """Take the backbone's weights from a run's folder, a saved model, or a file of bare weights."""
    path = Path(source).expanduser()
    if path.is_dir():
        found = find_checkpoint(path / "checkpoint", "last")
        if found is None:
            raise InputError(f"{source}: no run with a checkpoint")
        path = found / WEIGHTS
        check_file(path)
    if not path.exists():
        raise InputError(f"{source}: no such file or run; model.weights is none, pretrained, a file or a run")
    given = _read_weights(path)
    if any(name.startswith("backbone.") for name in given):
        given = {n.removeprefix("backbone."): v for n, v in given.items() if n.startswith("backbone.")}
    own = backbone.state_dict()
    fits = [name for name, value in own.items() if name in given and given[name].shape == value.shape]
    if len(fits) < len(own):
        missing = [name for name in own if name not in given]
        other = [name for name in own if name in given and given[name].shape != own[name].shape]
        raise InputError(
            f"{source}: weights of another architecture: {len(fits)} of {len(own)} tensors fit; "
            f"{len(missing)} are missing{_some(missing)}, {len(other)} have another shape{_some(other)}"
        )
    backbone.load_state_dict({name: given[name] for name in own})


def _read_weights(path: Path) -> dict[str, Tensor]:
    if path.suffix == ".safetensors":
        try:
            return load_file(path)
        except (SafetensorError, OSError):
            raise InputError(f"{path}: not a safetensors file") from None
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception:  # the unpickler's errors are of many kinds; nothing in the file has run
        raise InputError(
            f"{path}: not a file of weights (safetensors, or torch.save of a state dict)"
        ) from None
    found = found.get("state_dict", found) if isinstance(found, dict) else found
    if not isinstance(found, dict) or not all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in found.items()
    ):
        raise InputError(f"{path}: holds no state dict")
    return found


def _some(names: list[str]) -> str:
    return f" ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})" if names else ""
