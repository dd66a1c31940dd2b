"""`sla report`: a run as one page."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from sla.cli.settings import Allow


def report(
    run: Annotated[Path, typer.Argument(help="A run's folder.")],
    data: Annotated[str | None, typer.Argument(help="Other data with the same classes.")] = None,
    checkpoint: Annotated[
        str, typer.Option(help="Checkpoint: last, or best on the held-out images.")
    ] = "last",
    on_bad_image: Annotated[
        Literal["refuse", "skip"] | None, typer.Option(help="refuse or skip; as the run did by default.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The page to write; RUN/report.html by default.")] = None,
    allow: Allow = None,
) -> None:
    """Write a run as one page that needs no network: accuracies, curves, mistakes, calibration, cost."""
    from sla.cli.output import check_writable, showing_progress
    from sla.errors import shown
    from sla.report.run import write_run_page
    from sla.tasks.classifier.run import Run

    opened = Run(run, checkpoint)
    page = out or run / "report.html"
    check_writable(page, ".html")
    with showing_progress(patience=2) as progress:
        words = write_run_page(opened, page, data, progress, on_bad_image)
    print(words)
    print(f"The page: {shown(page)}")
