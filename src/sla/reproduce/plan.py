"""A plan of runs: lines in order of value, each a part of a table with its seeds; what of it is done."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from pydantic import ValidationError

from sla.errors import InputError, shown
from sla.reproduce.costs import flop_of
from sla.reproduce.jobs import Job, cells_of, jobs_of
from sla.reproduce.paper import Part
from sla.reproduce.records import Record

RATE = 80e9  # FLOP per second of one core in training, for runs that no record tells the seconds of


class Line(Part):
    """Rows and columns of one table (all by default) for the first seeds."""

    experiment: str
    rows: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    seeds: int = 3
    budget: str = ""  # whose core-hours it takes


@dataclass(frozen=True)
class Progress:
    """Of a line: its runs that no earlier line has, how many are done, and core-hours spent and to come."""

    line: Line
    jobs: list[Job]
    done: int
    spent: float
    left: float


def read_plan(path: Path) -> list[Line]:
    """The lines of a YAML file: a list of `{experiment: table1, columns: [cifar10], seeds: 3}`."""
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
        if not isinstance(tree, list):
            raise TypeError("it must be a list of lines")
        return [Line.model_validate(line) for line in tree]
    except (OSError, UnicodeDecodeError, yaml.YAMLError, TypeError, ValidationError) as error:
        text = str(error).replace("\n", "; ")
        raise InputError(f"{shown(path)}: not a plan of runs: {shown(text)}") from None


def plan_progress(lines: Sequence[Line], scale: str, records: Mapping[str, Record]) -> list[Progress]:
    """Every line with its own runs: a run that two lines need is counted in the first."""
    known: set[str] = set()
    found = []
    for line in lines:
        cells = cells_of(line.experiment, scale, line.seeds, line.rows, line.columns)
        jobs = [job for job in jobs_of(cells) if job.key not in known]
        known |= {job.key for job in jobs}
        done = [records[job.key] for job in jobs if job.key in records]
        left = [flop_of(dict(job.settings)) for job in jobs if job.key not in records and not job.members]
        spent = sum(record.seconds or 0 for record in done if not record.members)
        found.append(Progress(line, jobs, len(done), spent / 3600, sum(left) / RATE / 3600))
    return found
