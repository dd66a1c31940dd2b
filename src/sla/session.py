"""Starting a run, resuming one, opening one: the same few functions for every task."""

import json
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from sla.disk import replacing
from sla.errors import InputError, SLAWarning
from sla.images.store import Splits
from sla.plugins import allow_typed
from sla.progress import QUIET, Progress
from sla.runs.config import TrainingConfig
from sla.runs.defaults import with_absolute_paths
from sla.runs.distributed import Group, join_group, leave_group
from sla.runs.folder import (
    CONFIG,
    RESULT,
    default_folder,
    has_begun,
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
from sla.runs.stages import explaining_a_full_disk, run_stages
from sla.tasks.registry import TASKS, find_task, make_config, with_values


def train(
    config: TrainingConfig,
    out: str | Path,
    *,
    resume: bool = False,
    splits: Splits | None = None,
    progress: Progress = QUIET,
) -> OpenedRun:
    """Train in the folder `out`, to the end or until stopped; every process of a group calls this alike.

    `splits` are data already in memory; otherwise the configuration says where they come from. Returns the
    run class of the configuration's task.
    """
    folder, group = Path(out), join_group()
    progress = progress if group.leads else QUIET
    with ExitStack() as stack:
        stack.callback(leave_group, group)
        stack.enter_context(torch.random.fork_rng(devices=[]))  # the caller's random state is not ours
        if group.leads:
            lock_run_folder(folder, resume, stack)
        if resume:
            config = _stored_config(folder, config, splits is not None, group)
        task = TASKS[config.task]
        plan = task.plan(config, splits, progress)
        stack.enter_context(using_threads(plan.config.run.threads))
        begins = group.share(not has_begun(folder))
        record = None if begins else group.share(read_record(folder) if group.leads else None)
        if record is not None:
            plan = with_recorded_images(plan, record, folder, progress)
        plan = task.prepare(plan, group, progress, starts=not resume, search=True)
        stages = task.stages(plan, group)
        was_finished = resume and stages[-1].is_finished(folder) and has_result(folder)
        with explaining_a_full_disk(folder), Stop().listening() as stop:
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


def preview(
    config: TrainingConfig, *, splits: Splits | None = None, progress: Progress = QUIET
) -> Plan[TrainingConfig]:
    """Give the messages that `train` gives before its first step, and write no run; returns the plan.

    Views that are `auto` are not searched for: the plan is then for the first set that would be tried.
    """
    task, group = TASKS[config.task], join_group()
    with ExitStack() as stack:
        stack.callback(leave_group, group)
        stack.enter_context(torch.random.fork_rng(devices=[]))
        progress = progress if group.leads else QUIET
        plan = task.plan(config, splits, progress)
        stack.enter_context(using_threads(plan.config.run.threads))
        return task.prepare(plan, group, progress, starts=True, search=False)


def fit(
    data: str | Path | Splits,
    out: str | Path | None = None,
    *,
    resume: bool = False,
    config: dict[str, Any] | None = None,
    progress: Progress = QUIET,
    say: Callable[[str], None] | None = None,
    watch: Callable[[int, int, dict[str, float]], None] | None = None,
    **settings: Any,
) -> Any:
    """Train a classifier, or what `task` names, and return its run: a `Run` predicts, evaluates and exports.

    Args:
        data: a folder, a CSV, a known dataset's name, or `Splits` in memory.
        out: the run's folder; `runs/<name>` by default.
        resume: continue the run in `out`.
        config: a tree of settings, as in a run's config.yaml.
        progress: gets messages about what was found and chosen, and every step with its numbers.
        say: deprecated, as `watch` is: a subclass of `Progress` has `message` and `step` instead.
        watch: deprecated.
        settings: any key of the tree with its dot written as two underscores: `method__name="sla"`,
            `run__epochs=30`, `augment="crop(4), flip"`.
    """
    if config is not None and not isinstance(config, dict):
        raise InputError(f"config must be a tree of settings, not {config!r}")
    if say is not None or watch is not None:
        warnings.warn(
            "fit(say=, watch=) will be removed: pass progress=, a subclass of sla.progress.Progress",
            SLAWarning,
        )
        progress = _Callbacks(progress, say, watch)
    splits = data if isinstance(data, Splits) else None
    source = splits.name if splits is not None else str(data)
    given = {key.replace("__", "."): value for key, value in settings.items()}
    allow_typed(given)
    tree = with_values(config or {}, {"data.source": source, **given})
    folder = Path(out) if out is not None else default_folder(source)
    return train(make_config(tree), folder, resume=resume, splits=splits, progress=progress)


def open_run(folder: str | Path, checkpoint: str = CHOSEN, device: str = "cpu") -> OpenedRun:
    """A run of any task, by the run class of its task; `checkpoint` is chosen, last or best."""
    task = find_task(read_run_config(Path(folder)), f"{folder}/{CONFIG}")
    return task.run_class(folder, checkpoint, device)


def _stored_config(folder: Path, config: TrainingConfig, in_memory: bool, group: Group) -> TrainingConfig:
    """The configuration that the run has; refused where the one given now has other values."""
    tree = read_run_config(folder) if group.leads else None
    stored = make_config(group.share(tree), f"{folder}/{CONFIG}")
    if stored.task != config.task:
        raise InputError(f"{folder}: a run of task {stored.task}: it cannot be resumed as {config.task}")
    refuse_differences(stored, config if in_memory else with_absolute_paths(config), folder)
    return stored


class _Callbacks(Progress):
    """The callables that `fit` took before there was one class for both."""

    def __init__(
        self,
        inner: Progress,
        say: Callable[[str], None] | None,
        watch: Callable[[int, int, dict[str, float]], None] | None,
    ) -> None:
        self.inner, self.say, self.watch = inner, say, watch

    def message(self, text: str) -> None:
        (self.say or self.inner.message)(text)

    def advance(self, what: str, done: int, total: int | None) -> None:
        self.inner.advance(what, done, total)

    def step(self, done: int, total: int, metrics: dict[str, float]) -> None:
        (self.watch or self.inner.step)(done, total, metrics)
