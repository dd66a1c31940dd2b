"""Starting a few-shot run and going on with one: plan, folder, loop, and what the result says."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from sla.images.store import Splits
from sla.runs.checkpoint import find_checkpoint
from sla.runs.defaults import with_absolute_paths
from sla.runs.loop import Say, Watch
from sla.session import lock_run_folder, refuse_differences, run_loop
from sla.tasks.classifier.result import describe_cost, describe_origin
from sla.tasks.classifier.run import read_run_config
from sla.tasks.fewshot.config import FewShotConfig, make_fewshot_config
from sla.tasks.fewshot.evaluate import episode_interval
from sla.tasks.fewshot.plan import make_fewshot_plan
from sla.tasks.fewshot.run import FewShotRun, evaluate_episodes
from sla.tasks.fewshot.trainer import FewShotTrainer


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
        lock_run_folder(folder, resume, stack)
        if resume:
            stored = make_fewshot_config(read_run_config(folder, few_shot=True), f"{folder}/config.yaml")
            given = config if splits is not None else with_absolute_paths(config)
            refuse_differences(stored, given, folder)
            config = stored
        plan = make_fewshot_plan(config, splits, progress)
        for reason in plan.reasons:
            say(reason)
        trainer = FewShotTrainer(plan, folder)
        run_loop(trainer, resume, "sla fewshot train", say, watch, lambda: make_result(trainer, progress))
        return FewShotRun(folder)


def make_result(trainer: FewShotTrainer, progress: Any = None) -> dict[str, Any]:
    """Test accuracies by checkpoint, shot and kind of inference, and what they cost. Test chooses nothing."""
    plan, config = trainer.plan, trainer.config
    accuracies: dict[str, Any] = {}
    for checkpoint in ("last", "best"):
        found = find_checkpoint(trainer.folder / "checkpoint", checkpoint)
        if found is None or plan.test is None:
            continue
        run = FewShotRun(trainer.folder, checkpoint, str(trainer.device))
        step = run.model.about["step"]
        same = checkpoint == "best" and step == accuracies.get("last", {}).get("step")
        tested = (
            accuracies["last"]["test"]
            if same
            else _describe(evaluate_episodes(run, plan.test, progress=progress))
        )
        accuracies[checkpoint] = {"step": step, "test": tested}
    return {
        "task": "few-shot",
        "headline": trainer.model.inferences[-1],
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
    part, views = trainer.config.episodes, len(trainer.model.views)
    episodes = trainer.steps * trainer.per_step
    seen = episodes * part.way * (part.shot + part.query) * views
    return {"episodes": episodes} | describe_cost(trainer, seen, trainer.model.inferences, views)
