"""A run is a folder. Opened again, it predicts, evaluates and exports."""

import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import torch
from pydantic import Field, TypeAdapter, ValidationError

from sla.augment.ops import Pipeline
from sla.augment.ten_crop import ten_crop_pipelines
from sla.classifier import Classifier, Prediction
from sla.datasets.download import Progress
from sla.datasets.load import load
from sla.errors import InputError, SLAWarning, shown
from sla.factory import load as load_classifier
from sla.images.cache_paths import cache_dir
from sla.images.decode import BadImageError
from sla.images.files import FileImages, Tick
from sla.images.storage import OnBadImage
from sla.images.store import Dataset, Splits
from sla.inference import check_inference
from sla.runs.checkpoint import WEIGHTS, find_checkpoint
from sla.runs.config import make_config, read_config
from sla.runs.defaults import check_device
from sla.tasks.classifier.build import file_images, make_eval_pipeline
from sla.tasks.classifier.evaluation import Outputs, infer, infer_crops
from sla.tasks.classifier.split import same_classes, split_images

if TYPE_CHECKING:
    from sla.export import Exported

# Fitted ones are from 1/20 to 20.
Temperature = Annotated[float, Field(ge=1e-3, le=1e3, strict=True)]
TEMPERATURES = TypeAdapter(dict[str, dict[str, Temperature]])
# By checkpoint: its step, and by split and inference (a few-shot run: by shot and inference) the scores.
Scores = dict[str, float | None]
ACCURACIES = TypeAdapter(dict[str, dict[str, int | dict[str, Scores] | dict[str, dict[str, Scores]]]])
HELD_OUT = "held-out images"
SKIP_HINT = "`sla predict --on-bad-image skip` leaves such files out"


class Run:
    """A finished or stopped run; `which` of its checkpoints: last or best (on the held-out images)."""

    def __init__(self, folder: str | Path, checkpoint: str = "last", device: str = "cpu") -> None:
        self.folder = Path(folder)
        tree, weights = open_run(self.folder, checkpoint, device)
        self.config = make_config(tree, f"{folder}/config.yaml")
        self.model: Classifier = load_classifier(weights, device)
        self.result = read_result(self.folder)
        self.checkpoint = checkpoint
        self.splits: Splits | None = None  # its images, while a run that has just ended still has them

    @property
    def classes(self) -> list[str]:
        """The names of the classes, in the order of the logits."""
        return self.model.class_names or [str(number) for number in range(self.model.num_classes)]

    @property
    def temperatures(self) -> dict[str, float]:
        """What logits are divided by for calibrated probabilities, by kind of inference."""
        return self.result.get("temperatures", {}).get(self.checkpoint, {})

    @property
    def pipeline(self) -> Pipeline:
        """What a test image goes through before the model sees it."""
        return make_eval_pipeline(self.model.about)

    def predict(
        self, files: Sequence[str | Path], inference: str | None = None, batch_size: int = 64
    ) -> Prediction:
        """Class numbers and calibrated probabilities of image files, in their order."""
        inference = inference or self.model.method.headline
        check_inference(inference, self.model.method.inferences)
        if not files:
            return Prediction(torch.zeros(0, dtype=torch.int64), torch.zeros(0, self.model.num_classes))
        dataset = Dataset(self.pictures(files), np.zeros(len(files), np.int64), tuple(self.classes))
        try:
            outputs = infer(
                self.model, dataset, self.pipeline, batch_size=batch_size, inferences=(inference,)
            )
        except BadImageError as error:
            raise BadImageError(error.path, error.reason, SKIP_HINT) from None
        logits = outputs.logits[inference]
        probabilities = (logits / self.temperatures.get(inference, 1.0)).softmax(-1)
        return Prediction(probabilities.argmax(-1), probabilities)

    def pictures(self, files: Sequence[str | Path]) -> FileImages:
        """Image files, to be read as the training images were."""
        return file_images(self.model.about, files)

    def evaluate(
        self, data: str | Path | Dataset | None = None, tick: Tick | None = None, **options: Any
    ) -> Outputs:
        """Every kind of inference on the run's own test images, or on other data with the same classes."""
        dataset = data if isinstance(data, Dataset) else self.dataset(data)
        return infer(self.model, same_classes(dataset, self.classes), self.pipeline, tick=tick, **options)

    def ten_crop(self, dataset: Dataset, inference: str | None = None, **options: Any) -> Outputs:
        """The kind of inference (one pass) on ten crops of each image, their logits averaged."""
        inference, size = (
            inference or self.model.best_inference,
            self.model.about["preprocessing"]["resolution"],
        )
        dataset = same_classes(dataset, self.classes)
        crops = ten_crop_pipelines(self.pipeline, size)
        logits = infer_crops(self.model, dataset, crops, inference, **options)
        return Outputs({"ten-crop": logits}, torch.as_tensor(dataset.targets))

    def dataset(
        self,
        data: str | Path | None = None,
        on_bad_image: OnBadImage | None = None,
        progress: Progress | None = None,
    ) -> Dataset:
        """The test part of the data, or all of a folder that is not split; by default what is unseen."""
        if data is None:
            found = self.unseen(on_bad_image, progress)
            if found is None:
                source = shown(self.config.data.source)
                raise InputError(
                    f"{source} has no test images, and none were held out: say what to evaluate on"
                )
            return found[0]
        splits = self._load(data, on_bad_image, progress)
        if splits.test is None and Path(data).expanduser().absolute() == Path(self.config.data.source):
            warnings.warn(
                f"{shown(data)}: the run learnt from most of these images; without naming them, those held "
                "out are taken",
                SLAWarning,
            )
        return next(part for part in (splits.test, splits.val, splits.train) if part is not None)

    def unseen(
        self, on_bad_image: OnBadImage | None = None, progress: Progress | None = None, **options: Any
    ) -> tuple[Dataset, str] | None:
        """The run's own test images, else its held-out ones, and their name; None where it has neither."""
        own, splits = self.config.data, self._load(None, on_bad_image, progress, **options)
        if splits.test is not None:
            return splits.test, "test images"
        if splits.val is not None:
            return splits.val, HELD_OUT
        if not own.hold_out:
            return None
        train, held = split_images(self.config, splits, [])
        assert held is not None
        before = self.result.get("images") or {"val": len(held)}
        trained = before.get("train")
        # Which images are held out follows from all there are: with others it would be others.
        if before.get("val") != len(held) or trained not in (None, len(train)):
            raise InputError(
                f"{shown(own.source)}: its images have changed since {shown(self.folder)} was trained, so "
                "which were held out is not known: name other data, which the run has not seen"
            )
        return held, HELD_OUT

    def _load(
        self,
        data: str | Path | None,
        on_bad_image: OnBadImage | None,
        progress: Progress | None,
        **options: Any,
    ) -> Splits:
        """Data at the size the run keeps pictures at; its own by default, from memory while it is there."""
        own = self.config.data
        if data is None and self.splits is not None:
            return self.splits
        return load(
            data or own.source,
            root=own.root,
            size=own.stored_size,
            on_bad_image=on_bad_image or own.on_bad_image,
            cache=cache_dir() / "images" if own.cache else None,
            progress=progress,
            **options,
        )

    def export(
        self, path: str | Path, inference: str | None = None, *, preprocessing: bool = False, **watching: Any
    ) -> "Exported":
        """Write the classifier as ONNX, checked; `sla.export.export_onnx` says it in full."""
        from sla.export import export_onnx

        inference = inference or self.model.method.headline
        check_inference(inference, self.model.method.inferences)
        return export_onnx(self, Path(path), inference, preprocessing, **watching)


def read_run_config(folder: Path, few_shot: bool = False) -> dict[str, Any]:
    """The configuration of a run, not yet validated; refused where it is a run of the other kind."""
    if not (folder / "config.yaml").is_file():
        raise InputError(f"{folder}: not a run: no config.yaml in it")
    tree = read_config(folder / "config.yaml")
    if ("episodes" in tree) != few_shot:
        other = "`sla fewshot` makes such runs" if few_shot else "a few-shot run, which `sla fewshot` opens"
        raise InputError(f"{folder}: {'not a few-shot run: ' if few_shot else ''}{other}")
    return tree


def open_run(
    folder: Path, checkpoint: str, device: str, few_shot: bool = False
) -> tuple[dict[str, Any], Path]:
    """The configuration of a run, not yet validated, and the weights of one of its checkpoints."""
    check_device(device)
    tree, found = read_run_config(folder, few_shot), find_checkpoint(folder / "checkpoint", checkpoint)
    if found is None:
        raise InputError(f"{folder}: this run has no {checkpoint} checkpoint")
    return tree, found / WEIGHTS


def read_result(folder: Path) -> dict[str, Any]:
    """What a finished run says of itself, {} before it is finished; refused when it is damaged."""
    path = folder / "result.json"
    if not path.is_file():
        return {}
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(result, dict):
            raise ValueError
        TEMPERATURES.validate_python(result.get("temperatures", {}))
        ACCURACIES.validate_python(result.get("accuracies"))
    except (ValueError, ValidationError, RecursionError):
        raise InputError(
            f"{shown(path)}: damaged; going on with the run (--resume --out {shown(folder)}) writes it again"
        ) from None
    return result
