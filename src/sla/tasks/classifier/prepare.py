"""What a classifier's plan leaves open until something was tried or timed: views, iterations, compilation."""

import shutil
from dataclasses import replace

from sla.progress import QUIET, Progress
from sla.runs.distributed import Group
from sla.runs.plan import Plan
from sla.tasks.classifier.auto_views import TRIED, choose_views
from sla.tasks.classifier.config import AUTO, ClassifierConfig
from sla.tasks.classifier.data_summary import describe_data
from sla.tasks.classifier.plan import with_views
from sla.tasks.classifier.trainer import measure_seconds
from sla.tasks.classifier.view_probe import fitting

# torch.compile is used by default where the time it should save is more than the time it should take. Both
# are assumptions about a typical CPU, not measurements of this run: set run.compile where you know better.
COMPILE_SECONDS, COMPILE_SAVES = 100.0, 0.4


def prepare(
    plan: Plan[ClassifierConfig], group: Group, progress: Progress, *, starts: bool, search: bool = True
) -> Plan[ClassifierConfig]:
    """The plan with nothing open; of a starting run, messages about what was found and how long it takes.

    Without `search` views that are `auto` are not tried: the plan is for the first candidate.
    """
    spent, announced = 0.0, starts and progress is not QUIET
    for line in (*(describe_data(plan) if announced else ()), *plan.reasons):
        progress.message(line)
    if plan.config.method.name == "distilled":
        return plan  # a step needs its teacher to be timed
    if plan.config.method.views == AUTO:
        already = len(plan.reasons)
        if search:
            plan, spent = choose_views(plan, group, progress)
        else:
            tried = [views.text for views in fitting(TRIED, len(plan.config.model.mean or ()))]
            progress.message(
                f"views: {', '.join(tried)} will be tried; the time is for {tried[0]}, without the search"
            )
            plan = with_views(plan, tried[0])
        for line in plan.reasons[already:]:
            progress.message(line)
    return _fix_length(plan, group, progress, announced, spent)


def _fix_length(
    plan: Plan[ClassifierConfig], group: Group, progress: Progress, announced: bool, spent: float
) -> Plan[ClassifierConfig]:
    """Fix what depends on the machine's speed, once: iterations from minutes, and whether to compile.

    `announced`: measure the time even where nothing depends on it. `spent` seconds are gone already.
    """
    run = plan.config.run
    iterations, compiles = run.iterations, run.compile
    if compiles is None and run.device == "cpu" and shutil.which("g++") is None:
        compiles = False
    is_open = iterations is None or compiles is None
    # The processes decide alike whether to measure: only the leading one has a display.
    if is_open or group.any(announced)[0]:
        measured = measure_seconds(plan, 12 if is_open else 4) if group.leads else None
        seconds = group.share(measured) / group.world_size
        total = (iterations or 1) * seconds
        if iterations is None and run.minutes:
            total = max(60 * run.minutes - spent, 0.0)
        if compiles is None:
            compiles = total * COMPILE_SAVES > COMPILE_SECONDS
        progress.message(
            f"about {_duration(total)} of training, {'compiled' if compiles else 'not compiled'}"
        )
        if iterations is None:
            if compiles:
                total, seconds = total - COMPILE_SECONDS, seconds * (1 - COMPILE_SAVES)
            iterations = max(int(total / seconds), 1)
            progress.message(f"{iterations:,} iterations fit into {run.minutes:g} minutes")
    fixed = run.model_copy(update={"iterations": iterations, "compile": compiles})
    return replace(plan, config=plan.config.model_copy(update={"run": fixed}))


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"
