"""The optimiser of a run, with the groups that its configuration asks for."""

import torch
from torch import nn

from sla.runs.config import OptimizerConfig


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
