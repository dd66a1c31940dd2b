"""`sla train`: a folder of images in, a better classifier out."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from sla.cli.display import TrainingDisplay
    from sla.runs.config import Config
    from sla.tasks.classifier.run import Run

METHODS = "baseline, da, mt, sla, sla+sd"
IMBALANCE = "auto, none, cb, ldam-drw, focal, logit-adjust"
Option = typer.Option


def train(
    data: Annotated[str | None, typer.Argument(help="A folder, a CSV, or a known dataset's name.")] = None,
    recipe: Annotated[
        str | None,
        Option(help="Start from NAME or NAME:small of `sla reproduce recipes`; all else overrides it."),
    ] = None,
    out: Annotated[Path | None, Option(help="The run's folder; runs/NAME by default.")] = None,
    method: Annotated[str | None, Option(help=f"{METHODS}. Default: sla+sd.")] = None,
    views: Annotated[
        str | None, Option(help="What the label also says: rot4, rgb3, rot4*rgb3, or auto.")
    ] = None,
    backbone: Annotated[str | None, Option(help="resnet32, efficientnet_lite0, timm:NAME, ...")] = None,
    weights: Annotated[str | None, Option(help="none, pretrained, a file, or a run's folder.")] = None,
    augment: Annotated[str | None, Option(help="As in 'crop(4), flip' or 'autoaugment, cutout(16)'.")] = None,
    mix: Annotated[str | None, Option(help="'cutmix(1.0, 0.5)' or 'mixup(1.0)': images and labels.")] = None,
    imbalance: Annotated[str | None, Option(help=f"For rare classes: {IMBALANCE}. Default: none.")] = None,
    epochs: Annotated[float | None, Option(help="How long, in passes over the training images.")] = None,
    iterations: Annotated[int | None, Option(help="How long, in steps.")] = None,
    minutes: Annotated[float | None, Option(help="How long; the rate is measured once.")] = None,
    seed: Annotated[int | None, Option(help="Everything random follows from it.")] = None,
    compare: Annotated[str | None, Option(help=f"Train another method beside it: {METHODS}.")] = None,
    config: Annotated[Path | None, Option(help="A YAML file; options given here come before it.")] = None,
    assign: Annotated[list[str] | None, Option("--set", help="Any key, as in run.batch_size=64.")] = None,
    on_bad_image: Annotated[str | None, Option(help="refuse or skip.")] = None,
    resume: Annotated[bool, Option("--resume", help="Go on with the run in --out.")] = False,
    report: Annotated[bool, Option(help="Write the run's page, report.html, at its end.")] = True,
    dry_run: Annotated[bool, Option("--dry-run", help="Say what would be done, and stop.")] = False,
) -> None:
    """Train a classifier; SLA with self-distillation and rotation unless told otherwise."""
    from sla.cli.settings import choose_out, make_tree
    from sla.errors import InputError
    from sla.runs.config import Config, make_config, with_values

    given: dict[str, Any] = {
        "data.source": data,
        "method.name": method,
        "method.views": views,
        "model.backbone": backbone,
        "model.weights": weights,
        "augment": augment,
        "mix": mix,
        "method.imbalance": imbalance,
        "run.epochs": epochs,
        "run.iterations": iterations,
        "run.minutes": minutes,
        "run.seed": seed,
        "data.on_bad_image": on_bad_image,
    }
    tree = make_tree(Config, given, assign, config, recipe)
    settled = make_config(tree, str(config) if config else "configuration")
    out = choose_out(out, resume, settled.data.source)
    runs = [(settled, out, resume)]
    if compare is not None:
        beside = out.absolute().with_name(f"{out.absolute().name}-{compare.replace('+', '-')}")
        begun = (beside / "config.yaml").exists()
        if begun and not resume:
            raise InputError(f"{beside}: there already, and --compare would write to it")
        runs.append((make_config(with_values(tree, {"method.name": compare})), beside, begun))
    if dry_run:
        if resume:
            raise InputError("--dry-run looks at a run that has not begun: not with --resume")
        for settings, _, _ in runs:
            _preview_one(settings)
        return
    finished = [_train_one(*run, report) for run in runs]
    if int(os.environ.get("RANK", "0")) == 0:
        _print_results(finished)


def _train_one(config: "Config", out: Path, resume: bool, report: bool) -> "Run":
    from sla.cli.display import TrainingDisplay
    from sla.session import train as run_session

    with TrainingDisplay(sys.stdout.isatty()) as display:
        run = run_session(
            config, out, resume=resume, say=display.say, watch=display.watch, progress=display.reading
        )
        if report and display.leads:
            _write_page(run, display)
    run.splits = None  # the next run needs the memory
    return run


def _write_page(run: "Run", display: "TrainingDisplay") -> None:
    """The page beside the result; a finished run is not lost for a page that cannot be drawn."""
    from sla.errors import shown
    from sla.report.run import write_run_page

    try:
        write_run_page(run, run.folder / "report.html", progress=display.reading)
    except Exception as error:
        lines = str(error).splitlines() or [type(error).__name__]
        display.say(f"no page was written: {lines[0]}")
    else:
        display.say(f"its page: {shown(run.folder / 'report.html')}")


def _preview_one(config: "Config") -> None:
    from sla.cli.display import TrainingDisplay
    from sla.session import preview

    with TrainingDisplay(sys.stdout.isatty()) as display:
        preview(config, say=display.say, progress=display.reading)


def _print_results(runs: "list[Run]") -> None:
    from sla.cli.display import print_table

    rows = []
    for run in runs:
        result = run.result
        for checkpoint, found in result["accuracies"].items():
            for split in ("test", "val"):
                for inference, scores in found.get(split, {}).items():
                    mark = " *" if inference == result["headline"] and checkpoint == "last" else ""
                    label = f"{run.config.method.name}, {checkpoint}, {split}"
                    rows.append((label, inference + mark, f"{scores['top1']:.2f}", f"{scores['ece']:.1f}"))
        print(f"run: {run.folder}")
    print_table(("", "inference", "accuracy %", "ECE %"), rows)
    for run in runs:
        told = run.result.get("view_accuracy")
        if told is not None:
            print(f"{run.config.method.name}: {told['advice']}")
    print("* the headline. Held-out images (val) chose the best checkpoint; test images chose nothing.")
