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
    from sla.runs.config import parse_assignment, read_config, with_values

    named = {key: value for key, value in given.items() if value is not None}
    named |= dict(parse_assignment(text) for text in assign or [])
    tree = read_config(file) if file else {}
    if recipe is not None:
        from sla.recipes.load import flatten

        stated = flatten(tree)
        settings = _recipe_settings(recipe, stated | named)
        tree = with_values(with_values({}, settings, kind), stated, kind)
    return with_values(tree, named, kind)


def _recipe_settings(text: str, overrides: dict[str, Any]) -> dict[str, Any]:
    """Of `cifar100` or `cifar100:small`, without its method: that is the command's choice."""
    from sla.recipes.load import recipe, recipe_settings

    name, _, scale = text.partition(":")
    if recipe(name).kind != "train":
        raise InputError(f"recipe {name!r} does not train a classifier; `sla reproduce` runs it")
    settings = recipe_settings(name, scale or "paper", overrides.get("data.source"))
    del settings["method.name"]
    if overrides.get("model.backbone", settings["model.backbone"]) != settings["model.backbone"]:
        del settings["model.options"]  # of the recipe's backbone
    return settings


def choose_out(out: Path | None, resume: bool, source: str, ending: str = "") -> Path:
    """The run's folder: what was given, or runs/NAME by the name of the data."""
    if out is not None:
        return out
    if resume:
        raise InputError("--resume needs the run's folder: --out runs/NAME")
    return Path("runs") / f"{Path(source).expanduser().absolute().stem or 'run'}{ending}"
