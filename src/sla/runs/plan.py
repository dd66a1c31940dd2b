"""What a run will do, complete before its first step."""

from dataclasses import dataclass
from typing import Generic, TypeVar

from sla.images.store import Dataset
from sla.runs.config import TrainingConfig
from sla.runs.deadline import Deadline

C_co = TypeVar("C_co", bound=TrainingConfig, covariant=True)


@dataclass(frozen=True)
class Plan(Generic[C_co]):
    """A resolved configuration, the images it trains on, and the reasons for what was chosen.

    `pool` has the images that training images, and with `holds_out` the held-out ones too, were taken from.
    `unlabelled` are more images to train on, without labels; `taught` are those that only a student learns
    from.
    `deadline` is that of a run that was given minutes, `given` the configuration before anything was chosen.
    """

    config: C_co
    train: Dataset
    val: Dataset | None
    test: Dataset | None
    reasons: tuple[str, ...]
    pool: Dataset | None = None
    holds_out: bool = False
    unlabelled: Dataset | None = None
    taught: Dataset | None = None
    deadline: Deadline | None = None
    given: C_co | None = None
