"""The rule behind a verdict: by hand, by scipy, and against its simulated error rates."""

import math
from statistics import mean, variance

import numpy as np
import pytest
import verdict_rule

from sla.reproduce.claims import claims
from sla.reproduce.records import Record
from sla.reproduce.results import Place, Results
from sla.reproduce.rule import FAILS, HOLDS, OPEN, Claim, Contrast, decide, judge, pool, rates, sides
from sla.stats import pooled

stats = pytest.importorskip("scipy.stats")


def made_up(cells, runs=None):
    """Results from {(row, column): {seed: number}}; a run for each number, or those named in `runs`."""
    values = {Place("table1", *cell): numbers for cell, numbers in cells.items()}

    def record(place, seed):
        key = (runs or {}).get((place.row, place.column), f"{place.row} {place.column}")
        about = {"kind": "train", "scale": "small", "label": "", "settings": {}, "members": []}
        return Record(key=f"{key}{seed}", seed=seed, **about)

    records = {place: {seed: record(place, seed) for seed in numbers} for place, numbers in values.items()}
    return Results("small", values, records)


def over(row, column, against="base"):
    return Contrast(f"{row} {column}", (Place("table1", row, column), Place("table1", against, column)))


def seeded(*numbers):
    return dict(enumerate(numbers))


def test_a_pooled_effect_by_hand():
    """Two contrasts in one column, one in another with more seeds and more noise."""
    cells = {("base", "x"): seeded(50, 51, 52), ("base", "y"): seeded(60, 61, 62, 63)}
    cells |= {("a", "x"): seeded(53.0, 54.5, 54.0), ("b", "x"): seeded(51.0, 51.5, 53.5)}
    results = made_up(cells | {("a", "y"): seeded(65, 62, 66, 71)})
    found = pool([over("a", "x"), over("b", "x"), over("a", "y")], results)
    x = [(3.0 + 1.0) / 2, (3.5 + 0.5) / 2, (2.0 + 1.5) / 2]
    y = [5, 1, 4, 8]
    parts = [variance(x) / 3 / 4, variance(y) / 4 / 4]
    assert found.effect.mean == pytest.approx((mean(x) + mean(y)) / 2)
    assert found.effect.error == pytest.approx(math.sqrt(sum(parts)))
    assert found.effect.freedom == pytest.approx(sum(parts) ** 2 / (parts[0] ** 2 / 2 + parts[1] ** 2 / 3))
    assert found.seeds == [3, 4]
    # Two columns: as for a difference of two means by Welch, with the sign of one turned.
    welch = stats.ttest_ind(x, [-value for value in y], equal_var=False)
    assert found.effect.freedom == pytest.approx(welch.df)
    assert 2 * found.effect.p_above() == pytest.approx(welch.pvalue)
    assert found.effect.interval[1:] == pytest.approx([end / 2 for end in welch.confidence_interval(0.95)])


@pytest.mark.parametrize("threshold", [-0.5, 0.0, 2.0])
def test_one_column_is_students_test(threshold):
    values = [1.0, 2.5, 0.3, 1.8]
    found = pooled([values], [1.0])
    for side, p in (("greater", found.p_above(threshold)), ("less", found.p_below(threshold))):
        assert p == pytest.approx(stats.ttest_1samp(values, threshold, alternative=side).pvalue)
    assert found.freedom == pytest.approx(3)
    assert found.interval[1:] == pytest.approx(tuple(stats.ttest_1samp(values, 0).confidence_interval(0.95)))


def test_columns_that_share_a_run_are_one_group_and_count_as_two_columns():
    """As 1-shot and 5-shot of a model that is trained once."""
    cells = {("base", column): seeded(1, 2, 3) for column in ("one", "five", "other")}
    cells |= {
        ("a", "one"): seeded(2, 4, 4),
        ("a", "five"): seeded(2.5, 4, 4),
        ("a", "other"): seeded(4, 6, 8),
    }
    contrasts = [over("a", column) for column in ("one", "five", "other")]
    apart = pool(contrasts, made_up(cells))
    shared = pool(contrasts, made_up(cells, {("base", "one"): "same", ("base", "five"): "same"}))
    assert (len(apart.seeds), len(shared.seeds)) == (3, 2)
    assert shared.effect.mean == pytest.approx(apart.effect.mean)
    first, second = [1.25, 2, 1], [3, 4, 5]
    error = math.sqrt(4 / 9 * variance(first) / 3 + variance(second) / 27)
    assert shared.effect.error == pytest.approx(error)


def test_one_seed_does_not_enter_and_is_named():
    cells = {("base", "x"): seeded(1, 2), ("a", "x"): seeded(3, 5)}
    cells |= {("base", "y"): seeded(1), ("a", "y"): seeded(9)}
    found = pool([over("a", "x"), over("a", "y")], made_up(cells))
    assert found.effect.mean == pytest.approx(2.5)
    assert [contrast.label for contrast in found.left_out] == ["a y"]
    (alone,) = judge([Claim("", [[over("a", "y")]])], made_up(cells))
    assert (alone.verdict, alone.p) == (OPEN, None)


def test_without_spread_nothing_is_decided():
    found = pooled([[2.0, 2.0, 2.0]], [1.0])
    assert found.p_above() == found.p_below() == 1
    assert found.interval.sign == 0


def test_the_papers_effect_is_over_the_same_cells():
    """CIFAR10 alone, and without the row that the paper does not have."""
    (claim,) = [one for one in claims() if one.text.startswith("Under rotation")]
    places = [contrast.places[0] for contrast in claim.parts[0]]
    assert {place.row for place in places} == {"baseline"}
    assert claim.parts[0][0].paper == pytest.approx(92.39 - 90.44)
    cells = {
        (row, column): seeded(*numbers)
        for column in ("cifar10", "cifar100")
        for row, numbers in (("baseline", (60, 61)), ("da", (55, 57)), ("da-ag", (56, 59)))
    }
    part = pool([over(row, "cifar10", "da") for row in ("baseline", "da-ag")], made_up(cells))
    assert part.paper == (pytest.approx(92.39 - 90.44), 1)
    part = pool([over("baseline", column, "da") for column in ("cifar10", "cifar100")], made_up(cells))
    assert part.paper == (pytest.approx((92.39 - 90.44 + 68.27 - 65.73) / 2), 2)


def test_holm_over_claims_by_hand():
    """Sorted, each p-value times the number of those not smaller, until one of them fails."""
    pairs = [(0.004, 0.996), (0.0125, 0.9875), (0.2, 0.8), (0.998, 0.002)]
    two_sided = [2 * min(pair) for pair in pairs]
    expected, stopped = {}, False
    for rank, place in enumerate(sorted(range(4), key=two_sided.__getitem__)):
        stopped = stopped or (4 - rank) * two_sided[place] >= 0.05
        expected[place] = OPEN if stopped else HOLDS if pairs[place][0] < 0.5 else FAILS
    assert [verdict for verdict, _ in decide(pairs)] == [expected[place] for place in range(4)]
    assert [verdict for verdict, _ in decide(pairs)] == [HOLDS, OPEN, OPEN, FAILS]


def row_of(shape):
    (row,) = [row for row in rates() if tuple(int(row[key]) for key in verdict_rule.COLUMNS[:5]) == shape]
    return {key: float(value) for key, value in row.items()}


def error(rate, count):
    """Four standard errors of a simulated share."""
    return 4 * math.sqrt((rate * (1 - rate) + 1e-4) / count)


def test_every_shape_is_in_the_table_and_risks_at_most_5_percent():
    assert len(rates()) == len(verdict_rule.SHAPES)
    for shape in verdict_rule.SHAPES:
        row = row_of(shape)
        if shape[3:] == (0, 1):  # columns that do not differ, of the same noise
            for key in ("one_false_all_null", "one_false"):
                assert row[key] <= 0.05 + error(0.05, row["repeats"]) / 2, (shape, key)


@pytest.mark.parametrize("shape", [(1, 5, 1, 0, 1), (3, 3, 1, 0, 1), (3, 5, 2, 0, 1)])
def test_the_rule_itself_has_the_rates_of_the_table(shape):
    """The table is made by whole arrays; here the rule of the package judges simulated claims one by one."""
    repeats, effects = 60, verdict_rule.EFFECTS
    values = verdict_rule.draw(np.random.default_rng(7), shape, effects, repeats)
    found = []
    for claims_of_one in values:
        parts = [
            [pooled(part.tolist(), [1 / len(part)] * len(part)) for part in claim] for claim in claims_of_one
        ]
        found.append([verdict for verdict, _ in decide([sides(part, 0.0) for part in parts])])
    signs = np.array([[{HOLDS: 1, FAILS: -1, OPEN: 0}[verdict] for verdict in row] for row in found])
    assert (signs == verdict_rule.verdicts(values)).all()
    row, held = row_of(shape), signs > 0
    for key, rate in (("power_1", held[:, effects == 1].mean()), ("power_3", held[:, effects == 3].mean())):
        # Claims of one repeat share Holm's step: counted as one, which is the safe side.
        assert rate == pytest.approx(row[key], abs=error(row[key], repeats))
    again = verdict_rule.measure(shape, 2000)
    for key in verdict_rule.COLUMNS[6:]:
        assert float(again[key]) == pytest.approx(row[key], abs=1.5 * error(row[key], 2000)), key
