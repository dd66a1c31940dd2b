"""The command line: one thin file per command; errors are one line, without a traceback."""

import contextlib
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
from sla.cli.renamed import WithOldNames
from sla.errors import SLAError, SLAWarning

app = typer.Typer(
    name="sla",
    help="Self-supervised label augmentation: more accuracy from the labels you already have.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(data.app, name="data")
app.add_typer(reproduce.app, name="reproduce")
app.add_typer(augment.app, name="augment")
app.command()(train.train)
app.command()(pretrain.pretrain)
app.command()(distill.distill)
app.command()(grow.grow)
app.command(cls=WithOldNames)(evaluate.evaluate)
app.command(cls=WithOldNames)(predict.predict)
app.command(cls=WithOldNames)(report.report)
app.command(cls=WithOldNames)(compare.compare)
app.command()(views.views)
app.command(cls=WithOldNames)(export.export)
app.command()(serve.serve)
app.command()(demo.demo)
app.add_typer(fewshot.app, name="fewshot")


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
        app(args)
    except SLAError as error:
        typer.secho(f"sla: {error}", fg="red", err=True)
        sys.exit(error.exit_code)
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
        typer.secho(f"sla: {kind}: {message}", fg="yellow", err=True)
