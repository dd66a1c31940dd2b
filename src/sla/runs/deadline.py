"""A run's minutes are a deadline: where steps are too slow for it, the schedule follows the clock.

The schedule has a fixed number of steps, more than are likely to fit. Those that there is no time for are
skipped: learning rate and all else that follows the step move on, the stream of batches does not. Which ones
were skipped is recorded, in checkpoints, in `pace.csv` and, at the end, in the run's configuration: whoever
resumes or repeats the run follows the record instead of a clock.
"""

import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from sla.disk import replacing
from sla.errors import InputError
from sla.runs.checkpoint import Position, find_checkpoint, read_position
from sla.runs.distributed import Group
from sla.runs.folder import PACE, checkpoint_folders
from sla.runs.metrics import is_count

clock = time.monotonic
GRAIN = 100  # of the schedule: it moves on by a hundredth of its length at least
PAGE_SECONDS, PAGE_SHARE = 3.0, 0.05  # kept for the page at the end, and that share of the minutes at most
MOST_KEPT = 0.5  # of a session, for what comes after the last step
RECENT = 0.2  # weight of the last step in what a step takes of late


@dataclass(frozen=True)
class Deadline:
    """When a run has to be done.

    Args:
        seconds: for the whole run, over all its sessions.
        used: of these in earlier sessions.
        started: when this session began, by the clock.
    """

    seconds: float
    used: float = 0.0
    started: float = field(default_factory=lambda: clock())

    @property
    def elapsed(self) -> float:
        """Seconds used so far."""
        return self.used + clock() - self.started

    @property
    def left(self) -> float:
        """Seconds until then, without those for the page at the end."""
        page = min(PAGE_SECONDS, PAGE_SHARE * self.seconds)
        return max(self.seconds - page - self.elapsed, 0.0)


def used_seconds(folder: Path) -> float:
    """Seconds that a run had used at the newest of its checkpoints, of any stage."""
    found = (find_checkpoint(part, "last") for part in checkpoint_folders(folder))
    return max((read_position(one).clock for one in found if one is not None), default=0.0)


@dataclass(frozen=True)
class Following:
    """What has to be done besides the steps of a stage, in steps of that stage.

    Args:
        end: after the last stage: the checkpoints are tested.
        evaluation: each evaluation during the stage.
        later: steps of later stages, which can be skipped too.
    """

    end: float = 0.0
    evaluation: float = 0.0
    later: float = 0.0


NOTHING = Following()


class Estimate:
    """Where a stage's schedule should be, by the time that is left for it.

    Its place rises evenly with the time spent on steps, to reach the end when no more time is left for them.
    An evaluation leaves less time for all that are still to come, and moves nothing at once.
    """

    def __init__(self, steps: int, deadline: Deadline, following: Following, position: Position) -> None:
        self.steps, self.deadline, self.following = steps, deadline, following
        self.granted = deadline.left
        to_do = max(steps - position.step, 1)
        self.later = following.later / (to_do + following.later)  # share of the time that is for other stages
        self.count, self.seconds = 0, 0.0  # steps so far, and what one takes of late
        self.evaluated: float | None = None  # seconds of the last evaluation
        self.base, self.worked = position.step, 0.0  # a place, and the seconds spent on steps since
        self.begun = clock()

    def rebase(self, position: Position) -> None:
        """From here on the rest of the schedule is spread over the rest of the time."""
        self.base, self.worked, self.begun = position.step, 0.0, clock()

    def end_step(self) -> None:
        """The step is over. The first of a session does not count: it also compiles and starts workers."""
        now = clock()
        took, self.begun, self.count = now - self.begun, now, self.count + 1
        if self.count > 1:
            self.worked += took
            self.seconds += (took - self.seconds) * (1 if self.count == 2 else RECENT)

    def end_evaluation(self, position: Position) -> None:
        """Its time was not that of a step."""
        self.evaluated = clock() - self.begun
        self.rebase(position)

    def kept(self, evaluations: int) -> float:
        """Seconds for what is no step, by how long steps and evaluations took of late."""
        end, evaluation = (units * self.seconds for units in (self.following.end, self.following.evaluation))
        if self.evaluated is not None:
            end *= self.evaluated / evaluation if evaluation else 1.0
            evaluation = self.evaluated
        return min(end + evaluations * evaluation, MOST_KEPT * self.granted)

    def place(self, evaluations: int) -> float:
        """The step at which the schedule should be, so many evaluations being still to come."""
        kept = self.kept(evaluations)
        left = self.deadline.left - kept - self.later * (self.granted - kept)
        if left <= 0:
            return self.steps
        return self.base + (self.steps - self.base) * self.worked / (self.worked + left)


class Pace:
    """Which step of a stage's schedule comes next: the following one, or a later one.

    Args:
        steps: of the schedule.
        deadline: None where the record is all there is to follow, or nothing is skipped at all.
        following: what the time has to suffice for besides.
        record: of a finished stage that is repeated, as `Position.pace` has it.
    """

    def __init__(
        self,
        steps: int,
        deadline: Deadline | None = None,
        following: Following = NOTHING,
        record: str | None = None,
    ) -> None:
        self.steps, self.deadline, self.following = steps, deadline, following
        self.repeats = record is not None
        self.recorded = parse_record(record or "")
        self.recorded_until = 0  # steps taken, by a session that was killed
        self.file: Path | None = None  # of the leading process
        self.estimate: Estimate | None = None

    def start(self, position: Position, folder: Path | None) -> None:
        """Begin a session at this position. What the last one did after its checkpoint is done alike.

        folder: of the stage, in the process that writes files.
        """
        if folder is None or not (self.deadline or self.repeats):
            return
        self.file = folder / PACE
        if not self.repeats:
            later = {taken: step for taken, step in read_pace(self.file).items() if taken > position.taken}
            self.recorded = parse_record(position.pace) | later
            self.recorded_until = max(later, default=0)
        known = max(position.taken, self.recorded_until)
        lines = [f"{taken},{step}\n" for taken, step in self.recorded.items() if taken <= known]
        with replacing(self.file) as file:
            file.write("".join(["taken,step\n", *lines]).encode())
        if self.deadline is not None:
            self.estimate = Estimate(self.steps, self.deadline, self.following, position)

    def end_evaluation(self, position: Position) -> None:
        """An evaluation is over, which came after a step."""
        if self.estimate is not None:
            self.estimate.end_evaluation(position)

    def follow(self, position: Position, evaluations: int, group: Group) -> bool:
        """After a step: move the position on past what there is no time for; whether it moved.

        evaluations: that are still to come.
        """
        if not (self.deadline or self.repeats):
            return False
        skipped = group.share_number(self._skipped(position, evaluations))
        if not skipped:
            return False
        position.step, position.skipped = position.step + skipped, position.skipped + skipped
        position.pace = f"{position.pace} {position.taken}:{position.step}".strip()
        self.note(position)
        return True

    def note(self, position: Position) -> None:
        """Write where the schedule stands: a killed run is followed up to there."""
        if self.file is not None and position.taken > self.recorded_until:
            with open(self.file, "a", encoding="utf-8") as file:
                file.write(f"{position.taken},{position.step}\n")

    def _skipped(self, position: Position, evaluations: int) -> int:
        """How many steps the leading process skips now; 0 in the others, which receive that number."""
        if self.estimate is not None:
            self.estimate.end_step()
        if self.repeats or position.taken <= self.recorded_until:
            skipped = max(self.recorded.get(position.taken, 0) - position.step, 0)
            if self.estimate is not None:
                self.estimate.rebase(replace(position, step=position.step + skipped))
            return skipped if self.file is not None else 0
        if self.estimate is None:
            return 0
        place = self.estimate.place(evaluations)
        lead = int(place) - position.step
        return max(lead, 0) if lead >= max(self.steps / GRAIN, 1) or place >= self.steps else 0


def parse_record(text: str) -> dict[int, int]:
    """`120:131 255:290` -> {120: 131, 255: 290}: after 120 steps the schedule stood at 131."""
    try:
        pairs = [word.split(":") for word in text.split()]
        return {int(taken): int(step) for taken, step in pairs}
    except ValueError:
        raise InputError(f"run.pace: not a record of skipped steps: {text[:40]!r}") from None


def read_pace(path: Path) -> dict[int, int]:
    """The lines of `pace.csv` that were written to their end; without the file, none."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")[1:-1]
    except OSError:
        return {}
    found: dict[int, int] = {}
    for line in lines:
        taken, _, step = line.partition(",")
        if not (is_count(taken) and is_count(step)):
            break
        found[int(taken)] = int(step)
    return found
