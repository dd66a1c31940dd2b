"""Calibration and changed answers in the page of results, by hand."""

import pytest

from sla.reproduce.answers import CELLS, COLUMNS, answers_of, answers_rows
from sla.reproduce.jobs import cells_of
from sla.reproduce.paper import experiment
from sla.reproduce.records import Record
from sla.reproduce.results import collect


def record(job, single, aggregated, **more):
    scores = {"last": {"single": single, "aggregated": aggregated}}
    settings = dict(job.settings)
    return Record(
        key=job.key,
        kind=job.kind,
        scale="small",
        label="",
        seed=job.seed,
        settings=settings,
        scores=scores,
        more=more,
    )


def made():
    """Two seeds of SLA at 4 C; the second has no calibration of single inference."""
    jobs = [cell.job for cell in cells_of("views", "small", 2, ["k1-4"], ["cifar10"])]
    first = record(jobs[0], 60.0, 64.0, ece_single=2.0, ece_aggregated=1.0, gained=8.0, lost=4.0)
    second = record(jobs[1], 62.0, 66.0, ece_aggregated=2.0, gained=7.0, lost=3.0)
    return {one.key: one for one in (first, second)}


def test_means_are_over_the_seeds_that_have_both_numbers():
    by_seed = {one.seed: one for one in made().values()}
    aggregated, single = answers_of(by_seed, "aggregated"), answers_of(by_seed, "single")
    assert aggregated.accuracy == "65.0 ± 1.4"  # sd of 64 and 66
    assert (aggregated.error, aggregated.gained, aggregated.lost, aggregated.seeds) == (1.5, 7.5, 3.5, 2)
    assert (single.accuracy, single.error, single.gained, single.seeds) == ("60.0", 2.0, None, 1)
    assert answers_of(by_seed, "distilled") is None


def test_a_row_names_its_images_and_its_inference():
    rows = answers_rows(collect(made(), "small"))
    label = "CIFAR10, 100 per class: SLA, one view per step, 4 C"
    assert rows == [
        (label, "single", "60.0", "2.0", "", "", "1"),
        (label, "aggregated", "65.0 ± 1.4", "1.5", "7.5", "3.5", "2"),
    ]


@pytest.mark.parametrize(("name", "row"), CELLS)
def test_every_cell_exists(name, row):
    found = experiment(name)
    assert row in found.rows
    assert set(COLUMNS) & set(found.columns)
