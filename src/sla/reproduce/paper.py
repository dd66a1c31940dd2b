"""The tables and figures of the paper as data: rows, columns, what each cell prints, and how to run it.

A new row or column needs `paper.yaml` alone. The settings of a cell are those of its recipe (the column's,
with the row's suffix), then the column's, then the row's; keys are dotted, as in the configuration.
"""

import re
from functools import cache
from importlib import resources
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, model_validator

from sla.errors import InputError, nearest
from sla.reproduce.names import EXPERIMENTS
from sla.trees import parse_yaml

SOURCES = [resources.files("sla.reproduce") / name for name in ("paper.yaml", "studies.yaml")]


class Part(BaseModel):
    """A part of the file: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Printed(Part):
    """What the paper prints in a cell, in percent."""

    value: float
    gain: float | None = None  # relative, over the row it is compared with
    spread: float | None = None  # half of a 95% interval
    text: str = ""  # value and spread as printed: 71.5 ± 1.0
    gain_text: str = ""  # the gain as printed: +8.30%

    @model_validator(mode="before")
    @classmethod
    def _parse(cls, text: Any) -> Any:
        """`93.26 +0.94%` or `48.70 ± 1.84`."""
        found = re.fullmatch(r"([\d.]+)(?: ([+-][\d.]+)%)?(?: ± ([\d.]+))?", str(text))
        if found is None:
            return None
        value, gain, spread = found.groups()
        shown = {"text": f"{value} ± {spread}" if spread else value, "gain_text": f"{gain}%" if gain else ""}
        return {"value": value, "gain": gain, "spread": spread, **shown}


class Column(Part):
    """A dataset, or a setting of one."""

    label: str
    recipe: str
    shot: int | None = None  # of few-shot columns: support images of each class, in test
    set: dict[str, Any] = {}


class Row(Part):
    """A method as the paper names it, the kind of job that runs it, and which of its scores is meant."""

    label: str
    kind: str = "train"  # a key of work.WORK or of jobs.NOT_RUN, or a task
    suffix: str = ""  # added to the name of the column's recipe, for another network or augmentation
    pretraining: str = ""  # likewise, of kind finetune: for the recipe of the run that it starts from
    set: dict[str, Any] = {}
    times: float = 1.0  # its steps (or epochs), as a multiple of the recipe's
    score: str = "single"  # the inference: single, aggregated, distilled; or another score of its kind of job
    inference: str | None = None  # of kind flips or ten-crop: whose scores are averaged; one pass by default
    against: str | None = None  # the row that its gain is relative to
    cited: bool = False  # its numbers were taken by the paper from another paper
    ours: bool = False  # not in the paper
    removed: bool = False  # what it trained is no longer in the code: its recorded results are shown
    columns: tuple[str, ...] | None = None  # its columns; all by default


class Experiment(Part):
    """One table or figure."""

    metric: Literal["accuracy", "error"] = "accuracy"
    first_seed: int = 0
    columns: dict[str, Column]
    rows: dict[str, Row]
    printed: dict[str, dict[str, Printed]] = {}  # by row, then by column
    answer: str = ""  # of a study: what its numbers say
    notes: tuple[str, ...] = ()


@cache
def experiments() -> dict[str, Experiment]:
    """Every table and figure by name, in the order of the paper."""
    tree: dict[str, Any] = {}
    for path in SOURCES:
        source = path.read_text(encoding="utf-8")
        tree |= parse_yaml(source)
        for name, table in yaml.load(source, yaml.BaseLoader).items():
            tree[name]["printed"] = table.get("printed", {})  # 66.10 as a number would be 66.1
    return {name: Experiment.model_validate(tree[name]) for name in EXPERIMENTS}


def experiment(name: str) -> Experiment:
    """The table or figure of this name."""
    if name not in EXPERIMENTS:
        raise InputError(f"unknown table or figure {name!r}{nearest(name, tuple(EXPERIMENTS))}")
    return experiments()[name]
