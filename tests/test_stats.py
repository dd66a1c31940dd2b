import math

import numpy as np
import pytest

from sla.stats import Interval, Pooled, holm, interval, mcnemar, mean_sd, paired, paired_shares, t_quantile


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 9, 19, 100, 1000])
def test_the_quantile_is_scipys(freedom):
    stats = pytest.importorskip("scipy.stats")
    assert t_quantile(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=1e-6)
    assert t_quantile(freedom, 0.9) == pytest.approx(stats.t.ppf(0.9, freedom), rel=1e-6)


@pytest.mark.parametrize("freedom", [1, 1.3, 2, 4.7, 12, 300.5])
@pytest.mark.parametrize("t", [-3.0, 0.0, 0.2, 1.0, 2.5, 9.0, 80.0])
def test_tails_are_scipys_also_between_whole_degrees_of_freedom(t, freedom):
    stats = pytest.importorskip("scipy.stats")
    found = Pooled(t, 1.0, freedom)
    assert found.p_above() == pytest.approx(stats.t.sf(t, freedom), rel=1e-9, abs=1e-300)
    assert found.p_below(0.5) == pytest.approx(stats.t.cdf(t - 0.5, freedom), rel=1e-9, abs=1e-15)


def test_a_paired_difference_is_scipys_interval():
    stats = pytest.importorskip("scipy.stats")
    a, b = [3.0, 5.5, 4.0, 6.0, 5.0], [2.5, 4.0, 4.5, 4.0, 4.0]
    low, high = stats.ttest_rel(a, b).confidence_interval(0.95)
    assert paired(a, b) == pytest.approx((0.9, low, high))


def test_signs_and_single_values():
    assert Interval(1, 0.5, 1.5).sign == 1
    assert Interval(-1, -1.5, -0.5).sign == -1
    assert Interval(1, -0.5, 2.5).sign == 0
    assert interval([3.0]) == (3.0, -math.inf, math.inf)
    assert mean_sd([1.0, 3.0]) == pytest.approx((2.0, math.sqrt(2)))
    assert math.isnan(mean_sd([1.0])[1])


def tango_by_search(gained, lost, count):
    """The ends of the score interval with the likelihood under each difference maximised by a search."""
    optimize = pytest.importorskip("scipy.optimize")
    z2 = 1.959963984540054**2

    def excess(d):
        def unlikely(q):  # the share of the lost is q, of the gained q + d, of the rest what is left
            rest = count - gained - lost
            parts = ((gained, q + d), (lost, q), (rest, 1 - 2 * q - d))
            return -sum(n * math.log(max(share, 1e-300)) for n, share in parts if n)

        low, high = max(0.0, -d), (1 - d) / 2
        exact = {"method": "bounded", "options": {"xatol": 1e-12}}
        q = optimize.minimize_scalar(unlikely, bounds=(low, high), **exact).x
        return (gained - lost - count * d) ** 2 - z2 * count * (2 * q + d - d * d)

    found = (gained - lost) / count
    edge = 1 - 1e-9
    sides = (-edge, found - 1e-7), (found + 1e-7, edge)
    return tuple(100 * optimize.brentq(excess, *ends) for ends in sides)


@pytest.mark.parametrize(
    "counts", [(24, 8, 360), (8, 24, 360), (5, 4, 30), (1, 0, 20), (30, 30, 100), (9, 2, 12)]
)
def test_a_paired_difference_of_shares_is_the_score_interval(counts):
    gained, lost, count = counts
    found = paired_shares(*counts)
    assert found.mean == pytest.approx(100 * (gained - lost) / count)
    assert (found.low, found.high) == pytest.approx(tango_by_search(*counts), abs=1e-3)
    turned = paired_shares(lost, gained, count)
    assert (-turned.high, -turned.low) == pytest.approx((found.low, found.high), abs=1e-9)


def test_a_difference_without_changes_has_the_interval_of_the_closed_form():
    """With no change, the score test leaves +-z^2 / (n + z^2)."""
    z2 = 1.959963984540054**2
    edge = 100 * z2 / (50 + z2)
    assert paired_shares(0, 0, 50) == pytest.approx((0, -edge, edge), abs=1e-6)
    assert paired_shares(50, 0, 50).high == pytest.approx(100)
    assert paired_shares(0, 0, 0)[1:] == (-100, 100)


@pytest.mark.parametrize(
    ("share_gained", "share_lost", "count"), [(0.1, 0.05, 100), (0.03, 0.03, 60), (0.3, 0.1, 40)]
)
def test_the_interval_holds_the_truth_about_95_times_in_100(share_gained, share_lost, count):
    shares = [share_gained, share_lost, 1 - share_gained - share_lost]
    draws = np.random.default_rng(0).multinomial(count, shares, 2000)
    known = {}
    for gained, lost, _ in draws.tolist():
        if (gained, lost) not in known:
            _, low, high = paired_shares(gained, lost, count)
            known[gained, lost] = low <= 100 * (share_gained - share_lost) <= high
    held = np.mean([known[gained, lost] for gained, lost, _ in draws.tolist()])
    assert 0.93 < held < 0.985


def test_mcnemar_is_the_binomial_test():
    stats = pytest.importorskip("scipy.stats")
    for gained, lost in ((0, 0), (1, 0), (5, 5), (24, 8), (8, 24), (700, 600), (3000, 2000)):
        changes = gained + lost
        expected = stats.binomtest(gained, changes, 0.5).pvalue if changes else 1.0
        assert mcnemar(gained, lost) == pytest.approx(expected, rel=1e-9)
    assert mcnemar(5, 0) == 2 / 32


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.6]) == [1.0, 1.0]
    assert holm([0.02]) == [0.02]
