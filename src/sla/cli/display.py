"""What commands show while they work: a live line on a terminal, plain lines elsewhere."""

import math
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.table import Table
from rich.text import Text

from sla.errors import shown
from sla.progress import Progress

PLAIN_SECONDS = 10.0  # between two lines where there is no terminal
PATIENCE = 2.0  # seconds after which a pass is worth a line there
GAP = 2  # characters between two columns of a table


class LastingConsole(Console):
    """A console that goes quiet when its reader is gone (`sla train ... | head`): the work continues."""

    def on_broken_pipe(self) -> None:
        """Nothing more is shown, here or by whoever else writes to standard output."""
        self.quiet = True
        drop_output()


def drop_output() -> None:
    """Let standard output lead nowhere: also what is still in its buffer, which would fail at the end."""
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


class TrainingDisplay(Progress):
    """Steps, rate, time left, loss, learning rate, and the newest accuracies by their names."""

    def __init__(self, live: bool) -> None:
        from sla.runs.distributed import process_numbers

        self.leads = process_numbers().rank == 0
        self.console = LastingConsole(highlight=False, soft_wrap=True)
        self.live, self.last_report = live and self.leads, 0.0
        named = TextColumn("{task.description}", markup=False)
        columns = (named, BarColumn(bar_width=24), MofNCompleteColumn())
        rate = TextColumn("{task.fields[rate]}")
        self.bars = Bars(*columns, rate, TimeRemainingColumn(), console=self.console)
        self.newest = Text()
        self.screen = Live(Group(self.bars, self.newest), console=self.console, refresh_per_second=4)
        self.tasks: dict[str, TaskID] = {}
        self.passes: dict[str, float] = {}  # when each began, where there is no terminal
        self.start: tuple[float, int] | None = None
        self.done = 0
        self.numbers: dict[str, float] = {}

    def __enter__(self) -> "TrainingDisplay":
        if self.live:
            self.screen.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live:
            self.screen.stop()

    def message(self, text: str) -> None:
        """A line that stays."""
        self.console.print(f"  {shown(text)}", markup=False)

    def advance(self, what: str, done: int, total: int | None) -> None:
        """A bar for each pass, on a terminal; elsewhere a line for each that takes its time."""
        self._bar(what, done, total, "")
        now = time.monotonic()
        begun = self.passes.setdefault(what, now)
        if total is not None and done >= total and begun != math.inf:
            del self.passes[what]
        elif self.leads and not self.live and now - begun > PATIENCE:
            self.passes[what] = math.inf  # it is said once
            self.message(f"{what} ...")

    def step(self, done: int, total: int, metrics: dict[str, float]) -> None:
        """How far the training is, and its newest numbers."""
        now = time.monotonic()
        if self.start is None or done < self.done:  # the first step of this run, or of its next stage
            self.start = (now, done)
        self.done = done
        self.numbers |= metrics
        elapsed = now - self.start[0]
        rate = (done - self.start[1]) / elapsed if elapsed > 0 else 0.0
        self._bar("training", done, total, f"{rate:.1f} steps/s")
        if metrics:
            self.newest.plain = describe(self.numbers)
        evaluated = any(name.startswith("val_") for name in metrics)
        if not self.live and (evaluated or now - self.last_report > PLAIN_SECONDS):
            self.last_report = now
            left = f"{(total - done) / rate:.0f} s left" if rate else "starting"
            text = f"step {done}/{total}  {rate:.1f} steps/s  {left}  {describe(self.numbers)}"
            self.console.print(text, markup=False)

    def _bar(self, what: str, done: int, total: int | None, rate: str) -> None:
        if self.live:
            if what not in self.tasks:
                self.tasks[what] = self.bars.add_task(shown(what), total=total, rate="")
            self.bars.update(self.tasks[what], completed=done, total=total, rate=rate)


def describe(numbers: dict[str, float]) -> str:
    """`loss 1.23  rate 0.1  single 71.0  aggregated 75.0`."""
    parts = []
    if "loss" in numbers:
        parts = [f"loss {numbers['loss']:.3f}", f"lr {numbers['learning_rate']:.3g}"]
        parts.append(f"train {numbers['train']:.1f}")
    parts += [f"{n.removeprefix('val_')} {v:.1f}" for n, v in numbers.items() if n.startswith("val_")]
    return "  ".join(parts)


def fits(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> bool:
    """Whether each row of a table is one line of the terminal; where there is none, it is."""
    return not sys.stdout.isatty() or sum(_widths(header, rows)) - GAP <= Console().width


def narrow(
    header: Sequence[str], rows: Sequence[Sequence[Any]], places: range
) -> tuple[Sequence[str], Sequence[Sequence[Any]]]:
    """The table without the last of the columns at `places`, as many as keep it from fitting."""
    if not sys.stdout.isatty():
        return header, rows
    widths, room, kept = _widths(header, rows), Console().width, list(range(len(header)))
    total = sum(widths) - GAP
    for place in reversed(places):
        if total <= room:
            break
        kept.remove(place)
        total -= widths[place]
    return [header[one] for one in kept], [[row[one] for one in kept] for row in rows]


def _widths(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[int]:
    """Of each column, with the gap after it."""
    return [
        max(cell_len(shown(str(cell))) for cell in column) + GAP for column in zip(header, *rows, strict=True)
    ]


def print_table(header: Sequence[str] | None, rows: Sequence[Sequence[Any]]) -> None:
    """A table on a terminal, elsewhere plain lines with a tab between fields; names are plain text in both.

    With a header the columns after the first stand to the right; without one everything is to the left.
    """
    if not sys.stdout.isatty():
        for row in (*([header] if header else []), *rows):
            print(*(shown(str(cell)) for cell in row), sep="\t")
        return
    table = Table(box=None, pad_edge=False, show_header=header is not None)
    for place, name in enumerate(header or [""] * max(map(len, rows), default=0)):
        table.add_column(name, justify="right" if header and place else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(shown(str(cell))) for cell in row))
    Console(highlight=False).print(table)
