"""A plan of runs: lines in order of value, each a part of a table with its seeds; what of it is done."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sla.errors import InputError, shown
from sla.reproduce.costs import Rate
from sla.reproduce.jobs import Job, cells_of, jobs_of
from sla.reproduce.paper import Part
from sla.reproduce.records import Record, core_seconds
from sla.reproduce.runner import costs_to_come
from sla.trees import parse_yaml, read_text


class Line(Part):
    """Rows and columns of one table (all by default) for the first seeds."""

    experiment: str
    rows: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    seeds: int = 3
    budget: str = ""  # the name under which its core-hours are counted


@dataclass(frozen=True)
class LineStatus:
    """Of a line: its runs that no earlier line has, how many are done, and core-hours spent and to come."""

    line: Line
    jobs: list[Job]
    done: int
    spent: float
    left: float


def read_plan(path: Path) -> list[Line]:
    """The lines of a YAML file: a list of `{experiment: table1, columns: [cifar10], seeds: 3}`."""
    try:
        tree = parse_yaml(read_text(path))
        if not isinstance(tree, list):
            raise TypeError("it must be a list of lines")
        return [Line.model_validate(line) for line in tree]
    except (OSError, TypeError, ValueError) as error:
        text = str(error).replace("\n", "; ")
        raise InputError(f"{shown(path)}: not a plan of runs: {shown(text)}") from None


def line_jobs(lines: Sequence[Line], scale: str) -> list[list[Job]]:
    """The runs of every line; a run that two lines need belongs to the first."""
    known: set[str] = set()
    found = []
    for line in lines:
        cells = cells_of(line.experiment, scale, line.seeds, line.rows, line.columns)
        found.append([job for job in jobs_of(cells) if job.key not in known])
        known |= {job.key for job in found[-1]}
    return found


def plan_status(
    lines: Sequence[Line], scale: str, records: Mapping[str, Record], rate: Rate, out: Path
) -> list[LineStatus]:
    """Every line with its own runs; core-hours are CPU time, where a row has it."""
    found, parts = [], line_jobs(lines, scale)
    costs = costs_to_come([job for jobs in parts for job in jobs if job.key not in records], out)
    for line, jobs in zip(lines, parts, strict=True):
        done = [job for job in jobs if job.key in records]
        spent = sum(core_seconds(records[job.key]) or 0 for job in done)
        left = sum(costs[job.key] for job in jobs if job.key not in records) / rate.flop_per_second
        found.append(LineStatus(line, jobs, len(done), spent / 3600, left / 3600))
    return found
