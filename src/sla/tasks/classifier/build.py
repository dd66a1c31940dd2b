"""From a resolved configuration to a classifier and its method."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sla.classifier import Classifier
from sla.errors import InputError
from sla.factory import create
from sla.methods import METHODS, Method, create_method, method_options
from sla.plugins import is_passed
from sla.runs.weights import load_backbone
from sla.sampling.draws import Draws
from sla.tasks.classifier.config import ClassifierConfig
from sla.tasks.classifier.imbalance import build_criterion
from sla.views import parse_views

OWN = "own"  # model.weights: those that a module passed from Python has, worth keeping


def build_method(config: ClassifierConfig, counts: Sequence[int] | np.ndarray | None = None) -> Method:
    """The method with its views and its criterion; `counts` (N,) are the training images of each class."""
    part = config.method
    return plan_method(config, criterion=build_criterion(part, counts), head=part.head or "linear")


def plan_method(config: ClassifierConfig, **settings: Any) -> Method:
    """The method with its views and options; its criterion is cross entropy by default, enough for a plan."""
    part = config.method
    if part.name not in METHODS:
        options = part.options
    elif part.options:
        raise InputError(
            f"method.options are for methods of your own; those of {part.name} are keys, as in --set "
            "method.beta=0.5"
        )
    else:
        options = {name: getattr(part, name) for name in method_options(METHODS[part.name].make)}
    return create_method(part.name, parse_views(part.views), **options | settings)


def build_model(
    config: ClassifierConfig,
    classes: tuple[str, ...],
    counts: Sequence[int] | np.ndarray | None = None,
    first: bool = True,
) -> Classifier:
    """A new classifier, its random weights from the seed, its first weights where they are asked for.

    Not `first`: it resumes from a checkpoint and needs none.
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
    if weights == OWN and not is_passed(config.model.backbone):
        raise InputError(f"model.weights={OWN} is for a module that is passed from Python; this is a name")
    if weights not in ("none", "pretrained", OWN):
        load_backbone(model.backbone, weights)
    return model


def draw_views(draws: Draws, num_views: int, count: int, plain_first: bool) -> Tensor | None:
    """`count` different views for each image, (b, count), or None for all; the plain one first on request."""
    if count >= num_views:
        return None
    uniform = draws.uniform("views", num_views)
    if plain_first:
        uniform[:, 0] = -1.0
    return uniform.argsort(1)[:, :count]
