"""From a resolved configuration to a classifier and its method."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from sla.classifier import Classifier
from sla.errors import InputError
from sla.factory import create
from sla.methods import METHODS, Method, create_method, method_options
from sla.plugins import is_passed
from sla.runs.weights import OWN, with_first_weights
from sla.sampling.draws import Draws
from sla.tasks.classifier.config import ClassifierConfig
from sla.tasks.classifier.imbalance import build_criterion
from sla.views import parse_views


def plan_method(config: ClassifierConfig, **settings: Any) -> Method:
    """The method with its views and options; its criterion is cross entropy by default, enough for a plan."""
    part = config.method
    if part.name not in METHODS:
        options = {} if is_passed(part.name) else part.options  # a passed one has its options
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
    counts: Sequence[int] | np.ndarray,
    first: bool = True,
) -> Classifier:
    """A new classifier; see `with_first_weights`. `counts` (N,) are the training images of each class."""

    def build(pretrained: bool) -> Classifier:
        options = dict(config.model.options) | ({"pretrained": True} if pretrained else {})
        criterion, head = build_criterion(config.method, counts), config.method.head or "linear"
        method = plan_method(config, criterion=criterion, head=head)
        return create(config.model.backbone or "", len(classes), method, **options)

    if config.model.weights == OWN and not is_passed(config.model.backbone or ""):
        raise InputError(f"model.weights={OWN} is for a module that is passed from Python; this is a name")
    model = with_first_weights(build, config, first)
    model.class_names = list(classes)
    return model


def draw_views(draws: Draws, num_views: int, count: int, plain_first: bool) -> Tensor | None:
    """`count` different views for each image, (b, count), or None for all; the plain one first on request."""
    if count >= num_views:
        return None
    uniform = draws.uniform("views", num_views)
    if plain_first:
        uniform[:, 0] = -1.0
    return uniform.argsort(1)[:, :count]
