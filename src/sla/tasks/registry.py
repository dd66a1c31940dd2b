"""The tasks by name. A new one is a package beside these and a line here."""

from typing import Any

from sla.errors import InputError, nearest
from sla.runs.config import TrainingConfig, set_keys, task_name, validate
from sla.tasks.classifier.task import CLASSIFIER
from sla.tasks.fewshot.task import FEWSHOT
from sla.tasks.simclr.task import SIMCLR
from sla.tasks.task import Task

TASKS = {task.name: task for task in (CLASSIFIER, FEWSHOT, SIMCLR)}


def find_task(tree: dict[str, Any], where: str = "configuration") -> Task:
    """The task that a tree of plain values is for."""
    name = task_name(tree)
    if not isinstance(name, str) or name not in TASKS:
        raise InputError(f"{where}: task: no task {name!r}{nearest(str(name), list(TASKS))}")
    return TASKS[name]


def make_config(tree: dict[str, Any], where: str = "configuration") -> TrainingConfig:
    """Validate a tree of plain values for its task; a wrong key or value is named."""
    return validate(find_task(tree, where).config_class, tree, where)


def with_values(tree: dict[str, Any], assignments: dict[str, Any]) -> dict[str, Any]:
    """The tree with dotted keys set, each a key of its task; branches that were missing are made."""
    named = assignments.get("task")
    task = find_task({**tree, "task": named} if named is not None else tree)
    return set_keys(task.config_class, tree, assignments)
