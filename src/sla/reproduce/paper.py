"""The tables and figures of the paper as data: rows, columns, what each cell prints, and how to run it.

`paper.yaml` holds them. A cell is run by the settings of its recipe (the column's, with the row's
suffix), then those of its column, then those of its row: dotted keys of the training configuration.
"""

from functools import cache
from importlib import resources
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field

from sla.errors import InputError, nearest
from sla.reproduce.names import EXPERIMENTS


class Part(BaseModel):
    """A branch of the data: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Printed(Part):
    """What the paper prints in a cell, in percent."""

    value: float
    gain: float | None = Field(None, description="relative, over the row it is compared with")
    spread: float | None = Field(None, description="half of a 95% interval")
    cited: bool = Field(False, description="taken by the paper from another paper, not run by its authors")


class Column(Part):
    """A dataset, or a setting of one."""

    label: str
    recipe: str
    shot: int | None = Field(None, description="of few-shot columns: support images of each class, in test")
    set: dict[str, Any] = {}


class Row(Part):
    """A method as the paper names it, what runs it, and which of its numbers is meant."""

    label: str
    kind: Literal["train", "ensemble", "ten-crop", "curves", "toy", "fewshot", "pretrain", "cited"] = "train"
    suffix: str = Field(
        "", description="added to the name of the column's recipe: another network or augmentation"
    )
    set: dict[str, Any] = {}
    measure: str = Field("single", description="single, aggregated, distilled, or a name the kind gives")
    against: str | None = Field(None, description="the row that its relative gain is over")
    ours: bool = Field(False, description="a row that the paper does not have")
    columns: tuple[str, ...] | None = Field(None, description="the columns it has; all by default")


class Experiment(Part):
    """One table or figure."""

    metric: Literal["accuracy", "error"] = "accuracy"
    columns: dict[str, Column]
    rows: dict[str, Row]
    printed: dict[str, dict[str, Printed]] = Field({}, description="by row, then by column")
    notes: tuple[str, ...] = ()


@cache
def experiments() -> dict[str, Experiment]:
    """Every table and figure by name, in the order of the paper."""
    text = resources.files("sla.reproduce").joinpath("paper.yaml").read_text(encoding="utf-8")
    tree = yaml.safe_load(text)
    return {name: Experiment.model_validate(tree[name]) for name in EXPERIMENTS}


def experiment(name: str) -> Experiment:
    """One of them."""
    if name not in EXPERIMENTS:
        raise InputError(f"no table or figure is called {name!r}{nearest(name, tuple(EXPERIMENTS))}")
    return experiments()[name]
