"""What a task gives to a run: its configuration, plan, stages, result, and what an opened run of it is."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from sla.images.store import Splits
from sla.progress import Progress
from sla.runs.config import TrainingConfig
from sla.runs.distributed import Group
from sla.runs.loop import Loop
from sla.runs.plan import Plan
from sla.runs.run import OpenedRun
from sla.runs.stages import Stage

C = TypeVar("C", bound=TrainingConfig)


class Task(ABC, Generic[C]):
    """One thing that can be trained. Its name is the key `task` of a configuration."""

    name: ClassVar[str]
    config_class: type[C]
    run_class: type[OpenedRun[C, Any]]

    @abstractmethod
    def plan(self, config: C, splits: Splits | None, progress: Progress) -> Plan[C]:
        """The configuration with its defaults, the images, and the reasons; what must be measured stays open.

        `splits` are data already in memory; otherwise the configuration says where they come from.
        """

    def prepare(
        self, plan: Plan[C], group: Group, progress: Progress, *, starts: bool, search: bool
    ) -> Plan[C]:
        """The plan with what must be tried or measured first, and messages about what was found and chosen.

        `starts`: the run does not resume. Without `search` nothing is tried that takes long.
        """
        for reason in plan.reasons:
            progress.message(reason)
        return plan

    @abstractmethod
    def stages(self, plan: Plan[C], group: Group) -> list[Stage]:
        """The parts of the run, in order; the first is called `train`."""

    @abstractmethod
    def result(self, plan: Plan[C], folder: Path, loop: Loop, progress: Progress) -> dict[str, Any]:
        """The content of result.json, after the last stage, whose loop this is."""
