"""Finding label errors: by cross-validated frozen features, or by a run on images it was not trained on."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sla.backbones import PRETRAINED, find_weights
from sla.datasets.entry import SPLIT_NAMES
from sla.datasets.objects import source_name
from sla.errors import InputError, shown
from sla.extras import install_command
from sla.images.content import dataset_keys, key_kind
from sla.images.store import Dataset, Splits
from sla.progress import QUIET, Progress
from sla.runs.metrics import cautious_temperature
from sla.runs.preprocessing import enlarged
from sla.runs.scores import ROWS
from sla.tasks.classifier.features import read_cross_validated
from sla.tasks.classifier.frozen import embed, open_pretrained
from sla.tasks.classifier.label_doubts import Judged, LabelCheck
from sla.tasks.classifier.linear_fit import cross_validate, reduce
from sla.tasks.classifier.run import Run
from sla.tasks.classifier.split import same_classes


def stored_size() -> int:
    """Pixels per side at which `check_by_features` wants pictures; refused where it cannot work."""
    weights = find_weights(PRETRAINED)
    if weights is None or not weights.available:
        raise InputError(
            f"checking labels needs the features of a pretrained network: {install_command('pretrained')}; "
            "or a run that has held these pictures out: --run RUN"
        )
    return enlarged(weights.input.resolution)


def check_by_features(splits: Splits, progress: Progress = QUIET) -> LabelCheck:
    """Judge every picture of every split by a classifier on frozen features of the other pictures.

    A class with a single picture is not judged: without that picture nothing is known of it.
    """
    stored_size()
    model, preprocessing = open_pretrained()
    parts = _parts(splits)
    classes = tuple(dict.fromkeys(name for part in parts.values() for name in part.classes))
    parts = {name: same_classes(part, classes) for name, part in parts.items()}
    pipeline, what = preprocessing.eval_pipeline(), "features of pictures"
    found = [embed(model, part, pipeline, progress=progress, what=what) for part in parts.values()]
    targets = torch.from_numpy(np.concatenate([part.targets for part in parts.values()]))
    held, logits = held_out_logits(torch.cat(found), targets, len(classes), progress)
    if not held.any():
        raise InputError(f"{shown(source_name(splits))}: no class has two pictures to compare")
    judged, start, row = [], 0, 0
    for name, part in parts.items():
        own = held[start : start + len(part)]
        count = int(own.sum())
        some = part.subset(own.nonzero().squeeze(1).numpy())
        judged.append(Judged(name, some, logits[row : row + count]))
        start, row = start + len(part), row + count
    alone = len(targets) - row
    notes = (f"{alone:,} pictures are not judged: each is the only one of its class",) if alone else ()
    return LabelCheck(classes, judged, f"frozen features of {PRETRAINED}, cross-validated", notes)


def held_out_logits(
    features: Tensor, targets: Tensor, num_classes: int, progress: Progress = QUIET
) -> tuple[Tensor, Tensor]:
    """Which of these images (n, D) could be held out, bool (n,), and their calibrated logits (held, N).

    By the classifier of `linear_fit` on features at length 1, of images in other folds.
    """
    unit = F.normalize(features.double(), dim=1).unsqueeze(1)
    found = cross_validate(reduce(unit), targets, num_classes, progress=progress, every=True)
    if not len(found.logits):
        return found.held, found.logits
    several = targets.bincount(minlength=num_classes)[targets] > 1
    logits, wanted = found.logits[several[found.held]], targets[found.held & several]
    return found.held & several, logits / cautious_temperature(logits, wanted)


def check_by_run(
    run: Run, splits: Splits, progress: Progress = QUIET, *, evaluate: bool = True
) -> LabelCheck:
    """Judge pictures by the answers of a run that has not learnt from them.

    Of pictures that it trained on these are the quick model's, when they were held out in turn; of others
    the run's own: those kept beside its checkpoint, and, to `evaluate`, new ones. Where nothing is evaluated,
    images that would have to be decoded to be recognised are left out too.
    """
    if evaluate and run.record is None:
        raise InputError(f"{shown(run.folder)}: has no record of its images: which it trained on is unknown")
    judged, left = [], 0
    for split, part in _parts(splits).items():
        if not evaluate and key_kind(part) == "file":
            continue
        dataset = same_classes(part, run.classes)
        places, logits = _kept_logits(run, dataset, progress)
        if evaluate and len(places) < len(dataset) and run.record is not None:
            keys = dataset_keys(dataset, progress, run.record.by)
            unseen = np.setdiff1d(np.flatnonzero(~run.record.trained_on(keys)), places)
            if len(unseen):
                new = _new_logits(run, dataset.subset(unseen), progress)
                order = np.argsort(both := np.concatenate([places, unseen]))
                places, logits = both[order], torch.cat([logits, new])[order]
        left += len(dataset) - len(places)
        if len(places):
            judged.append(Judged(split, dataset.subset(places), logits))
    name = shown(run.folder)
    if evaluate and not judged:
        raise InputError(f"{name}: learnt from the labels of all these pictures, so it cannot judge them")
    notes = (f"{left:,} pictures are not judged: {name} learnt from their labels",) if left else ()
    return LabelCheck(tuple(run.classes), judged, f"the run {name}", notes)


def _parts(splits: Splits) -> dict[str, Dataset]:
    found = {name: getattr(splits, name) for name in SPLIT_NAMES}
    return {name: part for name, part in found.items() if part is not None and len(part)}


def _kept_logits(run: Run, dataset: Dataset, progress: Progress) -> tuple[np.ndarray, Tensor]:
    """The places (m,) of images that the files beside the checkpoints know, and calibrated logits (m, N)."""
    keys, inference = dataset_keys(dataset, progress), run.headline
    parts = list[tuple[np.ndarray, np.ndarray, Tensor, float]]()  # which of these places, logits, temperature
    trained = np.zeros(len(dataset), bool)
    if run.record is not None:
        same = keys if run.record.by == "pixels" else dataset_keys(dataset, progress, run.record.by)
        trained = run.record.trained_on(same)
    for split in ("val", "test"):
        kept = run.kept_scores(split, (inference,))
        if kept is not None and inference in kept.logits:
            places, found = kept.find(keys)
            parts.append((~trained[places], places, found[inference], run.temperatures.get(inference, 1.0)))
    quick = read_cross_validated(run.folder)
    if quick is not None:
        places, found = quick.find(keys)
        temperature = run.result.get("cross_validation", {}).get("temperature", 1.0)
        parts.append((trained[places], places, found["single"], temperature))
    known = np.unique(np.concatenate([np.empty(0, np.int64), *(one[1][one[0]] for one in parts)]))
    result = torch.empty(len(known), len(run.classes))
    for chosen, places, logits, temperature in parts:
        rows = np.flatnonzero(chosen)
        for some in np.split(rows, range(ROWS, len(rows), ROWS)):  # a copy of all of them may be large
            result[np.searchsorted(known, places[some])] = logits[some] / temperature
    return known, result


def _new_logits(run: Run, dataset: Dataset, progress: Progress) -> Tensor:
    inference = run.headline
    outputs = run.evaluate(dataset, progress, inferences=(inference,))
    return outputs.logits[inference] / run.temperatures.get(inference, 1.0)
