"""The README's table: what SLA gains at which cost, from the table of results.

    python benchmarks/readme.py

Reads results/reproduce/runs.csv, which `sla reproduce plan results/plan.yaml --run` makes, and writes the
table in README.md. Its picture is drawn by `sla reproduce render`.
"""

from pathlib import Path

import tables

from sla.reproduce.records import Record, read_records
from sla.reproduce.results import collect
from sla.reproduce.summary import summary_rows


class Runs(tables.Table):
    """The table of all reproduced results."""

    @property
    def path(self) -> Path:
        """Where `sla reproduce` writes it."""
        return tables.REPOSITORY / "results" / "reproduce" / "runs.csv"


TABLE = Runs("readme", "README.md", tuple(Record.model_fields))


def render(rows: list[dict[str, str]]) -> str:
    """The summary as Markdown."""
    header, lines = summary_rows(collect(read_records(TABLE.path), "small"))
    text = [header, ["---"] + ["--:"] * (len(header) - 1), *lines]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in text)


if __name__ == "__main__":
    TABLE.show(render)
