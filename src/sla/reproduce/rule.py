"""How a claim is judged: one pooled comparison over its cells and seeds, and Holm over the claims."""

import csv
import operator
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from importlib import resources
from statistics import fmean
from typing import NamedTuple

from sla.reproduce.paper import experiment
from sla.reproduce.results import Place, Results
from sla.stats import Pooled, holm, pooled

HOLDS, FAILS, OPEN, UNTESTED = "holds", "does not hold", "undecided", "not tested"
RISK = 0.05  # of one wrong verdict or more, among all claims
RATES = resources.files("sla.reproduce") / "verdict_rule.csv"  # made by benchmarks/verdict_rule.py


@dataclass(frozen=True)
class Contrast:
    """A number per seed, computed from cells of that seed; larger is better for the claim."""

    label: str
    places: tuple[Place, ...]
    of: Callable[..., float] = operator.sub

    def values(self, results: Results) -> dict[int, float]:
        """Ours, by seed."""
        return {seed: self.of(*numbers) for seed, numbers in results.by_seed(*self.places).items()}

    @property
    def paper(self) -> float | None:
        """The paper's; None unless it prints all the cells."""
        cells = [experiment(table).printed.get(row, {}).get(column) for table, row, column in self.places]
        return self.of(*(cell.value for cell in cells if cell)) if all(cells) else None

    @property
    def column(self) -> str:
        """The dataset, or the setting of one."""
        return self.places[0].column


@dataclass(frozen=True)
class Claim:
    """A statement of the paper: the average effect of each part, over its cells, is above a threshold.

    Most claims have one part. Where the words say 'both', 'each' or 'largest', an average would let one part
    hide another, and every part must be above.
    """

    text: str
    parts: Sequence[Sequence[Contrast]] = field(repr=False)
    above: float = 0.0
    ours: bool = False  # not a claim of the paper
    reading: str = ""  # what the data say, shown where the claim does not hold or is undecided
    equal: Sequence[Contrast] = field(
        default=(), repr=False
    )  # the same at equal training FLOP; judges nothing

    @property
    def contrasts(self) -> list[Contrast]:
        """Those of all parts."""
        return [contrast for part in self.parts for contrast in part]


@dataclass(frozen=True)
class Part:
    """A part of a claim with the contrasts that entered, and those that were run but have too few seeds."""

    entered: list[Contrast]
    left_out: list[Contrast]
    effect: Pooled | None  # None if nothing entered
    seeds: list[int]  # how many, of each group

    @property
    def paper(self) -> tuple[float, int] | None:
        """The paper's average effect, over those of the same cells that it prints; and how many these are."""
        found = [(contrast.column, contrast.paper) for contrast in self.entered]
        printed = [(column, value) for column, value in found if value is not None]
        columns = dict.fromkeys(column for column, _ in printed)
        means = [fmean(value for name, value in printed if name == column) for column in columns]
        return (fmean(means), len(printed)) if means else None


class Judgement(NamedTuple):
    """A claim with its verdict, its p-value adjusted by Holm, its parts and the weakest, which decides."""

    claim: Claim
    verdict: str
    p: float | None  # None if nothing could be tested
    parts: list[Part]
    weakest: Part


def pool(contrasts: Sequence[Contrast], results: Results) -> Part:
    """The mean over columns of the mean over a column's contrasts, and its error from seed to seed.

    Contrasts of one column, or of columns that share a run, are not independent: they are averaged for each
    seed that all of them have. Such groups are independent of each other. One seed has no spread: a contrast
    with one does not enter.
    """
    entered: list[Contrast] = []
    groups: list[list[float]] = []  # a number per seed
    sizes: list[int] = []  # how many columns a group has
    for group in _dependent([c for c in contrasts if len(c.values(results)) > 1], results):
        values = [(contrast.column, contrast.values(results)) for contrast in group]
        seeds = sorted(set(values[0][1]).intersection(*(one for _, one in values[1:])))
        if len(seeds) < 2:
            continue
        columns: dict[str, list[dict[int, float]]] = {}
        for column, one in values:
            columns.setdefault(column, []).append(one)
        entered += group
        groups.append([fmean(fmean(one[s] for one in same) for same in columns.values()) for s in seeds])
        sizes.append(len(columns))
    left_out = [c for c in contrasts if c not in entered and c.values(results)]
    effect = pooled(groups, [size / sum(sizes) for size in sizes]) if groups else None
    return Part(entered, left_out, effect, [len(values) for values in groups])


def _dependent(contrasts: Sequence[Contrast], results: Results) -> list[list[Contrast]]:
    """Groups of contrasts that are linked by a column or by a run."""
    groups: list[tuple[set[str], list[Contrast]]] = []
    for contrast in contrasts:
        links, members = {contrast.column, *results.runs(*contrast.places)}, [contrast]
        for other in [group for group in groups if group[0] & links]:
            links, members = links | other[0], other[1] + members
            groups.remove(other)
        groups.append((links, members))
    return [members for _, members in groups]


def sides(effects: Sequence[Pooled | None], above: float) -> tuple[float, float]:
    """One-sided p-values of a claim with these parts: that it holds (all do), that it does not (one fails).

    All parts hold: the largest p-value (an intersection-union test). One fails: Bonferroni over the parts.
    """
    tested = [effect for effect in effects if effect is not None]
    holds = max(effect.p_above(above) for effect in tested) if len(tested) == len(effects) else 1.0
    return holds, min(1.0, len(tested) * min(effect.p_below(above) for effect in tested))


def decide(p_values: Sequence[tuple[float, float]]) -> list[tuple[str, float]]:
    """Verdict and adjusted p-value of claims tested together, from their two one-sided p-values."""
    adjusted = holm([min(1.0, 2 * min(pair)) for pair in p_values])
    return [
        (OPEN if p >= RISK else HOLDS if holds < fails else FAILS, p)
        for (holds, fails), p in zip(p_values, adjusted, strict=True)
    ]


def judge(claims: Sequence[Claim], results: Results) -> list[Judgement]:
    """The verdict on every claim, in their order."""
    parts = [[pool(part, results) for part in claim.parts] for claim in claims]
    tested = [i for i, found in enumerate(parts) if any(part.effect for part in found)]
    pairs = [sides([part.effect for part in parts[i]], claims[i].above) for i in tested]
    decided = dict(zip(tested, decide(pairs), strict=True))
    judged = []
    for i, (claim, found) in enumerate(zip(claims, parts, strict=True)):
        run = any(part.left_out for part in found)
        verdict, p = decided.get(i, (OPEN if run else UNTESTED, None))
        # The weakest part decides: p below is 1 - p above. One without numbers only where none has any.
        weakest = max(found, key=lambda part: part.effect.p_above(claim.above) if part.effect else -1.0)
        judged.append(Judgement(claim, verdict, p, found, weakest))
    return judged


class Single(NamedTuple):
    """One comparison with two seeds or more: its effect, and its two-sided p-values, raw and by Holm."""

    contrast: Contrast
    effect: Pooled
    seeds: int
    expected: int  # the sign that the paper gives it; 0 if the paper does not have it
    p: float
    adjusted: float

    @property
    def opposite(self) -> bool:
        """Its own interval excludes 0, on the other side than the paper's."""
        return self.effect.interval.sign == -self.expected != 0


def singles(claims: Sequence[Claim], others: Sequence[Contrast], results: Results) -> list[Single]:
    """Each contrast of the claims, and each other one that is not among them."""
    listed = [(c, 0 if claim.ours else 1) for claim in claims for c in claim.contrasts]
    found: dict[Hashable, tuple[Contrast, Pooled, int, int]] = {}
    for contrast, sign in [*listed, *((contrast, 0) for contrast in others)]:
        values = list(contrast.values(results).values())
        # The paper has some rows in several tables, and some claims reverse a comparison: it is the same one.
        key = frozenset(results.runs(*contrast.places)), tuple(round(abs(value), 9) for value in values)
        if len(values) > 1 and key not in found:
            if contrast.paper is not None:
                sign = (contrast.paper > 0) - (contrast.paper < 0)
            found[key] = contrast, pooled([values], [1.0]), len(values), sign
    p_values = [min(1.0, 2 * min(one.p_above(), one.p_below())) for _, one, _, _ in found.values()]
    return [
        Single(*one, p, adjusted)
        for one, p, adjusted in zip(found.values(), p_values, holm(p_values), strict=True)
    ]


def rates() -> list[dict[str, str]]:
    """The simulated error rates of this rule."""
    return list(csv.DictReader(RATES.read_text(encoding="utf-8").splitlines()))
