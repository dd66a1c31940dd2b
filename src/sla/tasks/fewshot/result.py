"""The result of a few-shot run: accuracies over episodes, cost, and where it comes from."""

from functools import partial
from pathlib import Path
from typing import Any

from sla.progress import Progress
from sla.runs.result import describe_cost, describe_origin, evaluate_checkpoints, top1_scores
from sla.tasks.fewshot.evaluate import episode_interval, evaluate_episodes
from sla.tasks.fewshot.model import load_model
from sla.tasks.fewshot.trainer import FewShotTrainer


def make_result(trainer: FewShotTrainer, progress: Progress) -> dict[str, Any]:
    """Test accuracies by checkpoint, shot and inference, and what they cost. Test chooses nothing."""
    plan, config = trainer.plan, trainer.config
    found = evaluate_checkpoints(trainer.folder, partial(_evaluate, trainer, progress)) if plan.test else {}
    splits = (("train", plan.train), ("val", plan.val), ("test", plan.test))
    val = {"step": trainer.position.best_step, "accuracy": trainer.position.best_accuracy}
    return {
        "task": "fewshot",
        "headline": trainer.model.inferences[-1],
        "accuracies": {name: {"step": step, "test": tested} for name, (step, tested) in found.items()},
        "val": val if plan.val else None,
        "episodes": {"test": config.episodes.test_episodes, "way": config.episodes.way},
        "seed": config.run.seed,
        "classes": {name: part.num_classes for name, part in splits if part is not None},
        "cost": _cost(trainer),
        **describe_origin(),
    }


def _evaluate(
    trainer: FewShotTrainer, progress: Progress, checkpoint: str, weights: Path
) -> dict[str, dict[str, dict[str, float]]]:
    """By shot and inference: the mean over test episodes, and half the width of its 95% interval."""
    assert trainer.plan.test is not None
    model, config = load_model(weights, trainer.device), trainer.config
    workers = config.data.workers
    found = evaluate_episodes(model, trainer.plan.test, config.episodes, workers=workers, progress=progress)
    described: dict[str, dict[str, dict[str, float]]] = {}
    for shot, accuracies in found.items():
        described[str(shot)] = {}
        for inference, values in accuracies.items():
            interval = episode_interval(values)
            half = interval.high - interval.mean
            described[str(shot)][inference] = {"top1": interval.mean, "ci95": half}
    return described


def _cost(trainer: FewShotTrainer) -> dict[str, Any]:
    part, views = trainer.config.episodes, len(trainer.model.views)
    episodes = trainer.position.taken * trainer.per_step
    seen = episodes * part.way * (part.shot + part.query) * views
    return {"episodes": episodes} | describe_cost(trainer, seen, trainer.model.inferences, views)


def record_run(run: Any) -> dict[str, Any]:
    """Test accuracies by shot and inference, and the best on validation classes.

    The test episodes are the same for every method and seed.
    """
    more: dict[str, float] = {"val": run.result["val"]["accuracy"]} if run.result["val"] else {}
    for shot, scores in run.result["accuracies"]["last"]["test"].items():
        more |= top1_scores(scores, f"{shot}-shot ")
    return {"more": more}
