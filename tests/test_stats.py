import math

import pytest

from sla.stats import Interval, interval, mean_sd, paired, t_quantile


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 9, 19, 100, 1000])
def test_the_quantile_is_scipys(freedom):
    stats = pytest.importorskip("scipy.stats")
    assert t_quantile(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=1e-6)
    assert t_quantile(freedom, 0.9) == pytest.approx(stats.t.ppf(0.9, freedom), rel=1e-6)


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
