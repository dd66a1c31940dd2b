"""What a run with a deadline has to do besides the steps of a stage, counted in such steps.

Work is counted in passes of an image through the network; a backward pass counts as two forward ones.
"""

from collections.abc import Callable
from pathlib import Path

from sla.runs.checkpoint import Position
from sla.runs.deadline import Following, Pace
from sla.runs.folder import MAIN_STAGE
from sla.runs.plan import Plan
from sla.tasks.classifier.build import plan_method
from sla.tasks.classifier.config import DISTIL, FEATURES, ClassifierConfig, student_steps
from sla.tasks.classifier.features import own_resolution
from sla.tasks.classifier.passes import distil_cost, step_passes
from sla.tasks.classifier.trainer import Trainer
from sla.tasks.classifier.view_accuracy import ENOUGH

CHECKPOINTS = 2  # that are tested at the end: last and best; an average comes after a quick model
OVERHEAD = 1.25  # of testing over its passes: models are loaded, workers start
AMPLE = 10  # times the steps that seem to fit: a busy machine may become quiet, and the rest is skipped


def following(plan: Plan[ClassifierConfig], stage: str, processes: int = 1) -> Following:
    """What comes besides the steps of a stage; one process tests at the end, all evaluate in between."""
    config, method = plan.config, plan_method(plan.config)
    views = len(method.views) if "aggregated" in method.inferences else 1
    _, tested_size, _ = config.model.input_shape()
    _, trained_size, _ = config.model.input_shape(training=True)
    larger = (tested_size / trained_size) ** 2  # than a pass in training is one at test time
    held_out, test = (0 if some is None else larger * len(some) for some in (plan.val, plan.test))
    batch = config.run.batch_size or 1
    checkpoints = CHECKPOINTS + config.has_stage(FEATURES)
    tested = (held_out + test) * (checkpoints * views + _quick_passes(config))
    if len(method.views) > 1:
        tested += min(held_out or test, larger * ENOUGH) * len(method.views)  # are the views recognisable?
    tested *= OVERHEAD
    if stage == DISTIL:
        step = 3 * batch + config.distil.teacher_passes(method, images=0, seen=batch)
        tested += OVERHEAD * (held_out + test) * CHECKPOINTS
        return Following(processes * tested / step, held_out / step)
    step = step_passes(config)
    later = 0.0
    if config.has_stage(DISTIL):
        share, once = distil_cost(config, len(plan.train))
        evaluations = min(config.run.evaluations or 1, student_steps(config)) * held_out / step
        # In steps of the schedule, of which one in AMPLE is taken if as many fit as was thought.
        later = share * (config.run.iterations or 0) + AMPLE * (once + evaluations)
    return Following(processes * tested / step, held_out * views / step, later)


def _quick_passes(config: ClassifierConfig) -> float:
    """Testing the quick model, which sees larger images, in passes of the trained one."""
    own, trained = own_resolution(config), config.model.resolution
    return (own / trained) ** 2 if config.has_stage(FEATURES) and own and trained else 0.0


def paced(
    build: Callable[[Path], Trainer], plan: Plan[ClassifierConfig], stage: str, processes: int
) -> Callable[[Path], Trainer]:
    """What makes a stage's loop, with the pace of a run that was given minutes; else as it is."""
    record = plan.config.run.pace
    if record is None:
        return build

    def make(folder: Path) -> Trainer:
        loop, deadline = build(folder), None if stage in record else plan.deadline
        loop.pace = Pace(loop.steps, deadline, following(plan, stage, processes), record.get(stage))
        return loop

    return make


def keep_pace(stage: str, config: ClassifierConfig, position: Position) -> ClassifierConfig:
    """The configuration of a run with minutes, with the steps that a finished stage skipped."""
    if config.run.pace is None or stage == FEATURES:
        return config
    pace = {**config.run.pace, stage: position.pace}
    return config.model_copy(update={"run": config.run.model_copy(update={"pace": pace})})


def evaluation_steps(plan: Plan[ClassifierConfig], processes: int = 1) -> float:
    """What evaluating takes, during training and at the end, in steps of training."""
    own = following(plan, MAIN_STAGE, processes)
    return own.end + (plan.config.run.evaluations or 1) * own.evaluation


def steps_in(plan: Plan[ClassifierConfig], seconds: float, step: float, processes: int = 1) -> int:
    """How many steps of training, of so many seconds each, fit into this time with all that follows."""
    config = plan.config
    share, once = distil_cost(config, len(plan.train))
    fit = seconds / step
    besides = once + evaluation_steps(plan, processes)
    return max(int((fit - min(besides, fit / 2)) / (1 + share)), 1)
