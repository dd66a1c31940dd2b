"""A run is a list of stages, done in order: each has checkpoints of its own, each is resumable."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from sla.disk import check_space, replacing
from sla.errors import InputError
from sla.progress import Progress
from sla.runs.checkpoint import STATE, Position, check_file, read_position, step_of
from sla.runs.config import TrainingConfig, write_config
from sla.runs.distributed import Group
from sla.runs.folder import CONFIG, MAIN_STAGE, last_checkpoint, resume_command, stage_folder
from sla.runs.metrics import has_row
from sla.runs.signals import Stop, StoppedError

Tree = TypeVar("Tree", bound=TrainingConfig)


class Work(Protocol):
    """What a stage does: a `Loop` of training steps, or anything else that saves checkpoints (`last`)."""

    steps: int
    position: Position

    def resume(self) -> None:
        """Continue from its last checkpoint, if there is one."""

    def fit(self, stop: Stop, progress: Progress) -> bool:
        """Work to the end, with a checkpoint there; False when it was asked to stop before."""

    def bytes_needed(self) -> int:
        """On the disk, for its checkpoints."""


@dataclass(frozen=True)
class Stage:
    """A part of a run. One is called `train`; each may read the checkpoints of those before it.

    Args:
        name: of the folder below the run's that has its checkpoints; `train` uses the run's own.
        steps: after which it is finished.
        build: makes what is done, in the folder given.
        finish: the run's configuration with what has to be known to repeat the stage, from its last position.
    """

    name: str
    steps: int
    build: Callable[[Path], Work]
    finish: Callable[[Any, Position], Any] = lambda config, position: config

    def is_finished(self, folder: Path) -> bool:
        """Whether its last checkpoint, in this run's folder, is that of its last step, evaluated."""
        own = stage_folder(folder, self.name)
        found = last_checkpoint(own)
        if found is None or step_of(found) < self.steps:
            return False
        with suppress(InputError):  # a damaged one: resuming says so
            left = bool(read_position(found).row)
            return not left or has_row(own / "metrics.csv", self.steps)
        return True


def run_stages(
    stages: Sequence[Stage],
    config: TrainingConfig,
    folder: Path,
    group: Group,
    stop: Stop,
    progress: Progress,
    *,
    resume: bool,
) -> Work:
    """Write the configuration and run the stages that are not finished; returns the work of the last one.

    Of finished stages only the last is built: the result is made from it.
    """
    command = resume_command(config, folder)
    assert MAIN_STAGE in [stage.name for stage in stages]
    for stage, following in zip(stages, [*stages[1:], None], strict=True):
        if following is not None and group.share(stage.is_finished(folder)):
            config = _finish(stage, config, folder, group)
            continue
        of_stage = "" if stage.name == MAIN_STAGE else f" of stage {stage.name}"
        own = stage_folder(folder, stage.name)
        work = stage.build(own)
        if group.leads:
            own.mkdir(exist_ok=True)
            check_space(own, work.bytes_needed(), "keeping checkpoints")
            _write(config, folder)
        if resume:
            work.resume()
        if work.position.step:
            progress.message(f"resuming at step {work.position.step:,} of {work.steps:,}{of_stage}")
        if not work.fit(stop, progress):
            done = f"step {work.position.step:,} of {work.steps:,}{of_stage}"
            raise StoppedError(f"stopped after {done}; to continue: {command}")
        config = _finish(stage, config, folder, group)
        if following is not None and group.any(stop.requested)[0]:
            raise StoppedError(f"stopped after stage {stage.name}; to continue: {command}")
    return work


def _finish(stage: Stage, config: Tree, folder: Path, group: Group) -> Tree:
    """The configuration with what a finished stage adds to it, written where that is new."""
    found = last_checkpoint(folder, stage.name)
    if not group.leads or found is None:
        return config
    check_file(found / STATE)
    finished: Tree = stage.finish(config, read_position(found))
    if finished != config:
        _write(finished, folder)
    return finished


def _write(config: TrainingConfig, folder: Path) -> None:
    with replacing(folder / CONFIG) as file:
        file.write(write_config(config).encode())
