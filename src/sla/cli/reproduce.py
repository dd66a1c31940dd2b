"""`sla reproduce`: every table and figure of the paper, one command each."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from sla.cli.output import say
from sla.disk import reason
from sla.errors import InputError, SLAError, shown
from sla.progress import duration
from sla.recipes import SCALES
from sla.reproduce.names import EXPERIMENTS

if TYPE_CHECKING:
    from sla.reproduce.jobs import Job
    from sla.reproduce.records import Record

HELP = "Reproduce the paper: `list` shows its tables, a name runs one, `render` compares the results."
app = typer.Typer(help=HELP, no_args_is_help=True)
Option = typer.Option

Scale = Annotated[
    Literal["smoke", "small", "paper"],
    typer.Option(help="smoke: seconds, for tests; small: minutes per run on a CPU; paper: as in the paper."),
]
Seeds = Annotated[int, typer.Option(min=1, max=10, help="Number of seeds per row: 0, 1, ...")]
Out = Annotated[Path, typer.Option(help="Folder for the runs and their table, runs.csv.")]
OUT = Path("reproduce")
PLAIN_SECONDS = 10.0


@app.command("list")
def list_all(seeds: Seeds = 3, out: Out = OUT) -> None:
    """List the tables and figures: runs at each scale, their cost, and the time on this machine."""
    from sla.cli.display import print_table
    from sla.reproduce.costs import cost, estimate_rate, runs_of, seconds_of
    from sla.reproduce.records import TABLE, read_records
    from sla.reproduce.work import machine_name

    finished, rows = read_records(out / TABLE), []
    rate = estimate_rate(finished.values(), machine_name())
    for name, title in EXPERIMENTS.items():
        for scale in SCALES:
            runs, spent = runs_of(name, scale, seeds), cost(name, scale, seeds)
            time_here = duration(seconds_of(runs, rate, finished))
            words = title if scale == SCALES[0] else ""
            rows.append((name, scale, f"{len(runs)}", f"{spent.flop:.2g}", time_here, words))
    print_table(("name", "scale", "runs", "FLOP", "time here", ""), rows)
    say(f"Seeds: {seeds}. Time at {rate.flop_per_second / 1e9:.0f} GFLOP/s per thread: {rate.basis}.")
    if finished:
        say(f"Of the runs that {out / TABLE} has, the time is theirs.")


@app.command("recipes")
def list_recipes() -> None:
    """List the recipes: training FLOP at paper scale with one view, and the paper's accuracy."""
    from sla.cli.display import print_table
    from sla.recipes.load import all_recipes

    recipes = all_recipes().items()
    rows = [(name, f"{one.cost:.1e}" if one.cost else "", one.expected) for name, one in recipes]
    print_table(("name", "FLOP", "expected, %"), rows)


@app.command()
def render(
    results: Annotated[list[Path] | None, typer.Argument(help="Tables; by default OUT/runs.csv.")] = None,
    document: Annotated[Path | None, Option(help="Markdown file to write. Default: OUT/results.md.")] = None,
    page: Annotated[Path | None, Option(help="HTML file to write. Default: OUT/results.html.")] = None,
    out: Out = OUT,
) -> None:
    """Write the results next to the paper's numbers, with a verdict on every claim."""
    from sla.cli.output import check_writable
    from sla.reproduce.render import SHOWN, write

    sources = results or [out / "runs.csv"]
    rows = _read_all(sources)
    if not any(row.scale in SHOWN for row in rows.values()):
        scales = " or ".join(SHOWN)
        raise InputError(f"no row at {scales} scale: smoke results only check that everything runs")
    document, page = document or out / "results.md", page or out / "results.html"
    check_writable(document, ".md")
    check_writable(page, ".html")
    write(rows, document, page, sources[0].with_name("toy.png"))
    say(f"written: {document}, {page}")


@app.command()
def merge(
    results: Annotated[list[Path], typer.Argument(help="Tables of results from other machines (runs.csv).")],
    out: Out = OUT,
) -> None:
    """Add rows from other machines to OUT/runs.csv, after checking keys, numbers and duplicates."""
    from sla.reproduce.records import TABLE, add_records

    rows = _read_all(results)
    try:
        new = add_records(out / TABLE, rows.values())
    except OSError as error:
        raise InputError(f"{shown(out)}: cannot be written: {reason(error)}") from None
    say(f"{new} new of {len(rows)} rows: {out / TABLE}")


@app.command()
def plan(
    file: Annotated[Path, typer.Argument(help="Lines in order of value: experiment, rows, columns, seeds.")],
    scale: Scale = "small",
    run: Annotated[bool, Option("--run", help="Run what is missing, in the order of the lines.")] = False,
    jobs: Annotated[int, Option(min=1, help="Runs in parallel; they share the cores.")] = 1,
    out: Out = OUT,
) -> None:
    """Show a plan of runs: what is done, what is left, and its core-hours; or run it."""
    from sla.cli.display import print_table
    from sla.reproduce.costs import estimate_rate
    from sla.reproduce.plan import line_jobs, plan_status, read_plan
    from sla.reproduce.records import TABLE, read_records
    from sla.reproduce.runner import run_all
    from sla.reproduce.work import machine_name

    lines = read_plan(file)
    if run:
        own = [job for found in line_jobs(lines, scale) for job in found]
        with RunnerDisplay() as display:
            failed = run_all(own, out, display, jobs)
        if failed:
            raise SLAError(f"{failed} failed, see the reasons above; the others are recorded")
        return
    records = read_records(out / TABLE)
    rate = estimate_rate(records.values(), machine_name())
    found = plan_status(lines, scale, records, rate, out)
    rows = [
        (
            one.line.experiment,
            ", ".join(one.line.columns) or "all",
            f"{len(one.line.rows) or 'all'}",
            f"{one.line.seeds}",
            f"{one.done} of {len(one.jobs)}",
            f"{one.spent:.2f}",
            f"{one.left:.2f}",
            one.line.budget,
        )
        for one in found
    ]
    spent, left = sum(one.spent for one in found), sum(one.left for one in found)
    rows.append(("all", "", "", "", "", f"{spent:.2f}", f"{left:.2f}", ""))
    print_table(("table", "columns", "rows", "seeds", "runs done", "core-hours", "left", "budget"), rows)
    say(f"Left: at {rate.flop_per_second / 1e9:.0f} GFLOP/s per thread: {rate.basis}.")


def _read_all(paths: Sequence[Path]) -> "dict[str, Record]":
    from sla.reproduce.records import read_records, unite_tables

    for path in paths:
        if not path.is_file():
            raise InputError(f"{path}: no such table of results")
    return unite_tables(read_records(path) for path in paths)


def _words(text: str | None) -> list[str]:
    return [word.strip() for word in (text or "").split(",") if word.strip()]


def _list_names(name: str) -> None:
    from sla.cli.display import print_table
    from sla.reproduce.jobs import why_not_run
    from sla.reproduce.paper import experiment

    table = experiment(name)
    rows = [("--rows", word, row.label, why_not_run(row)) for word, row in table.rows.items()]
    rows += [("--columns", word, column.label, "") for word, column in table.columns.items()]
    print_table(None, rows)


def _draw_toy(scale: str, out: Path) -> None:
    from sla.recipes.load import recipe_settings
    from sla.reproduce.toy import draw_toy

    settings = recipe_settings("mnist", scale)
    say("drawing the four panels by t-SNE (about a minute) ...")
    draw_toy(out / "toy.png", settings["data.source"], settings.get("data.root"))
    say(f"figure: {out / 'toy.png'}")


class RunnerDisplay:
    """One bar for all jobs, weighted by their cost, with the time left; plain lines without a terminal."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

        from sla.cli.display import LastingConsole

        self.console = LastingConsole(highlight=False, soft_wrap=True)
        self.live = sys.stdout.isatty()
        named = TextColumn("{task.description}", markup=False)
        columns = (named, BarColumn(bar_width=24), TaskProgressColumn())
        self.progress = Progress(*columns, TextColumn("{task.fields[left]}"), console=self.console)
        self.weights: dict[str, float] = {}
        self.shares: dict[str, float] = {}
        self.before: dict[str, float] = {}  # what a resumed job had done when it began here
        self.start = self.last_report = time.monotonic()
        self.task: Any = None

    def __enter__(self) -> "RunnerDisplay":
        if self.live:
            self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live:
            self.progress.stop()

    def begin(self, costs: Mapping[str, float], done: int) -> None:
        """Jobs with these keys and FLOP are about to run; `done` others have finished before."""
        least = max(sum(costs.values()) / 1000 / max(len(costs), 1), 1.0)  # of one that evaluates others
        self.weights = {key: max(flop, least) for key, flop in costs.items()}
        self.console.print(f"{done} done, {len(costs)} to run", markup=False)
        if self.live and costs:
            self.task = self.progress.add_task("running", total=sum(self.weights.values()), left="")

    def advance(self, job: "Job", share: float) -> None:
        """The finished share of a job, from 0 to 1."""
        self.shares[job.key] = share
        done = self._flop(self.shares)
        self.before.setdefault(job.key, share)
        here = done - self._flop(self.before)
        passed, total = time.monotonic() - self.start, sum(self.weights.values())
        left = f"{duration(passed * (total - done) / here)} left" if here > 0 else ""
        words = f"{job.label}, seed {job.seed}: {100 * share:.0f}%"
        if self.live:
            self.progress.update(self.task, completed=done, description=words, left=left)
        elif time.monotonic() - self.last_report > PLAIN_SECONDS:
            self.last_report = time.monotonic()
            self.console.print(shown(f"{100 * done / total:.0f}%  {left}  {words}"), markup=False)

    def _flop(self, shares: Mapping[str, float]) -> float:
        return sum(self.weights[key] * share for key, share in shares.items())

    def end(self, job: "Job", record: "Record | None", reason: str) -> None:
        """A job has finished, or failed for this reason."""
        self.advance(job, 1.0)
        said = f"failed: {reason}" if record is None else _numbers(record)
        kind = "" if job.kind == "train" else f" ({job.kind})"
        self.console.print(shown(f"{job.label}, seed {job.seed}{kind}: {said}"), markup=False)


def _numbers(record: "Record") -> str:
    found = record.scores.get("last", {}) | record.more
    words = [f"{name} {value:.2f}" for name, value in found.items() if isinstance(value, float)]
    return ", ".join(words) + f" ({duration(record.seconds or 0)})"


def _command(name: str) -> Callable[..., None]:
    def reproduce(
        scale: Scale = "small",
        rows: Annotated[str | None, Option(help="Only these rows, e.g. baseline,sla-si.")] = None,
        columns: Annotated[str | None, Option(help="Only these columns, e.g. cifar10.")] = None,
        seeds: Seeds = 3,
        jobs: Annotated[int, Option(min=1, help="Runs in parallel; they share the cores.")] = 1,
        threads: Annotated[
            int | None,
            Option(min=1, help="Threads per run, where its recipe sets none. Default: all cores."),
        ] = None,
        out: Out = OUT,
        only: Annotated[str | None, Option(help="Only the run with this key.")] = None,
        print_commands: Annotated[
            bool, Option("--print-commands", help="Print one command per run, for a cluster, and stop.")
        ] = False,
        names: Annotated[
            bool, Option("--list", help="Print the names of its rows and columns, and stop.")
        ] = False,
    ) -> None:
        from sla.reproduce.jobs import cells_of, jobs_of
        from sla.reproduce.records import TABLE
        from sla.reproduce.runner import commands, run_all

        if names:
            return _list_names(name)
        found = jobs_of(cells_of(name, scale, seeds, _words(rows), _words(columns)))
        if only is not None:
            found = [job for job in found if job.key == only]
            if not found:
                raise InputError(f"--only {only}: no job of {name} at {scale} scale has this key")
        for job in found:
            if threads and job.threads not in (None, threads):
                raise InputError(
                    f"--threads {threads}: the recipe of {job.label} sets {job.threads}; leave out --threads"
                )
        if print_commands:
            for line in commands(name, scale, found, out, seeds, threads):
                say(line)
            return
        if scale == "smoke":
            say("smoke: the 8x8 digits of this package instead of the table's data; ignore its numbers")
        with RunnerDisplay() as display:
            failed = run_all(found, out, display, jobs, threads)
        if name == "toy" and not failed:
            _draw_toy(scale, out)
        rendered = f"; `sla reproduce render --out {out}` writes the comparison" if scale != "smoke" else ""
        say(f"results: {out / TABLE}{rendered}")
        if failed:
            raise SLAError(f"{failed} of {len(found)} failed, see the reasons above; the others are recorded")

    return reproduce


for _name, _title in EXPERIMENTS.items():
    app.command(_name, help=f"{_title}. Runs what is missing, resumes what was interrupted.")(_command(_name))
