"""The task `classifier`: images in, one of N classes out; one or two stages, in one process or many."""

from functools import partial

from sla.datasets.objects import Objects
from sla.images.store import Splits
from sla.progress import QUIET, Progress
from sla.runs.distributed import Group
from sla.runs.folder import MAIN_STAGE
from sla.runs.plan import Plan
from sla.runs.stages import Stage
from sla.tasks.classifier.config import DISTIL, ClassifierConfig, student_steps
from sla.tasks.classifier.distil import Distiller, is_distilled, plan_student, second_stage
from sla.tasks.classifier.plan import make_plan
from sla.tasks.classifier.prepare import prepare
from sla.tasks.classifier.record import record_run
from sla.tasks.classifier.result import make_result
from sla.tasks.classifier.run import Run
from sla.tasks.classifier.trainer import Trainer
from sla.tasks.task import Task


def plan_run(
    config: ClassifierConfig, splits: Splits | Objects | None = None, progress: Progress = QUIET
) -> Plan[ClassifierConfig]:
    """The plan of a run with a teacher has that too."""
    plan = make_plan(config, splits, progress)
    return plan_student(plan, progress) if is_distilled(config) else plan


def make_stages(plan: Plan[ClassifierConfig], group: Group) -> list[Stage]:
    """Training, and distillation where it is asked for."""
    config = plan.config
    assert config.run.iterations is not None
    kind = Distiller if is_distilled(config) else Trainer
    first = Stage(MAIN_STAGE, config.run.iterations, partial(kind, plan, group=group))
    if DISTIL not in config.stages:
        return [first]
    return [first, Stage(DISTIL, student_steps(config), partial(second_stage, plan, group))]


CLASSIFIER = Task(
    "classifier", ClassifierConfig, Run, plan_run, make_stages, make_result, record_run, prepare
)
