"""`sla pretrain`: train a backbone on images without labels, for `sla train --weights`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from sla.cli.output import say
from sla.cli.settings import Allow
from sla.errors import InputError, shown

Option = typer.Option


def pretrain(
    data: Annotated[
        str | None, typer.Argument(help="A folder of pictures, with or without classes, or a dataset.")
    ] = None,
    out: Annotated[Path | None, Option(help="Run folder. Default: runs/NAME-pretrained.")] = None,
    labelled: Annotated[
        str | None, Option(help="Labelled images to judge the features by: a folder or a dataset.")
    ] = None,
    backbone: Annotated[str | None, Option(help="resnet18, efficientnet_lite0, timm:NAME, ...")] = None,
    weights: Annotated[str | None, Option(help="Start from: none, pretrained, a file, or a run.")] = None,
    augment: Annotated[
        str | None, Option(help="Of both views, e.g. 'resized(0.2), flip, grey(0.2), blur(0.5)'.")
    ] = None,
    temperature: Annotated[float | None, Option(help="Of the contrastive loss. Default: 0.5.")] = None,
    batch_size: Annotated[int | None, Option(help="Images per step; all are contrasted.")] = None,
    epochs: Annotated[float | None, Option(help="Passes over the images.")] = None,
    iterations: Annotated[int | None, Option(help="Number of training steps.")] = None,
    minutes: Annotated[float | None, Option(help="Training time; sets the number of steps.")] = None,
    seed: Annotated[int | None, Option(help="Random seed.")] = None,
    on_bad_image: Annotated[str | None, Option(help="Unreadable images: refuse or skip.")] = None,
    config: Annotated[Path | None, Option(help="A YAML file; options override it.")] = None,
    assign: Annotated[list[str] | None, Option("--set", help="Any key, e.g. method.layers=3.")] = None,
    allow: Allow = None,
    resume: Annotated[bool, Option("--resume", help="Resume the run in --out.")] = False,
    dry_run: Annotated[bool, Option("--dry-run", help="Print what would be done, and stop.")] = False,
) -> None:
    """Train a backbone without labels, by SimCLR: two views of an image should have similar features.

    Its weights are a start for other runs: sla train DATA --weights RUN.
    """
    from sla.cli.settings import choose_out, make_tree, naming_options
    from sla.cli.train import preview_one, print_results, train_one
    from sla.runs.distributed import process_numbers
    from sla.runs.folder import default_folder
    from sla.tasks.registry import make_config

    given: dict[str, Any] = {
        "data.source": data,
        "data.labelled": labelled,
        "model.backbone": backbone,
        "model.weights": weights,
        "augment": augment,
        "method.temperature": temperature,
        "run.batch_size": batch_size,
        "run.epochs": epochs,
        "run.iterations": iterations,
        "run.minutes": minutes,
        "run.seed": seed,
        "data.on_bad_image": on_bad_image,
    }
    tree = make_tree(given, assign, config, task="simclr")
    with naming_options(given, assign):
        settings = make_config(tree, str(config) if config else "configuration")
    if dry_run:
        if resume:
            raise InputError("--dry-run is for a run that has not started: not with --resume")
        preview_one(settings)
        return
    out = choose_out(out, resume, default_folder(settings.data.source, "-pretrained"))
    run = train_one(settings, out, resume, report=False)
    if process_numbers().rank == 0:
        print_results([run])
        say(f"next: sla train LABELLED_IMAGES --weights {shown(run.folder)}")
