"""The task `fewshot`: to learn new classes from a few images of each; one stage, in one process."""

from functools import partial

from sla.errors import InputError
from sla.runs.distributed import Group
from sla.runs.folder import MAIN_STAGE
from sla.runs.plan import Plan
from sla.runs.stages import Stage
from sla.tasks.fewshot.config import FewShotConfig
from sla.tasks.fewshot.plan import make_plan
from sla.tasks.fewshot.result import make_result, record_run
from sla.tasks.fewshot.run import FewShotRun
from sla.tasks.fewshot.trainer import FewShotTrainer
from sla.tasks.task import Task


def make_stages(plan: Plan[FewShotConfig], group: Group) -> list[Stage]:
    """Training alone."""
    if group.world_size > 1:
        raise InputError(f"task fewshot trains in one process, not in {group.world_size}")
    return [Stage(MAIN_STAGE, plan.config.run.iterations, partial(FewShotTrainer, plan))]


FEWSHOT = Task("fewshot", FewShotConfig, FewShotRun, make_plan, make_stages, make_result, record_run)
