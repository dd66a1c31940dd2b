"""Classes of unequal size in a run: what was found, what is chosen, the criterion that follows."""

import copy
import inspect
from collections.abc import Sequence

import numpy as np

from sla.criteria import Criterion
from sla.errors import InputError, shown
from sla.imbalance import CRITERIA
from sla.plugins import import_plugin
from sla.tasks.classifier.config import AUTO, MethodConfig

# From this ratio of the largest class to the smallest on, `auto` acts. Assumed, not measured.
UNEQUAL = 10.0
# What `auto` then takes: docs/imbalance.md has the measurement.
BY_DEFAULT = "logit-adjust"


def choose_imbalance(
    part: MethodConfig, counts: np.ndarray, classes: Sequence[str], grown: bool = False
) -> tuple[MethodConfig, list[str]]:
    """The method with `auto` and the kind of head resolved for these counts (N,), and the reasons.

    `grown`: classes may be without images, where the old model knows them; then logits can be adjusted.
    """
    smallest, largest = int(np.argmin(counts)), int(np.argmax(counts))
    found = f"classes have {counts[smallest]:,} to {counts[largest]:,} training images"
    chosen, reasons = part.imbalance, []
    absent = not counts[smallest] and not (grown and chosen in ("logit-adjust", AUTO))
    if chosen != "none" and absent:
        raise InputError(
            f"class {shown(classes[smallest])!r} has no training image: method.imbalance={chosen} needs at "
            "least one of each class; add some, or take the class away"
        )
    unequal = counts[largest] >= UNEQUAL * max(counts[smallest], 1)
    if chosen == AUTO:
        chosen = BY_DEFAULT if unequal else "none"
        than = "at least" if unequal else "less than"
        reasons.append(f"{found}, {than} {UNEQUAL:g} times as many: imbalance {chosen}")
    elif chosen != "none":
        reasons.append(f"imbalance {chosen}; {found}")
    elif unequal and not grown:
        reasons.append(f"{found}: rare ones may be learnt badly; --imbalance auto gives them more weight")
    if grown and not counts[smallest] and part.label_smoothing:
        raise InputError(
            "method.label_smoothing smooths towards classes without images: keep one of each, or set it to 0"
        )
    head = part.head or CRITERIA[chosen].head
    return part.model_copy(update={"imbalance": chosen, "head": head}), reasons


def build_criterion(part: MethodConfig, counts: Sequence[int] | np.ndarray) -> Criterion:
    """The criterion of a resolved configuration, with the training images of each class (N,)."""
    if part.criterion is not None:
        return _own_criterion(part, counts)
    numbers = [int(count) for count in counts]
    return CRITERIA[part.imbalance].make(numbers, part.label_smoothing, part.deferred)


def _own_criterion(part: MethodConfig, counts: Sequence[int] | np.ndarray) -> Criterion:
    """A function `(logits, target) -> loss`, or an object of a class, which may ask for `counts` (N,)."""
    assert part.criterion is not None
    if part.imbalance != "none" or part.label_smoothing:
        raise InputError(
            "method.criterion takes the place of method.imbalance and method.label_smoothing: set one of them"
        )
    found = import_plugin(part.criterion)
    if isinstance(found, type):
        wanted = {"counts": counts} if "counts" in inspect.signature(found).parameters else {}
        found = found(**wanted)
    if not callable(found):
        raise InputError(f"{part.criterion}: not a criterion: it cannot be called with logits and a target")
    return copy.deepcopy(found)  # steps that are timed before a run must not train a module's own object
