"""A trained run as one ONNX file: one kind of inference, checked against the run before it is written.

Class names, preprocessing and the rest that a stranger needs are in the file's metadata.
"""

import copy
import json
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from sla import __version__
from sla.augment.ops import CenterCrop, CenterWindow, Pipeline
from sla.augment.preprocessing import Preprocessing
from sla.classifier import Classifier
from sla.disk import replacing
from sla.errors import InputError, MissingExtraError, SLAError, SLAWarning, shown
from sla.images.channels import LUMA
from sla.images.decode import REDUCING_GAP, BadImageError, open_rgb
from sla.images.store import ArrayImages, Dataset, Splits
from sla.onnx_preprocess import Preprocess
from sla.progress import QUIET, Progress
from sla.sampling.draws import Draws

TOLERANCE = 1e-4  # between the exported model's probabilities and the run's
PICTURE_TOLERANCE = 1e-3  # the same from pictures: about one value in 100,000 is rounded the other way
CHECKED, BATCH, ALONE = 64, 16, 8  # images it is checked on, how many at a time, and how many one by one
NOISE = "noise images"
BICUBIC = Image.Resampling.BICUBIC


class _Run(Protocol):  # what is asked of a `sla.Run`, which imports this module
    model: Classifier
    checkpoint: str

    @property
    def classes(self) -> list[str]: ...
    @property
    def temperatures(self) -> dict[str, float]: ...
    @property
    def preprocessing(self) -> Preprocessing: ...
    @property
    def pipeline(self) -> Pipeline: ...
    def load_splits(self, *, memory_limit: int) -> Splits: ...


class Exported(NamedTuple):
    """What `export_onnx` found: the largest difference of a probability, on how many images of which kind."""

    difference: float
    images: int
    what: str


class _Inference(nn.Module):
    """Normalised images (B, C, S, S), or pictures (B, H, W, 3) -> calibrated probabilities (B, N)."""

    def __init__(self, run: _Run, inference: str, preprocessing: bool) -> None:
        super().__init__()
        self.model, self.inference = copy.deepcopy(run.model), inference
        self.temperature = run.temperatures.get(inference, 1.0)
        seen = run.preprocessing
        mean, std = torch.tensor(seen.mean), torch.tensor(seen.std)
        self.before = Preprocess(run.pipeline, seen.stored_size, mean, std) if preprocessing else None

    def forward(self, images: Tensor) -> Tensor:
        seen = images if self.before is None else self.before(images)
        return (self.model.logits(seen, self.inference) / self.temperature).softmax(-1)


def export_onnx(
    run: _Run, path: Path, inference: str, preprocessing: bool = False, progress: Progress = QUIET
) -> Exported:
    """Write `path`, and nothing else; its batch is dynamic.

    Its input `images` is what the run's pipeline gives, float32 (B, C, S, S); with `preprocessing` it is
    uint8 pictures (B, H, W, 3), RGB, of any one size. Its output `probabilities` is (B, N). It takes its
    place only once onnxruntime has found the run's probabilities on some of its images, to TOLERANCE or
    PICTURE_TOLERANCE.
    """
    if path.is_dir():
        raise InputError(f"{shown(path)}: a folder, not a file to write")
    if inference == "anytime":
        raise InputError("anytime inference stops between views, which one ONNX graph cannot: aggregated can")
    channels = run.preprocessing.channels
    if preprocessing and channels not in (1, 3):
        raise InputError(f"a model of {channels} channels is exported without the preprocessing of pictures")
    onnxruntime = import_onnxruntime()
    what = "pictures" if preprocessing else "normalised images"
    progress.message(f"converting: {inference} inference, {what} in")
    module = _Inference(run, inference, preprocessing).cpu().eval()
    data = convert(module, _example(run, preprocessing), describe(run, inference, preprocessing))
    dataset, what = _images_to_check(run)
    progress.message(f"comparing with the run on {len(dataset):,} {what}")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    gap = _largest_difference(run, module, session, dataset, progress)
    if not gap <= (PICTURE_TOLERANCE if preprocessing else TOLERANCE):
        off = f"a probability of the exported model is {gap:.1e} off the run's"
        raise SLAError(f"{shown(path)}: not written: {off}")
    with replacing(path) as file:
        file.write(data)
    return Exported(gap, len(dataset), what)


def describe(run: _Run, inference: str, preprocessing: bool) -> dict[str, str]:
    """The metadata of the file; what is not text is JSON."""
    seen = run.preprocessing
    (crop,) = (op for op in run.pipeline.ops if op.stage == "crop")
    stored, size, grey = seen.stored_size, seen.resolution, seen.channels == 1
    rule: dict[str, Any] = {"rule": "resize", "filter": "bilinear", "antialias": True}
    words = f"resample it to {size} x {size}, antialiased bilinear; round"
    if isinstance(crop, CenterCrop):
        rule |= {"rule": "center_crop", "share": crop.share}
        square = f"the central square of the original, its side {crop.share:g} of the shorter one"
        words = f"take {square}, from the resized picture, and {words}"
    elif isinstance(crop, CenterWindow):
        rule = {"rule": "center_window"}
        words = f"the {size} x {size} pixels in the middle; black around a smaller one"
    elif size == stored:
        rule, words = {"rule": "none"}, "no crop"
    steps = [
        "decode to 8-bit RGB, upright by EXIF; transparency on white",
        f"resize to {stored} x {stored}, ignoring the aspect ratio, antialiased bicubic (a = -1/2); round",
        *([f"grey by {LUMA} of red, green, blue; round"] if grey else []),
        words,
        "divide by 255, subtract mean, divide by std, by channel; channels first: float32 (B, C, S, S)",
    ]
    preparation = {
        "in_graph": preprocessing,
        "channels": "grey" if grey else "RGB",
        "squeeze": {"size": stored, "filter": "bicubic", "antialias": True, "reducing_gap": REDUCING_GAP},
        "crop": rule,
        "resolution": size,
        "range": [0, 1],
        "mean": list(seen.mean),
        "std": list(seen.std),
        "steps": steps,
    }
    pictures = "uint8 (B, H, W, 3), RGB, of any one size: everything after decoding is in the graph"
    return {
        "classes": json.dumps(run.classes),
        "inference": inference,
        "views": run.model.method.views.text,
        "temperature": json.dumps(run.temperatures.get(inference, 1.0)),
        "preprocessing": json.dumps(preparation),
        "input": pictures if preprocessing else f"float32 (B, {seen.channels}, {size}, {size})",
        "output": "probabilities (B, N), calibrated by the temperature, in the order of classes",
        "checkpoint": run.checkpoint,
        "sla_version": __version__,
    }


def _example(run: _Run, preprocessing: bool) -> Tensor:
    seen = run.preprocessing
    if preprocessing:  # sides that differ from each other and from every size within
        side = 2 * seen.stored_size + 3
        return torch.zeros(3, side, side + 8, 3, dtype=torch.uint8)
    return torch.zeros(3, seen.channels, seen.resolution, seen.resolution)


def import_onnxruntime() -> Any:
    """The module onnxruntime, kept from reporting to its maker; what torch's exporter needs is there too."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # counts only before the first import
    try:
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError:
        raise MissingExtraError("export", "export") from None
    onnxruntime.disable_telemetry_events()  # where it was imported before
    return onnxruntime


def convert(module: nn.Module, example: Tensor, metadata: dict[str, str]) -> bytes:
    """The bytes of the ONNX file; its first dimension is dynamic, and height and width of pictures are."""
    free = ("batch", "height", "width") if example.dtype == torch.uint8 else ("batch",)
    shape = {place: torch.export.Dim(name) for place, name in enumerate(free)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's own parts about each other
        program = torch.onnx.export(
            module,
            (example,),
            input_names=["images"],
            output_names=["probabilities"],
            dynamic_shapes=(shape,),
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    model = program.model_proto
    for part in (model.graph, *model.functions):  # where in this machine's files each node was written
        for node in part.node:
            del node.metadata_props[:]
            node.doc_string = ""
        del part.metadata_props[:]
    del model.metadata_props[:]
    for key, value in metadata.items():
        model.metadata_props.add(key=key, value=value)
    model.producer_name, model.producer_version = "sla", __version__
    try:
        return model.SerializeToString()
    except ValueError:  # protobuf's own limit
        raise SLAError("the model is larger than the 2 GB that one ONNX file can hold") from None


def _images_to_check(run: _Run) -> tuple[Dataset, str]:
    """Some of the run's images, evenly spread, and what they are; where they are gone, noise."""
    try:
        splits = run.load_splits(memory_limit=0)  # a few are read: not all need decoding
        named = {"test images": splits.test, "held-out images": splits.val, "images": splits.train}
        what, dataset = next((what, part) for what, part in named.items() if part is not None)
        places = np.unique(np.linspace(0, len(dataset) - 1, min(len(dataset), CHECKED)).astype(int))
        images, aspect = dataset.read(places)
        few = ArrayImages(images, aspect=aspect, names=[dataset.name(place) for place in places])
        return Dataset(few, dataset.targets[places], dataset.classes), what
    except (InputError, OSError) as error:
        warnings.warn(f"no images of the run's to check on, so noise: {error}", SLAWarning)
    seen = run.preprocessing
    shape = (CHECKED, seen.channels, seen.stored_size, seen.stored_size)
    pixels = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    return Dataset(ArrayImages(torch.from_numpy(pixels)), np.zeros(CHECKED), tuple(run.classes)), NOISE


@torch.inference_mode()
def _largest_difference(
    run: _Run, module: _Inference, session: Any, dataset: Dataset, progress: Progress
) -> float:
    """Between the probabilities of the file, by onnxruntime, and those of the run."""
    gap, batches = torch.zeros(()), _normalised if module.before is None else _pictures
    for done, given, seen in batches(run, dataset):
        expected = (module.model.logits(seen, module.inference) / module.temperature).softmax(-1)
        if not expected.isfinite().all():
            raise SLAError("the run's probabilities are NaN or infinite: its weights are damaged")
        (found,) = session.run(None, {"images": given})
        gap = torch.maximum(gap, (torch.from_numpy(found) - expected).abs().max())  # NaN stays
        progress.advance("comparing", done, len(dataset))
    return gap.item()


def _normalised(run: _Run, dataset: Dataset) -> Iterator[tuple[int, np.ndarray, Tensor]]:
    """Images done, and batches as both see them: the first ones alone, then all, several at a time."""
    count = len(dataset)
    parts = [range(place, place + 1) for place in range(min(ALONE, count))]
    parts += [range(start, min(start + BATCH, count)) for start in range(0, count, BATCH)]
    for part in parts:
        images, aspect = dataset.read(part)
        seen = run.pipeline(images, Draws(0, 0, count, part.start, part.stop), aspect)
        yield part.stop, seen.numpy(), seen


def _pictures(run: _Run, dataset: Dataset) -> Iterator[tuple[int, np.ndarray, Tensor]]:
    """Images done; pictures at their own size, alone and with mirror images; and as the run sees them."""
    stored = run.preprocessing.stored_size
    for place in range(len(dataset)):
        try:
            picture = np.asarray(open_rgb(dataset.name(place)))
        except BadImageError:  # the images never were files
            pixels = dataset.read([place]).images[0].permute(1, 2, 0)
            picture = pixels.expand(-1, -1, 3).numpy()
        mirrored = np.stack([picture, picture[:, ::-1], picture[::-1]])
        for given in (mirrored[:1], *([mirrored] if place < ALONE else [])):
            pillow = (Image.fromarray(one) for one in given)
            squeezed = [one.resize((stored, stored), BICUBIC, None, REDUCING_GAP) for one in pillow]
            images = torch.from_numpy(np.stack([np.asarray(one) for one in squeezed])).permute(0, 3, 1, 2)
            aspect = torch.full((len(given),), picture.shape[1] / picture.shape[0])
            seen = run.pipeline(images, Draws(0, 0, len(given), 0, len(given)), aspect)
            yield place + 1, given, seen
