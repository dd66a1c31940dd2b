"""`sla report`: a run as one HTML page."""

from pathlib import Path
from typing import Annotated

import typer

from sla.cli.output import say
from sla.cli.settings import Allow, Checkpoint, OnBadImage
from sla.errors import shown


def report(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    data: Annotated[str | None, typer.Argument(help="Other data with the same classes.")] = None,
    checkpoint: Checkpoint = "chosen",
    on_bad_image: OnBadImage = None,
    out: Annotated[Path | None, typer.Option(help="HTML file to write. Default: RUN/report.html.")] = None,
    allow: Allow = None,
) -> None:
    """Write a run's report as one HTML file: accuracies, curves, mistakes, calibration, cost."""
    from sla.cli.output import check_writable, showing_progress
    from sla.report.run import write_run_page
    from sla.tasks.classifier.run import Run

    opened = Run(run, checkpoint)
    page = out or run / "report.html"
    check_writable(page, ".html")
    with showing_progress(patience=2) as progress:
        words = write_run_page(opened, page, data, progress, on_bad_image)
    say(words)
    say(f"report: {shown(page)}")
