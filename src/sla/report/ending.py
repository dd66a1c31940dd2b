"""A run in plain sentences: how often it is right, where it is weakest, when to trust it, what next."""

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from sla.errors import shown
from sla.report.confusion import ClassAccuracy, class_accuracies
from sla.stats import Interval, share
from sla.tasks.classifier.config import FEATURES
from sla.tasks.classifier.evaluation import Outputs
from sla.tasks.classifier.features import is_features
from sla.tasks.classifier.run import Run

LEVELS = (0.0, 0.5, 0.8, 0.9, 0.95, 0.99)
TRUSTED = 0.9  # the level that is told


class Confident(NamedTuple):
    """The images of which the model is at least so confident: how many, how many right, and their share."""

    level: float
    images: int
    right: int
    accuracy: Interval


def by_confidence(logits: Tensor, targets: Tensor, temperature: float = 1.0) -> list[Confident]:
    """The images (n, N) at each level of confidence, where there are any."""
    confidence, predicted = (logits.double() / temperature).softmax(1).max(1)
    found = []
    for level in LEVELS:
        trusted = confidence >= level
        right, count = int((trusted & (predicted == targets)).sum()), int(trusted.sum())
        if count:
            found.append(Confident(level, count, right, share(right, count)))
    return found


def describe_end(run: Run, outputs: Outputs, classes: Sequence[str], held_out: bool) -> list[str]:
    """The sentences, of the run's headline inference on images that it was not trained on.

    `classes`: their names as shown. `held_out`: they chose the checkpoint and the temperature, so new images
    are a little harder.
    """
    headline, targets = run.model.method.headline, outputs.targets
    logits, temperature = outputs.logits[headline], run.temperatures.get(headline, 1.0)
    levels = by_confidence(logits, targets, temperature)
    total = levels[0]
    worst = _weakest(class_accuracies(targets, logits.argmax(1), classes))
    alone = is_features(run.config)  # the quick model: nothing was chosen on held-out pictures
    chose = "held-out pictures" if alone else "held-out pictures, which also chose the model"
    unseen = chose if held_out else "pictures it had not seen"
    said = [f"Right on {total.right:,} of {total.images:,} {unseen}: {_range(total.accuracy)}."]
    if held_out and alone and (turns := _in_turn(run)):
        said.append(f"Right on {turns}.")
    if groups := run.group_scores(outputs).get(headline):
        shares = " and ".join(f"{value:.0f}% of {name} classes" for name, value in groups.items())
        said.append(f"Since it grew: {shares}.")
    if worst is not None:
        taken = f" (taken for {classes[worst.confused.predicted]})" if worst.confused else ""
        said.append(f"Weakest: {worst.name}, {worst.correct:,} of {worst.images:,}{taken}.")
    trusted = next((one for one in levels if one.level == TRUSTED), None)
    if trusted is None:
        said.append(f"It is never {100 * TRUSTED:.0f}% confident.")
    else:
        right = f"right on {trusted.right:,} of {trusted.images:,}"
        said.append(f"When at least {100 * TRUSTED:.0f}% confident it is {right}.")
    return [*said, f"Next: {_next(run, worst)}."]


def describe_unjudged(run: Run) -> list[str]:
    """The sentences about a run of which no picture was held out: what cross-validation found, if it did."""
    said = "Nothing was held out: no picture says how good it is."
    if turns := _in_turn(run):
        quick = is_features(run.config) or run.checkpoint == FEATURES
        said = f"{'Right on' if quick else 'The quick model is right on'} {turns}."
    return [said, f"Next: {_next(run, None)}."]


def _in_turn(run: Run) -> str:
    """What cross-validation found of the quick model; nothing where it had too few pictures."""
    found = run.result.get("cross_validation", {})
    if "right" not in found:
        return ""
    accuracy = _range(share(found["right"], found["images"]))
    return f"{found['right']:,} of {found['images']:,} training pictures, each left out in turn: {accuracy}"


def _range(found: Interval) -> str:
    return f"{found.mean:.0f}% ({found.low:.0f} to {found.high:.0f})"


def _weakest(classes: list[ClassAccuracy]) -> ClassAccuracy | None:
    """The class with the lowest accuracy; None where everything is right."""
    worst = classes[0]
    return worst if worst.images and worst.correct < worst.images else None


def _next(run: Run, worst: ClassAccuracy | None) -> str:
    folder = shown(run.folder)
    use = f"sla predict {folder} PICTURES --min-confidence {TRUSTED:g}"
    if is_features(run.config):
        more = f"sla train {shown(run.config.data.source)} --out {folder}-trained"
        return f"{use}; training may gain more: {more}"
    if worst is not None:
        return f"{use}; more pictures of {worst.name} would help most"
    return use
