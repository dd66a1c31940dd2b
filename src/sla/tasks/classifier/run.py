"""A classifier's run, opened: it predicts, evaluates and exports."""

import warnings
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from sla.anytime import AGREEMENT, AnytimeRule
from sla.augment.flips import flip_pipelines
from sla.augment.ops import Pipeline
from sla.augment.preprocessing import Preprocessing
from sla.augment.ten_crop import ten_crop_pipelines
from sla.classifier import Classifier, Prediction
from sla.datasets.objects import Objects, source_name
from sla.errors import InputError, SLAWarning, shown
from sla.export import Exported, export_onnx
from sla.factory import load as load_classifier
from sla.images.content import dataset_keys
from sla.images.convert import USUAL_CHANNELS
from sla.images.decode import BadImageError
from sla.images.files import FileImages
from sla.images.storage import OnBadImage
from sla.images.store import Dataset, Images, Splits
from sla.inference import check_inference
from sla.progress import QUIET, Progress
from sla.runs.checkpoint import find_checkpoint, step_of
from sla.runs.defaults import same_source
from sla.runs.folder import MAIN_STAGE, find_model_file, read_result, stage_folder
from sla.runs.images_record import TEST, TRAIN, VAL
from sla.runs.metrics import at_limit
from sla.runs.preprocessing import file_images, read_preprocessing
from sla.runs.run import CHOSEN, OpenedRun, ScoreTable
from sla.runs.scores import Scores, read_scores, scores_file
from sla.stats import share
from sla.tasks.classifier.anytime import LEVELS, rule_at
from sla.tasks.classifier.choice import MODELS
from sla.tasks.classifier.config import DISTIL, FEATURES, ClassifierConfig, student_steps
from sla.tasks.classifier.evaluation import Outputs, find_rules, infer, infer_crops
from sla.tasks.classifier.features import features_steps, is_features
from sla.tasks.classifier.known_images import OTHER, FoundImages, find_held_out, find_other, find_test
from sla.tasks.classifier.result_check import check_result
from sla.tasks.classifier.split import load_data, same_classes, split_images
from sla.tasks.classifier.unlike import read_unlike

GROUPS = ("old classes %", "new classes %")  # columns of a run that has grown


class Run(OpenedRun[ClassifierConfig, Classifier]):
    """A finished or stopped run with the model of a checkpoint.

    That is last, best on the held-out images, features (the quick model), or by default what the result names
    as chosen, else last.
    """

    task = "classifier"
    config_class = ClassifierConfig

    def __init__(self, folder: str | Path, checkpoint: str = CHOSEN, device: str = "cpu") -> None:
        super().__init__(folder, checkpoint, device)
        check_result(self.result, self.folder)
        found = self.result.get("anytime", {}).get(self.checkpoint, [])
        self.anytime_rules = [AnytimeRule.from_dict(values) for values in found]
        self.model.anytime_rule = rule_at(self.anytime_rules)
        rules = (read_unlike(folder) for folder in self._same_checkpoints())
        self.unlike_rule = next((rule for rule in rules if rule is not None), None)

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
        student = find_checkpoint(stage_folder(self.folder, DISTIL) / "checkpoint", "last")
        return MAIN_STAGE if student is None else DISTIL

    @property
    def steps(self) -> int:
        """Of the stage whose model it has, in all."""
        if self.record is not None and (self.stage == FEATURES or is_features(self.config)):
            return features_steps(self.record.count(TRAIN))
        return student_steps(self.config) if self.stage == DISTIL else super().steps

    def choose_checkpoint(self) -> str:
        """What the result says; of a run that has only begun, what it has."""
        chosen = read_result(self.folder).get("chosen", {}).get("checkpoint")
        if chosen in (FEATURES, "last", "best"):
            return str(chosen)
        begun = find_checkpoint(self.folder / "checkpoint", "last") is not None
        quick = find_checkpoint(stage_folder(self.folder, FEATURES) / "checkpoint", "last") is not None
        return FEATURES if quick and not begun else "last"

    @property
    def headline(self) -> str:
        """The inference that answers by default: as chosen on held-out images, else that of the method."""
        chosen = self.result.get("chosen", {})
        named = chosen.get("inference") if chosen.get("checkpoint") == self.checkpoint else None
        return named if named in self.model.inferences else self.model.method.headline

    @property
    def model_file(self) -> Path:
        """That of the checkpoint; `features` is the quick model of the first stage."""
        if self.checkpoint != FEATURES:
            return super().model_file
        if find_checkpoint(stage_folder(self.folder, FEATURES) / "checkpoint", "last") is None:
            raise InputError(f"{shown(self.folder)}: this run has no stage features")
        return find_model_file(self.folder, "last", FEATURES)

    def _same_checkpoints(self) -> list[Path]:
        """The folders with its model: of a best that is also last, other files lie beside last alone."""
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
        rows, method, grown = [], self.config.method.name, "grown" in self.result
        chosen = self.result.get("chosen") or {"checkpoint": "last", "inference": self.result.get("headline")}
        for checkpoint, found in self.result["accuracies"].items():
            for split in ("test", "val"):
                for inference, scores in found.get(split, {}).items():
                    marked = (checkpoint, inference) == (chosen["checkpoint"], chosen["inference"])
                    count = self.result["images"][split]
                    found_share = share(round(scores["top1"] * count / 100), count)
                    numbers = (
                        f"{scores['top1']:.2f}",
                        found_share.ends(),
                        f"{scores['ece']:.1f}",
                        *_groups(scores, grown),
                    )
                    name = checkpoint if checkpoint == FEATURES else f"{method}, {checkpoint}"
                    rows.append((f"{name}, {split}", inference + (" *" if marked else ""), *numbers))
        views = self.result.get("view_accuracy")
        advice = () if views is None else (f"{method}: {views['advice']}",)
        stars = "* the headline. Held-out images (val) chose the best checkpoint; test images chose nothing."
        header = ("", "inference", "accuracy %", "95% interval", "ECE %", *(GROUPS if grown else ()))
        return ScoreTable(header, rows, advice, (stars,))

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
        """The kinds of inference that no temperature fits: their probabilities mean little."""
        return [inference for inference, value in self.temperatures.items() if at_limit(value)]

    @property
    def model_name(self) -> str:
        """Which of its two models it has opened, as texts name it; empty of a run with one."""
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

        `unlike` marks those that are unlike all training images, where the run has a rule for that.
        files: paths of image files; or images that are objects: Pillow images, an array or a tensor (n, ...).
        One path or one Pillow image is a list of one.
        """
        inference = inference or self.headline
        check_inference(inference, self.model.inferences)
        files = _several(files, self.preprocessing.channels)
        if not len(files):
            return self._prediction(torch.zeros(0, self.model.num_classes))
        self.warn_if_unfinished()
        labels = np.zeros(len(files), np.int64)
        if all(isinstance(file, str | Path) for file in files):
            images: Images = self.pictures([str(file) for file in files])
        else:
            images = Objects(files, labels).load(self.preprocessing.stored_size).train.images
        dataset = Dataset(images, labels, tuple(self.classes))
        try:
            outputs = infer(
                self.model,
                dataset,
                self.pipeline,
                batch_size=batch_size,
                inferences=(inference,),
                fast=True,
                means=None if self.unlike_rule is None else self.unlike_rule.means,
            )
        except BadImageError as error:
            raise BadImageError(error.path, error.reason) from None  # no hint about datasets
        logits = outputs.logits[inference]
        probabilities = (logits / self.temperatures.get(inference, 1.0)).softmax(-1)
        return self._prediction(probabilities, outputs.distances)

    def _prediction(self, probabilities: Tensor, distances: Tensor | None = None) -> Prediction:
        found = Prediction(probabilities.argmax(-1), probabilities)
        found.classes = tuple(self.classes)
        if self.unlike_rule is not None:
            found.unlike = self.unlike_rule.marks(torch.zeros(0) if distances is None else distances)
        return found

    def use_agreement(self, agreement: float = AGREEMENT, progress: Progress = QUIET) -> AnytimeRule:
        """Let anytime inference agree with aggregation on this share of images, as held-out images showed.

        The rules are in the run's result; of a run without, they are calibrated now, and not written.
        """
        if not self.anytime_rules and "anytime" not in self.result:
            self.anytime_rules = self._calibrate_anytime(progress)
        rule = rule_at(self.anytime_rules, agreement)
        if rule is None:
            levels = ", ".join(f"{rule.agreement:g}" for rule in self.anytime_rules) or "none"
            held_out = self.result.get("images", {}).get("val", 0)
            raise InputError(
                f"{shown(self.folder)}: no anytime rule with agreement {agreement:g}: its {held_out:,} "
                f"held-out images show {levels} of {', '.join(f'{level:g}' for level in LEVELS)}"
            )
        self.model.anytime_rule = rule
        return rule

    def _calibrate_anytime(self, progress: Progress) -> list[AnytimeRule]:
        if not self.model.aggregates_by_view:
            raise InputError(f"{shown(self.folder)}: {self.config.method.name} does not aggregate views")
        splits = self.load_splits(progress=progress)
        if self.record is None or not self.record.count(VAL):
            raise InputError(
                f"{shown(self.folder)}: an anytime rule is calibrated on held-out images, and the run has "
                "no record of any"
            )
        found = find_held_out(self.record, splits, self._where(self.config.data.source), progress)
        self.warn(found.notes)
        passing: dict[str, Any] = {"progress": progress, "what": "calibrating anytime inference"}
        dataset = same_classes(found.dataset, self.classes)
        return find_rules(infer(self.model, dataset, self.pipeline, by_view=True, **passing))

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
        kept = [found for split in ("test", "val") if (found := self.kept_scores(split)) is not None]
        keys = dataset_keys(dataset, progress) if kept else np.empty(0, np.uint64)
        wanted = inferences or self.model.inferences
        for scores in kept:
            logits = scores.of(keys)
            if logits is None:
                continue
            if self.model.anytime_rule != rule_at(self.anytime_rules):
                logits.pop("anytime", None)  # by a rule that is not the one in use now
            if set(wanted) <= set(logits):
                chosen = {name: logits[name] for name in wanted}
                return Outputs(chosen, torch.as_tensor(dataset.targets), keys)
        return self.evaluate(dataset, progress, inferences=inferences, **options)

    def kept_scores(self, split: str) -> Scores | None:
        """Those of this run's model."""
        found = (read_scores(scores_file(folder, split)) for folder in self._same_checkpoints())
        return next((scores for scores in found if scores is not None), None)

    def group_scores(self, outputs: Outputs) -> dict[str, dict[str, float]]:
        """Accuracy on images of old and of new classes, of a run that has grown; {} of another."""
        grown = self.result.get("grown")
        return outputs.group_scores(grown["old_classes"]) if grown else {}

    def ten_crop(self, dataset: Dataset, inference: str | None = None, **options: Any) -> Outputs:
        """The kind of inference (one pass) on ten crops of each image, their logits averaged."""
        inference, size = inference or self.model.best_inference, self.preprocessing.resolution
        dataset = same_classes(dataset, self.classes)
        crops = ten_crop_pipelines(self.pipeline, size)
        logits = infer_crops(self.model, dataset, crops, inference, **options)
        return Outputs({"ten-crop": logits}, torch.as_tensor(dataset.targets))

    def flips(self, dataset: Dataset, inference: str | None = None, **options: Any) -> Outputs:
        """The kind of inference on each image and its mirror image, their logits averaged."""
        dataset = same_classes(dataset, self.classes)
        inference = inference or self.model.best_inference
        logits = infer_crops(self.model, dataset, flip_pipelines(self.pipeline), inference, **options)
        return Outputs({"flips": logits}, torch.as_tensor(dataset.targets))

    def dataset(
        self,
        data: Any = None,
        on_bad_image: OnBadImage | None = None,
        progress: Progress = QUIET,
    ) -> Dataset:
        """The test part of the data, or all of a folder that is not split; by default what is unseen.

        Images that the run trained on are left out, with a note.
        """
        found = self.find_images(data, on_bad_image, progress)
        if found is None:
            source = shown(source_name(self.config.data.source))
            raise InputError(
                f"{source} has no test images, and none were held out: name the data to evaluate on"
            )
        self.warn(found.notes)
        return found.dataset

    def unseen(
        self,
        on_bad_image: OnBadImage | None = None,
        progress: Progress = QUIET,
        *,
        by_content: bool = True,
        **options: Any,
    ) -> tuple[Dataset, str] | None:
        """The run's own test images, else its held-out ones, and their name; None where it has neither.

        Not `by_content`: by the number of images alone, which needs no image read.
        """
        splits = self.load_splits(None, on_bad_image, progress, **options)
        found = self.find_images(None, on_bad_image, progress, splits, by_content=by_content)
        if found is None:
            return None
        if by_content:
            self.warn(found.notes)
        return found.dataset, found.what

    def find_images(
        self,
        data: Any = None,
        on_bad_image: OnBadImage | None = None,
        progress: Progress = QUIET,
        splits: Splits | None = None,
        *,
        by_content: bool = True,
    ) -> FoundImages | None:
        """What `dataset` and `unseen` take, with notes on what has changed; `splits`: as loaded already."""
        splits = splits or self.load_splits(data, on_bad_image, progress)
        record = self.record if by_content else None
        if data is not None:
            part = next(part for part in (splits.test, splits.val, splits.train) if part is not None)
            if record is not None:
                return find_other(record, part, self._where(data), progress)
            learnt = splits.test is None and same_source(source_name(data), self.config.data.source)
            most = "the run learnt from most of these images; without naming them, those held out are taken"
            note = f"{shown(source_name(data))}: {most}" if learnt else self._unrecorded
            return FoundImages(part, OTHER, [note])
        if splits is self.splits or record is None:  # a run that has just ended, or an old one
            return self._by_counts(
                splits, [self._unrecorded] if by_content and splits is not self.splits else []
            )
        where = self._where(self.config.data.source)
        if splits.test is not None:
            return find_test(record, splits.test, where, progress)
        return find_held_out(record, splits, where, progress) if record.count(VAL) else None

    def _by_counts(self, splits: Splits, notes: list[str]) -> FoundImages | None:
        """Which images are held out follows from all there are: with another number it would be others."""
        own = self.config.data
        if splits.test is not None:
            return FoundImages(splits.test, TEST, notes)
        if splits.val is not None:
            return FoundImages(splits.val, VAL, notes)
        if not own.hold_out:
            return None
        train, held = split_images(self.config, splits, [])
        assert held is not None
        before = self.result.get("images") or {"val": len(held)}
        trained = before.get("train")
        if before.get("val") != len(held) or trained not in (None, len(train)):
            raise InputError(
                f"{shown(source_name(own.source))}: its images have changed since {shown(self.folder)} was "
                "trained, so which were held out is not known: name other data, which the run has not seen"
            )
        return FoundImages(held, VAL, notes)

    @property
    def _unrecorded(self) -> str:
        return (
            f"{shown(self.folder)}: written before runs recorded their images: whether it trained on any of "
            "these is not known"
        )

    def _where(self, data: Any) -> str:
        return f"{shown(self.folder)} on {shown(source_name(data))}"

    def warn(self, notes: Sequence[str]) -> None:
        """Of an unfinished run, and of images that differ from what the run had."""
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
        if isinstance(data, Splits):
            return data
        if data is not None and not isinstance(data, str | Path):
            objects = data if isinstance(data, Objects) else Objects(data)
            return objects.load(self.config.data.stored_size, progress=progress)
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


def _several(files: Any, channels: int) -> Any:
    """What `predict` takes as a sequence of images; refused if it is none, or an array that is one image."""
    if isinstance(files, str | Path | Image.Image):
        return [files]
    is_sequence = hasattr(files, "__len__") and hasattr(files, "__getitem__")
    shape = tuple(getattr(files, "shape", (0,)))
    if not is_sequence or isinstance(files, bytes | Mapping) or not shape:
        raise InputError(
            f"images are paths, Pillow images, an array or a tensor (n, ...), not a {type(files).__name__}"
        )
    if len(shape) == 3 and (shape[-1] in USUAL_CHANNELS or (channels == shape[0] == 3)):
        raise InputError(f"an array {shape}: one image is x[None], {shape[0]} grey images are x[:, None]")
    return files


def _groups(scores: dict[str, float], grown: bool) -> tuple[str, ...]:
    """Accuracies of images of old and of new classes, of a run that has grown."""
    return tuple(f"{scores[name]:.2f}" if name in scores else "" for name in ("old", "new")) if grown else ()
