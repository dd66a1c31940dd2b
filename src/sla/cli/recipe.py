"""`--recipe`: the settings of a recipe below those of a configuration file and of the options."""

from typing import Any

from sla.errors import InputError


def with_recipe(text: str, tree: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """The tree of a file, its missing keys set by the recipe `cifar100` or `cifar100:small`.

    Left out: of a classifier the method, which is the command's choice, and what does not fit the data, the
    backbone or the length that the file or the options choose.
    """
    from sla.recipes.load import flatten, recipe, recipe_settings
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
    unused = set(TASKS[task].config_class.not_from_recipes)
    if chosen.get("model.backbone", settings["model.backbone"]) != settings["model.backbone"]:
        unused.add("model.options")
    if any(chosen.get(key) is not None for key in BUDGETS):
        unused.update(BUDGETS)
    missing = {key: value for key, value in settings.items() if key not in unused | flatten(tree).keys()}
    return with_values(tree, missing)
