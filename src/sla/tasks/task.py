"""What a task gives to a run: its configuration, plan, stages, result, and what an opened run of it is."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from sla.datasets.objects import Objects
from sla.images.store import Splits
from sla.progress import Progress
from sla.runs.config import TrainingConfig
from sla.runs.distributed import Group
from sla.runs.plan import Plan
from sla.runs.run import OpenedRun
from sla.runs.stages import Stage


class Prepare(Protocol):
    """Tries or measures what the plan left open, and gives messages about what was found and chosen."""

    def __call__(
        self, plan: Plan[Any], group: Group, progress: Progress, *, starts: bool, search: bool
    ) -> Plan[Any]:
        """`starts`: the run does not resume. Without `search` nothing is tried that takes long."""


def announce(plan: Plan[Any], group: Group, progress: Progress, *, starts: bool, search: bool) -> Plan[Any]:
    """The preparation of a plan that leaves nothing open: its reasons as messages."""
    for reason in plan.reasons:
        progress.message(reason)
    return plan


@dataclass(frozen=True)
class Task:
    """A kind of training: its configuration, and what makes plan, stages and result.

    Args:
        name: the value of the key `task` of its configurations.
        plan: (configuration, images in memory, objects or None, progress) -> the configuration with its
            defaults, the images, and the reasons for what was chosen.
        stages: (plan, group) -> the parts of the run in order; one is called `train`.
        result: (the last stage's loop at its end, progress) -> the content of result.json.
        record: a finished run -> the columns `scores` and `more` of a row of reproduced results.
    """

    name: str
    config_class: type[TrainingConfig]
    run_class: type[OpenedRun[Any, Any]]
    plan: Callable[[Any, Splits | Objects | None, Progress], Plan[Any]]
    stages: Callable[[Plan[Any], Group], list[Stage]]
    result: Callable[[Any, Progress], dict[str, Any]]
    record: Callable[[Any], dict[str, Any]]
    prepare: Prepare = announce
