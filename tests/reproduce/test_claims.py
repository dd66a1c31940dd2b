"""A verdict follows from the numbers: made-up rows that hold, do not hold, and leave it open."""

import pytest

from sla.reproduce.claims import COMPARABLE, FAILS, HOLDS, OPEN, UNTESTED, claims
from sla.reproduce.jobs import cells_of
from sla.reproduce.records import Record
from sla.reproduce.render import render
from sla.reproduce.results import collect


def record(job, **values):
    return Record(
        key=job.key,
        kind=job.kind,
        scale=job.scale,
        label=job.label,
        seed=job.seed,
        settings=dict(job.settings),
        members=[member.key for member in job.members],
        **values,
    )


def rows(table, numbers):
    """Records that give these numbers, a list of one for each seed, in every column of the named rows."""
    found = {}
    for row, values in numbers.items():
        for cell in cells_of(table, "small", len(values), [row]):
            value = values[cell.seed]
            old = found.get(cell.job.key, record(cell.job))
            if cell.score in ("single", "aggregated", "distilled"):
                changed = {"scores": {"last": {**old.scores.get("last", {}), cell.score: value}}}
            else:
                changed = {"more": {**old.more, cell.score: value}}
            found[cell.job.key] = old.model_copy(update=changed)
    return found


def verdict(text, records):
    (claim,) = [claim for claim in claims() if claim.text.startswith(text)]
    return claim.judge(collect(records, "small"))[0]


BASE = [60.0, 61.0, 62.0]


@pytest.mark.parametrize(
    ("gains", "expected"),
    [([3.0, 3.2, 2.9], HOLDS), ([-3.0, -3.2, -2.9], FAILS), ([3.0, -2.0, 0.5], OPEN)],
)
def test_better_than_the_baseline(gains, expected):
    ours = [b + g for b, g in zip(BASE, gains, strict=True)]
    assert (
        verdict("SLA distilled is above", rows("table3", {"baseline": BASE, "rotation-sd": ours})) == expected
    )


def test_without_rows_nothing_is_tested_and_one_seed_decides_nothing():
    assert verdict("SLA distilled is above", {}) == UNTESTED
    assert verdict("SLA distilled is above", rows("table3", {"baseline": [60], "rotation-sd": [70]})) == OPEN


@pytest.mark.parametrize(
    ("errors", "expected"), [([3.0, 3.2, 2.9], HOLDS), ([6.0, 6.2, 6.1], FAILS), ([3.0, 7.0, 5.1], OPEN)]
)
def test_where_errors_are_printed_lower_is_better(errors, expected):
    numbers = {"cutout": [95.0, 95.1, 95.05], "cutout-sd": [100 - error for error in errors]}
    assert verdict("SLA distilled lowers the error under Cutout", rows("table5", numbers)) == expected


@pytest.mark.parametrize(("below", "expected"), [(1.0, HOLDS), (2.0, FAILS), (COMPARABLE, OPEN)])
def test_comparable_to_an_ensemble_means_within_a_margin(below, expected):
    wobble = [0.05, -0.05, 0.0]
    ours = [b - below + w for b, w in zip(BASE, wobble, strict=True)]
    assert verdict("SLA aggregated is comparable", rows("table2", {"ie": BASE, "sla-ag": ours})) == expected


@pytest.mark.parametrize(
    ("change", "noise", "expected"),
    [(0.2, 0.1, HOLDS), (-0.02, 0.1, HOLDS), (-0.2, 0.01, FAILS), (-0.2, 1.0, OPEN)],
)
def test_not_below_has_room_for_noise(change, noise, expected):
    """An interval around zero that ends above the margin is not below; one wholly below zero is."""
    ours = [b + change + w for b, w in zip(BASE, (noise, -noise, 0.0), strict=True)]
    assert verdict("SLA in single", rows("table1", {"baseline": BASE, "sla-si": ours})) == expected


@pytest.mark.parametrize(
    ("gaps", "expected"),
    [((20, 10, 12), HOLDS), ((10, 20, 12), FAILS), ((10, 10, 5), OPEN)],
)
def test_the_gap_between_train_and_test(gaps, expected):
    numbers = {}
    for (name, gap), noise in zip(zip(("da", "mt", "sla"), gaps, strict=True), (0.0, 0.3, -0.2), strict=True):
        numbers[f"{name}-train"] = [80.0 + gap / 2, 81.0 + gap / 2 + noise, 79.0 + gap / 2]
        numbers[f"{name}-test"] = [80.0 - gap / 2, 81.0 - gap / 2, 79.0 - gap / 2]
    assert verdict("DA has the largest gap", rows("figure3", numbers)) == expected


def test_gains_that_grow_as_data_shrinks_by_hand():
    """Relative gains of 50% at 25 images per class and 10% at 250: the contrast is 40 points."""
    records = rows("figure4", {"baseline": [20.0, 20.2], "sla-ag": [30.0, 30.3]})
    large = {cell.job.key for cell in cells_of("figure4", "small", 2) if cell.column == "n250"}
    changed = dict(records)
    for key in large & records.keys():
        if "aggregated" in (last := records[key].scores["last"]):
            scores = {"last": {"aggregated": last["aggregated"] * 22 / 30}}
            changed[key] = records[key].model_copy(update={"scores": scores})
    (claim,) = [claim for claim in claims() if claim.text.startswith("Gains grow")]
    result, findings = claim.judge(collect(changed, "small"))
    assert result == HOLDS
    assert findings[0].interval.mean == pytest.approx(40)


def test_every_claim_names_cells_that_exist():
    from sla.reproduce.paper import experiment

    assert len(claims()) >= 20
    for claim in claims():
        assert claim.contrasts
        for contrast in claim.contrasts:
            for place in contrast.places:
                table = experiment(place.experiment)
                assert place.column in (table.rows[place.row].columns or table.columns)


def test_the_document_changes_with_the_numbers():
    good = rows("table3", {"baseline": BASE, "rotation-sd": [b + 3 for b in BASE]})
    markdown, page = render(good)
    assert "| SLA distilled is above the baseline, at the same inference cost | holds | 6 of 6 |" in markdown
    assert "| CIFAR10: Rotation, SLA+SD | 93.26 | +0.94% | 64.00 ± 1.00 | 3 | +4.92% | +3.00" in markdown
    bad = rows("table3", {"baseline": BASE, "rotation-sd": [b - 3 - b / 60 for b in BASE]})
    changed, _ = render(bad)
    assert "| SLA distilled is above the baseline, at the same inference cost | does not hold |" in changed
    assert "<script" not in page
