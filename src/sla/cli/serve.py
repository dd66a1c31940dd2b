"""`sla serve`: a page, and JSON for programs, that classify pictures with a run."""

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from sla.cli.output import say, showing_progress
from sla.cli.settings import Allow, Checkpoint
from sla.errors import SLAWarning, shown
from sla.progress import Progress


def serve(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0: any free one.")] = 8000,
    host: Annotated[
        str, typer.Option(help="Address to listen on. By default only this machine can reach it.")
    ] = "127.0.0.1",
    allow_host: Annotated[
        list[str] | None, typer.Option(help="Another name by which it may be called, e.g. a proxy's.")
    ] = None,
    inference: Annotated[
        str | None,
        typer.Option(help="single, aggregated, anytime or distilled. Default: what the run answers with."),
    ] = None,
    checkpoint: Checkpoint = "chosen",
    min_confidence: Annotated[
        float,
        typer.Option(min=0, max=1, help="Answer 'unsure' below this probability, and for unlike pictures."),
    ] = 0.5,
    nearest: Annotated[
        int, typer.Option(min=0, max=12, help="Nearest training pictures to show with an answer.")
    ] = 4,
    allow: Allow = None,
) -> None:
    """Serve a run: a page to drop pictures on, and JSON for programs. Ctrl-C ends it."""
    import warnings

    from sla.cli.predict import choose_agreement
    from sla.serve.app import create_app
    from sla.serve.guard import is_loopback
    from sla.serve.server import address_of, bind, serve
    from sla.tasks.classifier.run import Run

    opened = Run(run, checkpoint)
    inference = choose_agreement(opened, inference, None)
    opened.warn_if_unfinished()
    progress = _WhileBusy()
    app = create_app(
        opened,
        inference=inference,
        min_confidence=min_confidence,
        nearest=nearest,
        host=host,
        allow_hosts=allow_host or (),
        progress=progress,
    )
    listening = bind(host, port)
    if not is_loopback(host):
        warnings.warn(f"everyone who can reach {host} can use this server: it has no password", SLAWarning)
    say(f"{shown(run)}: {address_of(listening)} (Ctrl-C ends it)", flush=True)
    try:
        serve(app, listening)
    finally:
        progress.close()
        corrections = app.state.service.corrections
        if corrections.saved:
            say(f"{corrections.saved:,} corrected: {shown(corrections.csv)}", flush=True)


class _WhileBusy(Progress):
    """A bar while the features of training pictures are computed; nothing after that."""

    def __init__(self) -> None:
        self.shown = ExitStack()
        self.inner: Progress | None = None

    def message(self, text: str) -> None:
        self.close()
        say(text, err=True)

    def advance(self, what: str, done: int, total: int | None) -> None:
        if self.inner is None:
            self.inner = self.shown.enter_context(showing_progress(patience=2))
        self.inner.advance(what, done, total)
        if done == total:
            self.close()

    def close(self) -> None:
        """No bar."""
        self.shown.close()
        self.inner = None
