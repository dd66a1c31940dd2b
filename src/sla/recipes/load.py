"""The settings of a recipe by its name, as flat dotted keys of the configuration."""

from collections.abc import Mapping
from copy import deepcopy
from functools import cache
from importlib import resources
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from sla.errors import InputError, nearest
from sla.recipes import SCALES
from sla.trees import parse_yaml

Settings = dict[str, Any]
VERSION = "recipe.version"  # a part of what names a run, not a key of its configuration
OWN_DATA = (  # of no use with other images
    *("data.source", "data.hold_out", "data.per_class", "data.long_tail_max", "model.mean", "model.std"),
    *("data.unlabelled", "data.unlabelled_count", "data.classes"),
)


class Entry(BaseModel):
    """A recipe, or a family of them: settings at paper scale, and what differs at the other scales."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    task: str = Field("classifier", description="of its runs; `toy` is the figure's, which is no run")
    cost: float | None = Field(None, description="FLOP of training at paper scale, with one view")
    version: int = Field(1, description="raised when a fix changes its numbers but not its settings")
    expected: str = Field("unknown", description="what the paper prints for it, in percent")
    extends: tuple[str, ...] = Field((), description="families whose settings come first, in this order")
    own: tuple[str, ...] = Field((), description="more keys that are left out with other images")
    keeps_method: bool = Field(False, description="its method is for `sla train` too, no table's first row")
    set: Settings = {}
    paper: Settings = {}
    small: Settings = {}
    smoke: Settings = {}


@cache
def _entries() -> tuple[dict[str, Entry], dict[str, Entry]]:
    text = resources.files("sla.recipes").joinpath("recipes.yaml").read_text(encoding="utf-8")
    tree = parse_yaml(text)
    families, recipes = (
        {name: Entry.model_validate(entry) for name, entry in tree[part].items()}
        for part in ("families", "recipes")
    )
    return families, recipes


def all_recipes() -> dict[str, Entry]:
    """Every recipe by name, without the settings of its families."""
    return _entries()[1]


def recipe(name: str) -> Entry:
    """One of them."""
    if name not in all_recipes():
        raise InputError(f"unknown recipe {name!r}{nearest(name, list(all_recipes()))}")
    return all_recipes()[name]


def recipe_settings(name: str, scale: str = "paper", data: str | None = None) -> Settings:
    """The settings of a recipe at a scale: its families' first, then its own, then those of the scale.

    With `data` other than the recipe's own, settings that only fit its own images are left out.
    """
    if scale not in SCALES:
        raise InputError(f"unknown scale {scale!r}{nearest(scale, SCALES)}")
    layers, settings = _layers(recipe(name)), Settings()
    for part in ("set", scale):
        for layer in layers:
            settings |= flatten(getattr(layer, part))
    if data is not None and data != settings["data.source"]:
        left_out = {*OWN_DATA, *(key for layer in layers for key in layer.own)}
        settings = {key: value for key, value in settings.items() if key not in left_out}
    return deepcopy(settings)


def keeps_method(name: str) -> bool:
    """Whether the method of a recipe is its own choice, not that of the first row of a table."""
    return any(layer.keeps_method for layer in _layers(recipe(name)))


def recipe_version(name: str) -> Settings:
    """The version of a recipe as a setting; {} for the first, so that its runs keep their names."""
    version = max(layer.version for layer in _layers(recipe(name)))
    return {VERSION: version} if version > 1 else {}


def config_settings(settings: Mapping[str, Any]) -> Settings:
    """The settings that are keys of a configuration."""
    return {key: value for key, value in settings.items() if key != VERSION}


def flatten(tree: Settings) -> Settings:
    """{"run": {"seed": 1}, "run.epochs": 2, "data": None} -> {"run.seed": 1, "run.epochs": 2}"""
    flat: Settings = {}
    for key, value in tree.items():
        if isinstance(value, dict) and "." not in key:
            flat |= {f"{key}.{name}": inner for name, inner in value.items()}
        elif value is not None or "." in key:  # a part without keys, an empty line in a file
            flat[key] = value
    return flat


def _layers(entry: Entry) -> list[Entry]:
    families = _entries()[0]
    return [layer for name in entry.extends for layer in _layers(families[name])] + [entry]
