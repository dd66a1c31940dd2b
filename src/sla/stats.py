"""The few statistics that tables and pages show: means, shares, paired differences, with intervals."""

import math
from collections.abc import Sequence
from statistics import NormalDist, fmean, stdev
from typing import NamedTuple


class Interval(NamedTuple):
    """An estimate with the ends of its 95% interval."""

    mean: float
    low: float
    high: float

    @property
    def sign(self) -> int:
        """+1 above zero, -1 below, 0 where the interval holds zero: not decided."""
        return (self.low > 0) - (self.high < 0)


def mean_sd(values: Sequence[float]) -> tuple[float, float]:
    """Mean and sample standard deviation; nan for the latter with fewer than two values."""
    return fmean(values), stdev(values) if len(values) > 1 else math.nan


def interval(values: Sequence[float]) -> Interval:
    """The mean with its 95% interval by Student's t; infinite with fewer than two values."""
    mean, sd = mean_sd(values)
    if len(values) < 2:
        return Interval(mean, -math.inf, math.inf)
    half = t_quantile(len(values) - 1) * sd / math.sqrt(len(values))
    return Interval(mean, mean - half, mean + half)


def share(hits: float, count: int) -> Interval:
    """`hits` of `count` as a share in percent, with its 95% interval by Wilson's score."""
    if count < 1:
        return Interval(math.nan, 0.0, 100.0)
    z2 = NormalDist().inv_cdf(0.975) ** 2
    middle = (hits + z2 / 2) / (count + z2)
    half = math.sqrt(z2 * (hits * (count - hits) / count + z2 / 4)) / (count + z2)
    # Rounding must not leave an end beside the share itself.
    low, high = min(middle - half, hits / count), max(middle + half, hits / count)
    return Interval(100 * hits / count, 100 * max(low, 0.0), 100 * min(high, 1.0))


def paired(values: Sequence[float], baseline: Sequence[float]) -> Interval:
    """The mean difference of values measured on the same seeds or images."""
    return interval([a - b for a, b in zip(values, baseline, strict=True)])


def t_quantile(freedom: int, probability: float = 0.975) -> float:
    """The point below which Student's t with this many degrees of freedom falls with the probability."""
    low, high = 0.0, 1e3
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_below(middle, freedom) < probability else (low, middle)
    return (low + high) / 2


def _t_below(t: float, freedom: int) -> float:
    """P(T < t) for t >= 0: with t = sqrt(freedom) * tan(a) the density becomes cos(a)^(freedom - 1)."""
    angle = math.atan(t / math.sqrt(freedom))
    steps = 400
    # Simpson's rule; the integrand is smooth and the range is at most pi / 2.
    points = (math.cos(angle * i / steps) ** (freedom - 1) * (4 if i % 2 else 2) for i in range(1, steps))
    area = angle / steps / 3 * (1 + sum(points) + math.cos(angle) ** (freedom - 1))
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(math.pi)
    return 0.5 + scale * area
