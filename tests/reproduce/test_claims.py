"""A verdict follows from the numbers: made-up rows that hold, do not hold, and leave it open."""

import pytest

from made_records import record_of
from sla.reproduce.claims import COMPARABLE, NOT_BELOW, claims
from sla.reproduce.figures import draw, series_of
from sla.reproduce.jobs import cells_of
from sla.reproduce.paper import experiment
from sla.reproduce.render import render
from sla.reproduce.results import collect
from sla.reproduce.rule import FAILS, HOLDS, OPEN, UNTESTED, judge


def rows(table, numbers, scale="small"):
    """Records that give these numbers, a list of one for each seed, in every column of the named rows."""
    found = {}
    for row, values in numbers.items():
        for cell in cells_of(table, scale, len(values), [row]):
            value = values[cell.seed - experiment(table).first_seed]
            old = found.get(cell.job.key, record_of(cell.job))
            if cell.score in ("single", "aggregated", "distilled"):
                changed = {"scores": {"last": {**old.scores.get("last", {}), cell.score: value}}}
            else:
                changed = {"more": {**old.more, cell.score: value}}
            found[cell.job.key] = old.model_copy(update=changed)
    return found


def judged(text, records):
    """The claim that starts like this, judged together with all others."""
    (found,) = [one for one in judge(claims(), collect(records, "small")) if one.claim.text.startswith(text)]
    return found


def verdict(text, records):
    return judged(text, records).verdict


BASE = [60.0, 61.0, 62.0]


@pytest.mark.parametrize(
    ("gains", "expected"), [([3.0, 3.2, 2.9], HOLDS), ([-3.0, -3.2, -2.9], FAILS), ([3.0, -2.0, 0.5], OPEN)]
)
def test_better_than_the_baseline(gains, expected):
    ours = [b + g for b, g in zip(BASE, gains, strict=True)]
    found = rows("table3", {"baseline": BASE, "rotation-sd": ours})
    assert verdict("SLA distilled is above", found) == expected


def test_without_rows_nothing_is_tested_and_one_seed_decides_nothing():
    assert verdict("SLA distilled is above", {}) == UNTESTED
    assert verdict("SLA distilled is above", rows("table3", {"baseline": [60], "rotation-sd": [70]})) == OPEN


@pytest.mark.parametrize(
    ("errors", "expected"), [([3.0, 3.2, 2.9], HOLDS), ([6.0, 6.2, 6.1], FAILS), ([3.0, 7.0, 5.1], OPEN)]
)
def test_where_errors_are_printed_lower_is_better(errors, expected):
    numbers = {"cutout": [95.0, 95.1, 95.05], "cutout-sd": [100 - error for error in errors]}
    assert verdict("SLA distilled lowers the error under Cutout", rows("table5", numbers)) == expected


@pytest.mark.parametrize(
    ("alone", "both", "expected"), [(0.2, 1.5, HOLDS), (6.0, 7.5, FAILS), (0.2, -1.0, FAILS)]
)
def test_pre_training_alone_is_marginal_and_with_sla_it_is_not(alone, both, expected):
    """What SLA adds after pre-training is more than pre-training alone added, and more than nothing."""
    wobble = [0.02, -0.03, 0.01]
    after = [b + alone + w for b, w in zip(BASE, wobble, strict=True)]
    with_sla = [b + both - w for b, w in zip(BASE, wobble, strict=True)]
    found = rows("table11", {"random": BASE, "simclr": after, "simclr-sd": with_sla})
    assert verdict("SimCLR pre-training alone", found) == expected


@pytest.mark.parametrize(("below", "expected"), [(1.0, HOLDS), (2.0, FAILS), (COMPARABLE, OPEN)])
def test_comparable_to_an_ensemble_means_within_a_margin(below, expected):
    wobble = [0.05, -0.05, 0.0]
    ours = [b - below + w for b, w in zip(BASE, wobble, strict=True)]
    assert verdict("SLA aggregated is comparable", rows("table2", {"ie": BASE, "sla-ag": ours})) == expected


@pytest.mark.parametrize(
    ("change", "noise", "expected"),
    [(0.2, 0.1, HOLDS), (-0.02, 0.1, HOLDS), (-0.2, 0.01, HOLDS), (-0.8, 0.05, FAILS), (-0.2, 1.0, OPEN)],
)
def test_not_below_has_a_margin_that_its_text_states(change, noise, expected):
    assert [f"more than {NOT_BELOW:g} points" in one.text for one in claims()].count(True) == 1
    ours = [b + change + w for b, w in zip(BASE, (noise, -noise, 0.0), strict=True)]
    assert verdict("SLA in single", rows("table1", {"baseline": BASE, "sla-si": ours})) == expected


@pytest.mark.parametrize(
    ("gaps", "expected"), [((20, 10, 12), HOLDS), ((10, 20, 5), FAILS), ((20, 10, 20), OPEN)]
)
def test_the_largest_gap_between_train_and_test_is_larger_than_each_other(gaps, expected):
    """On average over the others 10 is not below 20 and 5 by much, but it is not the largest."""
    numbers = {}
    for (name, gap), noise in zip(zip(("da", "mt", "sla"), gaps, strict=True), (0.0, 0.3, -0.2), strict=True):
        numbers[f"{name}-train"] = [80.0 + gap / 2, 81.0 + gap / 2 + noise, 79.0 + gap / 2]
        numbers[f"{name}-test"] = [80.0 - gap / 2, 81.0 - gap / 2, 79.0 - gap / 2]
    assert verdict("DA has the largest gap", rows("figure3", numbers)) == expected


@pytest.mark.parametrize(("gains", "explained"), [((5.0, 5.2, 4.9), True), ((0.1, 0.2, 0.0), False)])
def test_a_claim_that_fails_has_its_reading_in_the_summary(gains, explained):
    ours = [b + gain for b, gain in zip(BASE, gains, strict=True)]
    text = render(rows("table3", {"baseline": BASE, "colour-ag": ours}))[0]
    assert ("six colour orders train for six times the FLOP" in text) == explained


def test_gains_that_grow_as_data_shrinks_by_hand():
    """Relative gains of 50% at 25 images per class and 10% at 100: the contrast is 40 points."""
    records = rows("figure4", {"baseline": [20.0, 20.2], "sla-ag": [30.0, 30.3]})
    large = {cell.job.key for cell in cells_of("figure4", "small", 2) if cell.column == "n100"}
    changed = dict(records)
    for key in large & records.keys():
        if "aggregated" in (last := records[key].scores["last"]):
            scores = {"last": {"aggregated": last["aggregated"] * 22 / 30}}
            changed[key] = records[key].model_copy(update={"scores": scores})
    found = judged("Gains grow", changed)
    assert found.weakest.effect.mean == pytest.approx(40)
    assert found.verdict == OPEN  # the made-up seeds agree: without any spread nothing is decided


def test_multi_task_learning_is_below_on_train_and_on_test():
    """Far below on train does not make up for above on test; and one of the two is not enough."""
    numbers = {"sla-train": [90.0, 90.2, 90.1], "mt-train": [70.0, 70.1, 70.2]}
    assert verdict("MT is below SLA", rows("figure3", numbers)) == OPEN
    for above, expected in ((-5, HOLDS), (5, FAILS)):
        below = {"sla-test": [60.0, 60.2, 60.1], "mt-test": [60.0 + above, 60.1 + above, 60.2 + above]}
        both = numbers | below
        found = judged("MT is below SLA", rows("figure3", both))
        assert found.verdict == expected
        assert found.weakest.effect.mean == pytest.approx(-above, abs=0.1)


def test_every_claim_names_cells_that_exist():
    assert len(claims()) >= 20
    for claim in claims():
        assert claim.contrasts
        for contrast in [*claim.contrasts, *claim.equal]:
            for place in contrast.places:
                table = experiment(place.experiment)
                assert place.column in (table.rows[place.row].columns or table.columns)


def test_the_document_changes_with_the_numbers():
    def changed(sign):
        ours = [b + sign * gain for b, gain in zip(BASE, (3.1, 2.9, 3.0), strict=True)]
        return render(rows("table3", {"baseline": BASE, "rotation-sd": ours}))

    markdown, page = changed(1)
    # The paper over the same cells: 0.87, 3.58, 8.30, 8.79, 5.93 and 2.42. Each column is the same made-up
    # one with an sd of 0.1: the error is 0.1 / sqrt(18), and t with 12 degrees of freedom is 2.179.
    row = "| holds (< 0.001) | +3.00 (+2.95 to +3.05) | 6 columns (+4.98 on average) |  | 3 |"
    assert f"| SLA distilled is above the baseline, at the same inference cost {row}" in markdown
    row = "| CIFAR10: Rotation, SLA+SD | 64.00 ± 0.95 | 3 |  | +3.00 (+2.75 to +3.25) | +0.87 |"
    assert row in markdown
    assert (
        "Verdicts on 21 claims, 2 of them not in the paper: holds 1, does not hold 0, undecided" in markdown
    )
    assert (
        "| SLA distilled is above the baseline, at the same inference cost | does not hold ("
        in changed(-1)[0]
    )
    assert "<script" not in page


def test_a_claim_has_its_effect_by_dataset_and_against_a_baseline_of_the_same_cost():
    """Gains of 3 and 1 at equal iterations; 2 below the baseline of four times the steps, on both."""
    found = rows("table3", {"baseline": BASE, "rotation-sd": [b + 3 for b in BASE]})
    for key, one in list(found.items()):
        if "distilled" in one.scores["last"] and one.settings["data.source"] == "cifar100":
            lower = {"scores": {"last": {"distilled": one.scores["last"]["distilled"] - 2}}}
            found[key] = one.model_copy(update=lower)
    found |= rows("views", {"baseline-4": [b + 4 for b in BASE]})
    text = render(found)[0]
    (row,) = [line for line in text.splitlines() if line.startswith("| SLA distilled is above the baseline")]
    assert row.split(" | ")[4] == "-2.00 (no spread)"  # (3 - 4 + 1 - 4) / 2


def test_what_differs_from_the_paper_is_near_the_top():
    """DA above the baseline, which it is not in the paper, on all columns; MT just as in the paper."""
    noise = (0.001, -0.001, 0.0)
    numbers = {"baseline": BASE, "da": [b + 5 + n for b, n in zip(BASE, noise, strict=True)]}
    numbers["mt"] = [b - 1.6 + 100 * n for b, n in zip(BASE, noise, strict=True)]
    top, _, rest = render(rows("table1", numbers))[0].partition("## Single comparisons")
    assert "Of 6 single comparisons that the paper prints too, 5 have a 95% interval without" in top
    assert ", 3 of them on the other side of 0." in top
    assert "| Baseline over DA, CIFAR10 | -5.00 (-5.00 to -5.00) | +1.95 | 3 | < 0.001 | < 0.001 |" in top
    assert "| Baseline over MT, CIFAR10 |" not in top
    assert "| Baseline over MT, CIFAR10 |" in rest


def test_the_papers_numbers_stand_beside_those_of_its_own_scale_alone():
    numbers = {"protonet": [30.0], "protonet-ag": [31.0]}
    text = render(rows("table6", numbers, "paper"))[0]
    assert "| CIFAR-FS, 1-shot: R2D2† | 65.3 ± 0.2, cited |" in text
    assert "| CIFAR-FS, 5-shot: MAML† | 71.5 ± 1.0, cited |" in text
    assert "| mini-ImageNet, 1-shot: TADAM | 58.50 ± 0.30, cited |" in text
    small = render(rows("table6", numbers))[0]
    assert "65.3" not in small
    assert "| CIFAR-FS, 1-shot: ProtoNet + SLA+AG | 31.00 | 1 |  | +1.00 (one seed) | +2.40 |" in small
    text = render(rows("table7", {"ldam-drw": [30.0], "ldam-drw-sd": [31.0]}, "paper"))[0]
    assert "| CIFAR100, ratio 100: LDAM-DRW + SLA+SD | 45.53 | +8.30% |" in text


def test_the_summary_compares_at_the_same_training_cost():
    found = rows("views", {"baseline-1": [50.0, 52.0], "k1-1": [53.0, 57.0]})
    for key, one in found.items():
        found[key] = one.model_copy(update={"training_flop": 2.0})
    top = render(found)[0].partition("## What was run")[0]
    # Differences of 3 and 5: their mean is 4, the error 1, and t with one degree of freedom 12.706.
    row = "| 1 C | 4 | 51.0, +4.0 (-8.7 to +16.7) | 51.0, +4.0 (-8.7 to +16.7) |"
    assert f"| four rotations, aggregated {row}" in top
    cost = "a baseline of the same training cost"
    assert f"Aggregated over views, SLA is above {cost} in 0 of 2 comparisons and below it in 0;" in top
    one_pair = {
        key: one for key, one in found.items() if one.settings["method.name"] == "sla" or not one.seed
    }
    assert "| 1 C | 4 | 50.0, +3.0 (one seed) | 50.0, +3.0 (one seed) |" in render(one_pair)[0]


def test_the_summary_compares_with_an_ensemble_of_the_same_cost():
    found = rows("views", {"k1-4": [55.0, 57.0]}) | rows("table2", {"ie": [56.0, 56.5]})
    top = render(found)[0].partition("## What was run")[0]
    # Differences of -1 and 0.5: their mean is -0.25, the error 0.75, and t 12.706.
    assert "| aggregated, against four networks |  | 4 | 56.2, -0.2 (-9.8 to +9.3) |" in top


def test_studies_are_without_the_papers_columns_and_have_an_answer():
    numbers = {"baseline-2": BASE, "sla-2": [62, 63, 64], "sla-4": [64, 65, 66]}
    found = rows("table1", {"baseline": BASE}) | rows("capacity", numbers)
    for key, one in found.items():
        fitted = 94.5 if one.settings["method.name"] == "sla" else 95.0
        found[key] = one.model_copy(update={"more": {"train": fitted}})
    study, _, paper = (
        render(found)[0].partition("## Capacity: the gain of joint labels")[2].partition("## Table 1")
    )
    assert "training accuracy | our difference" in paper
    assert experiment("capacity").answer in study
    assert "|  | accuracy | seeds | training accuracy | difference, 95% interval |" in study
    assert "(images/capacity-small.png)" in study
    line = series_of(collect(found, "small"), "capacity")["sla-"]
    assert (line.points, line.errors) == ([(2.0, 63.0), (4.0, 65.0)], [1.0, 1.0])
    assert "Baseline, width 2 | 61.00 ± 1.00 | 3 | 95.00 |  |" in study
    assert "SLA, width 2 | 63.00 ± 1.00 | 3 | 94.50, below 95 | +2.00 (+2.00 to +2.00) |" in study


def test_a_figure_of_one_place_on_its_axis_is_not_drawn(tmp_path):
    found = rows("figure4", {"baseline": BASE, "sla-ag": [70, 71, 72]})
    (kept,) = {cell.job.key for cell in cells_of("figure4", "small", 1, ["sla-ag"], ["n25"])}
    one = {key: record for key, record in found.items() if record.settings["data.per_class"] == 25}
    assert kept in one
    assert not draw(collect(one, "small"), "figure4", tmp_path / "figure.png")
    assert "images/figure4" not in render(one)[0]
    assert draw(collect(found, "small"), "figure4", tmp_path / "figure.png")


def test_pilots_are_folded_and_compared_with_nothing():
    text = render(rows("short-pilots", {"baseline": [50, 51], "two": [52, 53]}))[0]
    pilots = text.partition("## Views for runs too short")[2].partition("\n## ")[0]
    assert "<details><summary>Table</summary>\n\n|" in pilots
    assert "Single comparisons" not in text


def test_lines_of_our_own_figures():
    """Each point is the mean over seeds, at its cost, labels or classes."""
    costs = {"baseline-1": 1e12, "k1-1": 1e12, "k1-2": 2e12, "baseline": 5e12, "student-fast": 5e12}
    found = {}
    for table, numbers in (
        ("views", {"baseline-1": [50, 52], "k1-1": [53, 55], "k1-2": [60, 62]}),
        ("students", {"baseline": [56, 58], "student-fast": [59, 60]}),
        ("semi", {"simclr": [40, 44]}),
    ):
        for row, values in numbers.items():
            for key, one in rows(table, {row: values}).items():
                found[key] = one.model_copy(update={"training_flop": costs.get(row)})
    growth = [{"classes": 25, "single": 30.0, "aggregated": 40.0}, {"classes": 30, "aggregated": 35.0}]
    for key, one in rows("grow", {"sla": [35, 37]}).items():
        found[key] = one.model_copy(update={"more": {"growth": growth}})
    results = collect(found, "small")
    lines = {line.name: line.points for line in series_of(results, "students").values()}
    assert lines["baseline, one pass"] == [(1.0, 51.0), (5.0, 57.0)]
    assert lines["SLA, one view per step, four passes"] == [(1.0, 54.0), (2.0, 61.0)]
    assert lines["student on CutMix images, one pass"] == [(5.0, 59.5)]
    assert series_of(results, "views", "cifar100")["k1-"].points == [(1.0, 54.0), (2.0, 61.0)]
    assert series_of(results, "semi")["simclr"].points == [(25.0, 42.0), (100.0, 42.0)]
    assert series_of(results, "grow")["sla"].points == [(25, 40.0), (30, 35.0)]
    assert series_of(collect({}, "small"), "students") == {}
