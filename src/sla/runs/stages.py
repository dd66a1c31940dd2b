"""A run is a list of stages, done in order: each a loop with checkpoints of its own, each resumable."""

import errno
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sla.disk import check_space, replacing
from sla.errors import SLAError
from sla.progress import Progress
from sla.runs.checkpoint import find_checkpoint, step_of
from sla.runs.config import TrainingConfig, write_config
from sla.runs.distributed import Group
from sla.runs.folder import CONFIG, FIRST_STAGE, stage_folder
from sla.runs.loop import Loop
from sla.runs.signals import Stop, StoppedError


@dataclass(frozen=True)
class Stage:
    """A part of a run. The first is called `train`; a later one may read the checkpoints of those before it.

    Args:
        name: of the folder below the run's that has its checkpoints; `train` uses the run's own.
        steps: after which it is finished.
        build: makes its loop, in the folder given.
    """

    name: str
    steps: int
    build: Callable[[Path], Loop]

    def is_finished(self, folder: Path) -> bool:
        """Whether its last checkpoint, in this run's folder, is that of its last step."""
        found = find_checkpoint(stage_folder(folder, self.name) / "checkpoint", "last")
        return found is not None and step_of(found) >= self.steps


def run_stages(
    stages: Sequence[Stage],
    config: TrainingConfig,
    folder: Path,
    group: Group,
    stop: Stop,
    progress: Progress,
    *,
    resume: bool,
) -> Loop:
    """Write the configuration and do what is left of the stages; returns the last one's loop, at its end.

    Finished stages are not done again, nor built, but for the last: whoever makes the result asks its loop.
    """
    command = f"sla train --resume --out {shlex.quote(str(folder))}"
    assert stages[0].name == FIRST_STAGE
    for stage, following in zip(stages, [*stages[1:], None], strict=True):
        if following is not None and group.share(stage.is_finished(folder)):
            continue
        of_stage = "" if stage.name == FIRST_STAGE else f" of stage {stage.name}"
        own = stage_folder(folder, stage.name)
        loop = stage.build(own)
        if group.leads:
            own.mkdir(exist_ok=True)
            _check_space(own, loop)
            with replacing(folder / CONFIG) as file:
                file.write(write_config(config).encode())
        if resume:
            loop.resume()
        if loop.position.step:
            progress.message(f"resuming at step {loop.position.step:,} of {loop.steps:,}{of_stage}")
        if not loop.fit(stop, progress):
            done = f"step {loop.position.step:,} of {loop.steps:,}{of_stage}"
            raise StoppedError(f"stopped after {done}; to continue: {command}")
        if following is not None and group.any(stop.requested)[0]:
            raise StoppedError(f"stopped after stage {stage.name}; to continue: {command}")
    return loop


@contextmanager
def explaining_a_full_disk(folder: Path) -> Iterator[None]:
    """What writes into a run's folder; a disk without space is one line, with what to do."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise SLAError(
            f"{folder}: the disk is full; the last checkpoint is complete: free some space, then --resume"
        ) from None


def _check_space(folder: Path, loop: Loop) -> None:
    """Refuse to start where two checkpoints would not fit on the disk."""
    size = sum(value.numel() * value.element_size() for value in loop.model.state_dict().values())
    # Weights, two moments at the most, two copies for an average; an old and a new one, and the best.
    need = 3 * size * (5 if loop.average else 3)
    check_space(folder, need, "keeping checkpoints")
