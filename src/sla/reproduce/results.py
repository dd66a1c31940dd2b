"""The records of a scale arranged as the paper's tables: the numbers of each cell by seed."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from sla.reproduce.jobs import cells_of
from sla.reproduce.names import EXPERIMENTS
from sla.reproduce.paper import experiment
from sla.reproduce.records import Record

MOST_SEEDS = 10  # that a table may have


class Place(NamedTuple):
    """A cell of the paper."""

    experiment: str
    row: str
    column: str


@dataclass(frozen=True)
class Results:
    """Numbers by cell and seed, in percent: errors in the tables that print errors, accuracies elsewhere."""

    scale: str
    values: Mapping[Place, Mapping[int, float]]
    records: Mapping[Place, Mapping[int, Record]]

    def of(self, place: Place) -> list[float]:
        """The numbers of a cell, ordered by seed."""
        return [value for _, value in sorted(self.values.get(place, {}).items())]

    def by_seed(self, *places: Place) -> dict[int, tuple[float, ...]]:
        """The numbers of these cells for each seed that all of them have."""
        cells = [self.values.get(place, {}) for place in places]
        seeds = sorted(set(cells[0]).intersection(*cells[1:]))
        return {seed: tuple(cell[seed] for cell in cells) for seed in seeds}

    def runs(self, *places: Place) -> set[str]:
        """The keys of the runs behind these cells, those of an ensemble's members among them."""
        records = [record for place in places for record in self.records.get(place, {}).values()]
        return {key for record in records for key in (record.key, *record.members)}

    def keys(self, name: str) -> set[str]:
        """The keys of all records in a table or figure."""
        own = (records for place, records in self.records.items() if place.experiment == name)
        return {name, *(record.key for records in own for record in records.values())}

    @property
    def tested(self) -> list[str]:
        """The tables and figures with at least one number."""
        found = {place.experiment for place in self.values}
        return [name for name in EXPERIMENTS if name in found]


def collect(records: Mapping[str, Record], scale: str) -> Results:
    """Every cell of the paper with a number in the records, at this scale."""
    values: dict[Place, dict[int, float]] = {}
    sources: dict[Place, dict[int, Record]] = {}
    for name in EXPERIMENTS:
        errors = experiment(name).metric == "error"
        for cell in cells_of(name, scale, MOST_SEEDS, removed=True):
            record = records.get(cell.job.key)
            score = record.score(cell.score) if record is not None else None
            if record is None or score is None:
                continue
            place = Place(name, cell.row, cell.column)
            shown = 100 - score if errors and cell.score != "error" else score
            values.setdefault(place, {})[cell.seed] = shown
            sources.setdefault(place, {})[cell.seed] = record
    return Results(scale, values, sources)
