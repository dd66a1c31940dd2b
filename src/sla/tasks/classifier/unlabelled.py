"""Images without labels, beside those of a run: from a folder, or the training images of a dataset."""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from sla.augment.pipelines import strengthen
from sla.datasets.objects import source_name
from sla.errors import InputError, SLAWarning, shown
from sla.images.cache_paths import cache_dir
from sla.images.channels import ConvertedImages
from sla.images.content import dataset_keys
from sla.images.joined import Joiner
from sla.images.storage import Storage
from sla.images.store import Dataset
from sla.methods import Method, Unlabelled, method_options
from sla.methods.unlabelled import JointUnlabelled
from sla.progress import QUIET, Progress
from sla.runs.defaults import fill_missing, override, same_source, with_policies
from sla.runs.plan import Plan
from sla.sampling.draws import seed_of
from sla.sampling.loader import Batch
from sla.tasks.classifier.build import plan_method
from sla.tasks.classifier.config import AUTO, ClassifierConfig

NO_KEYS = np.empty(0, np.uint64)


def join_datasets(labelled: Dataset, unlabelled: Dataset) -> Dataset:
    """The unlabelled images after the labelled ones; their targets are 0 and mean nothing."""
    return Joiner((labelled, unlabelled), labelled.classes).join((labelled, unlabelled))


def choose_strong(config: ClassifierConfig) -> ClassifierConfig:
    """The augmentation of unlabelled images whose confident answers are learnt; all policies are kept."""
    strong = config.strong_augment
    if config.data.unlabelled is not None and _method(config).wants_answers:
        strong = strong or strengthen(config.augment or "none", config.model.input_shape(training=True)[1])
        config = config.model_copy(update={"strong_augment": strong})
    return with_policies(config, *([strong] if strong else []))


def check_unlabelled(config: ClassifierConfig) -> None:
    """Warn where a method does not learn from images without labels, and where there are none for it."""
    part = config.method
    if config.data.unlabelled is not None:
        if not _learns(config):
            warnings.warn(
                f"method {part.name} learns nothing from images without labels: data.unlabelled is left out",
                SLAWarning,
            )
        return
    names = ["data.unlabelled_count", "run.unlabelled_batch_size", "strong_augment"]
    given = [config.data.unlabelled_count, config.run.unlabelled_batch_size, config.strong_augment]
    unused = [name for name, value in zip(names, given, strict=True) if value is not None]
    for name in method_options(JointUnlabelled):
        if getattr(part, name) != type(part).model_fields[name].default:
            unused.append(f"method.{name}")
    for name in unused:
        warnings.warn(f"{name} has no effect without unlabelled images: set data.unlabelled", SLAWarning)


def add_unlabelled(
    plan: Plan[ClassifierConfig], given: Dataset | None = None, progress: Progress = QUIET
) -> Plan[ClassifierConfig]:
    """The plan with the images of `data.unlabelled`, where there are any: those that it does not have yet.

    `given`: they are in memory already. Labelled, held-out and test images are known by content and left
    out; of the others `data.unlabelled_count` are drawn by the seed.
    """
    data, run = plan.config.data, plan.config.run
    if data.unlabelled is None or not _learns(plan.config):
        return plan
    source = shown(source_name(data.unlabelled))
    own = given is None and same_source(data.unlabelled, data.source)
    if own and plan.pool is not None:
        found: Dataset = _without_labels(plan.pool, plan)  # the rest of its own training images
    else:
        there = _read(plan, data.unlabelled, progress) if given is None else given
        found = _check_shape(plan, source, there)
    rest = _leave_out(found, plan, "" if own else source, [plan.train], progress)
    if not len(rest):
        raise InputError(f"{source}: no image is left that is not labelled, held out or a test image")
    count = data.unlabelled_count or len(rest)
    if count > len(rest):
        raise InputError(
            f"data.unlabelled_count: {count:,} of {len(rest):,} images of {source} that are left"
        )
    chosen = np.random.default_rng(seed_of(run.seed, "unlabelled")).permutation(len(rest))[:count]
    config = fill_missing(plan.config, "run", unlabelled_batch_size=run.batch_size)
    per_step = config.run.unlabelled_batch_size
    reason = f"{count:,} images of {source} without labels, {per_step} per step"
    drawn = rest.subset(np.sort(chosen))
    return replace(plan, config=config, unlabelled=drawn, reasons=(*plan.reasons, reason))


def _method(config: ClassifierConfig) -> Method:
    """The method; views that are chosen later do not matter here."""
    return plan_method(override(config, "method", views="rot4") if config.method.views == AUTO else config)


def _learns(config: ClassifierConfig) -> bool:
    """Whether images without labels are used: by the method, or as a student's images."""
    return config.is_distilled or bool(_method(config).unlabelled_parts)


def find_taught(plan: Plan[ClassifierConfig]) -> Dataset | None:
    """The images of `distil.unlabelled`, without those that the run evaluates on."""
    source = plan.config.distil.unlabelled
    if source is None:
        return None
    found = _check_shape(plan, shown(source), _read(plan, source))
    own = same_source(source, plan.config.data.source)  # of which some were left out on purpose
    rest = _leave_out(found, plan, "" if own else shown(source))
    if not len(rest):
        raise InputError(f"{shown(source)}: no image is left to learn from")
    return rest


def pair_batches(labelled: Iterable[Batch], unlabelled: Iterable[Batch]) -> Iterator[Batch]:
    """Each batch with the unlabelled images of its step."""
    for batch, more in zip(labelled, unlabelled, strict=True):
        yield replace(batch, unlabelled=more)


def split_unlabelled(found: Unlabelled | None, shares: Sequence[float]) -> list[Unlabelled | None]:
    """What each part of a step has, by the parts' shares of its labelled images."""
    parts = len(shares)
    if found is None or parts == 1:
        return [found] * parts
    views, answers = (
        [None] * parts if values is None else list(values.tensor_split(parts))
        for values in (found.views, found.answers)
    )
    whole = len(found.images)
    columns = (found.images.tensor_split(parts), views, answers, shares)
    return [
        Unlabelled(images, seen, answer, len(images) / whole / share, found.trust)
        for images, seen, answer, share in zip(*columns, strict=True)
    ]


def _leave_out(
    dataset: Dataset,
    plan: Plan[ClassifierConfig],
    source: str,
    labelled: Sequence[Dataset] = (),
    progress: Progress = QUIET,
) -> Dataset:
    """The images that are not held out, tested on or labelled.

    `source`: what to call them where some are left out because they are held-out or test images.
    """
    keys = dataset_keys(dataset, progress)

    def among(parts: Sequence[Dataset | None]) -> np.ndarray:
        known = [dataset_keys(part, progress) for part in parts if part is not None]
        return np.isin(keys, np.concatenate([NO_KEYS, *known]))

    judged = among((plan.val, plan.test))
    if source and judged.any():
        count = f"{int(judged.sum()):,} of {len(keys):,}"
        warnings.warn(f"{source}: {count} images are held-out or test images: left out", SLAWarning)
    return dataset.subset(np.flatnonzero(~(judged | among(labelled))))


def _without_labels(dataset: Dataset, plan: Plan[ClassifierConfig]) -> Dataset:
    return Dataset(dataset.images, np.zeros(len(dataset), np.int64), plan.train.classes, dataset.rows)


def _check_shape(plan: Plan[ClassifierConfig], source: str, dataset: Dataset) -> Dataset:
    """The dataset without labels; refused where its images cannot be in a batch with those of the run.

    Files are read in colour: for a run of grey images they become grey, as when it predicts them.
    """
    channels, wanted = dataset.images.shape[0], plan.train.images.shape
    if channels != wanted[0] and {channels, wanted[0]} == {1, 3}:
        dataset = replace(dataset, images=ConvertedImages(dataset.images, wanted[0]))
    if dataset.images.shape != wanted:
        raise InputError(f"{source}: its images are of another shape: {dataset.images.shape}, not {wanted}")
    return _without_labels(dataset, plan)


def _read(plan: Plan[ClassifierConfig], source: str, progress: Progress = QUIET) -> Dataset:
    from sla.datasets.catalogue import CATALOGUE  # predicting needs no catalogue
    from sla.datasets.load import load
    from sla.datasets.objects import refuse_object_source
    from sla.datasets.unlabelled import load_pictures

    data, (_, height, width) = plan.config.data, plan.train.images.shape
    if source in CATALOGUE:
        return load(source, root=data.root, size=data.stored_size, on_bad_image=data.on_bad_image).train
    refuse_object_source(source)
    folder = Path(source).expanduser()
    if not folder.is_dir():
        raise InputError(f"{shown(source)}: there is no such folder or dataset of unlabelled images")
    cache = cache_dir() / "images" if data.cache else None
    storage = Storage((height, width), data.on_bad_image, cache, progress=progress)
    return load_pictures(folder, storage)
