"""Defaults of a SimCLR configuration: what fits these images and this machine, and why."""

import math

from sla.backbones import PRETRAINED
from sla.datasets.objects import Objects, source_name
from sla.errors import InputError, shown
from sla.images.files import available_cores
from sla.images.store import Splits
from sla.progress import QUIET, Progress
from sla.runs.defaults import (
    TINY,
    check_input,
    check_model,
    choose_device,
    choose_input,
    fill_missing,
    has_pretrained,
    measure_backbone,
    override,
    small_backbone,
    usual_precision,
    with_absolute_paths,
    with_policies,
)
from sla.runs.distributed import process_numbers
from sla.runs.plan import Plan
from sla.runs.preprocessing import build_pipelines, enlarged
from sla.runs.weights import describe_start, origin_resolution, warn_of_other_input, with_origin
from sla.tasks.simclr.config import SimCLRConfig
from sla.tasks.simclr.images import choose_images, find_size, load_images

BATCH = {("tiny", "cpu"): 256, ("tiny", "gpu"): 512, ("photographs", "cpu"): 64, ("photographs", "gpu"): 256}
EPOCHS, LEAST_STEPS = 100.0, 1000  # few images need more passes
RATES, RATE_BATCH = {"sgd": 1.0, "adamw": 1e-3}, 512  # learning rates, and the batch that they are for


def make_plan(
    config: SimCLRConfig, splits: Splits | Objects | None = None, progress: Progress = QUIET
) -> Plan[SimCLRConfig]:
    """Choose every value that is not given. Minutes leave the iterations open."""
    if not config.data.source and splits is None:
        raise InputError("no data given: a folder of pictures, a CSV, or a known dataset's name")
    reasons: list[str] = []
    config = choose_device(config if splits is not None else with_absolute_paths(config))
    config = fill_missing(with_origin(config), "run", precision=usual_precision(config.run.device or "cpu"))
    check_model(config)
    if isinstance(splits, Objects):
        grey, native = splits.channels == 1, splits.native
    elif splits is not None:
        grey, native = splits.train.images.shape[0] == 1, max(splits.train.images.shape[1:])
    else:
        grey, native = find_size(config.data.source)
    config = _choose_model(config, native, grey, reasons)
    if isinstance(splits, Objects):
        splits = splits.load(config.data.stored_size, progress=progress)
    splits = splits or load_images(config.data, progress)
    config = override(config, "data", stored_size=max(splits.train.images.shape[1:]))
    config = with_policies(measure_backbone(choose_input(config, splits)))
    train, val, pool, holds_out = choose_images(config, splits, reasons, progress)
    config = _choose_training(config, len(train), native, reasons)
    _check(config, len(train), source_name(config.data.source))
    test = splits.test if splits.test is not None and splits.test.classes == train.classes else None
    return Plan(config, train, val, test, tuple(reasons), pool, holds_out)


def _choose_model(config: SimCLRConfig, native: int, grey: bool, reasons: list[str]) -> SimCLRConfig:
    """Backbone, weights, resolution, stored size and augmentation."""
    slow, large = config.run.device == "cpu", native > TINY
    usual = (PRETRAINED if has_pretrained() and not grey else "resnet18") if large else ""
    chosen = config.model.backbone or usual or small_backbone(slow)
    published = large and not grey and has_pretrained(chosen)
    config = fill_missing(config, "model", backbone=chosen, weights="pretrained" if published else "none")
    size = (96 if slow else min(224, max(96, native // 32 * 32))) if large else native
    config = fill_missing(config, "model", resolution=(origin_resolution(config) if large else None) or size)
    seen = config.model.resolution or size
    config = fill_missing(config, "data", stored_size=min(native, enlarged(seen)) if large else native)
    start = describe_start(config)
    reasons.append(f"{config.model.backbone} {start}, at {seen} pixels, on {config.run.device}")
    # Small crops of small pictures show nothing. Grey pictures are mostly characters: no mirror images.
    augment = "resized(0.08), flip, jitter(0.8, 0.8, 0.8, 0.2, 0.8), grey(0.2)"
    if not large:
        augment = "resized(0.2), flip, jitter(0.4, 0.4, 0.4, 0.1, 0.8), grey(0.2)"
    if grey:
        augment = "resized(0.35), jitter(0.4, 0.4, 0, 0, 0.8)"
    return config.model_copy(update={"augment": config.augment or augment})


def _choose_training(config: SimCLRConfig, images: int, native: int, reasons: list[str]) -> SimCLRConfig:
    """Batch, learning rate, and how long."""
    kind, device = "tiny" if native <= TINY else "photographs", "cpu" if config.run.device == "cpu" else "gpu"
    processes = process_numbers().world_size
    batch = max(min(BATCH[kind, device], images // 4) // processes, 2) * processes
    config = fill_missing(config, "run", batch_size=batch)
    batch = config.run.batch_size or batch
    rate = RATES[config.optimizer.name] * batch / RATE_BATCH
    rate *= 1.0 if config.model.weights == "none" else 0.1
    config = fill_missing(config, "optimizer", learning_rate=rate, backbone_factor=1.0, weight_decay=1e-4)
    run = config.run
    if run.iterations is None and run.epochs is None and run.minutes is None:
        config = fill_missing(config, "run", epochs=max(EPOCHS, round(LEAST_STEPS * batch / images, 1)))
    if run.iterations is None and config.run.epochs is not None:
        config = fill_missing(config, "run", iterations=max(math.ceil(config.run.epochs * images / batch), 1))
    steps = config.run.iterations
    epochs = (steps or LEAST_STEPS) * batch / images
    config = fill_missing(config, "run", evaluations=max(min(10, int(epochs)), 1))
    part = config.method
    reasons.append(f"SimCLR, temperature {part.temperature:g}; augmentation {config.augment}")
    length = f"{steps:,} steps" if steps else "steps"
    reasons.append(
        f"{length} of {batch} images, two views of each; {config.optimizer.name}, learning rate "
        f"{config.optimizer.learning_rate:g}"
    )
    return fill_missing(config, "data", workers=min(available_cores(), 8))


def _check(config: SimCLRConfig, images: int, source: str) -> None:
    """Refuse what could only fail later."""
    batch, processes = config.run.batch_size or 0, process_numbers().world_size
    if images < 2:
        raise InputError(f"{shown(source)}: contrastive learning tells images apart: one image is not enough")
    if batch > images:
        raise InputError(f"run.batch_size: {batch} of {images:,} images: an image would be its own negative")
    if batch % processes:
        raise InputError(f"run.batch_size: {batch} cannot be shared equally by {processes} processes")
    build_pipelines(config)
    check_input(config)
    warn_of_other_input(config)
