"""The task `fewshot`: to learn new classes from a few images of each."""

from functools import partial
from pathlib import Path
from typing import Any

from sla.errors import InputError
from sla.images.store import Splits
from sla.progress import Progress
from sla.runs.distributed import Group
from sla.runs.folder import FIRST_STAGE
from sla.runs.loop import Loop
from sla.runs.plan import Plan
from sla.runs.stages import Stage
from sla.tasks.fewshot.config import FewShotConfig
from sla.tasks.fewshot.plan import make_plan
from sla.tasks.fewshot.result import make_result
from sla.tasks.fewshot.run import FewShotRun
from sla.tasks.fewshot.trainer import FewShotTrainer
from sla.tasks.task import Task


class FewShotTask(Task[FewShotConfig]):
    """One stage, in one process; tested on classes that training never saw."""

    name = "fewshot"
    config_class = FewShotConfig
    run_class = FewShotRun

    def plan(self, config: FewShotConfig, splits: Splits | None, progress: Progress) -> Plan[FewShotConfig]:
        """Leaves nothing open."""
        return make_plan(config, splits, progress)

    def stages(self, plan: Plan[FewShotConfig], group: Group) -> list[Stage]:
        """Training alone."""
        if group.world_size > 1:
            raise InputError(f"task fewshot trains in one process, not in {group.world_size}")
        return [Stage(FIRST_STAGE, plan.config.run.iterations, partial(FewShotTrainer, plan))]

    def result(
        self, plan: Plan[FewShotConfig], folder: Path, loop: Loop, progress: Progress
    ) -> dict[str, Any]:
        """Accuracies by checkpoint, shot and kind of inference; cost."""
        assert isinstance(loop, FewShotTrainer)
        return make_result(loop, progress)
