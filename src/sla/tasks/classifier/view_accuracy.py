"""How well a network recognises the view of an image, and what that says about using it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sla.accelerate import Engine
from sla.augment.ops import Pipeline
from sla.classifier import Classifier
from sla.images.store import Dataset, spread
from sla.progress import QUIET, Progress
from sla.runs.evaluation import iterate_eval
from sla.stats import Interval, share
from sla.views import Product, Views

# Of the way from guessing (0) to never wrong (1). Where the lines lie is a judgement: docs/views.md.
HARDLY, WELL = 0.1, 0.3
CANNOT, HARD, CAN = "not recognisable", "hardly recognisable", "recognisable"
UNKNOWN = "too few images to say"
FEW = 30  # held-out images below which nothing is said, however many of them are recognised
BATCH = 64
ENOUGH = 2000  # held-out images used: the interval is then at most 2.2 points to each side


@dataclass(frozen=True)
class ViewAccuracy:
    """The predicted views of held-out images, each seen through every view.

    `confusion` (M, M) counts images by the view they were seen through and the predicted view.
    """

    views: Views
    confusion: Tensor

    @property
    def images(self) -> int:
        """How many images were used."""
        return int(self.confusion[0].sum())

    @property
    def chance(self) -> float:
        """What guessing would give, in percent: 100 / M."""
        return 100 / len(self.views)

    @property
    def accuracy(self) -> Interval:
        """In percent. The M views of an image are not independent, so the interval counts images only."""
        return share(self.confusion.diagonal().sum().item() / len(self.views), self.images)

    @property
    def by_view(self) -> dict[str, Interval]:
        """In percent, by the name of the view that images were seen through."""
        right = self.confusion.diagonal().tolist()
        return {name: share(hits, self.images) for name, hits in zip(self.views.names, right, strict=True)}

    @property
    def factors(self) -> tuple["ViewAccuracy", ...]:
        """How well each factor of a product of views is recognised, whatever the others are."""
        if not isinstance(self.views, Product):
            return (self,)
        first, second = self.views.first, self.views.second
        counts = self.confusion.view(len(first), len(second), len(first), len(second))
        parts = (ViewAccuracy(first, counts.sum((1, 3))), ViewAccuracy(second, counts.sum((0, 2))))
        return tuple(factor for part in parts for factor in part.factors)

    @property
    def verdict(self) -> str:
        """One of the four; a product is worth what the worst of its factors is."""
        if self.images < FEW:
            return UNKNOWN
        if isinstance(self.views, Product):
            return min((factor.verdict for factor in self.factors), key=(UNKNOWN, CANNOT, HARD, CAN).index)
        found, chance = self.accuracy, self.chance
        skill, at_most = ((value - chance) / (100 - chance) for value in (found.mean, found.high))
        if found.low <= chance:
            return CANNOT if at_most < WELL else UNKNOWN
        return CANNOT if skill < HARDLY else HARD if skill < WELL else CAN

    def summary(self) -> dict[str, Any]:
        """As a run's result.json has it; percent."""
        found = self.accuracy
        return {
            "views": self.views.text,
            "images": self.images,
            "chance": self.chance,
            "accuracy": found.mean,
            "interval": [found.low, found.high],
            "by_view": {name: list(one) for name, one in self.by_view.items()},
            "verdict": self.verdict,
        }


def describe(found: ViewAccuracy) -> str:
    """`rot4: 97.1% of views recognised (96.0 to 97.9; guessing 25.0%): recognisable`."""
    mean, low, high = found.accuracy
    said = f"{mean:.1f}% of views recognised ({low:.1f} to {high:.1f}; guessing {found.chance:.1f}%)"
    return f"{found.views.text}: {said}: {found.verdict}"


def advise(found: ViewAccuracy, others: Sequence[str] = (), learnt: bool = True) -> str:
    """What to do about it, in a sentence or two; `others` are sets to suggest instead.

    `learnt` is whether the network that predicted the views has learnt anything at all.
    """
    text, verdict = found.views.text, found.verdict
    if verdict == CAN:
        shows = "--compare baseline shows if it does"
        return f"{text} is recognisable here, so SLA with it can help, above all from scratch; {shows}."
    if verdict == UNKNOWN:
        return f"{found.images} held-out images are too few to say whether {text} is recognisable."
    if not learnt:
        return f"{text} was not recognised, but neither were the classes: the run was too short to say."
    instead = f" Try --views {' or '.join(others)}." if others else " sla views shows which are recognisable."
    useless = [factor for factor in found.factors if factor.verdict == CANNOT]
    if len(found.factors) > 1 and useless:
        kept = "*".join(factor.views.text for factor in found.factors if factor.verdict != CANNOT)
        parts = " and ".join(factor.views.text for factor in useless)
        instead = f" Try --views '{kept}'." if kept else instead
        return f"{parts} in {text}: not recognisable here, it only costs time.{instead}"
    if verdict == CANNOT:
        return f"{text} is not recognisable here, so SLA with it cannot help.{instead}"
    return f"{text} is hardly recognisable here: expect little from SLA with it.{instead}"


def count_views(answers: Tensor, views: Views) -> ViewAccuracy:
    """From the predicted views (n*M,) of n images, interleaved as `expand_views` does."""
    num_views = len(views)
    true = torch.arange(num_views).repeat(len(answers) // num_views)
    counts = torch.bincount(true * num_views + answers.cpu(), minlength=num_views**2)
    return ViewAccuracy(views, counts.view(num_views, num_views))


@torch.inference_mode()
def measure_views(
    model: Classifier,
    dataset: Dataset,
    pipeline: Pipeline,
    *,
    workers: int = 0,
    fast: bool = False,
    progress: Progress = QUIET,
) -> ViewAccuracy | None:
    """How well a trained classifier predicts its views on at most ENOUGH images, evenly spaced.

    None where its method has one view, or nothing that learns to predict them. `fast`: by the fastest copy
    of the model.
    """
    method, answers = model.method, []
    if len(method.views) == 1:
        return None
    some = dataset.subset(spread(len(dataset), ENOUGH))
    engine = Engine(model, len(some), fast)
    for batch in iterate_eval(model, some, BATCH, workers):
        images = pipeline(batch.images, batch.draws, batch.aspect)
        with engine.on(images) as used:
            logits = method.predict_view(used.heads, used.features(method.expand(images)))
        if logits is None:
            return None
        answers.append(logits.argmax(1).cpu())
        progress.advance("predicting views", sum(map(len, answers)) // len(method.views), len(some))
    return count_views(torch.cat(answers), method.views)
