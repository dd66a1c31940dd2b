"""A classifier's run, opened: it predicts, evaluates and exports."""

import warnings
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from sla.anytime import AGREEMENT, AnytimeRule
from sla.augment.flips import FLIPS, flip_pipelines, makes_mirror_images
from sla.augment.ops import Pipeline
from sla.augment.preprocessing import Preprocessing
from sla.augment.ten_crop import ten_crop_pipelines
from sla.classifier import Classifier, Prediction
from sla.datasets.objects import source_name
from sla.errors import InputError, SLAWarning, shown
from sla.export import Exported, export_onnx
from sla.factory import load as load_classifier
from sla.images.files import FileImages
from sla.images.storage import OnBadImage
from sla.images.store import Dataset, Splits
from sla.inference import check_inference
from sla.progress import QUIET, Progress
from sla.runs.checkpoint import find_checkpoint, step_of
from sla.runs.folder import MAIN_STAGE, find_model_file, last_checkpoint, read_result
from sla.runs.images_record import TRAIN, VAL
from sla.runs.metrics import at_limit
from sla.runs.preprocessing import build_train_pipeline, file_images, read_preprocessing
from sla.runs.run import CHOSEN, OpenedRun, ScoreTable
from sla.runs.scores import Scores
from sla.tasks.classifier.anytime import require_rule, rule_at, rules_of_images
from sla.tasks.classifier.choice import MODELS
from sla.tasks.classifier.config import AVERAGED, DISTIL, FEATURES, ClassifierConfig, student_steps
from sla.tasks.classifier.evaluation import Outputs, Prepare, infer, infer_averaged
from sla.tasks.classifier.features import features_steps
from sla.tasks.classifier.kept_scores import find_outputs, read_kept
from sla.tasks.classifier.predict import as_sequence, predict_images
from sla.tasks.classifier.result_check import check_result
from sla.tasks.classifier.score_table import make_table
from sla.tasks.classifier.split import load_data, same_classes
from sla.tasks.classifier.unlike import UnlikeRule, read_unlike
from sla.tasks.classifier.unseen_images import (
    FoundImages,
    find_by_number,
    find_held_out,
    find_named,
    find_own,
    place,
    unrecorded,
)


class Run(OpenedRun[ClassifierConfig, Classifier]):
    """A finished or stopped run with the model of a checkpoint.

    That is last, best on the held-out images, features (the quick model), averaged (the average of both), or
    by default what the result names as chosen, else last.
    """

    task = "classifier"
    config_class = ClassifierConfig

    def __init__(self, folder: str | Path, checkpoint: str = CHOSEN, device: str = "cpu") -> None:
        super().__init__(folder, checkpoint, device)
        check_result(self.result, self.folder)
        found = self.result.get("anytime", {}).get(self.checkpoint, [])
        self.anytime_rules = [AnytimeRule.from_dict(values) for values in found]
        self.model.anytime_rule = rule_at(self.anytime_rules)

    def __repr__(self) -> str:
        said = f"{shown(self.folder)}, {self.config.method.name}, {self.checkpoint}"
        found = self.result.get("accuracies", {}).get(self.checkpoint, {})
        for split in ("test", "val"):
            top1 = found.get(split, {}).get(self.headline, {}).get("top1")
            if top1 is not None:
                return f"<Run {said}: {top1:.1f}% on {split}, {self.headline}>"
        return f"<Run {said}{'' if self.is_finished else ', unfinished'}>"

    @property
    def stage(self) -> str:  # type: ignore[override]
        """The last one, whose model is the student, once it has begun; the first for the quick model."""
        if self.checkpoint == FEATURES:
            return FEATURES
        has_student = self.checkpoint != AVERAGED and last_checkpoint(self.folder, DISTIL) is not None
        return DISTIL if has_student else MAIN_STAGE

    @property
    def steps(self) -> int:
        """All steps of the stage whose model it has."""
        if self.record is not None and (self.stage == FEATURES or self.config.is_features):
            return features_steps(self.record.count(TRAIN))
        return student_steps(self.config) if self.stage == DISTIL else super().steps

    def choose_checkpoint(self) -> str:
        """What the result says; of a run that has only begun, what it has."""
        chosen = read_result(self.folder).get("chosen", {}).get("checkpoint")
        if chosen in (FEATURES, AVERAGED, "last", "best"):
            return str(chosen)
        quick_alone = last_checkpoint(self.folder, FEATURES) and not last_checkpoint(self.folder)
        return FEATURES if quick_alone else "last"

    @property
    def headline(self) -> str:
        """The inference that answers by default: as chosen on held-out images, else that of the method."""
        named = self.judged_inference(self.checkpoint)
        return named if named in self.model.inferences else self.model.method.headline

    def judged_inference(self, checkpoint: str) -> str | None:
        """The inference by which held-out images judged a checkpoint; None where nothing was chosen."""
        chosen = self.result.get("chosen", {})
        named = chosen.get("inferences", {}).get(checkpoint)
        return named or (chosen.get("inference") if chosen.get("checkpoint") == checkpoint else None)

    @cached_property
    def quick(self) -> "Run | None":
        """The quick model of this run, where another answers: by its features unlike images are found.

        Nothing in them was learnt from the training images. None where it has no rule for that.
        """
        if self.checkpoint == FEATURES or last_checkpoint(self.folder, FEATURES) is None:
            return None
        quick = Run(self.folder, FEATURES, str(next(self.model.parameters()).device))
        return quick if quick.unlike_rule is not None else None

    @cached_property
    def unlike_rule(self) -> UnlikeRule | None:
        """When an image is unlike all training images: by features of the quick model, or of this one."""
        return self.own_unlike_rule if self.quick is None else self.quick.unlike_rule

    @property
    def own_unlike_rule(self) -> UnlikeRule | None:
        """The rule by features of this model; None where too few images were held out."""
        rules = (read_unlike(folder) for folder in self._checkpoint_folders())
        return next((rule for rule in rules if rule is not None), None)

    @property
    def model_file(self) -> Path:
        """The file with the model of the checkpoint; `features` is the quick model of the first stage."""
        folder = self.folder
        if self.checkpoint == AVERAGED and find_checkpoint(folder / "checkpoint", AVERAGED) is None:
            raise InputError(
                f"{shown(folder)}: this run has no averaged checkpoint; --checkpoint last is the trained "
                "model, --checkpoint features the quick one, where there is one"
            )
        if self.checkpoint != FEATURES:
            return find_model_file(folder, self.checkpoint, self.stage)
        if last_checkpoint(folder, FEATURES) is None:
            raise InputError(f"{shown(folder)}: this run has no stage features")
        return find_model_file(folder, "last", FEATURES)

    def _checkpoint_folders(self) -> list[Path]:
        """The folders with this model: of a best that is also last, other files lie beside last alone."""
        own = self.model_file.parent
        return [own, *own.parent.glob(f"last-{step_of(own):08d}")]

    @cached_property
    def teacher(self) -> Classifier | None:
        """The model that this one was distilled from, if it was."""
        source = self.config.distil.teacher or (str(self.folder) if self.stage == DISTIL else None)
        if source is None:
            return None
        return load_classifier(find_model_file(Path(source), self.config.distil.checkpoint))

    def _load_model(self, path: Path, device: str) -> Classifier:
        return load_classifier(path, device)

    def score_table(self) -> ScoreTable:
        """A row for each checkpoint, split and inference."""
        student = self.config.is_distilled or self.config.has_stage(DISTIL)
        return make_table(self.result, self.config.method.name, student)

    @property
    def classes(self) -> list[str]:
        """The names of the classes, in the order of the logits."""
        return self.model.class_names or [str(number) for number in range(self.model.num_classes)]

    @property
    def temperatures(self) -> dict[str, float]:
        """What logits are divided by for calibrated probabilities, by kind of inference."""
        found = self.result.get("temperatures", {}).get(self.checkpoint, {})
        return {"anytime": found["aggregated"]} | found if "aggregated" in found else found

    @property
    def uncalibrated(self) -> list[str]:
        """The kinds of inference that could not be calibrated: their probabilities are unreliable."""
        return [inference for inference, value in self.temperatures.items() if at_limit(value)]

    @property
    def model_name(self) -> str:
        """Which of its models it has opened (quick, trained, their average); empty of a run with one."""
        two = self.checkpoint == FEATURES or self.config.has_stage(FEATURES)
        return MODELS.get(self.checkpoint, "") if two else ""

    @cached_property
    def preprocessing(self) -> Preprocessing:
        """The sizes and statistics that the model was trained with."""
        return read_preprocessing(self.model.about)

    @property
    def pipeline(self) -> Pipeline:
        """What a test image goes through before the model sees it."""
        return self.preprocessing.eval_pipeline()

    def predict(self, files: Any, inference: str | None = None, batch_size: int = 64) -> Prediction:
        """Class numbers, their `names` and calibrated probabilities of images, in their order.

        `unlike` marks those that are unlike all training images, where the run has a rule for that: by the
        features of the quick model if there is one, in one more pass.
        files: paths of image files; or images that are objects: Pillow images, an array or a tensor (n, ...).
        One path or one Pillow image is a list of one.
        inference: by default the run's headline; `flips` averages one pass over image and mirror image.
        """
        inference = inference or self.headline
        pipelines: list[Prepare] = [self.pipeline]
        if inference == FLIPS:
            self._warn_if_never_mirrored()
            inference, pipelines = self.model.best_inference, flip_pipelines(self.pipeline)
        check_inference(inference, self.model.inferences)
        files = as_sequence(files, self.preprocessing.channels)
        if len(files):
            self.warn_if_unfinished()
        found = self._predict(files, inference, pipelines, batch_size)
        if self.quick is not None:
            headline, pipelines = self.quick.headline, [self.quick.pipeline]
            found.unlike = self.quick._predict(files, headline, pipelines, batch_size).unlike
        return found

    def _predict(
        self, files: Any, inference: str, pipelines: Sequence[Prepare], batch_size: int
    ) -> Prediction:
        return predict_images(
            self.model,
            files,
            self.preprocessing,
            self.classes,
            inference,
            pipelines=pipelines,
            temperature=self.temperatures.get(inference, 1.0),
            unlike_rule=self.unlike_rule if self.quick is None else None,
            batch_size=batch_size,
        )

    def use_agreement(self, agreement: float = AGREEMENT, progress: Progress = QUIET) -> AnytimeRule:
        """Let anytime inference agree with aggregation on this share of images, as held-out images showed.

        The rules are in the run's result; of a run without, they are calibrated now, and not written.
        """
        if not self.model.aggregates_by_view:
            raise InputError(
                f"{shown(self.folder)}: method {self.config.method.name} has no views to average, and so no "
                f"anytime inference; it has {', '.join(self.model.inferences)}"
            )
        if not self.anytime_rules and "anytime" not in self.result:
            self.anytime_rules = self._calibrate_anytime(progress)
        held_out = self.result.get("images", {}).get("val", 0)
        rule = require_rule(self.anytime_rules, agreement, held_out, self.folder)
        self.model.anytime_rule = rule
        return rule

    def _calibrate_anytime(self, progress: Progress) -> list[AnytimeRule]:
        splits = self.load_splits(progress=progress)
        if self.record is None or not self.record.count(VAL):
            raise InputError(
                f"{shown(self.folder)}: an anytime rule is calibrated on held-out images, and the run has "
                "no record of any"
            )
        found = find_held_out(self.record, splits, place(self.folder, self.config.data.source), progress)
        self.warn(found.notes)
        dataset = same_classes(found.dataset, self.classes)
        return rules_of_images(self.model, dataset, self.pipeline, progress)

    def pictures(self, files: Sequence[str | Path]) -> FileImages:
        """Image files, to be read as the training images were."""
        return file_images(self.preprocessing, files)

    def evaluate(self, data: Any = None, progress: Progress = QUIET, **options: Any) -> Outputs:
        """Every kind of inference on the run's own test images, or on other data with the same classes.

        `data`: a folder, a CSV, a known dataset's name, or objects as `sla.fit` takes them: (X, y), a torch
        dataset, ...
        `options`: inferences, batch_size, workers, and what: the name of the pass for `progress`.
        """
        if not isinstance(progress, Progress):
            raise InputError("labels go with their images: run.evaluate((X, y))")
        dataset = data if isinstance(data, Dataset) else self.dataset(data, progress=progress)
        dataset = same_classes(dataset, self.classes)
        return infer(self.model, dataset, self.pipeline, progress=progress, fast=True, **options)

    def outputs(
        self,
        dataset: Dataset,
        inferences: tuple[str, ...] | None = None,
        progress: Progress = QUIET,
        **options: Any,
    ) -> Outputs:
        """What `evaluate` gives, from the scores kept beside the checkpoint where they have these images."""
        dataset = same_classes(dataset, self.classes)
        wanted = inferences or self.model.inferences
        if "anytime" not in wanted or self.model.anytime_rule == rule_at(self.anytime_rules):
            kept = [self.kept_scores(split, wanted) for split in ("test", "val")]
            found = find_outputs(kept, dataset, wanted, progress)
            if found is not None:
                return found
        return self.evaluate(dataset, progress, inferences=inferences, **options)

    def kept_scores(self, split: str, inferences: Sequence[str] | None = None) -> Scores | None:
        """Scores of this run's model, by all kinds of inference or by these."""
        return read_kept(self._checkpoint_folders(), split, inferences)

    def group_scores(self, outputs: Outputs) -> dict[str, dict[str, float]]:
        """Accuracy on images of old and of new classes, of a run that has grown; {} of another."""
        grown = self.result.get("grown")
        return outputs.group_scores(grown["old_classes"]) if grown else {}

    def ten_crop(self, dataset: Dataset, inference: str | None = None, **options: Any) -> Outputs:
        """The kind of inference (one pass) on ten crops of each image, their logits averaged."""
        self._warn_if_never_mirrored()
        crops = ten_crop_pipelines(self.pipeline, self.preprocessing.resolution)
        dataset = same_classes(dataset, self.classes)
        return infer_averaged("ten-crop", self.model, dataset, crops, inference, **options)

    def flips(self, dataset: Dataset, inference: str | None = None, **options: Any) -> Outputs:
        """The kind of inference on each image and its mirror image, their logits averaged."""
        self._warn_if_never_mirrored()
        dataset, both = same_classes(dataset, self.classes), flip_pipelines(self.pipeline)
        return infer_averaged(FLIPS, self.model, dataset, both, inference, **options)

    def _warn_if_never_mirrored(self) -> None:
        if self.stage == FEATURES or self.config.is_features:  # its features are of published weights
            return
        if not makes_mirror_images(build_train_pipeline(self.config)):
            warnings.warn(
                f"{shown(self.folder)}: trained without flips (augment: {self.config.augment}), so averaging "
                "over mirror images can lower its accuracy",
                SLAWarning,
            )

    def dataset(
        self, data: Any = None, on_bad_image: OnBadImage | None = None, progress: Progress = QUIET
    ) -> Dataset:
        """The test part of the data, or all of a folder that is not split; by default what is unseen.

        Images that the run trained on are left out, with a note.
        """
        return self.images(data, on_bad_image, progress).dataset

    def images(
        self, data: Any = None, on_bad_image: OnBadImage | None = None, progress: Progress = QUIET
    ) -> FoundImages:
        """The same, and what they are; refused where there are none."""
        found = self.find_images(data, on_bad_image, progress)
        if found is None:
            source = shown(source_name(self.config.data.source))
            raise InputError(
                f"{source} has no test images, and none were held out: name the data to evaluate on"
            )
        self.warn(found.notes)
        return found

    def find_images(
        self,
        data: Any = None,
        on_bad_image: OnBadImage | None = None,
        progress: Progress = QUIET,
        splits: Splits | None = None,
    ) -> FoundImages | None:
        """What `dataset` takes, with notes on what has changed; `splits`: as loaded already."""
        splits = splits or self.load_splits(data, on_bad_image, progress)
        if data is not None:
            return find_named(self.record, splits, data, self.config, self.folder, progress)
        if self.record is not None and splits is not self.splits:
            return find_own(self.record, splits, self.config.data.source, self.folder, progress)
        # A run that has just ended, or an old one.
        notes = [unrecorded(self.folder)] if splits is not self.splits else []
        return find_by_number(self.config, splits, self.result.get("images", {}), self.folder, notes)

    def warn(self, notes: Sequence[str]) -> None:
        """Warn of an unfinished run, and of images that differ from what the run had."""
        self.warn_if_unfinished()
        for note in notes:
            warnings.warn(note, SLAWarning)

    def load_splits(
        self,
        data: Any = None,
        on_bad_image: OnBadImage | None = None,
        progress: Progress = QUIET,
        **options: Any,
    ) -> Splits:
        """Data at the size the run keeps pictures at; its own by default, from memory if there."""
        if data is None and (self.splits or self.given) is not None:
            return self.splits or self.given  # type: ignore[return-value]
        return load_data(self.config.data, data, on_bad_image, progress, **options)

    def export(
        self,
        path: str | Path,
        inference: str | None = None,
        *,
        preprocessing: bool = False,
        progress: Progress = QUIET,
    ) -> Exported:
        """Write the classifier as ONNX, checked; `sla.export.export_onnx` says it in full."""
        inference = inference or self.headline
        check_inference(inference, self.model.inferences)
        self.warn_if_unfinished()
        return export_onnx(self, Path(path), inference, preprocessing, progress)
