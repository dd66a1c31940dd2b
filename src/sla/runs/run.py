"""What every opened run offers, whatever its task."""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from torch import nn

from sla.errors import InputError, SLAWarning, shown
from sla.heads import check_device
from sla.images.store import Splits
from sla.runs.checkpoint import check_file, step_of
from sla.runs.config import TrainingConfig, task_name, validate
from sla.runs.folder import (
    CONFIG,
    MAIN_STAGE,
    find_model_file,
    last_checkpoint,
    read_result,
    read_run_config,
    resume_command,
)
from sla.runs.images_record import ImagesRecord, read_record

CHOSEN = "chosen"  # the checkpoint that a run's result names, else last


class ScoreTable(NamedTuple):
    """What is printed of a finished run: rows of a table, and lines below it."""

    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    notes: tuple[str, ...] = ()  # on this run
    legend: tuple[str, ...] = ()  # the same for every run of its task


C = TypeVar("C", bound=TrainingConfig)
M = TypeVar("M", bound=nn.Module)


class OpenedRun(ABC, Generic[C, M]):
    """A finished or stopped run with the model of one of its checkpoints; by default the chosen one.

    A subclass names its task and the class of its configuration, and reads its model.
    """

    task: ClassVar[str]
    config_class: ClassVar[type[TrainingConfig]]
    stage: ClassVar[str] = MAIN_STAGE  # the one whose model is opened
    config: C
    model: M

    def __init__(self, folder: str | Path, checkpoint: str = CHOSEN, device: str = "cpu") -> None:
        self.folder = Path(folder)
        check_device(device)
        tree = read_run_config(self.folder)
        if task_name(tree) != self.task:
            other = task_name(tree)
            raise InputError(
                f"{shown(self.folder)}: a run of task {other}; this needs one of task {self.task}"
            )
        self.checkpoint = self.choose_checkpoint() if checkpoint == CHOSEN else checkpoint
        weights = self.model_file
        self.config = validate(self.config_class, tree, f"{folder}/{CONFIG}")  # type: ignore[assignment]
        check_file(weights)
        self.model = self._load_model(weights, device)
        self.result: dict[str, Any] = read_result(self.folder)
        self.splits: Splits | None = None  # its images, while a run that has just ended still has them
        self.given: Splits | None = None  # its images, where they were passed from Python again

    def choose_checkpoint(self) -> str:
        """The one that is opened where none is named."""
        return "last"

    @property
    def model_file(self) -> Path:
        """The file with the model of the checkpoint."""
        return find_model_file(self.folder, self.checkpoint, self.stage)

    @abstractmethod
    def _load_model(self, path: Path, device: str) -> M:
        """The model in this file."""

    @abstractmethod
    def score_table(self) -> ScoreTable:
        """The accuracies of its result; runs with the same header share a table."""

    @property
    def is_finished(self) -> bool:
        """Whether it came to its end and has a result."""
        return bool(self.result)

    @property
    def unfinished(self) -> str:
        """A line about a run that has not come to its end; empty for one that has."""
        if self.is_finished:
            return ""
        found = last_checkpoint(self.folder, self.stage)
        steps = f"step {step_of(found):,} of {self.steps:,}" if found else "no last step"
        return (
            f"{shown(self.folder)}: unfinished, {steps}: its scores are not final, its probabilities not "
            f"calibrated; {resume_command(self.config, self.folder)} continues it"
        )

    @property
    def steps(self) -> int:
        """All steps of the stage whose model it has."""
        return self.config.run.iterations or 0

    def warn_if_unfinished(self) -> None:
        """A note about what is asked of an unfinished run."""
        if self.unfinished:
            warnings.warn(self.unfinished, SLAWarning)

    @cached_property
    def record(self) -> ImagesRecord | None:
        """Which images it trained on and held out; None of a run from before that was recorded."""
        return read_record(self.folder)
