"""The result file of a benchmark, and the place in a page that is made from it."""

import csv
import io
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from sla.disk import exclusive, replacing
from sla.progress import Progress
from sla.stats import Interval

REPOSITORY = Path(__file__).resolve().parents[1]
Row = Mapping[str, object]
Render = Callable[[list[dict[str, str]]], str]


class Printed(Progress):
    """The messages of a run, as lines."""

    def message(self, text: str) -> None:
        print(text, flush=True)


@dataclass(frozen=True)
class Table:
    """Rows of results/NAME.csv; a page shows what benchmarks/NAME.py renders of them, between two marks."""

    name: str
    page_name: str
    columns: tuple[str, ...]

    @property
    def path(self) -> Path:
        """The result file."""
        return REPOSITORY / "results" / f"{self.name}.csv"

    @property
    def page(self) -> Path:
        """The page with the marks."""
        return REPOSITORY / self.page_name

    def read(self) -> list[dict[str, str]]:
        """The rows that are there."""
        if not self.path.exists():
            return []
        with open(self.path, newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))

    def write(self, rows: Iterable[Row]) -> None:
        """These rows and no others."""
        text = io.StringIO()
        writer = csv.DictWriter(text, self.columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        with replacing(self.path) as file:
            file.write(text.getvalue().encode())

    def append(self, row: Row) -> None:
        """One more row, also while other processes append theirs."""
        with self.alone("table"):
            self.write([*self.read(), row])

    def alone(self, what: str, wait: bool = True) -> AbstractContextManager[None]:
        """One process at a time does this; the others wait, or get a BlockingIOError."""
        return exclusive(self.path.with_name(f".{self.name}-{what}.lock"), wait)

    def show(self, render: Render) -> None:
        """Put what the rows say into the page; what stands around the marks stays."""
        with self.alone("table"):
            before, _, after = self.parts()
            with replacing(self.page) as file:
                file.write((before + render(self.read()) + after).encode())

    def parts(self) -> tuple[str, str, str]:
        """The page's text up to its first mark, that between the marks, and the rest."""
        mark = f"<!-- made by benchmarks/{self.name}.py -->\n"
        before, start, rest = self.page.read_text(encoding="utf-8").partition(mark)
        shown, end, after = f"\n{rest}".partition("\n<!-- end -->")  # also where nothing is shown yet
        if not end:
            raise SystemExit(f"{self.page_name} has no marks for benchmarks/{self.name}.py")
        return before + start, shown.removeprefix("\n"), end + after


def with_ends(found: Interval, digits: int = 1) -> str:
    """A difference with its 95% interval, as tables have it."""
    mean, low, high = (f"{number:+.{digits}f}" for number in found)
    return f"{mean} ({low} to {high})"
