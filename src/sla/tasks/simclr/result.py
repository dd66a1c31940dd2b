"""The result of a SimCLR run: how good its features are, what they cost, and where they come from."""

from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sla.images.store import Dataset, spread
from sla.progress import Progress
from sla.runs.result import describe_cost, describe_origin, evaluate_checkpoints, top1_scores
from sla.tasks.simclr.model import load_model
from sla.tasks.simclr.scores import KNN, embed, score_between, score_within
from sla.tasks.simclr.trainer import EVAL_BATCH, SCORED, VIEWS, SimCLRTrainer

KNOWN = 5000  # labelled training images that test images are compared with, evenly spaced


def make_result(trainer: SimCLRTrainer, progress: Progress) -> dict[str, Any]:
    """Accuracies of the features by checkpoint, and their cost. Test images choose nothing."""
    plan, config = trainer.plan, trainer.config
    judged = evaluate_checkpoints(trainer.folder, partial(_evaluate, trainer, progress))
    splits = (("train", plan.train), ("val", plan.val), ("test", plan.test))
    seen = VIEWS * trainer.steps * trainer.batch_size
    return {
        "task": "simclr",
        "headline": KNN,
        "accuracies": {name: {"step": step, **found} for name, (step, found) in judged.items()},
        "images": {name: len(part) for name, part in splits if part is not None},
        "seed": config.run.seed,
        "cost": describe_cost(trainer, seen, ("features",), 1),
        **describe_origin(),
    }


def _evaluate(
    trainer: SimCLRTrainer, progress: Progress, checkpoint: str, weights: Path
) -> dict[str, dict[str, dict[str, float]]]:
    """By split and kind: held-out images judged by each other, test images by labelled training images."""
    plan, model = trainer.plan, load_model(weights, trainer.device)
    passing = {"batch_size": EVAL_BATCH, "workers": trainer.config.data.workers or 0, "progress": progress}

    def features(part: Dataset, most: int | None = None) -> tuple[Tensor, Tensor]:
        some = part if most is None else part.subset(spread(len(part), most))
        found = embed(model, some, trainer.eval_pipeline, what=f"features, {checkpoint}", **passing)
        return found, torch.from_numpy(some.targets)

    found: dict[str, dict[str, float]] = {}
    if plan.val is not None:
        found["val"] = score_within(*features(plan.val, SCORED), plan.val.num_classes)
    if plan.test is not None and plan.train.num_classes > 1:
        known, asked = features(plan.train, KNOWN), features(plan.test)
        found["test"] = score_between(*known, *asked, plan.train.num_classes)
    return {split: {kind: {"top1": top1} for kind, top1 in kinds.items()} for split, kinds in found.items()}


def record_run(run: Any) -> dict[str, Any]:
    """Accuracies of the features of the last checkpoint, on test and on held-out images."""
    last = run.result["accuracies"]["last"]
    return {"more": top1_scores(last.get("test", {})) | top1_scores(last.get("val", {}), "val_")}
