"""Starting a run, resuming one, opening one: the same few functions for every task."""

import json
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, Literal, overload

import torch
from torch import nn

from sla.criteria import Criterion
from sla.datasets.objects import Objects, source_name
from sla.disk import replacing
from sla.errors import InputError
from sla.images.store import Dataset, Splits
from sla.methods import Method
from sla.plugins import allow_typed, passing
from sla.progress import QUIET, Progress
from sla.runs.config import MOST_STEPS, TrainingConfig, keys, suggest
from sla.runs.deadline import Deadline, used_seconds
from sla.runs.defaults import with_absolute_paths
from sla.runs.distributed import Group, join_group, leave_group
from sla.runs.failures import explaining_failures
from sla.runs.folder import (
    CONFIG,
    RESULT,
    any_stage_begun,
    default_folder,
    has_result,
    lock_run_folder,
    read_run_config,
    refuse_differences,
)
from sla.runs.images_record import make_record, read_record, with_recorded_images, write_record
from sla.runs.loop import using_threads
from sla.runs.plan import Plan
from sla.runs.run import CHOSEN, OpenedRun
from sla.runs.signals import Stop
from sla.runs.stages import run_stages
from sla.tasks.classifier.passed_objects import settings_of, warn_of_uncompared
from sla.tasks.classifier.run import Run
from sla.tasks.registry import TASKS, find_task, make_config, with_values
from sla.views import Views


def train(
    config: TrainingConfig,
    out: str | Path,
    *,
    resume: bool = False,
    splits: Splits | Objects | None = None,
    progress: Progress = QUIET,
) -> OpenedRun[Any, Any]:
    """Train in the folder `out`, to the end or until stopped; every process of a group calls this alike.

    `splits` are data already in memory, or objects; otherwise the configuration says where they come from.
    Returns the run class of the configuration's task.
    """
    folder, begun = Path(out), Deadline(0.0)
    with explaining_failures(folder), ExitStack() as stack:
        group = join_group()
        stack.callback(leave_group, group)
        progress = progress if group.leads else QUIET
        stack.enter_context(torch.random.fork_rng(devices=[]))  # the caller's random state is not ours
        if group.leads:
            lock_run_folder(folder, resume, stack)
        if resume:
            config = _stored_config(folder, config, splits is not None, group)
        task = TASKS[config.task]
        plan = task.plan(config, splits, progress)
        plan = _with_deadline(plan, begun, used_seconds(folder) if resume and group.leads else 0.0)
        stack.enter_context(using_threads(plan.config.run.threads))
        begins = group.share(not any_stage_begun(folder))
        record = None if begins else group.share(read_record(folder) if group.leads else None)
        if record is not None:
            plan = with_recorded_images(plan, record, folder, progress)
        plan = _checked(task.prepare(plan, group, progress, starts=not resume, search=True))
        stages = task.stages(plan, group)
        was_finished = resume and stages[-1].is_finished(folder) and has_result(folder)
        with Stop().listening() as stop:
            if begins and group.leads:
                write_record(folder, make_record(plan, progress))
            loop = run_stages(stages, plan.config, folder, group, stop, progress, resume=resume)
            if group.leads and not was_finished:
                text = json.dumps(task.result(loop, progress), indent=2) + "\n"
                with replacing(folder / RESULT) as file:
                    file.write(text.encode())
            group.wait()
        run = task.run_class(folder)
        run.splits = Splits(plan.config.data.source, plan.train, plan.val, plan.test)
        return run


def preview(config: TrainingConfig, *, progress: Progress = QUIET) -> Plan[TrainingConfig]:
    """Give the messages that `train` gives before its first step, and write no run; returns the plan.

    Views that are `auto` are not searched for: the plan is then for the first set that would be tried.
    """
    task, begun = TASKS[config.task], Deadline(0.0)
    with explaining_failures(Path()), ExitStack() as stack:
        group = join_group()
        stack.callback(leave_group, group)
        stack.enter_context(torch.random.fork_rng(devices=[]))
        progress = progress if group.leads else QUIET
        plan = _with_deadline(task.plan(config, None, progress), begun)
        stack.enter_context(using_threads(plan.config.run.threads))
        return _checked(task.prepare(plan, group, progress, starts=True, search=False))


@overload
def fit(
    data: Any,
    y: Any = None,
    out: str | Path | None = None,
    *,
    task: Literal["classifier"] | None = None,
    val: Any = None,
    test: Any = None,
    classes: Sequence[str] | None = None,
    columns: tuple[str, str] | None = None,
    unlabelled: Any = None,
    backbone: str | nn.Module | None = None,
    method: str | Method | None = None,
    views: str | Views | None = None,
    criterion: str | Criterion | None = None,
    resume: bool = False,
    config: dict[str, Any] | None = None,
    progress: Progress = QUIET,
    **settings: Any,
) -> Run: ...
@overload
def fit(data: Any, y: Any = None, out: str | Path | None = None, *, task: str, **settings: Any) -> Any: ...
def fit(
    data: Any,
    y: Any = None,
    out: str | Path | None = None,
    *,
    task: str | None = None,
    val: Any = None,
    test: Any = None,
    classes: Sequence[str] | None = None,
    columns: tuple[str, str] | None = None,
    unlabelled: Any = None,
    backbone: str | nn.Module | None = None,
    method: str | Method | None = None,
    views: str | Views | None = None,
    criterion: str | Criterion | None = None,
    resume: bool = False,
    config: dict[str, Any] | None = None,
    progress: Progress = QUIET,
    **settings: Any,
) -> Any:
    """Train a classifier, or what `task` names, and return its run: a `Run` predicts, evaluates and exports.

    Args:
        data: a folder, a CSV, or a known dataset's name; or objects: images (with labels in `y`), a torch
            `Dataset` or `DataLoader` of images and labels, a Hugging Face dataset, a table of paths and
            labels, a mapping of splits, `Splits`. docs/library.md says what images and labels can be.
        y: the labels of images that are an array, a tensor or a list. A path here is taken as `out`.
        out: the run's folder; `runs/<name>` by default.
        task: classifier, fewshot, or simclr.
        val: objects to choose the best checkpoint on, as `data` or as (images, labels); by default some of
            the training images are held out.
        test: objects to test on, likewise.
        classes: the names of classes 0, 1, 2, ...; by default what the object or the labels say.
        columns: the columns of image and label in a table; by default those with the usual names.
        unlabelled: more images, without labels: a folder or the name of a dataset; with objects as `data`
            also an array, a tensor, a list or a dataset.
        backbone: a name, or any module from images to features: a copy of it is trained.
        method: a name (`sla+sd`), or an object (`SLA(Rotation(), distill=True)`).
        views: a text (`rot4`), or an object (`Rotation()`).
        criterion: `package.module:Name`, or any callable `(logits, target) -> loss`.
        resume: continue the run in `out`; objects are passed again, and images compared by their content.
        config: a tree of settings, as in a run's config.yaml.
        progress: gets messages about what was found and chosen, and every step with its numbers.
        settings: any key of the tree with its dot written as two underscores: `run__epochs=30`,
            `optimizer__learning_rate=0.01`, `augment="crop(4), flip"`.
    """
    if config is not None and not isinstance(config, dict):
        raise InputError(f"config must be a tree of settings, not {config!r}")
    if not isinstance(progress, Progress):
        raise InputError(f"progress is an object of a subclass of sla.progress.Progress, not {progress!r}")
    if not isinstance(out, str | PathLike | None):
        raise InputError(f"out is the run's folder, not {out!r}")
    if isinstance(y, str | Path):
        y, out = None, _only(y, out)
    if isinstance(unlabelled, str | Path):
        settings, unlabelled = {"data__unlabelled": str(unlabelled), **settings}, None
    more = {"val": val, "test": test, "classes": classes, "columns": columns, "unlabelled": unlabelled}
    splits = _images(data, y, **more)
    source = data if splits is None else splits.name if isinstance(splits, Splits) else splits.source
    given = {key.replace("__", "."): value for key, value in settings.items()}
    _check_names(settings, {**(config or {}), **({} if task is None else {"task": task})})
    chosen, passed = settings_of(backbone, method, views, criterion)
    if task is not None:
        chosen["task"] = task
    if isinstance(splits, Objects) and splits.unlabelled_source is not None:
        chosen["data.unlabelled"] = splits.unlabelled_source
    if twice := sorted(chosen.keys() & given.keys()):
        raise InputError(f"{twice[0]} is given twice, by its key and as an argument")
    given |= chosen
    allow_typed(given)
    tree = with_values(config or {}, {"data.source": str(source), **given})
    own = Path("runs") / splits.name if isinstance(splits, Objects) else default_folder(str(source))
    folder = Path(out) if out is not None else own
    if resume and "method" in passed:
        warn_of_uncompared(passed["method"])
    with passing(**passed):
        return train(make_config(tree), folder, resume=resume, splits=splits, progress=progress)


def open_run(
    folder: str | Path,
    checkpoint: str = CHOSEN,
    device: str = "cpu",
    *,
    data: Any = None,
    backbone: nn.Module | None = None,
    method: Method | None = None,
    views: Views | None = None,
) -> OpenedRun[Any, Any]:
    """A run of any task, by the run class of its task.

    Args:
        folder: of the run.
        checkpoint: chosen (by the run, else last), last, best, averaged or features.
        device: where the model goes.
        data: the objects that the run was trained on, as `fit` takes them or as `Objects`, to evaluate and
            report on; images that it trained on are known by their content. Not needed for data on disk.
        backbone, method, views: the objects that the run was trained with, if it was with objects.
    """
    task = find_task(read_run_config(Path(folder)), f"{folder}/{CONFIG}")
    with passing(backbone=backbone, method=method, views=views):
        run = task.run_class(folder, checkpoint, device)
    if data is not None:
        objects = data if isinstance(data, Objects) else Objects(data)
        run.given = objects.load(run.config.data.stored_size)
    return run


def _images(data: Any, y: Any, **more: Any) -> Splits | Objects | None:
    """Images in memory or as objects; None if `data` names them."""
    if not isinstance(data, str | Path | Splits | Dataset | Objects):
        return Objects(data, y, **more)
    for name, value in {"y": y, **more}.items():
        if value is not None:
            hint = f": sla.Objects(..., {name}=...)" if isinstance(data, Objects) else ""
            raise InputError(f"{name} is for images that are objects, not for {source_name(data)}{hint}")
    if isinstance(data, Dataset):
        return Splits("dataset", data)
    return None if isinstance(data, str | Path) else data


def _check_names(settings: Iterable[str], tree: dict[str, Any]) -> None:
    """Raise an error for a setting that is no key of the task, with the nearest as Python writes it."""
    known = keys(find_task(tree).config_class)
    for name in settings:
        if name.replace("__", ".") not in known:
            hint = suggest(name.replace("__", "."), known).replace(".", "__")
            raise InputError(f"sla.fit: unknown setting {name!r}{hint}")


def _only(first: str | Path, out: str | Path | None) -> str | Path:
    if out is not None:
        raise InputError(f"y is the labels of images, not {str(first)!r}, and out is {str(out)!r}")
    return first


def _stored_config(folder: Path, config: TrainingConfig, in_memory: bool, group: Group) -> TrainingConfig:
    """The configuration that the run has; refused where the one given now has other values."""
    tree = read_run_config(folder) if group.leads else None
    stored = make_config(group.share(tree), f"{folder}/{CONFIG}")
    if stored.task != config.task:
        raise InputError(f"{folder}: a run of task {stored.task}: it cannot be resumed as {config.task}")
    refuse_differences(stored, config if in_memory else with_absolute_paths(config), folder)
    return stored


def _with_deadline(plan: Plan[Any], begun: Deadline, used: float = 0.0) -> Plan[Any]:
    """The plan with its deadline, if it was given minutes: loading the images is part of them."""
    minutes = getattr(plan.config.run, "minutes", None)
    if minutes is None:
        return plan
    return replace(plan, deadline=replace(begun, seconds=60 * minutes, used=used))


def _checked(plan: Plan[Any]) -> Plan[Any]:
    """The plan, whatever its length was given in."""
    steps = plan.config.run.iterations or 0
    if steps > MOST_STEPS:
        raise InputError(f"a run of {steps:,} iterations: {MOST_STEPS:,} is the most")
    return plan
