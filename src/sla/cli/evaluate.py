"""`sla evaluate`: every kind of inference side by side."""

import time
from pathlib import Path
from typing import Annotated

import typer


def evaluate(
    run: Annotated[Path, typer.Argument(help="A run's folder.")],
    data: Annotated[str | None, typer.Argument(help="Other data with the same classes.")] = None,
    which: Annotated[str, typer.Option(help="Checkpoint: last, or best on the held-out images.")] = "last",
    batch_size: Annotated[int, typer.Option(min=1, help="Images at a time.")] = 128,
    workers: Annotated[int, typer.Option(min=0, help="Processes that decode pictures.")] = 0,
    json_: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Accuracy, calibration error and time, for single, aggregated and distilled inference.

    Accuracy is top 1, top 5, and balanced: the mean over classes.
    """
    import json

    from sla.cli.display import print_table
    from sla.training.run import Run

    opened = Run(run, which)
    dataset = opened.dataset(data)
    found = {}
    for how in opened.model.method.kinds:
        start = time.monotonic()
        outputs = opened.evaluate(dataset, kinds=(how,), batch_size=batch_size, workers=workers)
        seconds = (time.monotonic() - start) / max(len(dataset), 1)
        found[how] = {**outputs.scores(opened.temperatures)[how], "seconds_per_image": seconds}
    if json_:
        print(json.dumps({"run": str(run), "which": which, "images": len(dataset), "inference": found}))
        return
    print(f"{len(dataset):,} images, {which} checkpoint")
    header = ("inference", "top 1 %", "top 5 %", "balanced %", "ECE %", "NLL", "ms an image")
    print_table(
        header,
        [
            (
                how,
                f"{s['top1']:.2f}",
                f"{s['top5']:.2f}",
                f"{s['balanced']:.2f}",
                f"{s['ece']:.2f}",
                f"{s['nll']:.3f}",
                f"{1000 * s['seconds_per_image']:.2f}",
            )
            for how, s in found.items()
        ],
    )
