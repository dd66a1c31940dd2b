"""From a table of the paper to the runs it needs, each identified by the content of its configuration."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sla.errors import InputError, nearest
from sla.recipes import SCALES
from sla.recipes.load import Settings, recipe_settings, recipe_version
from sla.reproduce.paper import Column, Experiment, Row, experiment

LENGTHS = ("run.iterations", "run.epochs")
MEMBERS = 4  # models of an ensemble
GROWTHS = 4  # times that a run grows, each time by a quarter of its first classes
STAGED = ("distil", "grow")  # kinds of rows whose run starts from another one, with settings of their own
WITH_MEMBERS = (*STAGED, "finetune")  # kinds that train from what their members trained
NOT_RUN = {"not-run": "it is not implemented here"}  # kinds of row, and why
REMOVED = "it is no longer in the code"


@dataclass(frozen=True)
class Job:
    """A run, or an evaluation of finished runs (`members`); equal content is the same job in every table."""

    kind: str
    settings: Mapping[str, Any]  # flat: dotted keys of the configuration
    seed: int
    scale: str = field(compare=False)
    label: str = field(compare=False)
    members: tuple["Job", ...] = ()

    @property
    def key(self) -> str:
        """16 hexadecimal digits: a hash of what is run."""
        return content_key(self.kind, self.settings, self.seed, [member.key for member in self.members])

    @property
    def trains(self) -> bool:
        """Whether it trains a network; the others evaluate their members."""
        return self.kind in WITH_MEMBERS or not self.members

    @property
    def threads(self) -> int | None:
        """CPU threads that its recipe sets (a student's are its teacher's); None where it sets none."""
        return (self.members[0] if self.members else self).settings.get("run.threads")


@dataclass(frozen=True)
class Cell:
    """One number of a table for one seed: the job that computes it, and the name of its score."""

    experiment: str
    row: str
    column: str
    seed: int
    job: Job
    score: str


def content_key(kind: str, settings: Mapping[str, Any], seed: int, members: Sequence[str]) -> str:
    """The key of a job with this content."""
    content = json.dumps([kind, dict(settings), seed, list(members)], sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(content.encode(), digest_size=8).hexdigest()


def why_not_run(row: Row) -> str:
    """Why a row cannot be run; empty if it can."""
    return REMOVED if row.removed else NOT_RUN.get(row.kind, "")


def cells_of(
    name: str,
    scale: str,
    seeds: int = 3,
    rows: Iterable[str] = (),
    columns: Iterable[str] = (),
    removed: bool = False,
) -> list[Cell]:
    """Every cell of a table that can be run: rows x columns (all, or those named) x seeds 0, 1, ...

    `removed`: also those of rows that could be run once.
    """
    table, only_rows, only_columns = experiment(name), set(rows), set(columns)
    if scale not in SCALES:
        raise InputError(f"unknown scale {scale!r}{nearest(scale, SCALES)}")
    for unknown in sorted(only_rows - set(table.rows)):
        raise InputError(f"{name} has no row {unknown!r}{nearest(unknown, tuple(table.rows))}")
    for unknown in sorted(only_columns - set(table.columns)):
        raise InputError(f"{name} has no column {unknown!r}{nearest(unknown, tuple(table.columns))}")
    found = []
    for row_name, row in table.rows.items():
        if only_rows and row_name not in only_rows:
            continue
        if (reason := why_not_run(row)) and not (removed and row.removed):
            if only_rows:
                raise InputError(f"{name}: row {row_name!r} cannot be run: {reason}")
            continue
        for column in row.columns or table.columns:
            if only_columns and column not in only_columns:
                continue
            count = 1 if row.kind == "toy" else seeds  # a convex problem has no seeds
            for seed in range(table.first_seed, table.first_seed + count):
                job = _job(table, row, column, scale, seed)
                shot = table.columns[column].shot
                score = f"{shot}-shot {row.score}" if shot else row.score
                found.append(Cell(name, row_name, column, seed, job, score))
    return found


def growth_of(first: int, available: int, times: int) -> tuple[int, list[int]]:
    """How many classes are added each time, and how many there are before each time, while more are left."""
    each = max(first // GROWTHS, 1)
    before = [first + number * each for number in range(times)]
    return each, [count for count in before if count + each <= available]


def jobs_of(cells: Iterable[Cell]) -> list[Job]:
    """The distinct jobs, members of others first."""
    found: dict[str, Job] = {}
    for cell in cells:
        for job in (*cell.job.members, cell.job):
            found.setdefault(job.key, job)
    return sorted(found.values(), key=lambda job: bool(job.members))


def cell_settings(row: Row, column: Column, scale: str) -> Settings:
    """The settings of a cell: its recipe (the column's, with the row's suffix), then column, then row."""
    name = column.recipe + row.suffix
    recipe = recipe_settings(name, scale)
    settings, times = recipe | recipe_version(name) | column.set | row.set, row.times
    if scale == "smoke":  # seconds: no run is longer than its recipe says
        settings |= {length: recipe.get(length) for length in LENGTHS if length in settings}
        times = min(times, 1.0)
        if "distil.unlabelled" in settings:
            settings["distil.unlabelled"] = settings["data.source"]
    for length in LENGTHS:
        if times != 1 and settings.get(length):
            settings[length] = max(round(settings[length] * times), 1)
    return settings


def pretraining_settings(row: Row, column: Column, scale: str) -> Settings:
    """The settings of the pre-training that a row starts from."""
    name = column.recipe + row.pretraining
    return recipe_settings(name, scale) | recipe_version(name)


def _job(table: Experiment, row: Row, column: str, scale: str, seed: int) -> Job:
    place = table.columns[column]
    settings = cell_settings(row, place, scale)
    label = f"{place.label}, {row.label}"
    if row.kind in STAGED:
        own = {key: value for key, value in settings.items() if key.startswith(f"{row.kind}.")}
        settings = {key: value for key, value in settings.items() if key not in own}
        own |= {"times": GROWTHS} if row.kind == "grow" else {}
        return Job(row.kind, own, seed, scale, label, (Job("train", settings, seed, scale, label),))
    if row.kind == "finetune":
        # The weights are those of the member, which its key names, wherever its folder is.
        first = Job("simclr", pretraining_settings(row, place, scale), seed, scale, f"{place.label}, SimCLR")
        settings = {key: value for key, value in settings.items() if key != "model.weights"}
        return Job("finetune", settings, seed, scale, label, (first,))
    if row.kind in ("ten-crop", "flips", "curves"):
        own = {"inference": row.inference} if row.inference else {}
        return Job(row.kind, own, seed, scale, label, (Job("train", settings, seed, scale, label),))
    if row.kind == "ensemble":
        # The first member is the single model of the same seed, so that the two are paired.
        members = tuple(Job("train", settings, seed + 100 * i, scale, label) for i in range(MEMBERS))
        return Job("ensemble", {"inference": row.score}, seed, scale, label, members)
    return Job(row.kind, settings, seed, scale, label)
