"""Which runs a table needs: known by their content, shared between tables."""

from dataclasses import replace

import pytest

from refusals import refused
from sla.recipes import SCALES
from sla.reproduce.jobs import cells_of, content_key, jobs_of
from sla.reproduce.names import EXPERIMENTS


def keys(name, scale="small", seeds=1, rows=()):
    return {cell.job.key for cell in cells_of(name, scale, seeds, rows)}


def test_a_key_follows_from_the_content_alone():
    first = content_key("train", {"a": 1, "b": [1, 2]}, 0, [])
    assert first == content_key("train", {"b": (1, 2), "a": 1}, 0, [])
    others = [
        content_key("train", {"a": 2, "b": [1, 2]}, 0, []),
        content_key("train", {"a": 1, "b": [1, 2]}, 1, []),
        content_key("curves", {"a": 1, "b": [1, 2]}, 0, []),
        content_key("train", {"a": 1, "b": [1, 2]}, 0, ["x"]),
    ]
    assert len({first, *others}) == 5


def test_runs_are_shared_between_tables():
    assert keys("table1", rows=["baseline"]) == keys("table2", rows=["baseline"])
    assert keys("table1", rows=["baseline"]) <= keys("table3", rows=["baseline"])
    assert keys("table2", rows=["sla-ag"]) == keys("table1", rows=["sla-si"])
    assert keys("table4", rows=["m12"]) <= keys("table9", rows=["m12-si"])
    assert keys("table1", rows=["da"]) == keys("table1", rows=["da-ag"])


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_equal_jobs_are_listed_once_and_members_first(name, scale):
    jobs = jobs_of(cells_of(name, scale, 2))
    assert len({job.key for job in jobs}) == len(jobs) > 0
    listed = set()
    for job in jobs:
        assert {member.key for member in job.members} <= listed
        listed.add(job.key)


def test_an_ensemble_has_four_models_and_its_first_is_the_model_alone():
    alone = {cell.column: cell.job for cell in cells_of("table2", "small", 1, ["baseline"])}
    for cell in cells_of("table2", "small", 1, ["ie"]):
        assert [member.seed for member in cell.job.members] == [0, 100, 200, 300]
        assert cell.job.members[0].key == alone[cell.column].key


def test_a_row_says_whose_scores_are_averaged_over_flips():
    """By default those of one pass; the training is the row's without flips."""
    cells = cells_of("rivals", "small", 1, ["baseline", "flips", "sla", "sla-flips"], ["cifar10"])
    jobs = {cell.row: cell.job for cell in cells}
    assert jobs["flips"].settings == {}
    assert jobs["sla-flips"].settings == {"inference": "aggregated"}
    for averaged, trained in {"flips": "baseline", "sla-flips": "sla"}.items():
        assert [member.key for member in jobs[averaged].members] == [jobs[trained].key]


def test_rows_after_pre_training_share_it_and_name_it_by_its_content():
    """Equal settings of the pre-training are one run; other settings give the rows other keys."""
    after = cells_of("table11", "small", 2, ["simclr", "simclr-sd"])
    first = {cell.seed: {member.key for member in cell.job.members} for cell in after}
    assert [len(keys) for keys in first.values()] == [1, 1]
    assert first[0] != first[1]
    alone = {cell.job.key for cell in cells_of("table11", "small", 2, ["random", "random-sd"])}
    assert not alone & {cell.job.key for cell in after}
    job = after[0].job
    assert "model.weights" not in job.settings  # a path would differ from machine to machine
    (member,) = job.members
    colder = replace(member, settings={**member.settings, "method.temperature": 0.1})
    assert replace(job, members=(colder,)).key != job.key


def test_a_row_after_pre_training_is_trained_as_the_one_without():
    plain, after = (cells_of("table11", "small", 1, [row])[0].job for row in ("random-sd", "simclr-sd"))
    assert dict(plain.settings) == dict(after.settings) | {"model.weights": "none"}
    assert after.trains


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("table12", "small"), "unknown table or figure 'table12'"),
        (("table1", "tiny"), "unknown scale 'tiny'"),
        (("table1", "small", 1, ["sla-ai"]), "did you mean 'sla-si'"),
        (("table1", "small", 1, [], ["cifar1"]), "no column 'cifar1', did you mean 'cifar10'"),
        (("table6", "small", 1, ["maml"]), "it is not implemented here"),
        (("student-pilots", "small", 1, ["late"]), "row 'late' cannot be run: it is no longer in the code"),
    ],
)
def test_unknown_names_are_refused(arguments, said):
    refused(said, cells_of, *arguments)
