"""The checkpoints of a classifier's run: what held-out images choose of each, and its scores."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sla.anytime import AnytimeRule
from sla.augment.ops import Pipeline
from sla.classifier import Classifier
from sla.factory import load
from sla.images.store import Dataset
from sla.methods import Features
from sla.progress import Progress
from sla.runs.defaults import TINY
from sla.runs.metrics import cautious_temperature, temperature_interval
from sla.runs.preprocessing import read_preprocessing
from sla.runs.scores import Scores, scores_file, write_scores
from sla.tasks.classifier.anytime import find_rules, rule_at
from sla.tasks.classifier.config import FEATURES
from sla.tasks.classifier.evaluation import Outputs, infer
from sla.tasks.classifier.frozen import embed
from sla.tasks.classifier.trainer import Trainer
from sla.tasks.classifier.unlike import (
    FEWEST,
    calibrate_unlike,
    class_means,
    reference_images,
    write_unlike,
)


class JudgedCheckpoint(NamedTuple):
    """A checkpoint, and what was chosen of it on held-out images: test images have not been seen yet."""

    checkpoint: str
    weights: Path
    model: Classifier  # with its rule for anytime inference
    temperatures: dict[str, float]
    intervals: dict[str, Sequence[float]]  # 95%, of the temperatures
    anytime: list[AnytimeRule]
    scores: dict[str, dict[str, float]] | None  # of held-out images, by kind of inference
    held_out: Outputs | None  # of these, where they are needed later: they may be large


class Judge:
    """Evaluates the checkpoints of a run, each with the answers of the teacher beside its own.

    `keeps`: what was answered on held-out images is needed later.
    """

    def __init__(self, trainer: Trainer, progress: Progress, keeps: bool) -> None:
        self.trainer, self.plan, self.progress, self.keeps = trainer, trainer.plan, progress, keeps
        self.taught: dict[str, dict[str, Tensor]] = {}  # what the teacher answers, by split

    def judge(self, checkpoint: str, weights: Path) -> JudgedCheckpoint:
        """Temperatures and rules of a checkpoint, from the held-out images."""
        model = load(weights, self.trainer.device)
        fitted = model.about.get("cross_validation", {})  # on more images than were held out
        temperatures, intervals = _cross_validated_temperature(model.method.headline, fitted)
        if self.plan.val is None:
            return JudgedCheckpoint(checkpoint, weights, model, temperatures, intervals, [], None, None)
        means = self._class_means(model)
        outputs = self._outputs(checkpoint, model, "val", self.plan.val, by_view=True, means=means)
        rules = find_rules(outputs)
        model.anytime_rule = rule_at(rules)
        if model.anytime_rule is not None:
            outputs = outputs.add_anytime(model.anytime_rule)
            if "anytime" not in outputs.logits:  # so many images that not all kept the logits of each view
                what = f"{checkpoint} checkpoint on val"
                more = self._infer(model, self.plan.val, _pipeline(model), what, inferences=("anytime",))
                outputs = replace(outputs, logits=outputs.logits | more.logits, views=more.views)
        if outputs.distances is not None and means is not None:
            rule = calibrate_unlike(means, outputs.distances)
            assert rule is not None
            write_unlike(weights.parent, rule)
        if "temperature" not in fitted:
            temperatures = {
                inference: cautious_temperature(logits, outputs.targets)
                for inference, logits in outputs.logits.items()
            }
            intervals = {
                inference: temperature_interval(outputs.logits[inference], outputs.targets, value)
                for inference, value in temperatures.items()
            }
        scores = self._score(outputs, temperatures, scores_file(weights.parent, "val"))
        kept = outputs if self.keeps else None
        return JudgedCheckpoint(checkpoint, weights, model, temperatures, intervals, rules, scores, kept)

    def test(self, judged: JudgedCheckpoint) -> dict[str, dict[str, dict[str, float]]]:
        """Scores by split and kind of inference, with those of the test images."""
        found = {} if judged.scores is None else {"val": judged.scores}
        if self.plan.test is None:
            return found
        outputs = self._outputs(judged.checkpoint, judged.model, "test", self.plan.test)
        file = scores_file(judged.weights.parent, "test")
        return found | {"test": self._score(outputs, judged.temperatures, file)}

    def _score(
        self, outputs: Outputs, temperatures: dict[str, float], file: Path
    ) -> dict[str, dict[str, float]]:
        """Scores by kind of inference; the logits are written beside the weights."""
        found = outputs.scores(temperatures)
        if self.trainer.old_classes:
            groups = outputs.group_scores(self.trainer.old_classes)
            found = {inference: one | groups[inference] for inference, one in found.items()}
        assert outputs.keys is not None
        write_scores(file, Scores(outputs.logits, outputs.keys))
        return found

    def _outputs(
        self, checkpoint: str, model: Classifier, split: str, dataset: Dataset, **options: Any
    ) -> Outputs:
        """What a checkpoint answers on a split, its teacher's answers beside."""
        outputs = self._infer(
            model, dataset, _pipeline(model), f"{checkpoint} checkpoint on {split}", **options
        )
        teacher = self.trainer.teacher
        if teacher is not None and checkpoint != FEATURES:
            if split not in self.taught:
                answers = self._infer(teacher, dataset, self.trainer.eval_pipeline, "teacher")
                self.taught[split] = answers.logits
            # "distilled" is the student, also where its teacher has one of its own.
            outputs = replace(outputs, logits=self.taught[split] | outputs.logits)
        return outputs

    def _infer(
        self, model: Classifier, dataset: Dataset, pipeline: Pipeline, what: str, **options: Any
    ) -> Outputs:
        return infer(model, dataset, pipeline, fast=is_slow(self.trainer), **self._passing(what), **options)

    def _passing(self, what: str) -> dict[str, Any]:
        """How a dataset goes through a model; `what` is the name of the pass."""
        return {"workers": self.trainer.config.data.workers or 0, "progress": self.progress, "what": what}

    def _class_means(self, model: Classifier) -> Tensor | None:
        """Class means of features of training images, where held-out ones can calibrate the unlike rule.

        None of a quick model, which has its rule from all its training images, and where a class has none.
        """
        val, train = self.plan.val, self.plan.train
        if val is None or len(val) < FEWEST or isinstance(model.method, Features):
            return None
        if not train.counts().all():
            return None
        some = reference_images(train)
        features = embed(model, some, _pipeline(model), **self._passing("features of training images"))
        return class_means(features, torch.from_numpy(some.targets), model.num_classes)


def is_slow(trainer: Trainer) -> bool:
    """Whether passes take so long that the fastest copy of the model makes them: those over photographs."""
    return (trainer.config.model.resolution or 0) > TINY


def _pipeline(model: Classifier) -> Pipeline:
    return read_preprocessing(model.about).eval_pipeline()


def _cross_validated_temperature(
    headline: str, fitted: dict[str, Any]
) -> tuple[dict[str, float], dict[str, Sequence[float]]]:
    """The quick model's temperature, and its interval, by kind of inference; nothing of another model."""
    temperatures = {headline: fitted["temperature"]} if "temperature" in fitted else {}
    return temperatures, {headline: ends} if (ends := fitted.get("temperature_interval")) else {}
