"""Starting a run and going on with one: plan, folder, loop, and what the result says."""

import errno
import json
import shlex
import shutil
from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from sla.disk import check_space, exclusive, replacing
from sla.errors import InputError, SLAError
from sla.images.store import Splits
from sla.runs.checkpoint import remove_unfinished
from sla.runs.config import (
    Config,
    differing_keys,
    make_config,
    validate,
    with_values,
    write_config,
)
from sla.runs.defaults import Tree, with_absolute_paths
from sla.runs.distributed import Group, join_group, leave_group
from sla.runs.loop import Loop, Say, Watch
from sla.runs.signals import Stop
from sla.tasks.classifier.auto_views import TRIED, settle_views
from sla.tasks.classifier.data_summary import describe_data
from sla.tasks.classifier.plan import AUTO, Plan, make_plan, with_views
from sla.tasks.classifier.result import make_result
from sla.tasks.classifier.run import Run, read_result, read_run_config
from sla.tasks.classifier.trainer import Trainer, measure_seconds
from sla.tasks.classifier.view_probe import fitting

# torch.compile is used by default where the time it should save is more than the time it should take. Both
# are assumptions about a typical CPU, not measurements of this run: set run.compile where you know better.
COMPILE_SECONDS, COMPILE_SAVES = 100.0, 0.4


class StoppedError(SLAError):
    """The run was asked to stop and has written a checkpoint."""

    exit_code = 130


def train(
    config: Config,
    out: str | Path,
    *,
    resume: bool = False,
    splits: Splits | None = None,
    say: Say | None = None,
    watch: Watch | None = None,
    progress: Any = None,
) -> Run:
    """Train in the folder `out`, to the end or until stopped; every process of a group calls this alike.

    `splits` are data already in memory; otherwise the configuration says where they come from.
    """
    say, folder, group = say or _silent, Path(out), join_group()
    say = say if group.leads else _silent
    with ExitStack() as stack:
        stack.callback(leave_group, group)
        stack.enter_context(torch.random.fork_rng(devices=[]))  # the caller's random state is not ours
        if group.leads:
            lock_run_folder(folder, resume, stack)
        if resume:
            tree = read_run_config(folder) if group.leads else None
            stored = make_config(group.share(tree), f"{folder}/config.yaml")
            given = config if splits is not None else with_absolute_paths(config)
            refuse_differences(stored, given, folder, _settled_at_the_start(config))
            config = stored
        plan = _prepare(config, splits, group, say, progress, fresh=not resume)
        trainer = Trainer(plan, folder, group)
        run_loop(trainer, resume, "sla train", say, watch, lambda: make_result(trainer))
        run = Run(folder)
        run.splits = Splits(plan.config.data.source, plan.train, plan.val, plan.test)
        return run


def preview(
    config: Config, *, splits: Splits | None = None, say: Say | None = None, progress: Any = None
) -> Plan:
    """Say what `train` would say before its first step, and write no run; returns the plan.

    Views that are `auto` are not searched for: the plan is then for the first set that would be tried.
    """
    group = join_group()
    with ExitStack() as stack:
        stack.callback(leave_group, group)
        stack.enter_context(torch.random.fork_rng(devices=[]))
        spoken = say if say is not None and group.leads else _silent
        return _prepare(config, splits, group, spoken, progress, fresh=True, search=False)


def fit(
    data: str | Path | Splits,
    out: str | Path | None = None,
    *,
    resume: bool = False,
    config: dict[str, Any] | None = None,
    say: Say | None = None,
    watch: Watch | None = None,
    **settings: Any,
) -> Run:
    """Train a classifier and return its run, which predicts, evaluates and exports.

    Args:
        data: a folder, a CSV, a known dataset's name, or `Splits` in memory.
        out: the run's folder; `runs/<name>` by default.
        resume: go on with the run in `out`.
        config: a tree of settings, as in a run's config.yaml.
        say: called with each line about what was found and chosen.
        watch: called after each step with (steps done, steps in all, the newest numbers).
        settings: any key of the tree with its dot written as two underscores: `method__name="sla"`,
            `run__epochs=30`, `augment="crop(4), flip"`.
    """
    if config is not None and not isinstance(config, dict):
        raise InputError(f"config must be a tree of settings, not {config!r}")
    splits = data if isinstance(data, Splits) else None
    source = splits.name if splits is not None else str(data)
    given = {key.replace("__", "."): value for key, value in settings.items()}
    tree = with_values(config or {}, {"data.source": source, **given})
    folder = Path(out) if out is not None else Path("runs") / Path(source).expanduser().absolute().stem
    return train(make_config(tree), folder, resume=resume, splits=splits, say=say, watch=watch)


def _prepare(
    config: Config,
    splits: Splits | None,
    group: Group,
    say: Say,
    progress: Any,
    *,
    fresh: bool,
    search: bool = True,
) -> Plan:
    """A plan without gaps; of a fresh run it is said what was found and chosen, and how long it takes."""
    plan, spent = make_plan(config, splits, progress), 0.0
    told = fresh and say is not _silent
    for line in (*(describe_data(plan) if told else ()), *plan.reasons):
        say(line)
    if plan.config.method.views == AUTO:
        chosen = len(plan.reasons)
        if search:
            plan, spent = settle_views(plan, group, say, progress)
        else:
            tried = [views.text for views in fitting(TRIED, len(plan.config.model.mean or ()))]
            say(f"views: {', '.join(tried)} will be tried; the time is of {tried[0]}, without the search")
            plan = with_views(plan, tried[0])
        for line in plan.reasons[chosen:]:
            say(line)
    return _settle(plan, group, say, told, spent)


def lock_run_folder(folder: Path, resume: bool, stack: ExitStack) -> None:
    """Make the folder this process's own, until the stack is closed; there must be a run in it to resume."""
    # A run that failed before its first checkpoint is no run: its place is free again.
    unfinished = {".lock", "config.yaml", "metrics.csv", "tensorboard"}
    there = folder.is_dir() and any(entry.name not in unfinished for entry in folder.iterdir())
    if there and not resume:
        raise InputError(f"{folder}: there already; go on with it by --resume, or choose another --out")
    if resume and not (folder / "config.yaml").is_file():
        raise InputError(f"{folder}: no run to resume: no config.yaml in it")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        stack.enter_context(exclusive(folder / ".lock", wait=False))
    except BlockingIOError:
        raise InputError(f"{folder}: in use by another process") from None
    except OSError as error:
        raise InputError(f"{folder}: cannot be written: {error.strerror}") from None
    stack.callback(_remove_if_unused, folder)
    remove_unfinished(folder / "checkpoint")
    if not resume:
        (folder / "metrics.csv").unlink(missing_ok=True)


def _remove_if_unused(folder: Path) -> None:
    """A run that could not even start leaves nothing behind."""
    if [entry.name for entry in folder.iterdir()] == [".lock"]:
        (folder / ".lock").unlink()
        folder.rmdir()


def refuse_differences(stored: Tree, config: Tree, folder: Path, settled: Collection[str] = ()) -> None:
    """A resumed run keeps its configuration: keys given now must say what it says, but for settled ones."""
    given = config.model_dump(mode="json", exclude_unset=True, exclude_none=True)
    merged = validate(type(stored), _merge(stored.model_dump(mode="json"), given), str(folder))
    different = [line for line in differing_keys(merged, stored) if line.partition(":")[0] not in settled]
    if different:
        raise InputError(f"{folder}: cannot go on with another configuration: {'; '.join(different)}")


def _settled_at_the_start(config: Config) -> list[str]:
    """Keys that say `auto` and were chosen when the run began."""
    views = ["method.views", "method.name"] if config.method.views == AUTO else []
    return [*views, *(["method.imbalance"] if config.method.imbalance == AUTO else [])]


def run_loop(
    loop: Loop,
    resume: bool,
    command: str,
    say: Say,
    watch: Watch | None,
    result: Callable[[], dict[str, Any]],
) -> None:
    """The loop's run, in the folder that was claimed for it, from where it stands to its end and its result.

    A run that had ended and said so keeps what it said.
    """
    folder, group = loop.folder, loop.group
    if group.leads:
        _check_space(folder, loop)
        with replacing(folder / "config.yaml") as file:
            file.write(write_config(loop.config).encode())
    if resume:
        loop.resume()
        say(f"going on from step {loop.position.step:,} of {loop.steps:,}")
    ended = loop.position.step >= loop.steps
    with Stop().listening() as stop:
        try:
            if not loop.fit(stop, watch if group.leads else None):
                raise StoppedError(
                    f"stopped after step {loop.position.step:,} of {loop.steps:,}; "
                    f"to go on: {command} --resume --out {shlex.quote(str(folder))}"
                )
            if group.leads and not (resume and ended and _has_result(folder)):
                text = json.dumps(result(), indent=2) + "\n"
                with replacing(folder / "result.json") as file:
                    file.write(text.encode())
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            raise SLAError(
                f"{folder}: the disk is full; the last checkpoint is whole: make room, then --resume"
            ) from None
        group.wait()


def _merge(tree: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """The tree with what is given now in its place, branch by branch."""
    merged = dict(tree)
    for key, value in given.items():
        inner = merged.get(key)
        merged[key] = _merge(inner, value) if isinstance(value, dict) and isinstance(inner, dict) else value
    return merged


def _has_result(folder: Path) -> bool:
    """Whether the run has said what it cost and by which command: going on must not change that."""
    try:
        return bool(read_result(folder))
    except InputError:
        return False


def _settle(plan: Plan, group: Group, say: Say, told: bool, spent: float = 0.0) -> Plan:
    """Fix what depends on the machine's speed, once: iterations from minutes, and whether to compile.

    `told`: say how long it will take, also where nothing depends on it. `spent` seconds are gone already.
    """
    run = plan.config.run
    iterations, compiles = run.iterations, run.compile
    if compiles is None and run.device == "cpu" and shutil.which("g++") is None:
        compiles = False
    is_open = iterations is None or compiles is None
    # The processes decide alike whether to measure: only the leading one has somebody to tell.
    if is_open or group.any(told)[0]:
        measured = measure_seconds(plan, 12 if is_open else 4) if group.leads else None
        seconds = group.share(measured) / group.world_size
        total = (iterations or 1) * seconds
        if iterations is None and run.minutes:
            total = max(60 * run.minutes - spent, 0.0)
        if compiles is None:
            compiles = total * COMPILE_SAVES > COMPILE_SECONDS
        say(f"about {_duration(total)} of training, {'compiled' if compiles else 'not compiled'}")
        if iterations is None:
            if compiles:
                total, seconds = total - COMPILE_SECONDS, seconds * (1 - COMPILE_SAVES)
            iterations = max(int(total / seconds), 1)
            say(f"{iterations:,} iterations fit into {run.minutes:g} minutes")
    fixed = run.model_copy(update={"iterations": iterations, "compile": compiles})
    return replace(plan, config=plan.config.model_copy(update={"run": fixed}))


def _check_space(folder: Path, loop: Loop) -> None:
    """Refuse to start where two checkpoints would not fit on the disk."""
    size = sum(value.numel() * value.element_size() for value in loop.model.state_dict().values())
    # Weights, two moments at the most, two copies for an average; an old and a new one, and the best.
    need = 3 * size * (5 if loop.average else 3)
    check_space(folder, need, "keeping checkpoints")


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"


def _silent(line: str) -> None:
    pass
