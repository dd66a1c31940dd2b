"""The numbers of a classifier's run that a table of results keeps, all in percent."""

from typing import Any

import torch

from sla.augment.ops import Pipeline
from sla.classifier import Classifier
from sla.images.store import Dataset
from sla.labels import join_labels
from sla.runs.evaluation import iterate_eval
from sla.runs.result import top1_scores
from sla.sampling.protocols import limited
from sla.tasks.classifier.plan import make_plan
from sla.tasks.classifier.run import Run

TRAIN_IMAGES = 5000  # of the training set, to compute the training accuracy


def record_run(run: Run) -> dict[str, Any]:
    """`scores`: test accuracies by checkpoint and inference; `more`:

    `val_*`, `ece_*`: held-out accuracy, and calibration error on test images, by inference;
    `old_*`, `new_*`: test accuracy on old and new classes of a run that has grown, by inference;
    `train`: right answers on clean training images, of the labels that the method learns;
    `gained`, `lost`: test images that only the average over views gets right, or only the plain image.
    """
    accuracies = run.result["accuracies"]
    last, data = accuracies["last"], run.splits or make_plan(run.config)
    tested = {name: top1_scores(found["test"]) for name, found in accuracies.items() if "test" in found}
    more = top1_scores(last.get("val", {}), "val_")
    more |= {f"ece_{inference}": found["ece"] for inference, found in last.get("test", {}).items()}
    for group in ("old", "new"):  # of a run that has grown
        found = last.get("test", {}).items()
        more |= {f"{group}_{inference}": scores[group] for inference, scores in found if group in scores}
    more["train"] = training_accuracy(run.model, some_training_images(data.train), run.pipeline)
    if data.test is not None and "aggregated" in run.model.method.inferences:
        outputs = run.outputs(data.test, ("single", "aggregated"))
        single, aggregated = (logits.argmax(1) == outputs.targets for logits in outputs.logits.values())
        more["gained"] = 100 * (aggregated & ~single).float().mean().item()
        more["lost"] = 100 * (single & ~aggregated).float().mean().item()
    return {"scores": tested, "more": more}


def some_training_images(train: Dataset) -> Dataset:
    """At most about TRAIN_IMAGES, as many of each class; all where there are no more."""
    if len(train) <= TRAIN_IMAGES:
        return train
    return limited(train, max(min(TRAIN_IMAGES // train.num_classes, int(train.counts().min())), 1))


@torch.inference_mode()
def training_accuracy(model: Classifier, dataset: Dataset, pipeline: Pipeline, **passing: Any) -> float:
    """Percent of (image, view) whose training label is the most likely; a joint one where it learns those.

    Over all views of the method; a network that fits its training set has 100.
    """
    method, count, right = model.method, len(model.method.views), 0
    for batch in iterate_eval(model, dataset, **passing):
        images = pipeline(batch.images, batch.draws, batch.aspect)
        logits = method.label_logits(model.heads, model.features(method.expand(images)))
        joint = logits.shape[1] > model.num_classes
        wanted = join_labels(batch.targets, count) if joint else batch.targets.repeat_interleave(count)
        right += int((logits.argmax(1) == wanted).sum())
    return 100 * right / (len(dataset) * count)
