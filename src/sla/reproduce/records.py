"""What finished jobs gave: one row of a CSV each, written at once, merged with those from elsewhere."""

import csv
import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sla.disk import exclusive, replacing
from sla.errors import InputError, listed, nearest, shown
from sla.reproduce.jobs import content_key
from sla.reproduce.names import SCALES

TABLE = "runs.csv"
JSON_COLUMNS = ("settings", "members", "more", "versions")


ACCURACIES = tuple(
    f"{w}_{inference}" for w in ("last", "best") for inference in ("single", "aggregated", "distilled")
)


class Record(BaseModel):
    """One finished job. Accuracies are percent on the test images, which chose nothing."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    key: str
    kind: str
    scale: str
    label: str
    seed: int
    settings: dict[str, Any]
    members: list[str] = []
    last_single: float | None = None
    last_aggregated: float | None = None
    last_distilled: float | None = None
    best_single: float | None = None
    best_aggregated: float | None = None
    best_distilled: float | None = None
    more: dict[str, Any] = Field({}, description="numbers that only some kinds of job have")
    training_flop: float | None = None
    seconds: float | None = None
    parameters: int | None = None
    machine: str = ""
    versions: dict[str, str] = {}
    commit: str | None = None
    finished: str = ""

    def percentages(self) -> dict[str, float]:
        """Every accuracy and error there is, by name; a curve's points are named by their steps."""
        found = {name: getattr(self, name) for name in ACCURACIES}
        found |= {name: value for name, value in self.more.items() if isinstance(value, int | float)}
        for point in self.more.get("curve", ()):
            found |= {f"{name} at {point['step']}": point[name] for name in ("train", "test")}
        return {name: value for name, value in found.items() if value is not None and name != "gap"}

    def score(self, measure: str) -> float | None:
        """The number of this name: a kind of inference, at the last checkpoint, or one of `more`."""
        value = getattr(self, f"last_{measure}", None)
        value = self.more.get(measure) if value is None else value
        return float(value) if isinstance(value, int | float) else None


def read_records(path: Path) -> dict[str, Record]:
    """The rows of a CSV by key, each checked; {} where there is no file."""
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
            raise InputError(f"{shown(path)}, row {number}: {record.key} is there twice")
        found[record.key] = record
    return found


def unite(tables: Iterable[dict[str, Record]]) -> dict[str, Record]:
    """The rows of several tables; what is in more than one must have given the same numbers."""
    rows: dict[str, Record] = {}
    for table in tables:
        for record in table.values():
            _require_same(rows.setdefault(record.key, record), record)
    return rows


def add_records(path: Path, records: Iterable[Record]) -> int:
    """Put rows into the CSV, whole and one writer at a time; returns how many were new.

    A job that is there already must have given the same numbers.
    """
    with exclusive(path.with_name(f".{path.name}.lock")):
        there = read_records(path)
        rows = unite([there, {record.key: record for record in records}])
        with replacing(path) as file:
            file.write(_text(rows.values()).encode())
    return len(rows) - len(there)


def _parse(row: dict[str, Any], where: str) -> Record:
    try:
        values = {
            name: json.loads(text) if name in JSON_COLUMNS else text for name, text in row.items() if text
        }
        record = Record.model_validate(values)
        record.percentages()
    except (
        ValueError,
        RecursionError,
        KeyError,
        TypeError,
    ) as error:  # pydantic's and json's errors are ValueErrors
        reason = error.errors()[0] if isinstance(error, ValidationError) else {"loc": (), "msg": str(error)}
        key = ".".join(str(part) for part in reason["loc"])
        raise InputError(f"{where}: {key or 'a field'}: {shown(str(reason['msg']))}") from None
    if record.key != content_key(record.kind, record.settings, record.seed, record.members):
        raise InputError(f"{where}: its key {shown(record.key)} is not that of its settings: edited by hand?")
    if record.scale not in SCALES:
        raise InputError(f"{where}: unknown scale {shown(record.scale)!r}{nearest(record.scale, SCALES)}")
    for name, value in record.percentages().items():
        if not 0 <= value <= 100:  # also what is no number
            raise InputError(f"{where}: {shown(name)} is {value}, not a percentage")
    return record


def _require_same(ours: Record, theirs: Record) -> None:
    a, b = ours.percentages(), theirs.percentages()
    different = [name for name in a | b if a.get(name) != b.get(name)]
    if different:
        pairs = [f"{shown(name)} {a.get(name)} and {b.get(name)}" for name in different]
        raise InputError(
            f"{ours.key} ({shown(ours.label)}, seed {ours.seed}) has other numbers there: {listed(pairs)}; "
            "remove one of the two rows"
        )


def _text(records: Iterable[Record]) -> str:
    """The CSV, sorted, so that the same rows are the same file."""
    columns, text = list(Record.model_fields), io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    for record in sorted(records, key=lambda r: (r.scale, r.label, r.kind, r.seed, r.key)):
        row = record.model_dump()
        row |= {name: json.dumps(row[name], sort_keys=True) for name in JSON_COLUMNS}
        writer.writerow({name: "" if value is None else value for name, value in row.items()})
    return text.getvalue()
