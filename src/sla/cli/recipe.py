"""`--recipe`: the settings of a recipe below those of a configuration file and of the options."""

import warnings
from typing import Any

from sla.errors import InputError, SLAWarning, shown

LIKE = 1.5  # times the pixels per side, from which on pictures are of another size


def with_recipe(text: str, tree: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """The tree of a file, its missing keys set by the recipe `cifar100` or `cifar100:small`.

    Left out: the method of a table's first row, the command's choice, and what does not fit the data,
    the backbone or the length that the file or the options choose.
    """
    from sla.recipes.load import flatten, keeps_method, recipe, recipe_settings
    from sla.runs.config import BUDGETS
    from sla.tasks.registry import TASKS, find_task, with_values

    name, _, scale = text.partition(":")
    task = recipe(name).task
    if task not in TASKS:
        raise InputError(f"recipe {name!r} trains no model; `sla reproduce` runs it")
    if tree and find_task(tree).name != task:
        raise InputError(f"recipe {name!r} is of task {task}, not {find_task(tree).name}")
    tree = {"task": task, **tree}
    chosen = flatten(tree) | options
    settings = recipe_settings(name, scale or "paper", chosen.get("data.source"))
    first = {} if keeps_method(name) else TASKS[task].config_class.first_of_table
    unused = {key for key, value in first.items() if settings.get(key) == value}
    if chosen.get("model.backbone", settings["model.backbone"]) != settings["model.backbone"]:
        unused.add("model.options")
    if any(chosen.get(key) is not None for key in BUDGETS):
        unused.update(BUDGETS)
    missing = {key: value for key, value in settings.items() if key not in unused | flatten(tree).keys()}
    if "data.source" in chosen and "data.source" not in settings:
        _warn_of_other_size(name, str(chosen["data.source"]), missing | chosen, settings)
    return with_values(tree, missing)


def _warn_of_other_size(name: str, source: str, resolved: dict[str, Any], settings: dict[str, Any]) -> None:
    """Say it where pictures are resized to the size of the recipe's own, which are much larger or smaller."""
    from sla.runs.defaults import native_size

    seen = resolved.get("model.resolution")
    if seen is None or seen != settings.get("model.resolution"):
        return  # another resolution was asked for
    native = native_size(source)
    if max(native, seen) < LIKE * min(native, seen):
        return
    sizes = f"--set model.resolution={native} --set data.stored_size={native}"
    warnings.warn(
        f"recipe {name} is for pictures of {seen} pixels: those of {shown(source)}, of about {native}, are "
        f"resized to that; another size: {sizes}, and an augmentation and a backbone that suit it",
        SLAWarning,
    )
