"""The views on a run's page: sample images through each of them, and how well the model recognises them."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sla.errors import shown
from sla.images.store import Dataset
from sla.labels import join_labels
from sla.report.charts import Strip
from sla.sampling.loader import EvalLoader
from sla.stats import Interval
from sla.tasks.classifier.run import Run

SAMPLES = 4  # images shown through every view


def view_accuracy(result: dict[str, Any]) -> dict[str, Any] | None:
    """How often the network recognises the view of an image: a row for all views together and for each.

    From a run's result.json; None for methods that do not predict views, or if it is damaged.
    """
    found: Any = result.get("view_accuracy")
    try:
        rows = {"all views": [found["accuracy"], *found["interval"]], **found["by_view"]}
        return {
            "rows": [Strip(shown(str(name)), (), Interval(*map(float, one))) for name, one in rows.items()],
            "chance": float(found["chance"]),
            "images": int(found["images"]),
            "split": {"val": "held-out", "test": "test"}[found["on"]],
            "advice": shown(str(found["advice"])),
        }
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


@torch.inference_mode()
def view_samples(
    run: Run, dataset: Dataset, classes: Sequence[str]
) -> list[tuple[str, list[Tensor], list[str]]]:
    """A few images of different classes as the model sees them: (class, images by view, captions)."""
    first = sorted({int(c): place for place, c in reversed(list(enumerate(dataset.targets)))}.values())
    (batch,) = EvalLoader(dataset.subset(first[:SAMPLES]), SAMPLES)
    views, preprocessing = run.model.method.views, run.preprocessing
    mean, std = (torch.tensor(v).view(-1, 1, 1) for v in (preprocessing.mean, preprocessing.std))
    seen = views.stack(run.pipeline(batch.images, batch.draws, batch.aspect))
    pixels = (255 * (seen * std + mean)).round().clamp(0, 255).to(torch.uint8)
    captions = [list(views.names)] * len(pixels)
    if "joint" in run.model.heads:
        labels = join_labels(batch.targets, len(views)).view(len(pixels), -1).tolist()
        captions = [[f"label {label}" for label in line] for line in labels]
    names = [classes[c] for c in batch.targets.tolist()]
    return [(*row,) for row in zip(names, map(list, pixels), captions, strict=True)]
