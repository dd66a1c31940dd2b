"""The tables of the README and of the cards, from the table of all results.

    python benchmarks/cards.py

Reads results/reproduce/runs.csv, which `sla reproduce plan results/plan.yaml --run` makes, and writes the
tables of PAGES. Their pictures are drawn by `sla reproduce render`.
"""

from collections.abc import Callable, Sequence
from functools import partial
from math import isfinite
from pathlib import Path

import tables

from sla.reproduce.paper import experiment
from sla.reproduce.records import Record, read_records
from sla.reproduce.results import Place, Results, collect
from sla.reproduce.summary import FRONT, summary_rows
from sla.stats import interval, mean_sd

Rows = tuple[Sequence[str], Sequence[Sequence[str]]]  # header, rows
EMPTY = "Not run yet."


class Runs(tables.Table):
    """The table of all reproduced results."""

    @property
    def path(self) -> Path:
        """Where `sla reproduce` writes it."""
        return tables.REPOSITORY / "results" / "reproduce" / "runs.csv"


def study(name: str, results: Results) -> Rows:
    """Every row of a study that was run: mean and sd, seeds, cost, and the paired gain over another row.

    The cost is the training FLOP, all stages included, in C, that of the baseline in the study of
    views with the same recipe; of other recipes, as a multiple of that of the first row.
    """
    found, rows = experiment(name), []
    for column, head in found.columns.items():
        unit = known = _unit(results, head.recipe)
        for row_name, row in found.rows.items():
            place = Place(name, row_name, column)
            numbers = results.of(place)
            if not numbers:
                continue
            spent = next(iter(results.records[place].values())).training_flop
            unit = unit or spent
            mean, sd = mean_sd(numbers)
            level = f"{mean:.1f}" + (f" ± {sd:.1f}" if len(numbers) > 1 else "")
            cost = f"{spent / unit:.1f}{' C' if known else ''}" if spent and unit else ""
            gain = _gain(results, place, row.against)
            label = f"{head.label}: {row.label}" if len(found.columns) > 1 else row.label
            rows.append((label, cost, level, str(len(numbers)), gain))
    return ("", "training cost", "accuracy %", "seeds", "gain in points, 95% interval"), rows


def _unit(results: Results, recipe: str) -> float | None:
    for column, head in experiment("views").columns.items():
        records = results.records.get(Place("views", "baseline-1", column), {})
        if head.recipe == recipe and records:
            return next(iter(records.values())).training_flop
    return None


def _gain(results: Results, place: Place, against: str | None) -> str:
    pairs = results.by_seed(place, place._replace(row=against)).values() if against else ()
    if not pairs or against is None:
        return ""
    points = interval([own - other for own, other in pairs])
    ends = points.ends("+.1f") if isfinite(points.low) else "one seed"
    return f"{points.mean:+.1f} ({ends}) over: {experiment(place.experiment).rows[against].label}"


PAGES: dict[str, Callable[[Results], Rows]] = {
    "README.md": partial(summary_rows, lines=FRONT),
    "docs/methods/distillation.md": partial(study, "students"),
    "docs/methods/growth.md": partial(study, "grow"),
    "docs/methods/lorot.md": partial(study, "rivals"),
    "docs/methods/simclr.md": partial(study, "table11"),
    "docs/methods/unlabelled.md": partial(study, "semi"),
    "docs/speed.md": partial(study, "fast"),
}
TABLES = {page: Runs("cards", page, tuple(Record.model_fields)) for page in PAGES}


def render(page: str, results: Results) -> str:
    """The table of a page as Markdown."""
    header, rows = PAGES[page](results)
    if not rows:
        return EMPTY
    marks = ["---"] + ["--:" if one[:4] != "gain" or page == "README.md" else "---" for one in header[1:]]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [header, marks, *rows])


if __name__ == "__main__":
    found = collect(read_records(TABLES["README.md"].path), "small")
    for name, table in TABLES.items():
        table.show(lambda _, name=name: render(name, found))
