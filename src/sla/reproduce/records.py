"""The results of finished jobs: one row of a CSV each, checked when read, merged with rows from elsewhere."""

import csv
import io
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from sla.disk import exclusive, remove_temporaries_of, replacing
from sla.errors import InputError, listed, nearest, shown
from sla.recipes import SCALES
from sla.reproduce.jobs import content_key
from sla.trees import parse_json

TABLE = "runs.csv"
ROUNDING = 0.01  # points, of a calibration error
JSON_COLUMNS = ("settings", "members", "scores", "more", "versions")
OLD_COLUMNS = {  # of tables before `scores`, one number each
    f"{checkpoint}_{inference}": (checkpoint, inference)
    for checkpoint in ("last", "best")
    for inference in ("single", "aggregated", "distilled")
}


class Record(BaseModel):
    """One finished job. Scores are percent on the test images, which selected nothing."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    key: str
    kind: str
    scale: str
    label: str
    seed: int
    settings: dict[str, Any]
    members: list[str] = []
    scores: dict[str, dict[str, float]] = {}  # accuracy by checkpoint, then by inference
    more: dict[str, Any] = {}  # numbers that only some kinds of job have
    training_flop: float | None = None
    seconds: float | None = None
    core_seconds: float | None = None  # CPU time, which other work on the machine does not stretch; of one go
    parameters: int | None = None
    machine: str = ""
    versions: dict[str, str] = {}
    commit: str | None = None
    finished: str = ""

    @model_validator(mode="before")
    @classmethod
    def _read_old_columns(cls, values: Any) -> Any:
        """Turn last_single, ..., best_distilled of older tables and records into `scores`."""
        if not isinstance(values, dict) or "scores" in values:
            return values
        scores: dict[str, dict[str, Any]] = {}
        for name, (checkpoint, inference) in OLD_COLUMNS.items():
            if values.get(name) is not None:
                scores.setdefault(checkpoint, {})[inference] = values[name]
        return {"scores": scores} | {key: value for key, value in values.items() if key not in OLD_COLUMNS}

    def percentages(self) -> dict[str, float]:
        """Every accuracy and error by name; the points of a curve are named by their steps."""
        found: dict[str, float] = {}
        for checkpoint, values in self.scores.items():
            found |= {f"{checkpoint} {inference}": value for inference, value in values.items()}
        found |= {k: v for k, v in self.more.items() if k != "gap" and isinstance(v, int | float)}
        for point in self.more.get("curve", ()):
            found |= {f"{name} at {point['step']}": point[name] for name in ("train", "test")}
        return found

    def score(self, name: str) -> float | None:
        """The score of this name: of an inference at the last checkpoint, or one of `more`."""
        value = (self.more | self.scores.get("last", {})).get(name)
        return float(value) if isinstance(value, int | float) else None


def core_seconds(record: Record) -> float | None:
    """Measured, or seconds times threads in rows that have only those."""
    if record.core_seconds is not None or record.seconds is None:
        return record.core_seconds
    return record.seconds * parse_machine(record.machine)[1]


def parse_machine(text: str) -> tuple[str, int]:
    """`x86_64, 2 threads` -> ("x86_64", 2); a GPU has no threads and counts as one."""
    name, _, threads = text.rpartition(", ")
    found = re.fullmatch(r"(\d+) threads?", threads)
    return (name, int(found[1])) if found else (text, 1)


def read_records(path: Path) -> dict[str, Record]:
    """The rows of a CSV by key, each checked; {} if there is no file."""
    if not path.exists():
        return {}
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            rows = list(csv.DictReader(file, strict=True))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{shown(path)}: not a table of results: {error}") from None
    found: dict[str, Record] = {}
    for number, row in enumerate(rows, start=2):
        record = _parse(row, f"{shown(path)}, row {number}")
        if record.key in found:
            raise InputError(f"{shown(path)}, row {number}: {record.key} occurs twice")
        found[record.key] = record
    return found


def unite_tables(tables: Iterable[dict[str, Record]]) -> dict[str, Record]:
    """The rows of several tables; a job in more than one must have the same numbers in all."""
    rows: dict[str, Record] = {}
    for table in tables:
        for record in table.values():
            _require_same(rows.setdefault(record.key, record), record)
    return rows


def add_records(path: Path, records: Iterable[Record]) -> int:
    """Add rows to the CSV, one writer at a time; returns how many were new.

    A job that is already in it must have the same numbers. The file is replaced as a whole, in the present
    format: `add_records(path, [])` rewrites an older table.
    """
    with exclusive(path.with_name(f".{path.name}.lock")):
        remove_temporaries_of(path)
        old = read_records(path)
        rows = unite_tables([old, {record.key: record for record in records}])
        with replacing(path) as file:
            file.write(_text(rows.values()).encode())
    return len(rows) - len(old)


def _parse(row: dict[str, Any], where: str) -> Record:
    try:
        values = {name: text for name, text in row.items() if text}
        values |= {name: parse_json(values[name]) for name in JSON_COLUMNS if name in values}
        record = Record.model_validate(values)
        record.percentages()
    except (ValueError, RecursionError, KeyError, TypeError) as error:  # ValueError: pydantic's and json's
        reason = error.errors()[0] if isinstance(error, ValidationError) else {"loc": (), "msg": str(error)}
        key = shown(".".join(str(part) for part in reason["loc"]))
        raise InputError(f"{where}: {key or 'a field'}: {shown(str(reason['msg']))}") from None
    if record.key != content_key(record.kind, record.settings, record.seed, record.members):
        raise InputError(f"{where}: its key {shown(record.key)} is not that of its settings: edited by hand?")
    if record.scale not in SCALES:
        raise InputError(f"{where}: unknown scale {shown(record.scale)!r}{nearest(record.scale, SCALES)}")
    for name, value in record.percentages().items():
        if not isinstance(value, int | float) or not 0 <= value <= 100:  # NaN too
            raise InputError(f"{where}: {shown(name)} is {shown(str(value))[:40]}, not a percentage")
    return record


def _require_same(ours: Record, theirs: Record) -> None:
    a, b = ours.percentages(), theirs.percentages()
    different = [name for name in a | b if not _same(name, a.get(name), b.get(name))]
    if different:
        pairs = listed([f"{shown(name)} {a.get(name)} and {b.get(name)}" for name in different])
        job = f"{ours.key} ({shown(ours.label)}, seed {ours.seed})"
        raise InputError(f"{job} has different numbers: {pairs}; remove one of the two rows")


def _text(records: Iterable[Record]) -> str:
    """The CSV, sorted, so that equal rows give equal files."""
    columns, text = list(Record.model_fields), io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    for record in sorted(records, key=lambda r: (r.scale, r.label, r.kind, r.seed, r.key)):
        row = record.model_dump()
        row |= {name: json.dumps(row[name], sort_keys=True) for name in JSON_COLUMNS}
        writer.writerow({name: "" if value is None else value for name, value in row.items()})
    return text.getvalue()


def _same(name: str, ours: float | None, theirs: float | None) -> bool:
    """Accuracies are counts; a calibration error is a sum of probabilities, rounded by each machine."""
    if name.startswith("ece_") and ours is not None and theirs is not None:
        return abs(ours - theirs) < ROUNDING
    return ours == theirs
