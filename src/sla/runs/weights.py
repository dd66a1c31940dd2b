"""First weights of a backbone: from a run, a saved model or a file of bare weights."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from sla.augment.preprocessing import Preprocessing
from sla.errors import InputError, SLAWarning, shown
from sla.runs.checkpoint import WEIGHTS, check_file
from sla.runs.config import TrainingConfig
from sla.runs.defaults import fill_missing, override
from sla.runs.folder import last_checkpoint
from sla.trees import parse_json

M = TypeVar("M", bound=nn.Module)
Tree = TypeVar("Tree", bound=TrainingConfig)
OWN = "own"  # model.weights: those that a module passed from Python has, worth keeping
KINDS = ("none", "pretrained", OWN)  # that are no file
OTHER_SCALE = 1.5  # between the resolutions of two runs: above it features see things at another size


class Origin(NamedTuple):
    """What the file of some weights says about them: the backbone they are of, and the images it saw."""

    backbone: str
    options: dict[str, Any]
    seen: Preprocessing | None


def find_origin(source: str) -> Origin | None:
    """What is known of the weights of a run or a saved model; None of bare weights, or where none are."""
    path = _weights_file(source)
    if path.suffix != ".safetensors" or not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
        described = parse_json(metadata.get("sla") or metadata.get("sla-fewshot") or "{}")
        options = described.get("options", described.get("backbone_options", {}))
        seen = described.get("preprocessing") or described.get("about", {}).get("preprocessing")
        if not isinstance(described.get("backbone"), str) or not isinstance(options, dict):
            return None
        return Origin(described["backbone"], options, Preprocessing.from_dict(seen) if seen else None)
    except (SafetensorError, OSError, ValueError, AttributeError):
        return None  # loading it says what is wrong


def with_origin(config: Tree) -> Tree:
    """The configuration with the backbone, channels and pixel statistics of the weights that it starts from.

    Only where they are not given: other weights than those that fit are refused when they are loaded.
    """
    weights = config.model.weights
    origin = find_origin(weights) if weights not in (None, *KINDS) else None
    if origin is None:
        return config
    if config.model.backbone in (None, origin.backbone):
        options = {name: value for name, value in origin.options.items() if name != "pretrained"}
        config = override(config, "model", options={**options, **config.model.options})
        config = fill_missing(config, "model", backbone=origin.backbone)
    channels = config.model.options.get("in_channels", 3)
    if origin.seen is not None and origin.seen.channels == channels:
        config = fill_missing(config, "model", mean=origin.seen.mean, std=origin.seen.std)
    return config


def origin_resolution(config: TrainingConfig) -> int | None:
    """The pixels per side at which the weights that a run starts from were trained, where that is known."""
    origin = find_origin(config.model.weights or "none")
    return origin.seen.resolution if origin and origin.seen else None


def describe_start(config: TrainingConfig) -> str:
    """What a run starts from, as its plan says it."""
    weights = config.model.weights or "none"
    known = {"none": "from scratch", "pretrained": "from pretrained weights", OWN: "from given weights"}
    return known.get(weights, f"from the weights of {shown(weights)}")


def warn_of_other_input(config: TrainingConfig) -> None:
    """Warn where the weights that a run starts from saw pictures of another size, or other pixel values."""
    weights, model = config.model.weights, config.model
    origin = find_origin(weights) if weights not in (None, *KINDS) else None
    if origin is None or origin.seen is None:
        return
    seen, size = origin.seen, model.resolution or origin.seen.resolution
    if max(size, seen.resolution) >= OTHER_SCALE * min(size, seen.resolution):
        warnings.warn(
            f"{shown(weights or '')}: weights trained at {seen.resolution} pixels; here pictures are seen at "
            f"{size} (model.resolution)",
            SLAWarning,
        )
    if (model.mean, model.std) != (seen.mean, seen.std):
        was = f"model.mean {_numbers(seen.mean)} and model.std {_numbers(seen.std)}"
        here = f"{_numbers(model.mean or ())} and {_numbers(model.std or ())}"
        warnings.warn(
            f"{shown(weights or '')}: weights trained with {was}; here they are {here}",
            SLAWarning,
        )


def _numbers(values: tuple[float, ...]) -> str:
    return f"({', '.join(f'{value:g}' for value in values)})"


def with_first_weights(build: Callable[[bool], M], config: TrainingConfig, first: bool) -> M:
    """The model that `build(pretrained)` makes, its random weights from the seed, first ones where asked for.

    Not `first`: it resumes from a checkpoint and needs none.
    """
    weights = (config.model.weights or "none") if first else "none"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.run.seed)
        model = build(weights == "pretrained")
    if weights not in KINDS:
        load_backbone(model.backbone, weights, config.model.backbone or "")  # type: ignore[arg-type]
    return model


def load_backbone(backbone: nn.Module, source: str, name: str = "") -> None:
    """Take the weights of the backbone, called `name`, from a run's folder, a saved model, or a file."""
    path = _weights_file(source)
    if path.name == WEIGHTS and path.is_file():
        check_file(path)
    if path.is_dir():
        raise InputError(f"{source}: no run with a checkpoint")
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
        origin = find_origin(source)
        names = f" ({origin.backbone}, not {name})" if origin and name and origin.backbone != name else ""
        raise InputError(
            f"{source}: weights of another architecture{names}: {len(fits)} of {len(own)} tensors fit; "
            f"{len(missing)} are missing{_some(missing)}, {len(other)} have another shape{_some(other)}"
        )
    backbone.load_state_dict({name: given[name] for name in own})


def _weights_file(source: str) -> Path:
    """The file of the weights: of a run's folder that of its last checkpoint, if it has one."""
    path = Path(source).expanduser()
    found = last_checkpoint(path) if path.is_dir() else None
    return path if found is None else found / WEIGHTS


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
