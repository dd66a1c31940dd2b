"""`sla augment search`: find an augmentation policy for your own images."""

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from sla.cli.output import say
from sla.disk import replacing
from sla.errors import shown

app = typer.Typer(help="Augmentation policies.", no_args_is_help=True)
Option = typer.Option


@app.callback()
def _augment() -> None:
    pass


@app.command()
def search(
    data: Annotated[str, typer.Argument(help="A folder, a CSV, or the name of a dataset.")],
    out: Annotated[Path, Option(help="Policy file to write.")] = Path("policy.json"),
    work: Annotated[
        Path | None, Option(help="Folder for the intermediate results. Default: OUT.search.")
    ] = None,
    minutes: Annotated[float | None, Option(help="Total time; half of it trains networks.")] = None,
    trials: Annotated[int, Option(help="Candidates per fold, without --minutes.")] = 200,
    folds: Annotated[int, Option(help="Folds of the training images, one network each.")] = 2,
    images: Annotated[int, Option(help="Images per fold that candidates are scored on.")] = 1000,
    backbone: Annotated[str | None, Option(help="resnet8, resnet20, ... Default: to suit the data.")] = None,
    augment: Annotated[str | None, Option(help="Applied after the policy: 'crop(4), flip'.")] = None,
    per_class: Annotated[int | None, Option(help="Use this many training images of each class.")] = None,
    seed: Annotated[int, Option(help="Random seed.")] = 0,
    assign: Annotated[list[str] | None, Option("--set", help="Any key of a run, e.g. run.epochs=5.")] = None,
) -> None:
    """Find a policy by density matching (Fast AutoAugment); if interrupted, run it again to continue."""
    from sla.augment.syntax import quoted
    from sla.cli.display import TrainingDisplay
    from sla.cli.output import check_writable
    from sla.cli.settings import make_tree, naming_options
    from sla.policy_search import SearchSettings, search_policy
    from sla.runs.config import validate
    from sla.tasks.classifier.config import ClassifierConfig

    given: dict[str, Any] = {
        "data.source": data,
        "data.per_class": per_class,
        "method.name": "baseline",
        "model.backbone": backbone,
        "augment": augment,
        "run.seed": seed,
    }
    with naming_options(given, assign):
        config = validate(ClassifierConfig, make_tree(given, assign), "configuration")
    settings = SearchSettings(folds=folds, trials=trials, images=images, minutes=minutes, seed=seed)
    check_writable(out)
    folder = work or out.with_suffix(".search")
    with TrainingDisplay(sys.stdout.isatty()) as display:
        display.message(f"what is finished is kept in {shown(folder)}; stopped, the same command continues")
        command = shlex.join(["sla", *sys.argv[1:]])
        found = search_policy(config, settings, folder, command, progress=display)
    with replacing(out) as file:
        file.write(write_policy(found).encode())
    say(f"{len(found['sub_policies'])} sub-policies: {shown(out)}")
    augmentation = shlex.quote(f"policy({quoted(shown(out))}), {found['augment']}")
    say(f"to use them: sla train {shlex.quote(data)} --augment {augmentation}")


def write_policy(content: dict[str, Any]) -> str:
    """A policy file as text, one sub-policy per line."""
    rest = {key: value for key, value in content.items() if key != "sub_policies"}
    lines = ",\n  ".join(json.dumps(sub_policy) for sub_policy in content["sub_policies"])
    return json.dumps(rest, indent=1).removesuffix("\n}") + ',\n "sub_policies": [\n  ' + lines + "\n ]\n}\n"
