"""The command line: one thin file per command; errors are one line, without a traceback."""

import contextlib
import os
import sys
import warnings
from typing import Any

import typer

from sla import __version__
from sla.allocator import keep_memory
from sla.cli import (
    augment,
    compare,
    data,
    demo,
    distill,
    evaluate,
    export,
    fewshot,
    grow,
    predict,
    pretrain,
    report,
    reproduce,
    serve,
    train,
    views,
)
from sla.disk import explain
from sla.errors import LostProcessError, SLAError, SLAWarning, shown
from sla.threads import wait_briefly

app = typer.Typer(
    name="sla",
    help="Self-supervised label augmentation: more accuracy from the labels you already have.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
TRAIN, USE, JUDGE, IMAGES, RESEARCH = "Train", "Use a run", "Judge a run", "Images", "Try and reproduce"
app.command(rich_help_panel=TRAIN)(train.train)
app.command(rich_help_panel=TRAIN)(pretrain.pretrain)
app.command(rich_help_panel=TRAIN)(distill.distill)
app.command(rich_help_panel=TRAIN)(grow.grow)
app.command(rich_help_panel=USE)(predict.predict)
app.command(rich_help_panel=USE)(serve.serve)
app.command(rich_help_panel=USE)(export.export)
app.command(rich_help_panel=JUDGE)(evaluate.evaluate)
app.command(rich_help_panel=JUDGE)(report.report)
app.command(rich_help_panel=JUDGE)(compare.compare)
app.add_typer(data.app, name="data", rich_help_panel=IMAGES)
app.command(rich_help_panel=IMAGES)(views.views)
app.add_typer(augment.app, name="augment", rich_help_panel=IMAGES)
app.command(rich_help_panel=RESEARCH)(demo.demo)
app.add_typer(fewshot.app, name="fewshot", rich_help_panel=RESEARCH)
app.add_typer(reproduce.app, name="reproduce", rich_help_panel=RESEARCH)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"sla {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(
        False, "--version", callback=_show_version, is_eager=True, help="Print the version."
    ),
) -> None:
    pass


def main(args: list[str] | None = None) -> None:
    """Run a command; exit with 2 for invalid input, 1 for a failed run, 130 after Ctrl-C."""
    warnings.showwarning = _show_warning
    try:
        keep_memory()
        wait_briefly()
        app(args)
    except SLAError as error:
        typer.secho(f"sla: {shown(str(error))}", fg="red", err=True)
        if isinstance(error, LostProcessError):
            _flush()
            os._exit(error.exit_code)  # what is left of the group would wait for the lost process
        sys.exit(error.exit_code)
    except OSError as error:  # of the disk, in any command
        typer.secho(f"sla: {explain(error)}", fg="red", err=True)
        sys.exit(1)
    except MemoryError:
        typer.secho("sla: out of memory", fg="red", err=True)
        sys.exit(1)
    except SystemExit as end:
        if end.code == 130:  # what typer makes of Ctrl-C
            typer.secho("sla: stopped", err=True)
        _flush()
        raise


def _flush() -> None:
    """Write out what is left; when its reader is gone, end quietly with 1."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        from sla.cli.display import drop_output

        drop_output()
        sys.exit(1)


def _show_warning(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
    """A warning as one line: ours as it is, others' with their kind."""
    kind = "note" if issubclass(category, SLAWarning) else category.__name__
    with contextlib.suppress(BrokenPipeError):  # nobody reads: the work continues
        for number, line in enumerate(str(message).splitlines()):
            typer.secho(shown(line if number else f"sla: {kind}: {line}"), fg="yellow", err=True)
