"""From the options of a command to the tree of its configuration, and the folder of its run."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from sla.errors import InputError


def allow_names(names: list[str] | None) -> list[str] | None:
    """For an option: names of code that may be imported."""
    from sla.plugins import allow

    allow(*(names or []))
    return names


def complete(names: Sequence[str]) -> dict[str, Any]:
    """For an option: the shell completes these names."""
    return {"autocompletion": lambda incomplete: [name for name in names if name.startswith(incomplete)]}


ALLOW = "Allow a run to import code from outside sla: package.module:Name."
Allow = Annotated[list[str] | None, typer.Option(help=ALLOW, callback=allow_names)]
Checkpoint = Annotated[
    str, typer.Option(help="last, best on the held-out images, features, averaged, or the run's choice.")
]
OnBadImage = Annotated[
    Literal["refuse", "skip"] | None, typer.Option(help="Bad images: refuse or skip. Default: the run's.")
]
RefuseOrSkip = Annotated[
    Literal["refuse", "skip"], typer.Option(help="Unreadable images: refuse, or skip with a note.")
]


def given_keys(given: dict[str, Any], assign: list[str] | None) -> dict[str, Any]:
    """The options that were given, then `--set`; what they name may be imported."""
    from sla.plugins import allow_typed
    from sla.runs.config import parse_assignment

    named = {key: value for key, value in given.items() if value is not None}
    named |= dict(parse_assignment(text) for text in assign or [])
    allow_typed(named)
    return named


@contextmanager
def naming_options(given: dict[str, Any], assign: list[str] | None) -> Iterator[None]:
    """An invalid value is reported by the option that it was typed as, not by the key that it is for."""
    from sla.runs.config import InvalidValueError

    options = {key: f"--{key.rpartition('.')[2].replace('_', '-')}" for key in given}
    options["method.name"] = "--method"
    typed = {key: options[key] for key, value in given.items() if value is not None and key != "data.source"}
    typed |= {key: f"--set {key}" for key in (text.partition("=")[0].strip() for text in assign or [])}
    try:
        yield
    except InvalidValueError as error:
        # Of a list, the key ends with the number of the item.
        option = next((typed[key] for key in typed if f"{error.key}.".startswith(f"{key}.")), None)
        if option is None:
            raise
        raise InputError(f"{option}: {error.reason}") from None


def make_tree(
    given: dict[str, Any],
    assign: list[str] | None,
    file: Path | None = None,
    recipe: str | None = None,
    task: str | None = None,
) -> dict[str, Any]:
    """The settings of a recipe, then those of a file, then the options, then `--set`: the last one counts.

    `task` is that of the command; by default the file says it, or it is a classifier.
    """
    from sla.cli.recipe import with_recipe
    from sla.runs.config import read_config, task_name
    from sla.tasks.registry import with_values

    named = given_keys(given, assign)
    tree = read_config(file) if file else {}
    if task is not None:
        if file and tree.get("task", task) != task:
            raise InputError(
                f"{file}: of task {task_name(tree)}, not {task}: sla train --config takes any task"
            )
        tree = {"task": task, **tree}
    return with_values(with_recipe(recipe, tree, named) if recipe else tree, named)


def choose_out(out: Path | None, resume: bool, default: Path) -> Path:
    """The run's folder: what was given, or the default of a run that starts."""
    if out is None and resume:
        raise InputError("--resume needs the run's folder: --out runs/NAME")
    return out or default
