"""Features of a whole dataset by a network that is not trained: every picture goes through it once."""

from typing import Any

import torch
from torch import Tensor

from sla.accelerate import Engine
from sla.augment.ops import Pipeline
from sla.augment.preprocessing import Preprocessing
from sla.backbones import PRETRAINED, find_weights
from sla.classifier import Classifier
from sla.factory import create
from sla.images.store import Dataset
from sla.methods import Features
from sla.runs.evaluation import iterate_eval
from sla.runs.preprocessing import published_preprocessing


def open_pretrained() -> tuple[Classifier, Preprocessing]:
    """A backbone with its published weights, and what pictures go through before it; its head is unused."""
    weights = find_weights(PRETRAINED)
    assert weights is not None
    model = create(PRETRAINED, 2, Features(), pretrained=True).eval()
    return model, published_preprocessing(weights)


@torch.inference_mode()
def embed(
    model: Classifier, dataset: Dataset, pipeline: Pipeline, *, fast: bool = True, **passing: Any
) -> Tensor:
    """Features (n, D) of unchanged images, on the CPU; `fast`: by the fastest copy of the model.

    `passing`: batch_size, workers, progress and what, as `iterate_eval` has them.
    """
    found, engine = [torch.zeros(0, model.num_features)], Engine(model, len(dataset), fast)
    for batch in iterate_eval(model, dataset, **passing):
        images = pipeline(batch.images, batch.draws, batch.aspect)
        with engine.on(images) as used:
            found.append(used.features(images).float().cpu())
    return torch.cat(found)
