"""`sla evaluate`: every kind of inference side by side."""

import time
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer


def evaluate(
    run: Annotated[Path, typer.Argument(help="A run's folder.")],
    data: Annotated[str | None, typer.Argument(help="Other data with the same classes.")] = None,
    which: Annotated[str, typer.Option(help="Checkpoint: last, or best on the held-out images.")] = "last",
    batch_size: Annotated[int, typer.Option(min=1, help="Images at a time.")] = 128,
    workers: Annotated[int, typer.Option(min=0, help="Processes that decode pictures.")] = 0,
    on_bad_image: Annotated[
        Literal["refuse", "skip"] | None, typer.Option(help="refuse or skip; as the run did by default.")
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Accuracy (top 1 and 5), calibration error and time, for single, aggregated and distilled inference."""
    import json

    from sla.cli.display import print_table
    from sla.cli.output import showing_progress
    from sla.training.run import Run

    opened = Run(run, which)
    found = {}
    with showing_progress(patience=2) as progress:
        dataset = opened.dataset(data, on_bad_image, progress)
        for how in opened.model.method.kinds:
            start, tick = time.monotonic(), partial(progress, f"{how} inference")
            outputs = opened.evaluate(dataset, tick, kinds=(how,), batch_size=batch_size, workers=workers)
            seconds = (time.monotonic() - start) / max(len(dataset), 1)
            found[how] = {**outputs.scores(opened.temperatures)[how], "seconds_per_image": seconds}
    if json_:
        print(json.dumps({"run": str(run), "which": which, "images": len(dataset), "inference": found}))
        return
    print(f"{len(dataset):,} images, {which} checkpoint")
    header = ("inference", "top 1 %", "top 5 %", "ECE %", "NLL", "ms an image")
    print_table(
        header,
        [
            (
                how,
                f"{s['top1']:.2f}",
                f"{s['top5']:.2f}",
                f"{s['ece']:.2f}",
                f"{s['nll']:.3f}",
                f"{1000 * s['seconds_per_image']:.2f}",
            )
            for how, s in found.items()
        ],
    )
