"""How well a model fits the images it was trained on."""

from typing import Any

import torch

from sla.augment.ops import Pipeline
from sla.classifier import Classifier
from sla.images.store import Dataset
from sla.labels import join_labels
from sla.runs.evaluation import iterate_eval


@torch.inference_mode()
def training_accuracy(model: Classifier, dataset: Dataset, pipeline: Pipeline, **passing: Any) -> float:
    """Percent of (image, view) whose training label is the most likely: a joint one if the model has those.

    Over all views of the method; a network that fits its training set has 100.
    """
    method, right = model.method, 0
    head = model.heads["joint"] if "joint" in model.heads else model.heads["plain"]
    for batch in iterate_eval(model, dataset, **passing):
        images = pipeline(batch.images, batch.draws, batch.aspect)
        found = head(model.features(method.expand(images))).argmax(1)
        wanted = batch.targets.repeat_interleave(len(method.views))
        if "joint" in model.heads:
            wanted = join_labels(batch.targets, len(method.views))
        right += int((found == wanted).sum())
    return 100 * right / (len(dataset) * len(method.views))
