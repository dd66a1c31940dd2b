"""What a classifier's plan leaves open until something was tried or timed: views, iterations, compilation."""

import warnings
from dataclasses import replace

from sla.errors import SLAWarning
from sla.progress import QUIET, Progress, duration
from sla.runs.config import MOST_STEPS
from sla.runs.defaults import override
from sla.runs.distributed import Group
from sla.runs.plan import Plan
from sla.tasks.classifier.auto_views import TRIED, choose_views
from sla.tasks.classifier.choice import FEWEST_STEPS
from sla.tasks.classifier.config import AUTO, DISTIL, FEATURES, ClassifierConfig, student_steps
from sla.tasks.classifier.data_summary import describe_data
from sla.tasks.classifier.features import features_seconds
from sla.tasks.classifier.missing_weights import lacks_weights, warn_of_missing_weights
from sla.tasks.classifier.passes import distil_cost, step_flop
from sla.tasks.classifier.plan import with_views
from sla.tasks.classifier.step_time import Mode, choose_mode, measure_seconds
from sla.tasks.classifier.time_shares import AMPLE, evaluation_steps, steps_in
from sla.tasks.classifier.view_probe import fitting

TELLING = 2.0  # seconds of evaluation from which on they are said
MANY = 300  # pictures from which on it is worth timing how long their features take


def prepare(
    plan: Plan[ClassifierConfig], group: Group, progress: Progress, *, starts: bool, search: bool = True
) -> Plan[ClassifierConfig]:
    """The plan with nothing open; of a starting run, messages about what was found and how long it takes.

    Without `search` views that are `auto` are not tried: the plan is for the first candidate.
    """
    announced, run = starts and progress is not QUIET, plan.config.run
    many = starts and group.leads and len(plan.train) > MANY
    for line in (*(describe_data(plan) if announced else ()), *plan.reasons):
        progress.message(line)
    if plan.config.is_distilled or plan.config.is_features:
        if many and plan.config.is_features:
            _announce_quick(plan, progress)
        return plan  # a step needs its teacher to be timed; the quick model has none
    timed = run.iterations is None and run.minutes is not None
    quick = 0.0
    if timed and plan.config.has_stage(FEATURES):
        progress.message("timing the features of a few pictures")
        quick = group.share(features_seconds(plan) if group.leads else None)
    elif many and announced and plan.config.has_stage(FEATURES):
        _announce_quick(plan, progress)
    if plan.config.method.views == AUTO:
        plan = _choose_views(plan, group, progress, search)
    if plan.config.run.iterations is None and not timed:
        steps = max(round((plan.config.run.flop or 0) / step_flop(plan)), 1)
        plan = replace(plan, config=override(plan.config, "run", iterations=steps))
        progress.message(f"{steps:,} iterations are {plan.config.run.flop:.3g} FLOP")
    plan, seconds = _fix_length(plan, group, progress, announced, quick, search)
    if starts and group.leads and lacks_weights(plan):
        warn_of_missing_weights(plan, None if timed or run.flop else seconds)
    return plan


def _announce_quick(plan: Plan[ClassifierConfig], progress: Progress) -> None:
    """How long the quick model will take; a warning where that exceeds `run.minutes`."""
    progress.message("timing the features of a few pictures")
    seconds, minutes = features_seconds(plan), plan.config.run.minutes
    progress.message(f"about {duration(seconds)} for the features of {len(plan.train):,} pictures")
    if minutes is not None and seconds > 60 * minutes:
        few = "data.per_class=N uses fewer pictures"
        warnings.warn(f"the quick model takes longer than {minutes:g} minutes: {few}", SLAWarning)


def _choose_views(
    plan: Plan[ClassifierConfig], group: Group, progress: Progress, search: bool
) -> Plan[ClassifierConfig]:
    already = len(plan.reasons)
    if search:
        plan = choose_views(plan, group, progress)
    else:
        tried = [views.text for views in fitting(TRIED, len(plan.config.model.mean or ()))]
        progress.message(
            f"views: {', '.join(tried)} will be tried; the time is for {tried[0]}, without the search"
        )
        plan = with_views(plan, tried[0])
    for line in plan.reasons[already:]:
        progress.message(line)
    return plan


def _fix_length(
    plan: Plan[ClassifierConfig], group: Group, progress: Progress, announced: bool, quick: float, tries: bool
) -> tuple[Plan[ClassifierConfig], float | None]:
    """Fix what depends on the machine's speed, once: iterations from minutes, and whether to compile.

    `announced`: measure the time even where nothing depends on it. `quick`: seconds of the quick model.
    Without `tries` nothing is compiled to see whether that is faster. Also returns the seconds of training,
    where they were measured.
    """
    run = plan.config.run
    iterations, changes = run.iterations, dict[str, object]()

    def left() -> float:
        here = plan.deadline.left - quick if plan.deadline is not None else 0.0
        return group.share(max(here, 0.0))

    mode, total = None, None
    # The processes decide alike whether to measure: only the leading one has a display.
    measured = run.compile is None or iterations is None or group.any(announced)[0]
    if measured:
        progress.message("timing a few steps")
    if run.compile is None:
        before = left()
        mode = group.share(
            choose_mode(plan, iterations, before, progress, tries=tries) if group.leads else None
        )
        changes = {"compile": mode.compiles, "compile_reason": mode.reason}
        progress.message(mode.reason)
    elif measured:
        seconds = measure_seconds(plan, 4 if iterations else 12) if group.leads else 0.0
        mode = group.share(Mode(run.compile, "", seconds))
    if mode is not None:
        seconds = mode.step / group.world_size
        share, once = distil_cost(plan.config, len(plan.train))
        total = seconds * (iterations * (1 + share) + once) if iterations else left()
        how = {True: "compiled", False: "not compiled", None: "if not compiled"}[mode.compiles]
        tested = seconds * evaluation_steps(plan, group.world_size) if iterations else 0.0
        then = f"; about {duration(tested)} of evaluation" if tested >= TELLING else ""
        progress.message(f"about {duration(total)} of training, {how}{then}")
        if iterations is None:
            fitting_in = steps_in(plan, total, seconds, group.world_size)
            changes |= {"iterations": min(AMPLE * fitting_in, MOST_STEPS), "pace": {}}
            changes |= {"evaluations": _evaluations(plan, fitting_in)}
            more = f" and {_student_steps(plan, fitting_in):,} of the student"
            said = f"about {fitting_in:,} iterations{more if plan.config.has_stage(DISTIL) else ''}"
            time = f"{run.minutes:g} minute{'' if run.minutes == 1 else 's'}"
            progress.message(f"{said} fit into {time}; the schedule follows the clock")
            if plan.config.has_stage(FEATURES) and fitting_in < FEWEST_STEPS:
                few = "usually no better than the quick model, which then answers: more minutes may gain"
                progress.message(f"fewer than {FEWEST_STEPS} steps are {few}")
    config = plan.config.model_copy(update={"run": run.model_copy(update=changes)})
    return replace(plan, config=config), total


def _student_steps(plan: Plan[ClassifierConfig], iterations: int) -> int:
    return student_steps(override(plan.config, "run", iterations=iterations))


def _evaluations(plan: Plan[ClassifierConfig], iterations: int) -> int | None:
    """As many as were asked for, else 20, at most one per epoch: now it is known how many there will be."""
    run = plan.config.run
    if plan.given is None or plan.given.run.evaluations is not None:
        return run.evaluations
    epochs = iterations * (run.batch_size or 1) / len(plan.train)
    return max(min(run.evaluations or 1, int(epochs)), 1)
