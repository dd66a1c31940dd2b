"""Which model of a run answers by default: the quick one, the trained one, or the average of their weights.

Held-out images decide, in pairs; test images decide nothing.
"""

from collections.abc import Collection
from typing import Any, NamedTuple

from torch import Tensor

from sla.runs.metrics import negative_log_likelihood
from sla.stats import Interval, mcnemar, paired_shares, share
from sla.tasks.classifier.config import AVERAGED, FEATURES

RISK = 0.05  # p below which a difference is called clear
FEWEST_STEPS = 40  # of training, below which the quick model is usually better (docs/photographs.md)
# What the models of a run are called that has a quick one and a trained one, by checkpoint.
MODELS = {
    FEATURES: "the quick model",
    "last": "the trained model",
    "best": "the trained model (best checkpoint)",
    AVERAGED: "the average of both models",
}


class Candidate(NamedTuple):
    """A model's class logits (n, N) of the held-out images by one kind of inference, and its temperature."""

    inference: str
    logits: Tensor
    temperature: float
    alone: bool = True  # the only inference of its model

    def likelihood(self, targets: Tensor) -> float:
        """The mean log-likelihood of these classes, calibrated."""
        return -negative_log_likelihood(self.logits, targets, self.temperature)


class Paired(NamedTuple):
    """The second of two models against the first on the same images: points with their interval, exact p."""

    points: Interval
    p: float

    @property
    def words(self) -> str:
        """As one line of text."""
        verdict = "no clear difference" if self.p >= RISK else "better" if self.points.mean > 0 else "worse"
        return f"{self.points.mean:+.1f} points ({self.points.ends('+.1f')}, p {self.p:.2g}): {verdict}"


def compare_hits(first: Tensor, second: Tensor) -> Paired:
    """Right answers, bool (n,), of two models on the same images."""
    gained, lost = int((second & ~first).sum()), int((first & ~second).sum())
    return Paired(paired_shares(gained, lost, len(first)), mcnemar(gained, lost))


def usual_model(names: Collection[str], steps: int, trained: str = "last") -> str:
    """The one that answers unless held-out images clearly say another, after so many steps of training."""
    if steps < FEWEST_STEPS and FEATURES in names:
        return FEATURES
    return AVERAGED if AVERAGED in names else trained


def choose_model(
    candidates: dict[str, Candidate], targets: Tensor, steps: int
) -> tuple[dict[str, Any], list[str]]:
    """What result.json has under `chosen`, and the lines that say why; candidates by checkpoint.

    The usual answer is the average of both models, or the trained one where there is none: nearly always the
    best in docs/photographs.md, but after few steps. Another model is taken only where the paired interval is
    above zero; `best` instead of `last` likewise, which was chosen on these very images.
    """
    hits = {name: one.logits.argmax(1) == targets for name, one in candidates.items()}
    count, lines, trained = len(targets), [], "last"
    if "best" in candidates:
        found = compare_hits(hits["last"], hits["best"])
        trained = "best" if found.points.low > 0 else "last"
        lines.append(f"best checkpoint against last: {found.words}; {trained} is kept")
    right = {name: int(one.sum()) for name, one in hits.items()}
    names = {FEATURES: "quick", trained: "trained", AVERAGED: "both averaged"}
    names = {name: words for name, words in names.items() if name in candidates}
    usual = usual_model(candidates, steps, trained)
    better = [name for name in names if compare_hits(hits[usual], hits[name]).points.low > 0]
    checkpoint = max(better, key=right.__getitem__, default=usual)
    shown = [f"{words} {share(right[name], count).percent('.1f')}" for name, words in names.items()]
    other = usual_model(candidates, FEWEST_STEPS, trained)
    against = compare_hits(hits[FEATURES], hits[other])
    lines.append(
        f"on {count:,} held-out images: {', '.join(shown)}; {names[other]} against quick {against.words}"
    )
    if checkpoint == FEATURES == usual:
        why = f"only {steps:,} steps of training: below {FEWEST_STEPS} the quick model is usually better"
    elif checkpoint == FEATURES:
        why = "the quick model is better"
    elif compare_hits(hits[FEATURES], hits[checkpoint]).points.low > 0:
        why = "training was worth it"
    else:
        why = f"no clear difference to the quick model on {count:,} images"
    one = candidates[checkpoint]
    by = "" if one.alone else f" by {one.inference} inference"
    lines.append(f"{why}; predict uses {MODELS[checkpoint]}{by}; --checkpoint names another")
    chosen = {
        "checkpoint": checkpoint,
        "inference": candidates[checkpoint].inference,
        "inferences": {name: one.inference for name, one in candidates.items()},
        "images": count,
        "right": right,
        "why": why,
    }
    return chosen, lines
