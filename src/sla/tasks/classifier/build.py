"""From a resolved configuration to the objects of a run: model, optimiser, pipelines."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from sla.augment.ops import Pipeline
from sla.augment.pipelines import eval_pipeline, train_pipeline
from sla.classifier import Classifier
from sla.errors import InputError
from sla.factory import create
from sla.images.files import FileImages
from sla.methods import Method, create_method
from sla.runs.checkpoint import WEIGHTS, find_checkpoint
from sla.runs.config import Config, OptimizerConfig, TrainingConfig
from sla.sampling.draws import Draws
from sla.tasks.classifier.imbalance import build_criterion
from sla.views import parse_views


def build_method(config: Config, counts: Sequence[int] | np.ndarray | None = None) -> Method:
    """The method with its views and its criterion; `counts` (N,) are the training images of each class."""
    part = config.method
    options: dict[str, Any] = {
        "criterion": build_criterion(part, counts),
        "head": part.head or "linear",
    }
    if part.name.startswith("sla"):
        options |= {"beta": part.beta, "temperature": part.temperature, "view_reduction": part.view_reduction}
    return create_method(part.name, parse_views(part.views), **options)


def build_model(
    config: Config,
    classes: tuple[str, ...],
    counts: Sequence[int] | np.ndarray | None = None,
    first: bool = True,
) -> Classifier:
    """A new classifier, its random weights from the seed, its first weights where they are asked for.

    Not `first`: it goes on from a checkpoint, and needs none.
    """
    assert config.model.backbone is not None
    options: dict[str, Any] = dict(config.model.options)
    weights = (config.model.weights or "none") if first else "none"
    if weights == "pretrained":
        options["pretrained"] = True
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.run.seed)
        model = create(config.model.backbone, len(classes), build_method(config, counts), **options)
    model.class_names = list(classes)
    if weights not in ("none", "pretrained"):
        load_backbone(model.backbone, weights)
    return model


def load_backbone(backbone: nn.Module, source: str) -> None:
    """Take the backbone's weights from a run's folder, a saved classifier, or a file of bare weights."""
    path = Path(source).expanduser()
    if path.is_dir():
        found = find_checkpoint(path / "checkpoint", "last")
        if found is None:
            raise InputError(f"{source}: no run with a checkpoint")
        path = found / WEIGHTS
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


def build_optimizer(part: OptimizerConfig, model: nn.Module) -> torch.optim.Optimizer:
    """SGD or AdamW with groups for backbone and heads, with and without weight decay."""
    assert part.learning_rate is not None
    assert part.weight_decay is not None
    groups: dict[tuple[bool, bool], list[nn.Parameter]] = {}
    kinds = _kinds_of_parameters(model)
    for name, parameter in model.named_parameters():
        decays = {"norm": part.decay_norms, "bias": part.decay_biases, "weight": True}[kinds[parameter]]
        groups.setdefault((name.startswith("backbone."), decays), []).append(parameter)
    factor = part.backbone_factor or 1.0
    described = [
        {
            "params": parameters,
            "lr": part.learning_rate * (factor if in_backbone else 1.0),
            "base_lr": part.learning_rate * (factor if in_backbone else 1.0),
            "weight_decay": part.weight_decay if decays else 0.0,
        }
        for (in_backbone, decays), parameters in groups.items()
    ]
    if part.name == "adamw":
        return torch.optim.AdamW(described)
    nesterov = part.nesterov and part.momentum > 0
    return torch.optim.SGD(described, momentum=part.momentum, nesterov=nesterov)


def _kinds_of_parameters(model: nn.Module) -> dict[nn.Parameter, str]:
    """weight, bias or norm: what has one dimension is a bias beside a weight of more, else a norm layer's."""
    kinds: dict[nn.Parameter, str] = {}
    for module in model.modules():
        own = list(module.parameters(recurse=False))
        vectors = "bias" if any(parameter.ndim > 1 for parameter in own) else "norm"
        kinds |= {parameter: "weight" if parameter.ndim > 1 else vectors for parameter in own}
    return kinds


def describe_preprocessing(config: TrainingConfig) -> dict[str, Any]:
    """What a model's file keeps of the way its images went, for `make_eval_pipeline`."""
    model = config.model
    return {
        "augment": config.augment,
        "resolution": model.resolution,
        "stored_size": config.data.stored_size,
        "mean": model.mean,
        "std": model.std,
    }


def file_images(about: dict[str, Any], files: Sequence[str | Path]) -> FileImages:
    """Image files, to be read as the training images of the model that says this of itself were."""
    stored = about["preprocessing"]["stored_size"]
    return FileImages([str(file) for file in files], (stored, stored))


def make_eval_pipeline(about: dict[str, Any]) -> Pipeline:
    """What a test image goes through before the model that says this of itself sees it."""
    seen = about["preprocessing"]
    return eval_pipeline(seen["augment"], seen["resolution"], tuple(seen["mean"]), tuple(seen["std"]))


def build_pipelines(config: TrainingConfig) -> tuple[Pipeline, Pipeline]:
    """What training images and test images go through."""
    text, size = config.augment or "none", config.model.resolution
    mean, std = config.model.mean, config.model.std
    assert size is not None
    assert mean is not None
    assert std is not None
    training = train_pipeline(text, size, mean, std, config.policies)
    return training, eval_pipeline(text, size, mean, std)


def draw_views(draws: Draws, num_views: int, count: int, plain_first: bool) -> Tensor | None:
    """`count` different views for each image, (b, count), or None for all; the plain one first on request."""
    if count >= num_views:
        return None
    uniform = draws.uniform("views", num_views)
    if plain_first:
        uniform[:, 0] = -1.0
    return uniform.argsort(1)[:, :count]
