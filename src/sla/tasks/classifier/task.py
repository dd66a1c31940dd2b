"""The task `classifier`: images in, one of N classes out; one stage, in one process or many."""

from functools import partial

from sla.runs.distributed import Group
from sla.runs.folder import MAIN_STAGE
from sla.runs.plan import Plan
from sla.runs.stages import Stage
from sla.tasks.classifier.config import ClassifierConfig
from sla.tasks.classifier.plan import make_plan
from sla.tasks.classifier.prepare import prepare
from sla.tasks.classifier.record import record_run
from sla.tasks.classifier.result import make_result
from sla.tasks.classifier.run import Run
from sla.tasks.classifier.trainer import Trainer
from sla.tasks.task import Task


def make_stages(plan: Plan[ClassifierConfig], group: Group) -> list[Stage]:
    """Training alone."""
    assert plan.config.run.iterations is not None
    return [Stage(MAIN_STAGE, plan.config.run.iterations, partial(Trainer, plan, group=group))]


CLASSIFIER = Task(
    "classifier", ClassifierConfig, Run, make_plan, make_stages, make_result, record_run, prepare
)
