"""What a classifier's plan leaves open until something was tried or timed: views, iterations, compilation."""

from dataclasses import replace

from sla.progress import QUIET, Progress
from sla.runs.distributed import Group
from sla.runs.plan import Plan
from sla.runs.timing import duration
from sla.tasks.classifier.auto_views import TRIED, choose_views
from sla.tasks.classifier.config import AUTO, DISTIL, FEATURES, ClassifierConfig, student_steps
from sla.tasks.classifier.data_summary import describe_data
from sla.tasks.classifier.distil import second_stage_cost
from sla.tasks.classifier.features import features_seconds
from sla.tasks.classifier.plan import with_views
from sla.tasks.classifier.step_time import Mode, choose_mode, measure_seconds
from sla.tasks.classifier.view_probe import fitting


def prepare(
    plan: Plan[ClassifierConfig], group: Group, progress: Progress, *, starts: bool, search: bool = True
) -> Plan[ClassifierConfig]:
    """The plan with nothing open; of a starting run, messages about what was found and how long it takes.

    Without `search` views that are `auto` are not tried: the plan is for the first candidate.
    """
    spent, announced = 0.0, starts and progress is not QUIET
    for line in (*(describe_data(plan) if announced else ()), *plan.reasons):
        progress.message(line)
    if plan.config.method.name in ("distilled", FEATURES):
        return plan  # a step needs its teacher to be timed; the quick model has none
    if plan.config.has_stage(FEATURES) and plan.config.run.minutes and not plan.config.run.iterations:
        spent += group.share(features_seconds(plan) if group.leads else None)
    if plan.config.method.views == AUTO:
        already = len(plan.reasons)
        if search:
            plan, tried_for = choose_views(plan, group, progress)
            spent += tried_for
        else:
            tried = [views.text for views in fitting(TRIED, len(plan.config.model.mean or ()))]
            progress.message(
                f"views: {', '.join(tried)} will be tried; the time is for {tried[0]}, without the search"
            )
            plan = with_views(plan, tried[0])
        for line in plan.reasons[already:]:
            progress.message(line)
    return _fix_length(plan, group, progress, announced, spent, search)


def _fix_length(
    plan: Plan[ClassifierConfig], group: Group, progress: Progress, announced: bool, spent: float, tries: bool
) -> Plan[ClassifierConfig]:
    """Fix what depends on the machine's speed, once: iterations from minutes, and whether to compile.

    `announced`: measure the time even where nothing depends on it. `spent` seconds are gone already.
    Without `tries` nothing is compiled to see whether that is faster.
    """
    run = plan.config.run
    iterations, changes = run.iterations, dict[str, object]()
    left = max(60 * (run.minutes or 0) - spent, 0.0)
    mode = None
    # The processes decide alike whether to measure: only the leading one has a display.
    if run.compile is None:
        mode = group.share(
            choose_mode(plan, iterations, left, progress, tries=tries) if group.leads else None
        )
        changes = {"compile": mode.compiles, "compile_reason": mode.reason}
        progress.message(mode.reason)
    elif iterations is None or group.any(announced)[0]:
        seconds = measure_seconds(plan, 4 if iterations else 12) if group.leads else 0.0
        mode = group.share(Mode(run.compile, "", seconds, 0.0))
    if mode is not None:
        seconds = mode.step / group.world_size
        share, once = second_stage_cost(plan.config, len(plan.train))
        total = seconds * (iterations * (1 + share) + once) if iterations else max(left - mode.spent, 0.0)
        how = {True: "compiled", False: "not compiled", None: "if not compiled"}[mode.compiles]
        progress.message(f"about {duration(total)} of training, {how}")
        if iterations is None:
            iterations = max(int((total / seconds - once) / (1 + share)), 1)
            changes["iterations"] = iterations
    config = plan.config.model_copy(update={"run": run.model_copy(update=changes)})
    if run.iterations is None:
        more = f" and {student_steps(config):,} of the student" if config.has_stage(DISTIL) else ""
        progress.message(f"{iterations:,} iterations{more} fit into {run.minutes:g} minutes")
    return replace(plan, config=config)
