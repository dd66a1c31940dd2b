"""`sla distill`: a student in one pass, from the answers of a finished run."""

from pathlib import Path
from typing import Annotated, Any

import typer

from sla.cli.settings import Allow, OnBadImage, choose_out, given_keys, naming_options

Option = typer.Option


def distill(
    run: Annotated[str, typer.Argument(help="Folder of a finished run.")],
    out: Annotated[Path | None, Option(help="Folder of the new run. Default: RUN-distilled.")] = None,
    unlabelled: Annotated[
        str | None, Option(help="More images, without labels: a folder, or the name of a dataset.")
    ] = None,
    backbone: Annotated[
        str | None, Option(help="Another backbone, from new weights. Default: the run's, from its weights.")
    ] = None,
    checkpoint: Annotated[str | None, Option(help="The teacher's: last (default), best or averaged.")] = None,
    share: Annotated[float | None, Option(help="Steps, as a fraction of the teacher's.")] = None,
    learning_rate: Annotated[float | None, Option(help="Peak learning rate.")] = None,
    teacher_views: Annotated[int | None, Option(help="Views that the teacher answers from.")] = None,
    cached: Annotated[bool | None, Option("--cached", help="The teacher answers once per image.")] = None,
    on_bad_image: OnBadImage = None,
    assign: Annotated[list[str] | None, Option("--set", help="Any key, e.g. method.temperature=2.")] = None,
    allow: Allow = None,
    resume: Annotated[bool, Option("--resume", help="Resume the run in --out.")] = False,
    report: Annotated[bool, Option(help="Write report.html at the end.")] = True,
) -> None:
    """Train a student that gives the aggregated answer of a run in one pass; it is a new run.

    The student of a run without views learns its only answer, e.g. with a smaller backbone. The new run's
    inference is `distilled`; its cost includes that of its teacher.
    """
    from sla.cli.train import print_results, train_one
    from sla.plugins import allow_typed
    from sla.runs.distributed import process_numbers
    from sla.tasks.classifier.distil import configure_student

    given: dict[str, Any] = {
        "distil.unlabelled": unlabelled,
        "distil.checkpoint": checkpoint,
        "distil.share": share,
        "distil.learning_rate": learning_rate,
        "distil.teacher_views": teacher_views,
        "distil.cached": cached,
        "data.on_bad_image": on_bad_image,
    }
    allow_typed({"model.backbone": backbone})
    own = Path(run).absolute()
    out = choose_out(out, resume, own.with_name(f"{own.name}-distilled"))
    with naming_options(given, assign):
        settings = configure_student(Path(run), given_keys(given, assign), backbone)
    finished = train_one(settings, out, resume, report)
    if process_numbers().rank == 0:
        print_results([finished])
