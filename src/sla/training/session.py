"""Starting a run and going on with one: plan, folder, loop, and what the result says."""

import errno
import json
import platform
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from sla import __version__
from sla.backbones.cost import count_flops, count_parameters
from sla.data.store import Dataset, Splits
from sla.disk import exclusive, replacing
from sla.errors import InputError, SLAError
from sla.factory import load as load_classifier
from sla.training.checkpoint import WEIGHTS, find_checkpoint
from sla.training.config import (
    Config,
    differing_keys,
    make_config,
    read_config,
    with_values,
    write_config,
)
from sla.training.distributed import Group, join_group, leave_group
from sla.training.evaluation import infer
from sla.training.loop import Stop, Trainer, Watch, measure_seconds
from sla.training.metrics import fit_temperature
from sla.training.plan import Plan, make_plan
from sla.training.run import Run

# torch.compile is used by default where the time it saves is more than the time it takes: on two cores it
# took at most this long and saved this share of the training time.
COMPILE_SECONDS, COMPILE_SAVES = 100.0, 0.4

Say = Callable[[str], None]


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
        stored = _claim(folder, resume, stack) if group.leads else None
        if resume:
            tree = stored.model_dump(mode="json") if stored is not None else None
            stored = make_config(group.share(tree))
            _refuse_differences(stored, config, folder)
            config = stored
        plan = make_plan(config, splits, progress)
        for reason in plan.reasons:
            say(reason)
        plan = _settle(plan, group, say)
        trainer = Trainer(plan, folder, group)
        if group.leads:
            _check_space(folder, trainer)
            with replacing(folder / "config.yaml") as file:
                file.write(write_config(plan.config).encode())
        if resume:
            trainer.resume()
            say(f"going on from step {trainer.position.step:,} of {trainer.steps:,}")
        stop = stack.enter_context(Stop().listening())
        try:
            finished = trainer.fit(stop, watch if group.leads else None)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            raise SLAError(
                f"{folder}: the disk is full; the last checkpoint is whole: make room, then --resume"
            ) from None
        if not finished:
            raise StoppedError(
                f"stopped after step {trainer.position.step:,} of {trainer.steps:,}; "
                f"to go on: sla train --resume --out {shlex.quote(str(folder))}"
            )
        if group.leads:
            with replacing(folder / "result.json") as file:
                file.write((json.dumps(_result(trainer), indent=2) + "\n").encode())
        group.wait()
    return Run(folder)


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
    splits = data if isinstance(data, Splits) else None
    source = splits.name if splits is not None else str(data)
    given = {key.replace("__", "."): value for key, value in settings.items()}
    tree = with_values(config or {}, {"data.source": source, **given})
    folder = Path(out) if out is not None else Path("runs") / Path(source).expanduser().absolute().stem
    return train(make_config(tree), folder, resume=resume, splits=splits, say=say, watch=watch)


def _claim(folder: Path, resume: bool, stack: ExitStack) -> Config | None:
    """Make the folder this process's own; the configuration in it when a run goes on."""
    there = folder.is_dir() and any(entry.name != ".lock" for entry in folder.iterdir())
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
    return make_config(read_config(folder / "config.yaml"), f"{folder}/config.yaml") if resume else None


def _remove_if_unused(folder: Path) -> None:
    """A run that could not even start leaves nothing behind."""
    if [entry.name for entry in folder.iterdir()] == [".lock"]:
        (folder / ".lock").unlink()
        folder.rmdir()


def _refuse_differences(stored: Config, config: Config, folder: Path) -> None:
    """A resumed run keeps its configuration: keys given now must say what it says."""
    given = config.model_dump(mode="json", exclude_unset=True, exclude_none=True)
    merged = make_config(_merge(stored.model_dump(mode="json"), given))
    different = differing_keys(merged, stored)
    if different:
        raise InputError(f"{folder}: cannot go on with another configuration: {'; '.join(different)}")


def _merge(tree: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    merged = dict(tree)
    for key, value in given.items():
        inner = merged.get(key)
        merged[key] = _merge(inner, value) if isinstance(value, dict) and isinstance(inner, dict) else value
    return merged


def _settle(plan: Plan, group: Group, say: Say) -> Plan:
    """Fix what depends on the machine's speed, once: iterations from minutes, and whether to compile."""
    run = plan.config.run
    if run.iterations is None or run.compile is None:
        seconds = group.share(measure_seconds(plan, Group()) if group.leads else None) / group.world_size
        iterations, compiles = run.iterations, run.compile
        total = run.minutes * 60 if iterations is None and run.minutes else (iterations or 1) * seconds
        if compiles is None:
            compiles = shutil.which("g++") is not None or run.device == "cuda"
            compiles = compiles and total * COMPILE_SAVES > COMPILE_SECONDS
            say(f"about {_duration(total)} of training, {'compiled' if compiles else 'not compiled'}")
        if iterations is None:
            if compiles:
                total, seconds = total - COMPILE_SECONDS, seconds * (1 - COMPILE_SAVES)
            iterations = max(int(total / seconds), 1)
            say(f"{iterations:,} iterations fit into {run.minutes:g} minutes")
        fixed = run.model_copy(update={"iterations": iterations, "compile": compiles})
        plan = Plan(
            plan.config.model_copy(update={"run": fixed}), plan.train, plan.val, plan.test, plan.reasons
        )
    return plan


def _check_space(folder: Path, trainer: Trainer) -> None:
    """Refuse to start where two checkpoints would not fit on the disk."""
    size = sum(value.numel() * value.element_size() for value in trainer.model.state_dict().values())
    # Weights, two moments at the most, two copies for an average; an old and a new one, and the best.
    need = 3 * size * (5 if trainer.average else 3)
    free = shutil.disk_usage(folder).free
    if free < need:
        raise InputError(
            f"{folder}: {free / 1e6:.0f} MB free, {need / 1e6:.0f} MB are needed for checkpoints"
        )


def _result(trainer: Trainer) -> dict[str, Any]:
    """Accuracies by kind of inference, last and best on val, and what they cost. Test chooses nothing."""
    plan, config, position = trainer.plan, trainer.config, trainer.position
    checkpoints = {"last": find_checkpoint(trainer.folder / "checkpoint", "last")}
    checkpoints["best"] = find_checkpoint(trainer.folder / "checkpoint", "best")
    accuracies: dict[str, Any] = {}
    temperatures: dict[str, dict[str, float]] = {}
    for which, checkpoint in checkpoints.items():
        if checkpoint is None:
            continue
        model = load_classifier(checkpoint / WEIGHTS, trainer.device)
        found: dict[str, Any] = {"step": model.about["step"]}
        for name, dataset in (("val", plan.val), ("test", plan.test)):
            if dataset is None:
                continue
            outputs = infer(model, dataset, trainer.eval_pipeline, workers=config.data.workers or 0)
            if name == "val":
                temperatures[which] = {
                    how: fit_temperature(x, outputs.targets) for how, x in outputs.logits.items()
                }
            found[name] = outputs.scores(temperatures.get(which))
        accuracies[which] = found
    return {
        "headline": trainer.model.method.headline,
        "accuracies": accuracies,
        "temperatures": temperatures,
        "seed": config.run.seed,
        "images": {name: _count(getattr(plan, name)) for name in ("train", "val", "test")},
        "cost": _cost(trainer, position.seconds),
        "versions": {"sla": __version__, "torch": torch.__version__, "python": platform.python_version()},
        "commit": _commit(),
        "command": shlex.join(["sla", *sys.argv[1:]]),
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _cost(trainer: Trainer, seconds: float) -> dict[str, Any]:
    config = trainer.config
    channels, size = trainer.plan.train.images.shape[0], config.model.resolution or 1
    views = config.method.views_per_step or 1
    forward = count_flops(trainer.model.backbone.cpu(), (channels, size, size))
    trainer.model.to(trainer.device)
    return {
        "seconds": round(seconds, 2),
        "iterations": trainer.steps,
        "images_seen": trainer.steps * trainer.batch_size * views,
        # Backward costs twice the forward pass.
        "training_flop": 3 * forward * trainer.steps * trainer.batch_size * views,
        "inference_flop": {
            how: forward * (len(trainer.model.method.views) if how == "aggregated" else 1)
            for how in trainer.model.method.kinds
        },
        "parameters": count_parameters(trainer.model),
        "peak_memory_bytes": _peak_memory(trainer.device),
        "device": str(trainer.device),
        "processes": trainer.group.world_size,
    }


def _peak_memory(device: torch.device) -> int | None:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _commit() -> str | None:
    """The commit of the source tree this package runs from, where it is one."""
    here = Path(__file__).parent
    try:
        done = subprocess.run(
            ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
            capture_output=True, text=True, timeout=5, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _count(dataset: Dataset | None) -> int:
    return 0 if dataset is None else len(dataset)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"


def _silent(line: str) -> None:
    pass
