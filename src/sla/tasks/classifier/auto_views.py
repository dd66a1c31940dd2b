"""`method.views: auto`: a few sets of views are tried before the run, within a share of it."""

import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sla.errors import InputError
from sla.progress import Progress
from sla.runs.distributed import Group
from sla.runs.plan import Plan
from sla.runs.signals import Stop
from sla.stats import share
from sla.tasks.classifier.config import ClassifierConfig
from sla.tasks.classifier.passes import step_flop
from sla.tasks.classifier.plan import with_views
from sla.tasks.classifier.step_time import measure_seconds
from sla.tasks.classifier.trainer import Trainer
from sla.tasks.classifier.view_accuracy import CANNOT, describe
from sla.tasks.classifier.view_probe import fitting, probe_views
from sla.views import parse_views

TRIED = ("rot4", "rot2", "rgb3", "rot4*rgb3")  # fewer views first among equals


def choose_views(plan: Plan[ClassifierConfig], group: Group, progress: Progress) -> Plan[ClassifierConfig]:
    """The plan with the set of views that did best on held-out images.

    First a small network finds which views are recognisable at all. Each of the k sets that are left is then
    trained by the run's own method for views_share / k of a run, and judged by its headline inference.
    Where no view is recognisable, the baseline is left. Every process calls this alike. Test images are not
    used.
    """
    if plan.val is None:
        raise InputError("method.views: auto needs held-out images: data.hold_out above 0, or a val/ folder")
    started, seed = time.monotonic(), plan.config.run.seed
    candidates = fitting(TRIED, len(plan.config.model.mean or ()))
    probed = group.share(
        probe_views(plan.train, plan.val, candidates, seed=seed, progress=progress) if group.leads else None
    )
    for found in probed:
        progress.message(describe(found))
    left = [found.views.text for found in probed if found.verdict != CANNOT]
    if not left:
        progress.message(
            "none of these views is recognisable here, so SLA cannot help: the baseline is trained"
        )
        return with_views(plan, "none", "baseline")
    scores = {left[0]: 0.0} if len(left) == 1 else _try_all(plan, left, group, progress)
    chosen = max(left, key=lambda text: (scores[text], -len(parse_views(text))))
    seconds = time.monotonic() - started
    if len(left) == 1:
        progress.message(f"views {chosen}: the only recognisable set; found in {seconds:.0f} seconds")
    else:
        progress.message(_verdict(scores, chosen, len(plan.val), seconds))
    return with_views(plan, chosen)


def _try_all(
    plan: Plan[ClassifierConfig], candidates: list[str], group: Group, progress: Progress
) -> dict[str, float]:
    part = plan.config.method.views_share / len(candidates)
    return {text: _try(with_views(plan, text), part, group, progress) for text in candidates}


def _try(plan: Plan[ClassifierConfig], part: float, group: Group, progress: Progress) -> float:
    """Accuracy on the held-out images, in percent, after this part of a run."""
    run, text = plan.config.run, plan.config.method.views
    steps: float | None = run.iterations
    if steps is None and run.flop is not None:
        steps = run.flop / step_flop(plan)
    elif steps is None:
        seconds = group.share(measure_seconds(plan) if group.leads else None) / group.world_size
        steps = 60 * (run.minutes or 0) / seconds
    short: dict[str, Any] = {"iterations": max(round(part * steps), 1), "evaluations": 1}
    short |= {"compile": False, "tensorboard": False, "snapshots": 0}
    config = plan.config.model_copy(update={"run": run.model_copy(update=short)})
    with TemporaryDirectory() as scratch:
        trainer = Trainer(replace(plan, config=config, test=None), Path(scratch), group)
        trainer.fit(Stop(), _StepsAsPass(progress, f"trying {text}"))
    return trainer.position.best_accuracy  # of the one evaluation, at the end


class _StepsAsPass(Progress):
    """The steps of a short training, shown as one pass among others."""

    def __init__(self, inner: Progress, what: str) -> None:
        self.inner, self.what = inner, what

    def step(self, done: int, total: int, metrics: dict[str, float]) -> None:
        self.inner.advance(self.what, done, total)


def _verdict(scores: dict[str, float], chosen: str, images: int, seconds: float) -> str:
    """`views rgb3 of rot4 71.0%, rgb3 74.5%, ...`, and whether that could be luck."""
    listed = ", ".join(f"{text} {score:.1f}%" for text, score in scores.items())
    second = max(score for text, score in scores.items() if text != chosen)
    close = second >= share(scores[chosen] * images / 100, images).low
    luck = "; the difference may be chance" if close else ""
    return (
        f"views {chosen}: best of {listed} on {images:,} held-out images after short trainings{luck}; "
        f"found in {seconds:.0f} seconds"
    )
