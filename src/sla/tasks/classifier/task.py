"""The task `classifier`: images in, one of N classes out; one to three stages, in one process or many."""

from dataclasses import replace
from functools import partial

from sla.datasets.objects import Objects
from sla.images.store import Splits
from sla.progress import QUIET, Progress
from sla.runs.distributed import Group
from sla.runs.folder import MAIN_STAGE
from sla.runs.plan import Plan
from sla.runs.stages import Stage
from sla.tasks.classifier.config import DISTIL, FEATURES, ClassifierConfig, student_steps
from sla.tasks.classifier.distil import Distiller, distil_stage, plan_student
from sla.tasks.classifier.features import FeatureFit, features_stage, features_steps, training_after
from sla.tasks.classifier.grow import Grower
from sla.tasks.classifier.plan import make_plan
from sla.tasks.classifier.prepare import prepare
from sla.tasks.classifier.record import record_run
from sla.tasks.classifier.result import make_result
from sla.tasks.classifier.run import Run
from sla.tasks.classifier.time_shares import keep_pace, paced
from sla.tasks.classifier.trainer import Trainer
from sla.tasks.classifier.unlabelled import find_taught
from sla.tasks.task import Task


def plan_run(
    config: ClassifierConfig, splits: Splits | Objects | None = None, progress: Progress = QUIET
) -> Plan[ClassifierConfig]:
    """The plan of a run with a teacher has that too, that of a student its unlabelled images."""
    plan = make_plan(config, splits, progress)
    plan = plan_student(plan, progress) if config.is_distilled else plan
    return (
        replace(plan, taught=find_taught(plan)) if config.is_distilled or config.has_stage(DISTIL) else plan
    )


def make_stages(plan: Plan[ClassifierConfig], group: Group) -> list[Stage]:
    """Training; before it the quick model, after it distillation, where they are asked for."""
    config = plan.config
    assert config.run.iterations is not None
    kind = Grower if config.is_grown else Trainer
    kind = FeatureFit if config.is_features else Distiller if config.is_distilled else kind
    steps = features_steps(len(plan.train)) if config.is_features else config.run.iterations
    stages = [Stage(MAIN_STAGE, steps, partial(kind, plan, group=group))]
    if config.has_stage(FEATURES):
        first = Stage(FEATURES, features_steps(len(plan.train)), partial(features_stage, plan, group))
        stages = [first, replace(stages[0], build=partial(training_after, plan, group))]
    if config.has_stage(DISTIL):
        stages.append(Stage(DISTIL, student_steps(config), partial(distil_stage, plan, group)))
    return [
        replace(
            stage,
            build=paced(stage.build, plan, stage.name, group.world_size),  # type: ignore[arg-type]
            finish=partial(keep_pace, stage.name),
        )
        for stage in stages
    ]


CLASSIFIER = Task(
    "classifier", ClassifierConfig, Run, plan_run, make_stages, make_result, record_run, prepare
)
