"""The configuration of a finished run that another one starts from: its teacher, or the run that it grows."""

from pathlib import Path
from shlex import quote
from typing import Any

from sla.errors import InputError, shown
from sla.runs.config import set_keys, task_name, validate
from sla.runs.deadline import parse_record
from sla.runs.defaults import override
from sla.runs.folder import CONFIG, MAIN_STAGE, read_result, read_run_config
from sla.tasks.classifier.config import ClassifierConfig


def read_classifier_config(folder: Path) -> ClassifierConfig:
    """The configuration of a classifier's run."""
    return validate(ClassifierConfig, read_run_config(folder), f"{folder}/{CONFIG}")


def read_finished_config(folder: Path, does: str) -> ClassifierConfig:
    """The configuration of a finished run; refused where it has not finished, or is of another task.

    `does`: what only classifiers do, for the refusal.
    """
    task = task_name(read_run_config(folder))
    if task != "classifier":
        raise InputError(f"{shown(folder)}: a run of task {task}: only classifiers {does}")
    if not read_result(folder):
        raise InputError(
            f"{shown(folder)}: unfinished; sla train --resume --out {quote(shown(folder))} continues it"
        )
    return _as_trained(read_classifier_config(folder))


def with_keys(config: ClassifierConfig, given: dict[str, Any]) -> ClassifierConfig:
    """The configuration with dotted keys set."""
    tree = set_keys(ClassifierConfig, config.model_dump(mode="json"), given)
    return validate(ClassifierConfig, tree, "configuration")


def _as_trained(config: ClassifierConfig) -> ClassifierConfig:
    """The configuration of a finished run, with as many iterations as it took; none is skipped again."""
    record = parse_record((config.run.pace or {}).get(MAIN_STAGE, ""))
    if not record:
        return config if config.run.pace is None else override(config, "run", pace=None)
    taken, step = list(record.items())[-1]
    steps = (config.run.iterations or step) - (step - taken)
    return override(config, "run", iterations=max(steps, 1), pace=None)
