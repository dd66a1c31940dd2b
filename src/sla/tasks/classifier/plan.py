"""Defaults of a classifier's configuration: what fits these images and this machine, and why."""

import math
import warnings
from dataclasses import replace

from sla.augment.mixing import parse_mix
from sla.datasets.objects import Objects, source_name
from sla.errors import InputError, SLAWarning
from sla.images.files import available_cores
from sla.images.store import Dataset, Splits
from sla.methods import METHODS, method_options, takes_views
from sla.progress import QUIET, Progress
from sla.runs.defaults import (
    TINY,
    check_input,
    check_model,
    choose_device,
    choose_input,
    fill_missing,
    measure_backbone,
    override,
    usual_precision,
    warn_of_contradictions,
    with_absolute_paths,
)
from sla.runs.distributed import process_numbers
from sla.runs.plan import Plan
from sla.runs.preprocessing import build_pipelines, build_train_pipeline
from sla.runs.weights import warn_of_other_input, with_origin
from sla.tasks.classifier.build import plan_method
from sla.tasks.classifier.config import (
    AUTO,
    DISTIL,
    DISTILLED,
    FEATURES,
    OPTION_FIELDS,
    ClassifierConfig,
)
from sla.tasks.classifier.features import check_features, features_steps
from sla.tasks.classifier.growth_images import find_grown_images
from sla.tasks.classifier.imbalance import choose_imbalance
from sla.tasks.classifier.model_defaults import choose_model
from sla.tasks.classifier.split import load_data, same_classes, split_images
from sla.tasks.classifier.unlabelled import add_unlabelled, check_unlabelled, choose_strong
from sla.views import check_view_0, parse_views

LEAST_STEPS = 2000
MOST_COPIES = 10  # of an image in a batch


def make_plan(
    config: ClassifierConfig, splits: Splits | Objects | None = None, progress: Progress = QUIET
) -> Plan[ClassifierConfig]:
    """Choose every value that is not given.

    Minutes leave the iterations open, and `auto` the views.
    """
    if not config.data.source:
        raise InputError("no data given: a folder of images, a CSV, or a known dataset's name")
    check_model(config)
    check_unlabelled(config)
    given = config
    reasons: list[str] = []
    config = _choose_precision(choose_device(config), reasons)
    config = with_origin(config if splits is not None else with_absolute_paths(config))
    check_model(config)
    if splits is not None and (config.data.classes is not None or config.is_grown):
        raise InputError("data.classes and grow.run are for data that is named: a folder or a dataset")
    config, splits = choose_model(config, splits, reasons, progress)
    _warn_of_unused_options(config)
    if isinstance(splits, Objects):
        splits = splits.load(config.data.stored_size, progress=progress)
    config = config if config.stages else config.model_copy(update={"stages": ("train",)})
    grown = None
    if config.is_grown:
        config, grown = find_grown_images(config, reasons, progress)
        splits = grown.splits
    splits = splits or load_data(config.data, progress=progress)
    config = override(config, "data", stored_size=max(splits.train.images.shape[1:]))
    config = measure_backbone(choose_input(config, splits))
    channels = len(config.model.mean or ())
    if channels != 3:
        reasons.append(f"pictures of {channels} channel{'s' if channels > 1 else ''}")
    train, val = split_images(config, splits, reasons) if grown is None else (grown.train, grown.val)
    has_old = config.is_grown or bool(config.data.earlier) or config.is_distilled
    method, found = choose_imbalance(config.method, train.counts(), train.classes, has_old)
    config, reasons = config.model_copy(update={"method": method}), [*reasons, *found]
    config = choose_training(config, len(train), reasons)
    config = choose_strong(config)
    if config.method.views == AUTO and not takes_views(config.method.name):
        config = override(config, "method", views="none")
    reasons += _describe_method(config)
    if config.method.views != AUTO:
        config = choose_views_per_step(config, reasons)
        _check_views(config)
    _check(config, train)
    test = splits.test and same_classes(splits.test, train.classes)
    plan = Plan(config, train, val, test, tuple(reasons), splits.train, splits.val is None, given=given)
    return add_unlabelled(plan, splits.unlabelled, progress)


def _describe_method(config: ClassifierConfig) -> list[str]:
    """How it learns, in a line or two."""
    mixed = f"; mix {config.mix}" if parse_mix(config.mix) is not None else ""
    if config.is_features:
        return ["method features: logistic regression on frozen features, its penalty cross-validated"]
    part, optimizer = config.method, config.optimizer
    views = f", {part.views}" if takes_views(part.name) else ""
    mixed += f"; label smoothing {part.label_smoothing:g}" if part.label_smoothing else ""
    return [
        f"method {part.name}{views}; augmentation {config.augment or 'none'}{mixed}",
        f"{optimizer.name}, learning rate {optimizer.learning_rate:g}",
    ]


def with_views(plan: Plan[ClassifierConfig], views: str, method: str | None = None) -> Plan[ClassifierConfig]:
    """A plan whose views were open, with these, and with another method where one is named."""
    config = override(plan.config, "method", views=views, name=method or plan.config.method.name)
    reasons: list[str] = []
    config = choose_views_per_step(config, reasons)
    _check_views(config)
    return replace(plan, config=config, reasons=(*plan.reasons, *reasons))


def _warn_of_unused_options(config: ClassifierConfig) -> None:
    """Every option has a key, whatever the method: one that was changed is meant for another method."""
    part = config.method
    if part.name not in METHODS:
        return
    trained = (part.name, *((DISTILLED,) if config.has_stage(DISTIL) else ()))
    own = [name for method in trained for name in method_options(METHODS[method].make)]
    for name in sorted(OPTION_FIELDS.keys() - set(own)):
        if getattr(part, name) != type(part).model_fields[name].default:
            warnings.warn(f"method.{name} has no effect: method {part.name} has no such option", SLAWarning)


def _count_views(config: ClassifierConfig) -> int:
    """Views of the method; 1 where it takes none, or where they are still to be chosen."""
    part = config.method
    return len(parse_views(part.views)) if takes_views(part.name) and part.views != AUTO else 1


def _choose_precision(config: ClassifierConfig, reasons: list[str]) -> ClassifierConfig:
    config = fill_missing(config, "run", precision=usual_precision(config.run.device or "cpu"))
    reasons.append(f"device {config.run.device}, {config.run.precision}")
    return config


def choose_training(config: ClassifierConfig, images: int, reasons: list[str]) -> ClassifierConfig:
    """Batch, optimiser, and how long."""
    # Weights of another run of small pictures are trained as from scratch: gentler settings were worse
    # (`sla reproduce semi-pilots`).
    small = (config.model.resolution or 0) <= TINY
    tuned = config.model.weights in ("pretrained", "own") or (config.model.weights != "none" and not small)
    quick = config.is_features
    if quick:
        config = fill_missing(config, "run", iterations=features_steps(images), evaluations=1, compile=False)
    batch, processes = min(32 if tuned else 128, max(images // 4, 2)), process_numbers().world_size
    config = fill_missing(config, "run", batch_size=max(batch // processes, 1) * processes)
    name = config.optimizer.name or ("adamw" if tuned else "sgd")
    defaults = {"sgd": (0.01 if tuned else 0.1, 5e-4), "adamw": (1e-3, 0.05)}[name]
    rises = config.optimizer.schedule == "onecycle"  # by itself
    config = fill_missing(
        config,
        "optimizer",
        name=name,
        learning_rate=defaults[0],
        weight_decay=defaults[1],
        backbone_factor=0.3 if tuned else 1.0,
        fixed_norms=config.model.weights == "pretrained",
        # Without it a plain classifier may not begin to learn at the full rate; joint labels bear it.
        warmup=0.1 if tuned else 0.0 if rises else 0.05,
    )
    if all(getattr(config.run, name) is None for name in ("iterations", "epochs", "flop", "minutes")):
        # Fewer images need more passes: from scratch, a network wants about two thousand steps to settle.
        # Steps with some of the views cost less, so there are more of them.
        least, views = LEAST_STEPS * (config.run.batch_size or 1) / images, _count_views(config)
        times = max(views / (config.method.views_per_step or views), 1)
        config = fill_missing(config, "run", epochs=20.0 if tuned else times * max(60.0, round(least, 1)))
    batch = config.run.batch_size or 1
    if config.run.iterations is None and config.run.epochs is not None:
        iterations = max(math.ceil(config.run.epochs * images / batch), 1)
        config = fill_missing(config, "run", iterations=iterations)
    epochs = config.run.epochs or (config.run.iterations or LEAST_STEPS) * batch / images
    config = fill_missing(config, "run", evaluations=max(min(20, int(epochs)), 1))
    if config.run.iterations is not None and not quick:
        reasons.append(
            f"{config.run.iterations:,} iteration{'s' if config.run.iterations > 1 else ''} of {batch} images"
        )
    return fill_missing(config, "data", workers=min(available_cores(), 8))


def choose_views_per_step(config: ClassifierConfig, reasons: list[str]) -> ClassifierConfig:
    """How many views of each image a step has: all, or a few where weights are fine-tuned."""
    method = plan_method(config)
    num_views, few = len(method.views), method.finetuning_views
    if num_views == 1:  # the plain image alone, whatever views are named
        config = override(config, "method", views_per_step=1)
    elif config.model.weights != "none" and few is not None:
        config = fill_missing(config, "method", views_per_step=min(few, num_views))
    config = fill_missing(config, "method", views_per_step=method.usual_views or num_views)
    if (config.method.views_per_step or 0) < num_views:
        reasons.append(f"{config.method.views_per_step} of {num_views} views of each image in a step")
    return config


def _check_views(config: ClassifierConfig) -> None:
    method = plan_method(config)
    num_views = len(method.views)
    chosen = config.method.views_per_step or num_views
    if chosen > num_views:
        raise InputError(f"method.views_per_step: {chosen} of {num_views} views")
    if chosen < min(method.least_views, num_views):
        raise InputError(
            f"method.views_per_step: {config.method.name} needs {method.least_views} views of each image, "
            f"the plain one among them, not {chosen}"
        )
    if method.usual_views is not None and chosen == num_views:
        raise InputError(
            f"method.views_per_step: {config.method.name} draws some of its {num_views} views, "
            f"usually {method.usual_views}, not {chosen}"
        )
    if num_views > 1:
        edge = config.model.resolution or 1
        check_view_0(method.views, (len(config.model.mean or ()), edge, edge))
        warn_of_contradictions(config, method.views)
        if config.strong_augment is not None:
            warn_of_contradictions(config, method.views, config.strong_augment)
    if config.has_stage(DISTIL) and "distilled" in method.inferences:
        raise InputError(
            f"stages: {config.method.name} trains a student of its own; leave out the stage distil, or "
            "method.name=sla"
        )
    _, passes = method.teaching
    if config.has_stage(DISTIL) and (config.distil.teacher_views or 0) > passes:
        raise InputError(f"distil.teacher_views: {config.distil.teacher_views} of {passes} views")


def _check(config: ClassifierConfig, train: Dataset) -> None:
    """Refuse what could only fail later."""
    if train.num_classes < 2:
        raise InputError(
            f"a classifier needs at least two classes; {source_name(config.data.source)} has one"
        )
    batch, images = config.run.batch_size or 0, len(train)
    if batch > MOST_COPIES * images:
        raise InputError(
            f"run.batch_size: {batch:,} of {images:,} training images: each would be in a batch "
            f"{batch // images:,} times, at most {MOST_COPIES} are allowed; {images:,} or fewer is usual"
        )
    if config.data.long_tail_max is not None and config.data.long_tail is None:
        raise InputError("data.long_tail_max needs data.long_tail, the ratio")
    if config.is_features or config.has_stage(FEATURES):
        check_features(config)
    parse_mix(config.mix)
    build_pipelines(config)
    build_train_pipeline(config, config.strong_augment)
    check_input(config)
    warn_of_other_input(config)
