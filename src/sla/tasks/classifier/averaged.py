"""The quick and the trained model in one: the average of their weights, at the cost of one pass."""

import shutil
from pathlib import Path

import torch

from sla.classifier import Classifier
from sla.factory import load, save
from sla.runs.checkpoint import WEIGHTS, save_checkpoint
from sla.tasks.classifier.config import AVERAGED
from sla.tasks.classifier.features import start_heads
from sla.tasks.classifier.trainer import Trainer

SHARE = 0.75  # of the trained model: docs/photographs.md


def average_with_quick(trainer: Trainer, quick: Classifier, trained: Path) -> Path | None:
    """The weights (1 - a) start + a trained of a run after its quick model, as a checkpoint; its file.

    The start is what training began with: the backbone of the quick model, and its head in every class head.
    None where a class head did not begin so. (Wortsman et al., Robust fine-tuning of zero-shot models, 2022.)
    """
    last, start = load(trained, trainer.device), load(trained, trainer.device)
    start.backbone.load_state_dict(quick.backbone.state_dict())
    if not start_heads(trainer, start, quick):
        return None
    first = start.state_dict()
    mean = {
        name: torch.lerp(first[name], value, SHARE) if value.is_floating_point() else value
        for name, value in last.state_dict().items()
    }
    last.load_state_dict(mean)

    def write(path: Path) -> None:
        save(last, path, **last.about)

    # Written anew whenever a result is made: one that is there may be damaged.
    for old in (trainer.folder / "checkpoint").glob(f"{AVERAGED}-*"):
        shutil.rmtree(old)
    return save_checkpoint(trainer.folder / "checkpoint", AVERAGED, trainer.position, write, {}) / WEIGHTS
