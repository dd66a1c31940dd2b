"""`sla train`: train a classifier on a folder of images; with --config, a run of any task."""

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sla.cli.names import IMBALANCE, METHODS
from sla.cli.output import say
from sla.cli.settings import ALLOW, allow_names, complete
from sla.errors import InputError, shown

if TYPE_CHECKING:
    from sla.cli.display import TrainingDisplay
    from sla.runs.config import TrainingConfig
    from sla.runs.plan import Plan
    from sla.runs.run import OpenedRun, ScoreTable

ANY_METHOD = f"{', '.join(METHODS)}, or package.module:Class"
IMAGES, MODEL, LENGTH, COMPARE, SETTINGS, RUN = (
    partial(typer.Option, rich_help_panel=panel)
    for panel in ("Images and output", "Method and model", "How long", "Compare", "Settings", "The run")
)


def train(
    data: Annotated[str | None, typer.Argument(help="A folder, a CSV, or the name of a dataset.")] = None,
    out: Annotated[Path | None, IMAGES(help="Run folder. Default: runs/NAME.")] = None,
    on_bad_image: Annotated[str | None, IMAGES(help="Unreadable images: refuse or skip.")] = None,
    method: Annotated[
        str | None,
        MODEL(
            help=f"{ANY_METHOD}. Default: sla, one view per step; from published weights baseline.",
            **complete(METHODS),
        ),
    ] = None,
    views: Annotated[
        str | None, MODEL(help="Views to add to the label: rot4, rgb3, rot4*rgb3, or auto.")
    ] = None,
    unlabelled: Annotated[
        str | None, IMAGES(help="More images, without labels: a folder, or the name of a dataset.")
    ] = None,
    backbone: Annotated[str | None, MODEL(help="resnet32, efficientnet_lite0, timm:NAME, ...")] = None,
    weights: Annotated[str | None, MODEL(help="none, pretrained, a file, or a run folder.")] = None,
    augment: Annotated[str | None, MODEL(help="E.g. 'crop(4), flip' or 'autoaugment, cutout(16)'.")] = None,
    mix: Annotated[str | None, MODEL(help="Mix images and labels: 'cutmix(1.0, 0.5)', 'mixup(1)'.")] = None,
    criterion: Annotated[str | None, MODEL(help="package.module:Name instead of cross entropy.")] = None,
    imbalance: Annotated[
        str | None,
        MODEL(help=f"For rare classes: {', '.join(IMBALANCE)}. Default: none.", **complete(IMBALANCE)),
    ] = None,
    epochs: Annotated[float | None, LENGTH(help="Passes over the training images.")] = None,
    iterations: Annotated[int | None, LENGTH(help="Number of training steps.")] = None,
    minutes: Annotated[
        float | None, LENGTH(help="Deadline of the whole run; the schedule follows the clock.")
    ] = None,
    compare: Annotated[
        str | None, COMPARE(help=f"Also train another method: {ANY_METHOD}.", **complete(METHODS))
    ] = None,
    equal_cost: Annotated[
        bool, COMPARE("--equal-cost", help="Give the method of --compare the same FLOP.")
    ] = False,
    seeds: Annotated[
        int | None, COMPARE(min=2, help="Number of seeds to train, each in NAME-seedN, and to compare.")
    ] = None,
    seed: Annotated[int | None, COMPARE(help="Random seed; with --seeds the first, by default 1.")] = None,
    recipe: Annotated[
        str | None, SETTINGS(help="Start from a recipe of `sla reproduce recipes`, NAME or NAME:small.")
    ] = None,
    config: Annotated[Path | None, SETTINGS(help="A YAML file; options override it.")] = None,
    assign: Annotated[list[str] | None, SETTINGS("--set", help="Any key, e.g. run.batch_size=64.")] = None,
    allow: Annotated[list[str] | None, SETTINGS(help=ALLOW, callback=allow_names)] = None,
    resume: Annotated[
        bool, RUN("--resume", help="Resume the run in --out, with --seeds all of them.")
    ] = False,
    use_all: Annotated[
        bool, RUN("--use-all", help="At the end train again on all images, the held-out ones too.")
    ] = False,
    dry_run: Annotated[bool, RUN("--dry-run", help="Print what would be done, and stop.")] = False,
    report: Annotated[bool, RUN(help="Write report.html at the end.")] = True,
    verbose: Annotated[bool, RUN("--verbose", help="Print every accuracy at the end.")] = False,
) -> None:
    """Train a classifier: by default with SLA and rotation, from published weights with plain labels.

    A configuration file can also name another `task`: fewshot, or simclr.
    """
    from sla.cli.settings import choose_out, make_tree, naming_options
    from sla.cli.several import check_method, list_jobs, preview_jobs, print_seeds, refuse_begun, train_job
    from sla.plugins import allow_typed
    from sla.runs.distributed import process_numbers
    from sla.runs.folder import default_folder
    from sla.tasks.classifier.config import ClassifierConfig
    from sla.tasks.classifier.use_all import check_use_all, folder_for_all
    from sla.tasks.registry import make_config

    given: dict[str, Any] = {
        "data.source": data,
        "method.name": method,
        "method.views": views,
        "data.unlabelled": unlabelled,
        "model.backbone": backbone,
        "model.weights": weights,
        "augment": augment,
        "mix": mix,
        "method.criterion": criterion,
        "method.imbalance": imbalance,
        "run.epochs": epochs,
        "run.iterations": iterations,
        "run.minutes": minutes,
        "run.seed": seed,
        "data.on_bad_image": on_bad_image,
    }
    task = _task_of(out) if resume and out and not config else None
    tree = make_tree(given, assign, config, recipe, task)
    if compare not in (None, "sla") and tree.get("task", "classifier") == "classifier":
        # Whatever the pictures: another method is compared with that of views, unless one is named.
        tree["method"] = {"views": "rot4", **(tree.get("method") or {})}
    where = str(config) if config else "configuration"
    with naming_options(given, assign):
        settings = make_config(tree, where)
    if seeds is not None and (use_all or settings.task != "classifier"):
        raise InputError("--seeds is for classifiers, without --use-all")
    out = choose_out(out, resume, default_folder(settings.data.source))
    if compare is not None:
        check_method(compare)
        allow_typed({"method.name": compare})
    if use_all:
        if not isinstance(settings, ClassifierConfig):
            raise InputError("--use-all is for classifiers")
        if not resume:
            check_use_all(settings, out)
    jobs = list_jobs(tree, out, seeds, compare, equal_cost)
    refuse_begun(jobs, resume, seeds is not None)
    if dry_run:
        if resume:
            raise InputError("--dry-run is for a run that has not started: not with --resume")
        preview_jobs(tree, jobs, where)
        if seeds is not None:
            say(f"the same for each of {seeds} seeds, in {', '.join(shown(job.folder) for job in jobs)}")
        if use_all:
            say(f"then once more on all images, in {shown(folder_for_all(out))}")
        return
    finished = [train_job(tree, job, where, resume, report, seeds is not None) for job in jobs]
    if use_all:
        finished.append(_train_on_all(finished[0]))
    if process_numbers().rank == 0:
        print_results(finished, verbose or (len(finished) > 1 and seeds is None))
        if seeds is not None:
            print_seeds(finished)


def _task_of(folder: Path) -> str | None:
    """The task of the run to resume; what is not a run is refused later, with its reason."""
    from sla.runs.config import task_name
    from sla.runs.folder import read_run_config

    try:
        return task_name(read_run_config(folder))
    except InputError:
        return None


def train_one(config: "TrainingConfig", out: Path, resume: bool, report: bool) -> "OpenedRun":
    """Train, with a display; the page beside the result if it is asked for."""
    from sla.cli.display import TrainingDisplay
    from sla.session import train as run_session

    with TrainingDisplay(sys.stdout.isatty()) as display:
        run = run_session(config, out, resume=resume, progress=display)
        if report and display.leads:
            _write_page(run, display)
        if display.leads:
            _say_end(run, display)
    run.splits = None  # the next run needs the memory
    return run


def _train_on_all(judged: "OpenedRun") -> "OpenedRun":
    """Train the run again in a folder beside it, on all its images; the first run judges both."""
    from sla.runs.distributed import process_numbers
    from sla.runs.folder import JUDGED
    from sla.tasks.classifier.run import Run
    from sla.tasks.classifier.use_all import (
        config_for_all,
        folder_for_all,
        judgement_of,
        write_judgement,
    )

    assert isinstance(judged, Run)
    config, out = config_for_all(judged), folder_for_all(judged.folder)
    say(f"training again on all images, with the held-out ones, in {shown(out)}")
    if not judged.result["images"].get("test"):
        say(f"no images are left to evaluate it on; expect about the accuracy of {shown(judged.folder)}")
    begun = (out / "config.yaml").exists()
    if process_numbers().rank == 0 and not (begun and (out / JUDGED).exists()):
        write_judgement(out, judgement_of(judged))
    return train_one(config, out, begun, report=False)


def _write_page(run: "OpenedRun", display: "TrainingDisplay") -> None:
    """The page beside the result; a finished run is not lost for a page that cannot be drawn."""
    from sla.report.run import write_run_page
    from sla.tasks.classifier.run import Run

    if not isinstance(run, Run):
        return  # pages are of classifiers
    display.message("writing the report")
    try:
        write_run_page(run, run.folder / "report.html", progress=display)
    except Exception as error:
        lines = str(error).splitlines() or [type(error).__name__]
        display.message(f"no report was written: {lines[0]}")
    else:
        display.message(f"report: {shown(run.folder / 'report.html')}")


def _say_end(run: "OpenedRun", display: "TrainingDisplay") -> None:
    """The plain ending of a classifier's run."""
    from sla.report.run import end_of
    from sla.tasks.classifier.run import Run

    for line in end_of(run, display) if isinstance(run, Run) else ():
        display.message(line)


def preview_one(config: "TrainingConfig") -> "Plan":
    """What a run would do, shown; its plan."""
    from sla.cli.display import TrainingDisplay
    from sla.session import preview

    with TrainingDisplay(sys.stdout.isatty()) as display:
        return preview(config, progress=display)


def print_results(runs: "Sequence[OpenedRun]", verbose: bool = True) -> None:
    """The folders of finished runs, and their accuracies in one table for each task.

    Not `verbose`: without the table of classifiers, whose accuracy has been said.
    """
    from sla.cli.display import print_table

    tables: dict[tuple[str, ...], list[tuple[str, ScoreTable]]] = {}
    for run in runs:
        say(f"run: {run.folder}")
        images = run.result.get("images", {})
        said = run.task == "classifier" and not verbose and bool(images.get("val") or images.get("test"))
        if (table := run.score_table()).rows and not said:
            tables.setdefault(table.header, []).append((run.folder.name, table))
    for header, found in tables.items():
        rows = [(folder, *row) for folder, table in found for row in table.rows]
        alike = len(found) > 1 and len({row[1:3] for row in rows}) < len(rows)  # runs of one method
        print_table(header, [(f"{row[0]}: {row[1]}" if alike else row[1], *row[2:]) for row in rows])
        for note in (*(note for _, table in found for note in table.notes), *found[0][1].legend):
            say(note)
