"""The few-shot methods by name."""

import inspect
from typing import Any

from sla.errors import InputError, nearest
from sla.tasks.fewshot.head import Head
from sla.tasks.fewshot.prototypes import Prototypes
from sla.tasks.fewshot.ridge import R2D2, Ridge
from sla.tasks.fewshot.svm import SVM

HEADS: dict[str, type[Head]] = {"protonet": Prototypes, "ridge": Ridge, "r2d2": R2D2, "svm": SVM}
NO_DISTILLATION = (
    "self-distillation is not defined for few-shot classes: its student is a head over the classes of "
    "training, and an episode's classes are new ones"
)


def check_head(name: str) -> None:
    """Refuse an unknown method, and self-distillation with its reason."""
    if name.endswith("+sd") or name in ("sd", "distill"):
        raise InputError(f"{name!r}: {NO_DISTILLATION}")
    if name not in HEADS:
        raise InputError(f"unknown few-shot method {name!r}{nearest(name, list(HEADS))}")


def create_head(name: str, **options: Any) -> Head:
    """The head of this name; options are the arguments of its class."""
    check_head(name)
    known = list(inspect.signature(HEADS[name]).parameters)
    for option in options:
        if option not in known:
            raise InputError(f"few-shot method {name!r} has no option {option!r}{nearest(option, known)}")
    try:
        return HEADS[name](**options)
    except TypeError:
        raise InputError(f"few-shot method {name!r}: its options are numbers, not {options!r}") from None
