"""`sla export`: a run as one ONNX file."""

from pathlib import Path
from typing import Annotated

import typer

from sla.cli.output import say
from sla.cli.settings import Allow, Checkpoint
from sla.errors import shown


def export(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    out: Annotated[Path, typer.Argument(help="File to write, e.g. model.onnx.")],
    inference: Annotated[
        str | None,
        typer.Option(help="single, aggregated or distilled. Default: what the run answers with."),
    ] = None,
    checkpoint: Checkpoint = "chosen",
    preprocessing: Annotated[
        bool, typer.Option(help="Include resizing, cropping and normalising: the input is the raw picture.")
    ] = False,
    allow: Allow = None,
) -> None:
    """Export a run to ONNX, after checking that onnxruntime gives the same probabilities."""
    import sys

    from sla.cli.display import TrainingDisplay
    from sla.cli.output import check_writable
    from sla.export import check_exportable
    from sla.tasks.classifier.run import Run

    opened = Run(run, checkpoint)
    check_exportable(inference or opened.headline, opened.model.inferences)
    check_writable(out, ".onnx")
    with TrainingDisplay(sys.stdout.isatty()) as display:
        found = opened.export(
            out,
            inference,
            preprocessing=preprocessing,
            progress=display,
        )
    say(
        f"The largest difference of a probability from the run's is {found.difference:.1e}, "
        f"on {found.images:,} {found.what}."
    )
    say(f"The model: {shown(out)} ({out.stat().st_size / 1e6:.1f} MB)")
