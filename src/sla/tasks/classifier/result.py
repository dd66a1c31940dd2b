"""The result of a classifier's run: accuracies, temperatures, cost, and where it comes from."""

from pathlib import Path
from typing import Any

from sla.classifier import Classifier
from sla.progress import Progress
from sla.runs.checkpoint import WEIGHTS, check_file, read_state, step_of
from sla.runs.folder import CONFIG, last_checkpoint
from sla.runs.metrics import at_limit
from sla.runs.result import describe_cost, describe_origin, evaluate_checkpoints
from sla.stats import share
from sla.tasks.classifier.averaged import average_with_quick
from sla.tasks.classifier.choice import MODELS, Candidate, choose_model, usual_model
from sla.tasks.classifier.config import AVERAGED, DISTIL, FEATURES
from sla.tasks.classifier.features import features_config, features_flop
from sla.tasks.classifier.judge import Judge, JudgedCheckpoint, is_slow
from sla.tasks.classifier.passes import forward_flop, step_passes
from sla.tasks.classifier.trainer import Trainer
from sla.tasks.classifier.use_all import read_judgement
from sla.tasks.classifier.view_accuracy import advise, measure_views


def make_result(trainer: Trainer, progress: Progress) -> dict[str, Any]:
    """Accuracies by checkpoint and kind of inference, and what they cost. Test chooses nothing."""
    plan, folder = trainer.plan, _run_folder(trainer)
    parts = [("held-out", plan.val), ("test", plan.test)]
    if said := " and ".join(f"{len(some):,} {name}" for name, some in parts if some is not None):
        progress.message(f"evaluating on {said} images")
    quick = last_checkpoint(folder, FEATURES)
    judge = Judge(trainer, progress, keeps=quick is not None)
    judged = evaluate_checkpoints(trainer.folder, judge.judge)
    if quick is not None:
        check_file(quick / WEIGHTS)
        judged[FEATURES] = step_of(quick), judge.judge(FEATURES, quick / WEIGHTS)
        if trainer.teacher is None:  # a student began with neither
            both = average_with_quick(trainer, judged[FEATURES][1].model, judged["last"][1].weights)
            if both is not None:
                judged[AVERAGED] = step_of(both.parent), judge.judge(AVERAGED, both)
    found = {name: one for name, (_, one) in judged.items()}
    chosen = None if quick is None else _choose(found, trainer.position.taken, progress)
    if (judgement := read_judgement(folder)) is not None:
        chosen = judgement.apply(found, chosen)
        judged = {name: (judged[name][0], one) for name, one in found.items()}
    # From here on nothing is chosen.
    scores: dict[str, dict[str, Any]] = {}
    for name, (step, one) in judged.items():
        same = next((known for known in scores if judged[known][1] is one), None)
        scores[name] = scores[same] if same else {"step": step, **judge.test(one)}
    _say_uncalibrated(found, progress)
    fitted = found.get(FEATURES, found["last"]).model.about.get("cross_validation")
    return {
        "headline": trainer.model.method.headline,
        "accuracies": scores,
        "temperatures": {name: one.temperatures for name, one in found.items() if one.temperatures},
        "temperature_intervals": {name: one.intervals for name, one in found.items() if one.intervals},
        "anytime": {
            name: [rule.to_dict() for rule in one.anytime] for name, one in found.items() if one.anytime
        },
        "view_accuracy": _view_accuracy(trainer, found["last"].model, scores["last"], progress),
        **({} if chosen is None else {"chosen": chosen}),
        **({} if judgement is None else {"judged_by": judgement.about()}),
        **trainer.about(),
        **({"cross_validation": fitted} if fitted else {}),
        "seed": trainer.config.run.seed,
        "images": {
            "train": len(plan.train),
            "val": len(plan.val) if plan.val else 0,
            "test": len(plan.test) if plan.test else 0,
            **({} if plan.unlabelled is None else {"unlabelled": len(plan.unlabelled)}),
        },
        "train_counts": plan.train.counts().tolist(),
        "cost": _with_quick(_cost(trainer, scores["last"]), trainer, quick),
        **describe_origin(),
    }


def _say_uncalibrated(found: dict[str, JudgedCheckpoint], progress: Progress) -> None:
    for checkpoint, one in found.items():
        failed = [inference for inference, value in one.temperatures.items() if at_limit(value)]
        if failed and checkpoint == one.checkpoint:
            limits = f"calibration of {', '.join(failed)} failed (temperature at its limit)"
            progress.message(f"{checkpoint}: {limits}, so its probabilities are unreliable")


def _run_folder(trainer: Trainer) -> Path:
    """The folder of the whole run, of which the trainer may be a later stage."""
    folder = trainer.folder
    return folder.parent if folder.name == DISTIL and not (folder / CONFIG).is_file() else folder


def _choose(found: dict[str, JudgedCheckpoint], steps: int, progress: Progress) -> dict[str, Any]:
    """Choose the model that answers by default on the held-out images, and say why in a few lines."""
    held = found["last"].held_out
    if held is None:
        usual, why = usual_model(found, steps), "nothing was held out to compare models with"
        progress.message(f"{why}: predict uses {MODELS[usual]}")
        return {"checkpoint": usual, "inference": found[usual].model.method.one_pass, "why": why}
    candidates = {}
    for name, one in found.items():
        if one.held_out is not None and (name != "best" or one is not found["last"]):
            logits, at = one.held_out.logits, one.temperatures
            method = one.model.method
            inferences = (method.one_pass, method.headline)  # of equal ones, one pass is enough
            alone = method.one_pass == method.headline
            own = [Candidate(each, logits[each], at.get(each, 1.0), alone) for each in inferences]
            candidates[name] = max(own, key=lambda each: each.likelihood(held.targets))
    chosen, lines = choose_model(candidates, held.targets, steps)
    if found.get("best") is found["last"]:  # the same weights answer alike by either name
        chosen["inferences"]["best"] = chosen["inferences"]["last"]
    for line in lines:
        progress.message(line)
    return chosen


def _with_quick(cost: dict[str, Any], trainer: Trainer, quick: Path | None) -> dict[str, Any]:
    """The cost with that of the quick model, which came first."""
    if quick is None:
        return cost
    flop = features_flop(trainer.config, trainer.model, len(trainer.train))
    seconds = read_state(quick)[0].seconds
    return cost | {
        "training_flop": cost["training_flop"] + flop,
        "seconds": round(cost["seconds"] + seconds, 2),
        "features_flop": flop,
        "features_inference_flop": forward_flop(features_config(trainer.config, 1), trainer.model),
        "features_seconds": round(seconds, 2),
    }


def _view_accuracy(
    trainer: Trainer, model: Classifier, scores: dict[str, Any], progress: Progress
) -> dict[str, Any] | None:
    """How well the model predicts its views on held-out images; None where it does not learn to."""
    plan, name = trainer.plan, "val" if trainer.plan.val is not None else "test"
    dataset = plan.val or plan.test
    if dataset is None or trainer.config.is_distilled:  # its teacher's run has said it
        return None
    workers = trainer.config.data.workers or 0
    found = measure_views(
        trainer.teacher or model,
        dataset,
        trainer.eval_pipeline,
        workers=workers,
        fast=is_slow(trainer),
        progress=progress,
    )
    if found is None:
        return None
    right = scores[name][model.method.headline]["top1"] * len(dataset) / 100
    learnt = share(right, len(dataset)).low > 100 / len(plan.train.classes)
    return {**found.summary(), "on": name, "advice": advise(found, learnt=learnt)}


def _cost(trainer: Trainer, last: dict[str, Any]) -> dict[str, Any]:
    method, count = trainer.model.method, trainer.config.method.views_per_step
    views = min(count or len(method.views), len(method.views))
    seen = trainer.position.taken * trainer.batch_size * views
    if trainer.unlabelled is not None:
        seen += trainer.position.taken * (trainer.config.run.unlabelled_batch_size or 0) * views
    cost = describe_cost(trainer, seen, method.inferences, len(method.views))
    # With answers from all views, without a backward pass.
    passes = step_passes(trainer.config) * trainer.position.taken
    cost["training_flop"] = forward_flop(trainer.config, trainer.model, training=True) * passes
    scores = last.get("test") or last.get("val") or {}
    if "views" in scores.get("anytime", {}):
        flop = cost["inference_flop"]
        flop["anytime"] = round(flop["single"] * scores["anytime"]["views"])
    return cost | trainer.cost()
