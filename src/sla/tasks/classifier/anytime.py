"""Rules for anytime aggregation, calibrated on held-out images: their labels are not needed."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from sla.anytime import AGREEMENT, AnytimeRule, count_views, margins, running_averages
from sla.augment.ops import Pipeline
from sla.classifier import Classifier
from sla.errors import InputError, shown
from sla.images.store import Dataset
from sla.progress import Progress
from sla.stats import at_most
from sla.tasks.classifier.evaluation import Outputs, infer

LEVELS = (0.9, 0.95, 0.98, 0.99, 0.995, 0.999)  # agreement with aggregation that a rule is found for
RISK = 0.05  # that a rule agrees less often than it says
ORDER_SHARE = 5  # one held-out image in five chooses the order of the views, the others the strictness
PER_DOUBLING, DOUBLINGS = 8, 6  # the strictness that is tried: from 2**6 to 2**-6 typical margins, then 0


def calibrate(class_logits: Tensor) -> list[AnytimeRule]:
    """Rules for the `LEVELS` that these class logits of every view, (n, M, N), can show; fewest views each.

    Some of the images choose the order of the views, the others the strictness. The rules to try are fixed
    before, from strict to loose; each is tested in turn for H0: it agrees with aggregation less often than
    the level (exact binomial test at `RISK`), and the last one before the first that is not rejected is
    taken. So a rule with a level that does not hold is given with a probability of `RISK` at most.
    """
    shuffled = torch.randperm(len(class_logits), generator=torch.Generator().manual_seed(0))
    first, rest = (class_logits[part] for part in _split(shuffled))
    if not len(first) or class_logits.shape[1] < 2:
        return []
    order = choose_order(first)
    typical = margins(first.mean(1)).median().item()
    steps = range(PER_DOUBLING * DOUBLINGS, -PER_DOUBLING * DOUBLINGS - 1, -1)
    tried = [AnytimeRule(order, typical * 2 ** (step / PER_DOUBLING)) for step in steps]
    tried = [*tried, AnytimeRule(order, 0.0)]
    running = running_averages(rest, order)
    margin, answers, count = margins(running), running.argmax(2), len(rest)
    counted = [_count(margin, answers, rule) for rule in tried]
    found = []
    for level in LEVELS:
        best = None
        for rule, (changed, views) in zip(tried, counted, strict=True):
            if at_most(changed, count, 1 - level) > RISK:
                break
            best = rule if views < count * len(order) else None
        if best is not None:
            found.append(AnytimeRule(order, best.strictness, level, count))
    return found


def find_rules(outputs: Outputs) -> list[AnytimeRule]:
    """Anytime rules from held-out images; none if the method does not aggregate view by view."""
    if outputs.by_view is None:
        return []
    if len(outputs.by_view) == len(outputs.targets):  # a method of one's own may aggregate otherwise
        ours, answers = outputs.by_view.mean(1), outputs.logits["aggregated"]
        if not torch.allclose(ours, answers, rtol=1e-3, atol=1e-3 * float(answers.abs().max())):
            return []
    return calibrate(outputs.by_view)


def rules_of_images(
    model: Classifier, held_out: Dataset, pipeline: Pipeline, progress: Progress
) -> list[AnytimeRule]:
    """Anytime rules from a pass over held-out images."""
    what = "calibrating anytime inference"
    return find_rules(infer(model, held_out, pipeline, by_view=True, progress=progress, what=what))


def rule_at(rules: Sequence[AnytimeRule], agreement: float = AGREEMENT) -> AnytimeRule | None:
    """The rule for this level, if there is one."""
    return next((rule for rule in rules if rule.agreement == agreement), None)


def require_rule(rules: Sequence[AnytimeRule], agreement: float, held_out: int, folder: Path) -> AnytimeRule:
    """The rule for this level; refused where the held-out images of the run, so many, did not show it."""
    rule = rule_at(rules, agreement)
    if rule is None:
        levels = " or ".join(f"{rule.agreement:g}" for rule in rules)
        others = f"use --agreement {levels}" if levels else "the lower levels cannot be shown either"
        if agreement not in LEVELS:
            others = f"the levels are {', '.join(f'{level:g}' for level in LEVELS)}; {others}"
        raise InputError(
            f"{shown(folder)}: no anytime rule with agreement {agreement:g}: {held_out:,} held-out images "
            f"are too few, or its views disagree too often; {others}; hold out more (data.hold_out)"
        )
    return rule


def choose_order(class_logits: Tensor) -> tuple[int, ...]:
    """Views by greedy choice: each next one gives the average most answers of all views, (n, M, N)."""
    answers, left = class_logits.mean(1).argmax(1), list(range(class_logits.shape[1]))
    order, total = list[int](), torch.zeros_like(class_logits[:, 0])
    while left:
        agreeing = [int(((total + class_logits[:, view]).argmax(1) == answers).sum()) for view in left]
        order.append(left.pop(agreeing.index(max(agreeing))))
        total = total + class_logits[:, order[-1]]
    return tuple(order)


def _split(shuffled: Tensor) -> tuple[Tensor, Tensor]:
    few = len(shuffled) // ORDER_SHARE
    return shuffled[:few], shuffled[few:]


def _count(margin: Tensor, answers: Tensor, rule: AnytimeRule) -> tuple[int, int]:
    """How many answers differ from those of all views, and the views taken, from (n, M) running values."""
    views = count_views(margin, rule)
    changed = answers.gather(1, views.unsqueeze(1) - 1).squeeze(1) != answers[:, -1]
    return int(changed.sum()), int(views.sum())
