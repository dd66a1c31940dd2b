"""Defaults of a few-shot configuration: what fits these images and this machine."""

from dataclasses import replace

from sla.backbones import PRETRAINED
from sla.datasets.class_splits import load_class_splits, split_classes
from sla.datasets.objects import Objects
from sla.errors import InputError
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
    native_size,
    override,
    warn_of_contradictions,
    with_absolute_paths,
    with_policies,
)
from sla.runs.plan import Plan
from sla.runs.preprocessing import enlarged
from sla.runs.weights import describe_start, with_origin
from sla.sampling.episodes import Episodes
from sla.sampling.protocols import limited
from sla.tasks.fewshot.config import FewShotConfig
from sla.views import parse_views

MIDDLE = 96  # up to here pictures are seen at their own size


def make_plan(
    config: FewShotConfig, splits: Splits | Objects | None = None, progress: Progress = QUIET
) -> Plan[FewShotConfig]:
    """Choose every value that is not given."""
    if not config.data.source and splits is None:
        raise InputError("no data given: cifar-fs, fc100, mini-imagenet, or a folder of images")
    check_model(config)
    reasons: list[str] = []
    config = with_origin(choose_device(config if splits is not None else with_absolute_paths(config)))
    if isinstance(splits, Objects):
        native = splits.native
    else:
        native = max(splits.train.images.shape[1:]) if splits else native_size(config.data.source)
    config = _choose_model(config, native, reasons)
    if isinstance(splits, Objects):
        splits = with_class_splits(splits.load(config.data.stored_size, progress=progress), config)
    splits = splits or load_splits(config, progress)
    if splits.val is not None and config.data.val_per_class:
        splits = replace(splits, val=limited(splits.val, config.data.val_per_class, 0))
    config = override(config, "data", stored_size=max(splits.train.images.shape[1:]))
    config = with_policies(measure_backbone(choose_input(config, splits)))
    tuned = config.model.weights != "none"
    rate = 0.01 if tuned else 0.1
    config = fill_missing(config, "optimizer", name="sgd", learning_rate=rate, backbone_factor=1.0)
    config = fill_missing(config, "episodes", per_step=4 if config.run.device == "cpu" else 8)
    config = fill_missing(config, "episodes", val_shot=min(config.episodes.shot, 5))
    part = config.episodes
    reasons.append(
        f"{config.method.name} with views {config.method.views}; {config.run.iterations:,} steps of "
        f"{part.per_step} episodes, {part.way}-way {part.shot}-shot with {part.query} queries per class"
    )
    parts = [(name, some) for name in ("train", "val", "test") if (some := getattr(splits, name)) is not None]
    said = (f"{some.num_classes} classes, {len(some):,} images in {name}" for name, some in parts)
    reasons.append("; ".join(said))
    if splits.val is None:
        enough = f"3 times the way, {3 * part.way}, would do"
        reasons.append(f"no validation classes ({enough}): no best checkpoint")
    _check(config, splits)
    return Plan(config, splits.train, splits.val, splits.test, tuple(reasons))


def load_splits(config: FewShotConfig, progress: Progress = QUIET) -> Splits:
    """The data that a configuration names."""
    data = config.data
    return load_class_splits(
        data.source,
        config.episodes.way,
        seed=data.split_seed,
        root=data.root,
        size=data.stored_size,
        on_bad_image=data.on_bad_image,
        progress=progress,
    )


def with_class_splits(splits: Splits, config: FewShotConfig) -> Splits:
    """Images of objects: as they were passed, or split by classes if all were passed together."""
    if splits.val is not None or splits.test is not None:
        return splits
    return split_classes(splits, config.episodes.way, config.data.split_seed)


def _choose_model(config: FewShotConfig, native: int, reasons: list[str]) -> FewShotConfig:
    """Backbone, weights, resolution, stored size and augmentation."""
    large = native > MIDDLE
    published = large and has_pretrained()
    chosen = config.model.backbone or (PRETRAINED if published else "convnet4")
    weights = "pretrained" if large and has_pretrained(chosen) else "none"
    config = fill_missing(config, "model", backbone=chosen, weights=weights)
    tuned = config.model.weights != "none"
    config = fill_missing(config, "model", resolution=native if not large else 128 if tuned else 84)
    size = config.model.resolution or native
    if large:
        augment = f"resized({0.35 if tuned else 0.2}), jitter(0.4), flip"
        config = fill_missing(config, "data", stored_size=min(native, enlarged(size)))
    else:
        augment = f"crop({min(4 if size <= TINY else 8, size)}), jitter(0.4), flip"
        config = fill_missing(config, "data", stored_size=native)
    start = describe_start(config)
    reasons.append(f"{config.model.backbone} {start}, at {size} pixels, on {config.run.device}")
    return config.model_copy(update={"augment": config.augment or augment})


def _check(config: FewShotConfig, splits: Splits) -> None:
    """Refuse what could only fail later; every kind of episode must fit its classes."""
    part = config.episodes
    check_input(config)
    warn_of_contradictions(config, parse_views(config.method.views))
    kinds = [("training", splits.train, part.shot, "shot", part.query, "query")]
    if splits.val is not None:
        also = ", or raise data.val_per_class" if config.data.val_per_class else ""
        asked = (part.test_query, f"test_query{also}")
        kinds += [("validation", splits.val, part.val_shot or 1, "val_shot", *asked)]
    if splits.test is not None:
        asked = (part.test_query, "test_query")
        kinds += [("test", splits.test, shot, "test_shots", *asked) for shot in part.test_shots]
    for name, some, shot, shot_key, query, query_key in kinds:
        named = "episodes.way", f"episodes.{shot_key}", f"episodes.{query_key}"
        try:
            Episodes(some, part.way, shot, query, named=named)
        except InputError as error:
            raise InputError(f"{name} classes: {error}") from None
