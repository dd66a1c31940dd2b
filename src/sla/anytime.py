"""Anytime aggregation: the views of an image one after the other, until its answer is settled."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sla.errors import InputError

AGREEMENT = 0.99  # of the rule that is used unless another is asked for


class Settled(NamedTuple):
    """Class logits (B, N), averaged over as many views as each image needed: (B,)."""

    logits: Tensor
    views: Tensor


@dataclass(frozen=True)
class AnytimeRule:
    """When an image has been seen in enough of its M views.

    After k views an answer is settled if the margin between the two largest of the averaged logits is at
    least strictness * sqrt((M - k) / (k * M)). Let the margins of an image's views be independent normal
    draws of one variance, whose mean is unknown and has a flat prior. Given the first k, the variance of the
    mean of all M is (M - k) / (k * M) times that, so the other views overturn an answer at this bound with
    the same probability for every k.

    Attributes:
        order: the view numbers in the order in which they are taken.
        strictness: 0 stops after one view; infinity takes all views.
        agreement: share of images that get the answer of all views, as shown on held-out images.
        images: the number of those; 0 if the rule was not calibrated.
    """

    order: tuple[int, ...]
    strictness: float
    agreement: float = 1.0
    images: int = 0

    def __post_init__(self) -> None:
        numbers = (self.strictness, self.agreement, self.images)
        if not isinstance(self.order, Sequence) or not all(isinstance(one, int | float) for one in numbers):
            raise InputError(f"an anytime rule has an order of views and three numbers, not {self!r}")
        whole = all(isinstance(view, int) for view in self.order)
        if not self.order or not whole or sorted(self.order) != list(range(len(self.order))):
            raise InputError(f"an anytime rule needs every view number once in its order, not {self.order!r}")
        object.__setattr__(self, "order", tuple(self.order))
        if not self.strictness >= 0:
            raise InputError(f"the strictness of an anytime rule is 0 or more, not {self.strictness!r}")
        if not 0 <= self.agreement <= 1 or self.images < 0:
            raise InputError(
                "an anytime rule has an agreement from 0 to 1 and 0 or more images, "
                f"not {self.agreement!r} and {self.images!r}"
            )

    @property
    def thresholds(self) -> tuple[float, ...]:
        """The margin that settles an answer after 1, ..., M views; after the last, any does."""
        total = len(self.order)
        bounds = (self.strictness * math.sqrt((total - k) / (k * total)) for k in range(1, total))
        return (*bounds, -math.inf)

    @property
    def takes_all(self) -> bool:
        """Whether no margin is large enough to stop."""
        return math.isinf(self.strictness)

    def to_dict(self) -> dict[str, Any]:
        """As plain values that JSON can hold."""
        return {**asdict(self), "order": list(self.order)}

    @classmethod
    def from_dict(cls, values: Any) -> "AnytimeRule":
        """What `to_dict` gave, perhaps by way of JSON."""
        names = [each.name for each in fields(cls)]
        if not isinstance(values, Mapping) or sorted(values) != sorted(names):
            raise InputError(f"an anytime rule has {', '.join(names)}, not {values!r}")
        try:
            order = tuple(values["order"])
            return cls(order, float(values["strictness"]), float(values["agreement"]), int(values["images"]))
        except (TypeError, ValueError, OverflowError):
            raise InputError(f"not an anytime rule: {values!r}") from None


def margins(class_logits: Tensor) -> Tensor:
    """The difference of the two largest logits: (..., N) -> (...)."""
    best = class_logits.topk(2, -1).values
    return best[..., 0] - best[..., 1]


def running_averages(class_logits: Tensor, order: tuple[int, ...]) -> Tensor:
    """Class logits of each view (B, M, N) -> averages over the first 1, ..., M views of the order, (B, M, N).

    The last is the aggregated answer itself, in the same summation order.
    """
    counts = torch.arange(1, len(order) + 1, device=class_logits.device).unsqueeze(1)
    running = class_logits[:, list(order)].cumsum(1) / counts
    return torch.cat([running[:, :-1], class_logits.mean(1, keepdim=True)], 1)


def count_views(margins: Tensor, rule: AnytimeRule) -> Tensor:
    """How many views each image takes, (B,), from its margins after 1, ..., M views, (B, M)."""
    unsettled = margins < torch.tensor(rule.thresholds, device=margins.device)
    return (~unsettled).int().argmax(1) + 1  # the first place


def settle(class_logits: Tensor, rule: AnytimeRule) -> Settled:
    """What anytime aggregation answers, from the class logits of every view (B, M, N)."""
    check_views(rule, class_logits.shape[1])
    running = running_averages(class_logits, rule.order)
    views = count_views(margins(running), rule)
    place = (views - 1).view(-1, 1, 1).expand(-1, 1, running.shape[2])
    return Settled(running.gather(1, place).squeeze(1), views)


def classify_until_settled(
    classify: Callable[[Tensor, int], Tensor], input: Tensor, rule: AnytimeRule
) -> Settled:
    """The same without computing views that are not needed: settled images leave the batch between views.

    `classify(images, view)` gives the class logits (b, N) of images (b, ...) seen through one view.
    """
    places = torch.arange(input.shape[0], device=input.device)
    total: Tensor | float = 0.0
    found: list[tuple[Tensor, Tensor, Tensor]] = []
    for count, (view, threshold) in enumerate(zip(rule.order, rule.thresholds, strict=True), 1):
        total = total + classify(input, view)
        logits = total / count
        rest = margins(logits) < threshold
        found.append((places[~rest], logits[~rest], torch.full_like(places[~rest], count)))
        places, input, total = places[rest], input[rest], total[rest]
        if not len(places):
            break
    order, logits, views = (torch.cat(parts) for parts in zip(*found, strict=True))
    back = order.argsort()
    return Settled(logits[back], views[back])


def check_views(rule: AnytimeRule, num_views: int) -> None:
    """Refuse a rule for another number of views."""
    if len(rule.order) != num_views:
        raise InputError(f"an anytime rule for {len(rule.order)} views does not fit {num_views} views")
