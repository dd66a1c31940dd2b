"""Several runs as one classifier: the mean of their class logits on the same images."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from sla.data.files import Tick
from sla.data.hold import OnBadImage
from sla.data.store import Dataset
from sla.errors import InputError, shown
from sla.inference import check_how
from sla.training.evaluation import Outputs
from sla.training.run import Run


def evaluate_ensemble(
    runs: Sequence[Run],
    data: str | Path | None = None,
    how: str | None = None,
    tick: Tick | None = None,
    on_bad_image: OnBadImage | None = None,
    **options: Any,
) -> Outputs:
    """Class logits of the runs together, by one kind of inference for all or by each one's headline.

    The images are the test images of the first run's data, or those of `data`; each run reads them as it
    was trained to.
    """
    if len(runs) < 2:
        raise InputError("an ensemble needs at least two runs")
    first = runs[0]
    if len({run.folder.resolve() for run in runs}) < len(runs):
        raise InputError("an ensemble has each run once: the same folder is named twice")
    for run in runs:
        if set(run.classes) != set(first.classes):
            raise InputError(f"{shown(run.folder)} knows other classes than {shown(first.folder)}")
        if data is None and run.config.data.source != first.config.data.source:
            raise InputError(
                f"{shown(run.folder)} has other data than {shown(first.folder)}: say which to use"
            )
        check_how(how or run.model.method.headline, run.model.method.kinds)
    total, targets = torch.zeros(()), torch.zeros(())
    dataset: Dataset | None = None
    for number, run in enumerate(runs):
        if dataset is None or run.config.data.stored_size != runs[number - 1].config.data.stored_size:
            dataset = run.dataset(data, on_bad_image)
        kind = how or run.model.method.headline

        def advance(done: int, count: int, before: int = number) -> None:
            if tick is not None:
                tick(before * count + done, len(runs) * count)

        outputs = run.evaluate(dataset, advance, kinds=(kind,), **options)
        total = total + outputs.logits[kind][:, [run.classes.index(name) for name in first.classes]]
        targets = outputs.targets if run is first else targets
    return Outputs({"ensemble": total / len(runs)}, targets)
