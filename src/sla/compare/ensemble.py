"""Several runs as one classifier: the mean of their class logits on the same images."""

import warnings
from collections.abc import Sequence
from typing import Any

import torch

from sla.compare.shared_images import SharedImages, check_labels
from sla.errors import InputError, SLAWarning
from sla.images.storage import OnBadImage
from sla.inference import check_inference
from sla.progress import QUIET, Progress
from sla.tasks.classifier.evaluation import Outputs
from sla.tasks.classifier.run import Run


def evaluate_ensemble(
    runs: Sequence[Run],
    data: Any = None,
    inference: str | None = None,
    *,
    on_bad_image: OnBadImage | None = None,
    progress: Progress = QUIET,
    **options: Any,
) -> Outputs:
    """Class logits of the runs together, by one inference for all or by each one's headline.

    On images of the first run's data that no run has seen, or on those of `data`; each run reads them as it
    was trained to.
    """
    first = runs[0]
    if len(runs) < 2:
        raise InputError("an ensemble needs at least two runs")
    if len({run.folder.resolve() for run in runs}) < len(runs):
        raise InputError("an ensemble has each run once: the same folder is named twice")
    for run in runs:
        check_labels(first, run)
        check_inference(inference or run.headline, run.model.inferences)
    shared = SharedImages(runs, data, on_bad_image, progress)
    if shared.notes:
        warnings.warn(" ".join(shared.notes), SLAWarning)
    total, targets = torch.zeros(()), torch.zeros(())
    for number, run in enumerate(runs):
        own = inference or run.headline
        passes = _OneOf(progress, number, len(runs))
        outputs = run.evaluate(shared.of[run], passes, inferences=(own,), **options)
        places = {name: place for place, name in enumerate(run.classes)}
        total = total + outputs.logits[own][:, [places[name] for name in first.classes]]
        targets = outputs.targets if run is first else targets
    return Outputs({"ensemble": total / len(runs)}, targets)


class _OneOf(Progress):
    """The pass of one run, as a part of the pass of all runs."""

    def __init__(self, inner: Progress, number: int, count: int) -> None:
        self.inner, self.number, self.count = inner, number, count

    def advance(self, what: str, done: int, total: int | None) -> None:
        images = total or 0
        self.inner.advance("evaluating all runs", self.number * images + done, self.count * images)
