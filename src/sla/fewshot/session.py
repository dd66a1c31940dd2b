"""Starting a few-shot run and going on with one: plan, folder, loop, and what the result says."""

import json
import shlex
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from sla.backbones.cost import count_flops, count_parameters
from sla.data.store import Splits
from sla.disk import check_space, replacing
from sla.errors import InputError
from sla.fewshot.config import FewShotConfig, make_fewshot_config
from sla.fewshot.evaluate import episode_interval
from sla.fewshot.loop import FewShotTrainer
from sla.fewshot.plan import make_fewshot_plan, with_absolute_source
from sla.fewshot.run import FewShotRun, evaluate_episodes
from sla.training.checkpoint import find_checkpoint
from sla.training.config import differing_keys, read_config, write_config
from sla.training.loop import Watch
from sla.training.result import describe_origin, peak_memory
from sla.training.session import Say, StoppedError, claim, merge
from sla.training.stop import Stop


def train_fewshot(
    config: FewShotConfig,
    out: str | Path,
    *,
    resume: bool = False,
    splits: Splits | None = None,
    say: Say | None = None,
    watch: Watch | None = None,
    progress: Any = None,
) -> FewShotRun:
    """Train in the folder `out`, to the end or until stopped, then test; one process.

    `splits` are data already in memory, classes of their own in each; otherwise the configuration says where
    they come from.
    """
    folder, say = Path(out), say or (lambda line: None)
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=[]))  # the caller's random state is not ours
        claim(folder, resume, stack)
        config = config if splits is not None else with_absolute_source(config)
        if resume:
            config = _stored(folder, config)
        plan = make_fewshot_plan(config, splits, progress)
        for reason in plan.reasons:
            say(reason)
        trainer = FewShotTrainer(plan, folder)
        size = sum(value.numel() * value.element_size() for value in trainer.model.state_dict().values())
        check_space(folder, 6 * size, "keeping checkpoints")  # weights and momentum: old, new, and the best
        with replacing(folder / "config.yaml") as file:
            file.write(write_config(plan.config).encode())
        if resume:
            trainer.resume()
            say(f"going on from step {trainer.position.step:,} of {trainer.steps:,}")
        stop = stack.enter_context(Stop().listening())
        if not trainer.fit(stop, watch):
            raise StoppedError(
                f"stopped after step {trainer.position.step:,} of {trainer.steps:,}; "
                f"to go on: sla fewshot train --resume --out {shlex.quote(str(folder))}"
            )
        result = make_result(trainer, progress)
        with replacing(folder / "result.json") as file:
            file.write((json.dumps(result, indent=2) + "\n").encode())
        return FewShotRun(folder)


def make_result(trainer: FewShotTrainer, progress: Any = None) -> dict[str, Any]:
    """Test accuracies by checkpoint, shot and kind of inference, and what they cost. Test chooses nothing."""
    plan, config = trainer.plan, trainer.config
    accuracies: dict[str, Any] = {}
    for which in ("last", "best"):
        found = find_checkpoint(trainer.folder / "checkpoint", which)
        if found is None or plan.test is None:
            continue
        run = FewShotRun(trainer.folder, which, str(trainer.device))
        step = run.model.about["step"]
        same = which == "best" and step == accuracies.get("last", {}).get("step")
        tested = (
            accuracies["last"]["test"]
            if same
            else _describe(evaluate_episodes(run, plan.test, progress=progress))
        )
        accuracies[which] = {"step": step, "test": tested}
    return {
        "task": "few-shot",
        "headline": trainer.model.kinds[-1],
        "accuracies": accuracies,
        "val": {"step": trainer.position.best_step, "accuracy": trainer.position.best_accuracy}
        if plan.val
        else None,
        "episodes": {"test": config.episodes.test_episodes, "way": config.episodes.way},
        "seed": config.run.seed,
        "classes": {
            n: d.num_classes for n in ("train", "val", "test") if (d := getattr(plan, n)) is not None
        },
        "cost": _cost(trainer),
        **describe_origin(),
    }


def _describe(found: dict[int, dict[str, Any]]) -> dict[str, dict[str, dict[str, float]]]:
    """By shot and kind: the mean over episodes, and half the width of its 95% interval."""
    described: dict[str, dict[str, dict[str, float]]] = {}
    for shot, kinds in found.items():
        described[str(shot)] = {}
        for kind, values in kinds.items():
            interval = episode_interval(values)
            described[str(shot)][kind] = {"top1": interval.mean, "ci95": interval.high - interval.mean}
    return described


def _cost(trainer: FewShotTrainer) -> dict[str, Any]:
    config, part = trainer.config, trainer.config.episodes
    channels, size = len(config.model.mean or ()), config.model.resolution or 1
    forward, views = count_flops(trainer.model.backbone, (channels, size, size)), len(trainer.model.views)
    seen = trainer.steps * trainer.per_step * part.way * (part.shot + part.query) * views
    return {
        "seconds": round(trainer.position.seconds, 2),
        "iterations": trainer.steps,
        "episodes": trainer.steps * trainer.per_step,
        "images_seen": seen,
        "training_flop": 3 * forward * seen,  # backward costs twice the forward pass
        "inference_flop": {
            kind: forward * (views if kind == "aggregated" else 1) for kind in trainer.model.kinds
        },
        "parameters": count_parameters(trainer.model),
        "peak_memory_bytes": peak_memory(trainer.device),
        "device": str(trainer.device),
    }


def _stored(folder: Path, given: FewShotConfig) -> FewShotConfig:
    """The configuration of the run in the folder; keys given now must say what it says."""
    stored = make_fewshot_config(read_config(folder / "config.yaml"), f"{folder}/config.yaml")
    tree = given.model_dump(mode="json", exclude_unset=True, exclude_none=True)
    different = differing_keys(make_fewshot_config(merge(stored.model_dump(mode="json"), tree)), stored)
    if different:
        raise InputError(f"{folder}: cannot go on with another configuration: {'; '.join(different)}")
    return stored
