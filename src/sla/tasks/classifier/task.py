"""The task `classifier`: images in, one of N classes out."""

from functools import partial
from pathlib import Path
from typing import Any

from sla.images.store import Splits
from sla.progress import Progress
from sla.runs.distributed import Group
from sla.runs.folder import FIRST_STAGE
from sla.runs.loop import Loop
from sla.runs.plan import Plan
from sla.runs.stages import Stage
from sla.tasks.classifier.config import ClassifierConfig
from sla.tasks.classifier.plan import make_plan
from sla.tasks.classifier.prepare import prepare
from sla.tasks.classifier.result import make_result
from sla.tasks.classifier.run import Run
from sla.tasks.classifier.trainer import Trainer
from sla.tasks.task import Task


class ClassifierTask(Task[ClassifierConfig]):
    """One stage, in one process or many."""

    name = "classifier"
    config_class = ClassifierConfig
    run_class = Run

    def plan(
        self, config: ClassifierConfig, splits: Splits | None, progress: Progress
    ) -> Plan[ClassifierConfig]:
        """Leaves open what depends on speed or on trying: iterations, compilation, views."""
        return make_plan(config, splits, progress)

    def prepare(
        self, plan: Plan[ClassifierConfig], group: Group, progress: Progress, *, starts: bool, search: bool
    ) -> Plan[ClassifierConfig]:
        """Views by trying, iterations from minutes, and whether to compile."""
        return prepare(plan, group, progress, starts=starts, search=search)

    def stages(self, plan: Plan[ClassifierConfig], group: Group) -> list[Stage]:
        """Training alone."""
        assert plan.config.run.iterations is not None
        return [Stage(FIRST_STAGE, plan.config.run.iterations, partial(Trainer, plan, group=group))]

    def result(
        self, plan: Plan[ClassifierConfig], folder: Path, loop: Loop, progress: Progress
    ) -> dict[str, Any]:
        """Accuracies by checkpoint, split and kind of inference; temperatures; cost."""
        assert isinstance(loop, Trainer)
        return make_result(loop, progress)
