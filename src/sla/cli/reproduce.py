"""`sla reproduce`: every table and figure of the paper, one command each."""

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from sla.reproduce.names import EXPERIMENTS, SCALES

if TYPE_CHECKING:
    from sla.reproduce.jobs import Job
    from sla.reproduce.records import Record

app = typer.Typer(
    help="The paper again: `list` says what there is, a name runs it, `render` makes the document.",
    no_args_is_help=True,
)

Scale = Annotated[
    Literal["smoke", "small", "paper"],
    typer.Option(help="smoke: seconds, for tests; small: minutes a run on a CPU; paper: the paper's own."),
]
Seeds = Annotated[int, typer.Option(min=1, max=10, help="Seeds 0, 1, ... of every row.")]
Out = Annotated[Path, typer.Option(help="Folder of the runs and of their table, runs.csv.")]
OUT = Path("reproduce")
PLAIN_SECONDS = 10.0


@app.command("list")
def list_all(seeds: Seeds = 3) -> None:
    """Every table and figure: its runs at each scale, what they cost, and the hours on this machine."""
    from sla.cli.display import print_table
    from sla.reproduce.costs import cost, machine_rate
    from sla.reproduce.jobs import cells_of, jobs_of

    rate, rows = machine_rate(), []
    for name, title in EXPERIMENTS.items():
        for scale in SCALES:
            spent = cost(name, scale, seeds)
            runs = sum(not job.members for job in jobs_of(cells_of(name, scale, seeds)))
            words = title if scale == SCALES[0] else ""
            rows.append((name, scale, f"{runs}", f"{spent.flop:.2g}", _hours(spent.hours(rate)), words))
    print_table(("name", "scale", "runs", "FLOP", "time here", ""), rows)
    print(f"{seeds} seeds; times at the {rate / 1e9:.0f} GFLOP/s of an eager training step here.")


@app.command()
def render(
    results: Annotated[list[Path] | None, typer.Argument(help="Tables of results; OUT/runs.csv.")] = None,
    document: Annotated[Path | None, typer.Option(help="The document to write; OUT/results.md.")] = None,
    page: Annotated[Path | None, typer.Option(help="The page to write; OUT/results.html.")] = None,
    out: Out = OUT,
) -> None:
    """Paper and ours side by side, and a verdict on every claim, from tables of results."""
    from sla.cli.output import check_writable
    from sla.errors import InputError
    from sla.reproduce.render import SHOWN, write

    sources = results or [out / "runs.csv"]
    for path in sources:
        if not path.is_file():
            raise InputError(f"{path}: no such table of results")
    rows = _read_all(sources)
    if not any(row.scale in SHOWN for row in rows.values()):
        raise InputError(f"no row at {' or '.join(SHOWN)} scale: smoke only shows that everything runs")
    document, page = document or out / "results.md", page or out / "results.html"
    check_writable(document, ".md")
    check_writable(page, ".html")
    write(rows, document, page, sources[0].with_name("toy.png"))
    print(f"written: {document}, {page}")


@app.command()
def merge(
    results: Annotated[list[Path], typer.Argument(help="Tables of results from elsewhere (runs.csv).")],
    out: Out = OUT,
) -> None:
    """Put rows from elsewhere into OUT/runs.csv; keys, numbers and repeated rows are checked first."""
    from sla.disk import reason
    from sla.errors import InputError, shown
    from sla.reproduce.records import TABLE, add_records

    for path in results:
        if not path.is_file():
            raise InputError(f"{path}: no such table of results")
    rows = _read_all(results)
    try:
        new = add_records(out / TABLE, rows.values())
    except OSError as error:
        raise InputError(f"{shown(out)}: cannot be written: {reason(error)}") from None
    print(f"{new} new of {len(rows)} rows: {out / TABLE}")


def _read_all(paths: Sequence[Path]) -> "dict[str, Record]":
    from sla.reproduce.records import read_records, unite

    return unite(read_records(path) for path in paths)


def _run(
    name: str,
    scale: str,
    rows: str | None,
    columns: str | None,
    seeds: int,
    jobs: int,
    out: Path,
    only: str | None,
    print_commands: bool,
) -> None:
    from sla.errors import InputError, SLAError
    from sla.reproduce.jobs import cells_of, jobs_of
    from sla.reproduce.records import TABLE
    from sla.reproduce.runner import commands, run_all

    some = [[word.strip() for word in (text or "").split(",") if word.strip()] for text in (rows, columns)]
    found = jobs_of(cells_of(name, scale, seeds, *some))
    if only is not None:
        found = [job for job in found if job.key == only]
        if not found:
            raise InputError(f"--only {only}: no job of {name} at {scale} scale has this key")
    if print_commands:
        print("\n".join(commands(name, scale, found, out, seeds)))
        return
    if scale == "smoke":
        print("smoke: on the digits inside this package, whatever the table's data; its numbers mean nothing")
    with RunnerDisplay(found) as display:
        failed = run_all(found, out, display, jobs)
    if name == "toy" and not failed:
        _draw_toy(scale, out)
    rendered = f"; `sla reproduce render --out {out}` makes the document" if scale != "smoke" else ""
    print(f"results: {out / TABLE}{rendered}")
    if failed:
        raise SLAError(f"{failed} of {len(found)} failed, each for the reason above; the others are kept")


def _list_names(name: str) -> None:
    from sla.cli.display import print_table
    from sla.reproduce.jobs import NOT_RUN
    from sla.reproduce.paper import experiment

    table = experiment(name)
    rows = [("--rows", word, row.label, NOT_RUN.get(row.kind, "")) for word, row in table.rows.items()]
    rows += [("--columns", word, column.label, "") for word, column in table.columns.items()]
    print_table(None, rows)


def _draw_toy(scale: str, out: Path) -> None:
    from sla.reproduce.recipes import recipe
    from sla.reproduce.toy import draw_toy

    settings = recipe("mnist", scale)
    print("drawing the four panels (t-SNE, about a minute) ...")
    draw_toy(out / "toy.png", settings["data.source"], settings.get("data.root"))
    print(f"figure: {out / 'toy.png'}")


class RunnerDisplay:
    """All jobs as one bar, weighed by their cost, with the time left; plain lines where no terminal is."""

    def __init__(self, jobs: "Sequence[Job]") -> None:
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

        from sla.cli.display import LastingConsole

        self.console = LastingConsole(highlight=False, soft_wrap=True)
        self.live = sys.stdout.isatty()
        columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), TaskProgressColumn())
        self.progress = Progress(*columns, TextColumn("{task.fields[left]}"), console=self.console)
        self.weights: dict[str, float] = {}
        self.shares: dict[str, float] = {}
        self.start = self.told = time.monotonic()
        self.task: Any = None

    def __enter__(self) -> "RunnerDisplay":
        if self.live:
            self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live:
            self.progress.stop()

    def begin(self, jobs: "Sequence[Job]", done: int) -> None:
        """These jobs are missing; so many are there."""
        from sla.reproduce.costs import flop_of

        for job in jobs:
            self.weights[job.key] = 1.0 if job.members else max(flop_of(dict(job.settings)), 1.0)
        self.console.print(f"{done} done, {len(jobs)} to run", markup=False)
        if self.live and jobs:
            self.task = self.progress.add_task("running", total=sum(self.weights.values()), left="")

    def advance(self, job: "Job", share: float) -> None:
        """How far a job is, from 0 to 1."""
        self.shares[job.key] = share
        done = sum(self.weights[key] * value for key, value in self.shares.items())
        passed, total = time.monotonic() - self.start, sum(self.weights.values())
        left = f"{_hours(passed * (total - done) / done / 3600)} left" if done else ""
        words = f"{job.label}, seed {job.seed}: {100 * share:.0f}%"
        if self.live:
            self.progress.update(self.task, completed=done, description=words, left=left)
        elif time.monotonic() - self.told > PLAIN_SECONDS:
            self.told = time.monotonic()
            self.console.print(f"{100 * done / total:.0f}%  {left}  {words}", markup=False)

    def end(self, job: "Job", record: "Record | None", reason: str) -> None:
        """A job is finished, or why it failed."""
        self.advance(job, 1.0)
        said = f"failed: {reason}" if record is None else _numbers(record)
        kind = "" if job.kind == "train" else f" ({job.kind})"
        self.console.print(f"{job.label}, seed {job.seed}{kind}: {said}", markup=False)


def _numbers(record: "Record") -> str:
    kinds = ("single", "aggregated", "distilled")
    found = {inference: getattr(record, f"last_{inference}") for inference in kinds}
    found |= {name: value for name, value in record.more.items() if isinstance(value, float)}
    words = [f"{name} {value:.2f}" for name, value in found.items() if value is not None]
    return ", ".join(words) + f" ({_hours((record.seconds or 0) / 3600)})"


def _hours(hours: float) -> str:
    if hours < 1.5 / 60:
        return f"{3600 * hours:.0f} s"
    if hours < 1.5:
        return f"{60 * hours:.0f} min"
    if hours < 48:
        return f"{hours:.1f} h"
    return f"{hours / 24:,.0f} days" if hours < 24 * 700 else f"{hours / 24 / 365:,.0f} years"


def _command(name: str) -> Callable[..., None]:
    def reproduce(
        scale: Scale = "small",
        rows: Annotated[str | None, typer.Option(help="Some rows alone, as in baseline,sla-si.")] = None,
        columns: Annotated[str | None, typer.Option(help="Some columns alone, as in cifar10.")] = None,
        seeds: Seeds = 3,
        jobs: Annotated[int, typer.Option(min=1, help="Runs at a time, the cores shared among them.")] = 1,
        out: Out = OUT,
        only: Annotated[str | None, typer.Option(help="One run alone, by its key.")] = None,
        print_commands: Annotated[
            bool,
            typer.Option("--print-commands", help="A command for each run, for a cluster; runs nothing."),
        ] = False,
        names: Annotated[
            bool, typer.Option("--list", help="The names of its rows and columns; runs nothing.")
        ] = False,
    ) -> None:
        if names:
            _list_names(name)
        else:
            _run(name, scale, rows, columns, seeds, jobs, out, only, print_commands)

    return reproduce


for _name, _title in EXPERIMENTS.items():
    app.command(_name, help=f"{_title}. Runs what is missing and goes on with what was stopped.")(
        _command(_name)
    )
