"""`sla demo`: the methods of the paper compared on digits, in three minutes."""

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from sla.errors import InputError, shown
from sla.progress import Progress


def demo(
    minutes: Annotated[float, typer.Option(help="Approximate training time.")] = 2.5,
    seeds: Annotated[int | None, typer.Option(min=2, help="Number of seeds, instead of --minutes.")] = None,
    out: Annotated[Path, typer.Option(help="HTML file to write.")] = Path("sla-demo.html"),
) -> None:
    """Compare the methods of the paper on the digits, five training images per class."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars
    from rich.table import Table

    from sla.cli.output import check_writable
    from sla.demo import LEAST_SEEDS, METHODS, ROWS, run, summary
    from sla.report.demo import write_page
    from sla.stats import mean_sd

    if not out.parent.is_dir():
        raise InputError(f"{out.parent}: no such folder for the page")
    check_writable(out)
    console = Console()
    least = seeds or LEAST_SEEDS
    allowed = f"as many seeds as {minutes:g} minutes allow, at least {least}"
    words = f"{seeds} seeds" if seeds else allowed
    console.print(f"Training {len(METHODS)} methods on 5 images of each digit: {words}.")
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Bars(*columns, console=console, disable=not sys.stdout.isatty()) as display:
        task, start = display.add_task("starting", total=1.0), time.monotonic()

        class Trained(Progress):
            def advance(self, what: str, done: int, total: int | None) -> None:
                share = done / (total or len(METHODS) * least)
                if total is None:
                    share = min(share, max((time.monotonic() - start) / (60 * minutes), 0.01))
                words = f"{done} {what}, seed {done // len(METHODS)}"
                display.update(task, completed=min(share, 1.0), description=words)

        results = run(minutes, seeds, Trained())
        display.update(task, completed=1.0)

    title = f"Test accuracy, {results.seeds} seeds, {results.seconds:.0f} s"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for header in ("method", "cost", "passes", "mean", "vs. baseline, 95%"):
        table.add_column(header, justify="left" if header == "method" else "right")
    for row in ROWS:
        mean, _ = mean_sd(results.values(row))
        difference = results.difference(row)
        gain = f"{difference.mean:+.1f} ({difference.ends('+.1f')})" if row is not ROWS[0] else ""
        table.add_row(row.label, f"{row.cost:.2g}", str(row.passes), f"{mean:.1f}", gain)
    console.print(table)
    console.print("cost: of training, relative to the baseline; passes: per image at test time")
    console.print(summary(results))
    write_page(results, out)
    console.print(f"Page: {shown(out)}", markup=False)
