"""How answers differ by inference: accuracy, calibration, and images that aggregation gains and loses."""

from collections.abc import Mapping
from statistics import fmean
from typing import NamedTuple

from sla.reproduce.paper import experiment
from sla.reproduce.records import Record
from sla.reproduce.results import Place, Results
from sla.stats import mean_sd

BOTH = ("single", "aggregated")
CELLS = {  # experiment and row: its inferences; a student's teacher has a row of its own
    ("views", "baseline-4"): BOTH,
    ("views", "k1-4"): BOTH,
    ("views", "k4-4"): BOTH,
    ("views", "baseline-8"): BOTH,
    ("views", "k1-8"): BOTH,
    ("students", "paper"): (*BOTH, "distilled"),
    ("students", "student"): ("distilled",),
    ("students", "student-unlabelled"): ("distilled",),
}
COLUMNS = ("cifar10", "cifar100")
HEADER = ("", "inference", "accuracy", "calibration error", "gained", "lost", "seeds")


class Answers(NamedTuple):
    """Of one cell by one inference, in percent of the test images, means over seeds.

    `error` is the expected calibration error with the temperature of held-out images. `gained` and `lost` are
    images that only aggregated or only single inference has right: None where that was not recorded.
    """

    accuracy: str
    error: float
    gained: float | None
    lost: float | None
    seeds: int


def answers_of(records: Mapping[int, Record], inference: str) -> Answers | None:
    """Over the seeds that have this inference and its calibration error; None without any."""
    found = [one for one in records.values() if None not in (one.score(inference), _error(one, inference))]
    if not found:
        return None
    mean, sd = mean_sd([one.score(inference) or 0.0 for one in found])
    changes = [
        [value for one in found if (value := one.score(name)) is not None] for name in ("gained", "lost")
    ]
    gained, lost = (fmean(values) if values and inference == "aggregated" else None for values in changes)
    accuracy = f"{mean:.1f}" + (f" ± {sd:.1f}" if len(found) > 1 else "")
    error = fmean(_error(one, inference) or 0.0 for one in found)
    return Answers(accuracy, error, gained, lost, len(found))


def answers_rows(results: Results) -> list[tuple[str, ...]]:
    """A line for each cell and inference that has numbers."""
    rows = []
    for column in COLUMNS:
        for (name, row), inferences in CELLS.items():
            found, records = experiment(name), results.records.get(Place(name, row, column), {})
            for inference in inferences:
                one = answers_of(records, inference)
                if one is not None:
                    changes = ("" if value is None else f"{value:.1f}" for value in (one.gained, one.lost))
                    label = f"{found.columns[column].label}: {found.rows[row].label}"
                    numbers = one.accuracy, f"{one.error:.1f}", *changes, str(one.seeds)
                    rows.append((label, inference, *numbers))
    return rows


def _error(record: Record, inference: str) -> float | None:
    return record.score(f"ece_{inference}")
