"""Statistics for tables and pages: means, proportions and paired differences, with 95% intervals."""

import math
from collections.abc import Callable, Sequence
from statistics import NormalDist, fmean, stdev
from typing import NamedTuple

TINY = 1e-9  # a standard error below this is rounding


class Interval(NamedTuple):
    """An estimate with the ends of its 95% interval."""

    mean: float
    low: float
    high: float

    @property
    def sign(self) -> int:
        """+1 if the interval is above zero, -1 if below, 0 if it contains zero."""
        return (self.low > 0) - (self.high < 0)

    def ends(self, spec: str = ".1f") -> str:
        """`81.2 to 84.0`."""
        return f"{self.low:{spec}} to {self.high:{spec}}"

    def percent(self, spec: str = ".0f") -> str:
        """`83% (81 to 84)`."""
        return f"{self.mean:{spec}}% ({self.ends('.0f')})"


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
    """`hits` of `count` in percent, with Wilson's 95% score interval."""
    if count < 1:
        return Interval(math.nan, 0.0, 100.0)
    z2 = NormalDist().inv_cdf(0.975) ** 2
    middle = (hits + z2 / 2) / (count + z2)
    half = math.sqrt(z2 * (hits * (count - hits) / count + z2 / 4)) / (count + z2)
    # Rounding must not exclude the estimate itself.
    low, high = min(middle - half, hits / count), max(middle + half, hits / count)
    return Interval(100 * hits / count, 100 * max(low, 0.0), 100 * min(high, 1.0))


def paired(values: Sequence[float], baseline: Sequence[float]) -> Interval:
    """The mean difference of values measured on the same seeds or images, with its interval."""
    return interval([a - b for a, b in zip(values, baseline, strict=True)])


def paired_shares(gained: int, lost: int, count: int) -> Interval:
    """The difference of two proportions of the same `count` images, in points, with Tango's 95% interval.

    `gained` counts hits of the second alone, `lost` of the first alone. The interval contains every d that
    the score test (gained - lost - count d)^2 <= z^2 count (2 q + d (1 - d)) does not reject, where q
    is the maximum-likelihood proportion of the lost given d. It is valid for few images and near 0 or 1.
    """
    if count < 1:
        return Interval(math.nan, -100.0, 100.0)
    z = NormalDist().inv_cdf(0.975)

    def score(d: float) -> float:
        b = (2 * count - gained + lost) * d - gained - lost
        q = (math.sqrt(max(b * b + 8 * count * lost * d * (1 - d), 0.0)) - b) / (4 * count)
        variance = count * (2 * q + d * (1 - d))
        distance = gained - lost - count * d
        return distance / math.sqrt(variance) if variance > 0 else math.copysign(math.inf, distance)

    found = (gained - lost) / count
    low, high = _where(score, z, -1.0, found), _where(score, -z, found, 1.0)
    return Interval(100 * found, 100 * low, 100 * high)


def _where(decreasing: Callable[[float], float], wanted: float, low: float, high: float) -> float:
    """Where between two points a function has a value, by bisection."""
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if decreasing(middle) > wanted else (low, middle)
    return (low + high) / 2


def mcnemar(gained: int, lost: int) -> float:
    """McNemar's exact p-value: the probability of a split at least as uneven if both were equally likely."""
    changes, tail, term = gained + lost, 0, 1
    for k in range(min(gained, lost) + 1):
        tail += term  # the binomial coefficient (changes, k)
        term = term * (changes - k) // (k + 1)
    return min(2 * tail / 2**changes, 1.0)


def at_most(hits: int, count: int, probability: float) -> float:
    """The binomial probability of `hits` or fewer out of `count`: a one-sided exact p-value."""
    if not 0 < probability < 1:
        return 1.0 if probability <= 0 or hits >= count else 0.0
    log, log_not = math.log(probability), math.log1p(-probability)
    ways = (math.lgamma(count + 1) - math.lgamma(k + 1) - math.lgamma(count - k + 1) for k in range(hits + 1))
    return min(sum(math.exp(w + k * log + (count - k) * log_not) for k, w in enumerate(ways)), 1.0)


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values adjusted by Holm: the significance level holds for all the tests together."""
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        largest = max(largest, min((len(p_values) - rank) * p_values[place], 1.0))
        adjusted[place] = largest
    return adjusted


class Pooled(NamedTuple):
    """A mean over independent groups, with its standard error and (Welch-Satterthwaite) degrees of freedom.

    Without any spread nothing can be tested: the interval is infinite, and p is 1.
    """

    mean: float
    error: float
    freedom: float

    @property
    def interval(self) -> Interval:
        """95%, by Student's t."""
        half = t_quantile(self.freedom) * self.error if self.error > TINY else math.inf
        return Interval(self.mean, self.mean - half, self.mean + half)

    def p_above(self, threshold: float = 0.0) -> float:
        """The one-sided p-value for a true mean above the threshold."""
        return _t_tail((self.mean - threshold) / self.error, self.freedom) if self.error > TINY else 1.0

    def p_below(self, threshold: float = 0.0) -> float:
        """The one-sided p-value for a true mean below the threshold."""
        return self._replace(mean=-self.mean).p_above(-threshold)


def pooled(groups: Sequence[Sequence[float]], weights: Sequence[float]) -> Pooled:
    """sum w_g mean_g over groups of at least two values, whose standard deviations s_g may differ.

    error^2 = sum v_g with v_g = w_g^2 s_g^2 / n_g; freedom = error^4 / sum(v_g^2 / (n_g - 1)).
    """
    weighted = list(zip(groups, weights, strict=True))
    parts = [(weight * stdev(values)) ** 2 / len(values) for values, weight in weighted]
    below = sum(part**2 / (len(values) - 1) for part, values in zip(parts, groups, strict=True))
    mean = sum(weight * fmean(values) for values, weight in weighted)
    return Pooled(mean, math.sqrt(sum(parts)), sum(parts) ** 2 / below if below else math.nan)


def t_quantile(freedom: float, probability: float = 0.975) -> float:
    """The point below which Student's t with this many degrees of freedom falls with the probability."""
    return _where(lambda t: _t_tail(t, freedom), 1 - probability, 0.0, 1e3)


def _t_tail(t: float, freedom: float) -> float:
    """P(T > t): half of the incomplete beta function I_x(freedom / 2, 1 / 2), x = freedom / (freedom + t^2).

    By its continued fraction, which converges fast on the side of the mean where it is used.
    """
    if t < 0:
        return 1 - _t_tail(-t, freedom)
    x, a, b = freedom / (freedom + t * t), freedom / 2, 0.5
    turned = x > (a + 1) / (a + b + 2)
    if turned:
        x, a, b = t * t / (freedom + t * t), b, a
    if x == 0:
        return 0.5 if turned else 0.0
    scale = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    beta = math.exp(scale) / (a * _beta_fraction(x, a, b))
    return (1 - beta) / 2 if turned else beta / 2


def _beta_fraction(x: float, a: float, b: float) -> float:
    """1 + d1 / (1 + d2 / (1 + ...)), from the inside outwards."""
    value = 1.0
    for i in range(200, 0, -1):
        m = i // 2
        over = -(a + m) * (a + b + m) / (a + 2 * m + 1) if i % 2 else m * (b - m) / (a + 2 * m - 1)
        value = 1 + over * x / (a + 2 * m) / value
    return value
