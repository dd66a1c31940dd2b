"""A few labelled pictures of each of a few things, then the next one."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from sla.datasets.scan import open_index
from sla.errors import InputError, SLAWarning, listed, shown
from sla.images.files import FileImages, readable_rows
from sla.images.storage import OnBadImage
from sla.images.store import Dataset
from sla.progress import QUIET, Progress
from sla.runs.evaluation import evaluating
from sla.runs.metrics import cautious_temperature
from sla.runs.preprocessing import file_images
from sla.tasks.fewshot.evaluate import embed
from sla.tasks.fewshot.model import FewShotModel


class Support(NamedTuple):
    """A model adapted to a support folder: what `classify_files` compares pictures with."""

    features: Tensor  # (S, M, D)
    targets: Tensor  # int64 (S,)
    classes: tuple[str, ...]
    temperature: float
    checked: tuple[int, int] | None  # right and all, of the support pictures held out in turn


def adapt_to_folder(
    model: FewShotModel, folder: str | Path, on_bad_image: OnBadImage = "refuse", progress: Progress = QUIET
) -> Support:
    """Learn the classes of a folder `<class>/*.jpg`; pictures held out in turn set the temperature."""
    path = Path(folder).expanduser()
    if not path.is_dir():
        raise InputError(f"{shown(path)}: no such folder; --support has one folder for each class")
    index = open_index(path)
    files, labels = file_images(model.preprocessing, index.paths[:]), index.targets
    if on_bad_image == "skip":
        rows = readable_rows(files)
        files, labels = file_images(model.preprocessing, [files.name(row) for row in rows]), labels[rows]
    counts = np.bincount(labels, minlength=len(index.classes))
    if not counts.all():
        name = shown(index.classes[int(counts.argmin())])
        raise InputError(f"{shown(path)}: class {name!r} has no picture that can be read")
    if counts.min() < counts.max():
        each = listed([f"{shown(name)} {count}" for name, count in zip(index.classes, counts, strict=True)])
        more = "classes with more pictures are known better"
        warnings.warn(f"{shown(path)}: unequal shots: {each}; {more}", SLAWarning)
    features, targets = _features(model, files, progress, "support"), torch.from_numpy(labels)
    logits, wanted = hold_out_in_turn(model, features, targets, len(index.classes))
    if not len(wanted):
        warnings.warn(f"{shown(path)}: one picture of each class: nothing to calibrate with", SLAWarning)
        return Support(features, targets, index.classes, 1.0, None)
    checked = int((logits.argmax(1) == wanted).sum()), len(wanted)
    return Support(features, targets, index.classes, cautious_temperature(logits, wanted), checked)


@torch.inference_mode()
def classify_files(
    model: FewShotModel, support: Support, files: Sequence[str | Path], progress: Progress = QUIET
) -> Tensor:
    """Probabilities (n, way) of image files, in their order."""
    query = _features(model, file_images(model.preprocessing, files), progress, "pictures")
    logits = _class_logits(model, support.features, support.targets, query, len(support.classes))
    return (logits / support.temperature).softmax(1)


@torch.inference_mode()
def hold_out_in_turn(
    model: FewShotModel, features: Tensor, targets: Tensor, way: int
) -> tuple[Tensor, Tensor]:
    """Class logits (n, way) and classes (n,) of support images, each judged by the others.

    One image of each class is held out at a time; a class of one image stays in the support set.
    """
    turn = torch.zeros_like(targets)
    for label in range(way):
        members = (targets == label).nonzero()[:, 0]
        turn[members] = torch.arange(len(members)) if len(members) > 1 else -1
    logits, wanted = [torch.zeros(0, way)], [targets[:0]]
    for number in range(int(turn.max()) + 1):
        held = turn == number
        logits.append(_class_logits(model, features[~held], targets[~held], features[held], way))
        wanted.append(targets[held])
    return torch.cat(logits), torch.cat(wanted)


def _class_logits(model: FewShotModel, support: Tensor, targets: Tensor, query: Tensor, way: int) -> Tensor:
    with evaluating(model):
        joint = model.joint_logits(support.unsqueeze(0), targets.unsqueeze(0), query.unsqueeze(0), way)
        return model.class_logits(joint)[model.inferences[-1]][0].cpu()


def _features(model: FewShotModel, files: FileImages, progress: Progress, what: str) -> Tensor:
    """(n, M, D), on the device of the model."""
    dataset = Dataset(files, np.zeros(len(files), np.int64), ("picture",))
    pipeline, device = model.preprocessing.eval_pipeline(), next(model.parameters()).device
    return embed(model, dataset, pipeline, batch_size=32, progress=progress, what=what).to(device)
