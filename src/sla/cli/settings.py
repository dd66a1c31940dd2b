"""From the options of a command to the tree of its configuration, and the folder of its run."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from sla.errors import InputError

if TYPE_CHECKING:
    from sla.runs.config import Part


def make_tree(
    kind: "type[Part]",
    given: dict[str, Any],
    assign: list[str] | None,
    file: Path | None = None,
    recipe: str | None = None,
) -> dict[str, Any]:
    """The settings of a recipe, then those of a file, then the options, then `--set`: the last one counts."""
    from sla.cli.recipe import with_recipe
    from sla.runs.config import parse_assignment, read_config, with_values

    named = {key: value for key, value in given.items() if value is not None}
    named |= dict(parse_assignment(text) for text in assign or [])
    tree = read_config(file) if file else {}
    return with_values(with_recipe(recipe, tree, named) if recipe else tree, named, kind)


def choose_out(out: Path | None, resume: bool, source: str, ending: str = "") -> Path:
    """The run's folder: what was given, or runs/NAME by the name of the data."""
    if out is not None:
        return out
    if resume:
        raise InputError("--resume needs the run's folder: --out runs/NAME")
    return Path("runs") / f"{Path(source).expanduser().absolute().stem or 'run'}{ending}"
