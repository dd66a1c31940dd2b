"""Which runs a table needs: known by their content, shared between tables."""

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


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("table12", "small"), "unknown table or figure 'table12'"),
        (("table1", "tiny"), "unknown scale 'tiny'"),
        (("table1", "small", 1, ["sla-ai"]), "did you mean 'sla-si'"),
        (("table1", "small", 1, [], ["cifar1"]), "no column 'cifar1', did you mean 'cifar10'"),
        (("table6", "small", 1, ["maml"]), "it is not implemented here"),
        (("table11", "small", 1, ["simclr"]), "pre-training is not part of this package yet"),
    ],
)
def test_unknown_names_are_refused(arguments, said):
    refused(said, cells_of, *arguments)
