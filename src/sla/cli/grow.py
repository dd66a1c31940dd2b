"""`sla grow`: classes added to a finished run."""

from pathlib import Path
from typing import Annotated, Any

import typer

from sla.cli.settings import Allow, OnBadImage, choose_out, given_keys, naming_options

Option = typer.Option


def grow(
    run: Annotated[str, typer.Argument(help="Folder of a finished run.")],
    data: Annotated[str, typer.Argument(help="The new classes: a folder, a CSV, or the name of a dataset.")],
    out: Annotated[Path | None, Option(help="Folder of the new run. Default: RUN-grown.")] = None,
    classes: Annotated[
        str | None, Option(help="Only these classes of the data: names, numbers, or a range such as 20-24.")
    ] = None,
    keep: Annotated[
        int | None, Option(help="Training images kept of each old class; 0: none. Default: 20.")
    ] = None,
    weight: Annotated[
        float | None, Option(help="Weight of the old model's answers; 0: fine-tuning. Default: 1.")
    ] = None,
    checkpoint: Annotated[str | None, Option(help="Of the run: last (default), best or averaged.")] = None,
    learning_rate: Annotated[float | None, Option(help="Peak learning rate.")] = None,
    epochs: Annotated[float | None, Option(help="Passes over the images. Default: as the run.")] = None,
    on_bad_image: OnBadImage = None,
    assign: Annotated[list[str] | None, Option("--set", help="Any key, e.g. grow.temperature=1.")] = None,
    allow: Allow = None,
    resume: Annotated[bool, Option("--resume", help="Resume the run in --out.")] = False,
    report: Annotated[bool, Option(help="Write report.html at the end.")] = True,
) -> None:
    """Add classes to a run: a new run that knows the old classes and the new ones.

    The old ones are kept by the answers of the old model and by a few images. Accuracies are of old, new and
    all classes.
    """
    from sla.cli.train import print_results, train_one
    from sla.runs.distributed import process_numbers
    from sla.tasks.classifier.grow import configure_growth
    from sla.tasks.registry import make_config, with_values

    given: dict[str, Any] = {
        "data.classes": classes,
        "grow.keep": keep,
        "grow.weight": weight,
        "grow.checkpoint": checkpoint,
        "optimizer.learning_rate": learning_rate,
        "run.epochs": epochs,
        "data.on_bad_image": on_bad_image,
    }
    own, named = Path(run).absolute(), given_keys(given, assign)
    out = choose_out(out, resume, own.with_name(f"{own.name}-grown"))
    with naming_options(given, assign):
        if resume:  # what is given is compared with what the run has
            settings = make_config(with_values({}, {"data.source": data, "grow.run": str(own), **named}))
        else:
            settings = configure_growth(Path(run), data, named)
    finished = train_one(settings, out, resume, report)
    if process_numbers().rank == 0:
        print_results([finished])
