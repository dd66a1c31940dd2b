"""The task `simclr`: to tell images apart without labels; one stage, in one process or many."""

from functools import partial

from sla.runs.distributed import Group
from sla.runs.folder import MAIN_STAGE
from sla.runs.plan import Plan
from sla.runs.stages import Stage
from sla.tasks.simclr.config import SimCLRConfig
from sla.tasks.simclr.plan import make_plan
from sla.tasks.simclr.prepare import prepare
from sla.tasks.simclr.result import make_result, record_run
from sla.tasks.simclr.run import SimCLRRun
from sla.tasks.simclr.trainer import SimCLRTrainer
from sla.tasks.task import Task


def make_stages(plan: Plan[SimCLRConfig], group: Group) -> list[Stage]:
    """Training alone."""
    assert plan.config.run.iterations is not None
    return [Stage(MAIN_STAGE, plan.config.run.iterations, partial(SimCLRTrainer, plan, group=group))]


SIMCLR = Task("simclr", SimCLRConfig, SimCLRRun, make_plan, make_stages, make_result, record_run, prepare)
