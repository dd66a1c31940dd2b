"""A few-shot run opened again, or a pretrained backbone as it is: tested on episodes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sla.backbones import PRETRAINED, find_weights
from sla.datasets.class_splits import load_class_splits
from sla.errors import InputError, MissingExtraError
from sla.heads import check_device
from sla.images.store import Dataset
from sla.progress import QUIET, Progress
from sla.runs.defaults import same_source
from sla.runs.preprocessing import published_preprocessing
from sla.runs.run import OpenedRun, ScoreTable
from sla.tasks.fewshot.config import FewShotConfig
from sla.tasks.fewshot.evaluate import evaluate_episodes
from sla.tasks.fewshot.model import FewShotModel, build_model, load_model
from sla.tasks.fewshot.plan import load_splits, with_class_splits


class FewShotRun(OpenedRun[FewShotConfig, FewShotModel]):
    """A finished or stopped run with the model of a checkpoint: last, or best on the validation classes."""

    task = "fewshot"
    config_class = FewShotConfig

    def _load_model(self, path: Path, device: str) -> FewShotModel:
        return load_model(path, device)

    def score_table(self) -> ScoreTable:
        """A row for each checkpoint, shot and inference."""
        rows = [
            (f"{checkpoint}, {shot}-shot", inference, f"{scores['top1']:.2f} ± {scores['ci95']:.2f}")
            for checkpoint, found in self.result["accuracies"].items()
            for shot, tested in found["test"].items()
            for inference, scores in tested.items()
        ]
        return ScoreTable(("test classes", "inference", "accuracy %"), rows)

    def test_set(self, progress: Progress = QUIET) -> Dataset:
        """The run's own test classes."""
        given = with_class_splits(self.given, self.config) if self.given is not None else None
        test = (self.splits or given or load_splits(self.config, progress)).test
        if test is None:
            raise InputError(f"{self.folder}: its data has no test classes: name other data with --data")
        return test

    def evaluate(
        self, dataset: Dataset | None = None, progress: Progress = QUIET, **options: Any
    ) -> dict[int, dict[str, np.ndarray]]:
        """Accuracy in percent of each episode, by shot and inference, on the run's own test classes.

        `options` are those of `evaluate_episodes`.
        """
        self.warn_if_unfinished()
        dataset = dataset if dataset is not None else self.test_set(progress)
        options.setdefault("workers", self.config.data.workers)
        return evaluate_episodes(self.model, dataset, self.config.episodes, progress=progress, **options)


# On photographs of birds nothing was better with one shot and with five: results/fewshot_pretrained.csv. The
# options were not searched there: scales that make logits of unit features spread, where a temperature fits.
PRETRAINED_HEAD, PRETRAINED_VIEWS = "ridge", "none"
PRETRAINED_OPTIONS = {
    "protonet": {"scale": 10_000.0},
    "ridge": {"regularization": 0.1, "scale": 10.0},
    "r2d2": {"regularization": 0.1, "scale": 10.0},
    "svm": {"scale": 100.0},
}


class Pretrained:
    """A backbone with published weights and no training: its features at length 1, compared by a head."""

    def __init__(self, backbone: str, head: str, views: str, device: str = "cpu") -> None:
        check_device(device)
        self.name, self.config = backbone, FewShotConfig()
        about: dict[str, Any] = {"backbone": backbone, "backbone_options": {}, "views": views}
        about |= {"head": head, "head_options": PRETRAINED_OPTIONS.get(head, {}), "reading": "unit"}
        self.model = build_model(about, pretrained=True).eval()
        self.model = self.model.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        weights = find_weights(backbone)
        if weights is None:
            raise InputError(f"{backbone}: no weights are published with it here; {PRETRAINED} has")
        self.model.about["preprocessing"] = published_preprocessing(weights).to_dict()

    def test_set(self, progress: Progress = QUIET) -> Dataset:
        """There is none of its own."""
        raise InputError(f"{self.name}: a pretrained backbone has no data of its own: name some by --data")


Tested = FewShotRun | Pretrained


def open_tested(
    name: str, checkpoint: str = "last", head: str | None = None, views: str | None = None
) -> Tested:
    """A run by its folder, or a pretrained backbone by its name, with head and views of your choice."""
    if Path(name).is_dir():
        if head or views:
            raise InputError(f"{name}: a run has its own method and views; they are for pretrained backbones")
        run = FewShotRun(name, checkpoint)
        run.warn_if_unfinished()
        return run
    if "/" in name or "\\" in name:
        raise InputError(f"{name}: no such run")
    try:
        return Pretrained(name, head or PRETRAINED_HEAD, views or PRETRAINED_VIEWS)
    except MissingExtraError:
        raise
    except InputError as error:
        raise InputError(f"{name}: not the folder of a run; as a pretrained backbone: {error}") from None


def other_test_set(tested: Tested, data: str, seen: Sequence[Tested], progress: Progress = QUIET) -> Dataset:
    """The test part of other data, read as this model's images are; all classes where it has none.

    Of data that runs of `seen` learnt from, the classes that they were not shown.
    """
    own = tested.config.data
    learnt = [one.config for one in seen if same_source(one.config.data.source, data)]
    parts = {(config.episodes.way, config.data.split_seed) for config in learnt}
    if len(parts) > 1:
        raise InputError(f"{data}: these runs learnt from different classes of it: name data new to both")
    way, seed = parts.pop() if parts else (None, 0)
    options = {"size": tested.model.preprocessing.stored_size, "on_bad_image": own.on_bad_image}
    splits = load_class_splits(data, way, seed=seed, root=own.root, progress=progress, **options)
    return splits.test or splits.train
