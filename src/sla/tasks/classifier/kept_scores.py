"""A model's outputs from the scores that its run kept beside the checkpoint."""

from collections.abc import Sequence
from pathlib import Path

import torch

from sla.images.content import dataset_keys
from sla.images.store import Dataset
from sla.progress import Progress
from sla.runs.scores import Scores, read_scores, scores_file
from sla.tasks.classifier.evaluation import Outputs


def read_kept(
    checkpoints: Sequence[Path], split: str, inferences: Sequence[str] | None = None
) -> Scores | None:
    """The scores of a split in the first of these folders that has them; all, or of these inferences."""
    found = (read_scores(scores_file(folder, split), inferences) for folder in checkpoints)
    return next((scores for scores in found if scores is not None), None)


def find_outputs(
    kept: Sequence[Scores | None],
    dataset: Dataset,
    inferences: Sequence[str],
    progress: Progress,
) -> Outputs | None:
    """These kinds of inference on a dataset; None where no scores have them for all its images."""
    there = [scores for scores in kept if scores is not None and set(inferences) <= set(scores.logits)]
    if not there:
        return None
    keys = dataset_keys(dataset, progress)
    for scores in there:
        logits = scores.of(keys)
        if logits is not None:
            chosen = {name: logits[name] for name in inferences}
            return Outputs(chosen, torch.as_tensor(dataset.targets), keys)
    return None
