"""Classes and calibrated probabilities of images, which are files or objects."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from sla.augment.preprocessing import Preprocessing
from sla.classifier import Classifier, Prediction
from sla.datasets.objects import Objects
from sla.errors import InputError
from sla.images.convert import USUAL_CHANNELS
from sla.images.decode import BadImageError
from sla.images.store import Dataset, Images
from sla.runs.preprocessing import file_images
from sla.tasks.classifier.evaluation import Prepare, infer
from sla.tasks.classifier.unlike import UnlikeRule


def as_sequence(files: Any, channels: int) -> Any:
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


def predict_images(
    model: Classifier,
    files: Any,
    preprocessing: Preprocessing,
    classes: Sequence[str],
    inference: str,
    *,
    pipelines: Sequence[Prepare],
    temperature: float = 1.0,
    unlike_rule: UnlikeRule | None = None,
    batch_size: int = 64,
) -> Prediction:
    """The prediction for each image of a sequence, in its order; logits are averaged over the pipelines."""
    probabilities, distances = torch.zeros(0, model.num_classes), None
    if len(files):
        dataset = Dataset(_read(files, preprocessing), np.zeros(len(files), np.int64), tuple(classes))
        try:
            found = [
                infer(
                    model,
                    dataset,
                    pipeline,
                    batch_size=batch_size,
                    inferences=(inference,),
                    fast=True,
                    means=None if unlike_rule is None else unlike_rule.means,
                )
                for pipeline in pipelines
            ]
        except BadImageError as error:
            raise BadImageError(error.path, error.reason) from None  # no hint about datasets
        logits = torch.stack([outputs.logits[inference] for outputs in found]).mean(0)
        probabilities, distances = (logits / temperature).softmax(-1), found[0].distances
    prediction = Prediction(probabilities.argmax(-1), probabilities)
    prediction.classes = tuple(classes)
    if unlike_rule is not None:
        prediction.unlike = unlike_rule.marks(torch.zeros(0) if distances is None else distances)
    return prediction


def _read(files: Any, preprocessing: Preprocessing) -> Images:
    if all(isinstance(file, str | Path) for file in files):
        return file_images(preprocessing, files)
    return Objects(files, np.zeros(len(files), np.int64)).load(preprocessing.stored_size).train.images
