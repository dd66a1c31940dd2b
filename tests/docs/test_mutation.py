"""What benchmarks/mutation.py does with a tiny module: mutants that its tests kill, and some they miss."""

import json
import os
import subprocess
import sys
from pathlib import Path

import mutation
import pytest
from mutants import Source

MODULE = '''"""A price."""

from functools import cache

RATE = 2  # of the tax, in percent


def tax(price: int, rate: int = RATE) -> float:
    """Of a price of at least 0."""
    if price < 0:
        raise ValueError(f"not a price: {price - 1}")
    return price * rate / 100


@cache
def least(price):
    while price > 10:
        price = price - 3
    return price
'''
TESTS = """
import pytest
from shop import least, tax

def test_tax():
    assert tax(100) == 2
    assert tax(100, 3) == 3

def test_refused():
    with pytest.raises(ValueError):
        tax(-5)

def test_least():
    assert least(19) == 10
"""
RUN = """
import json, pathlib, mutation_run
source = mutation_run.Source(pathlib.Path("shop.py").resolve(), "shop")
mutation_run.SPARE = 1
campaign = mutation_run.Campaign([source], ["test_shop.py"], pathlib.Path("build"))
campaign.run(source.mutants)
print("\\n" + json.dumps([[*key, outcome] for key, outcome in campaign.outcomes.items()]))
"""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shop")
    (folder / "shop.py").write_text(MODULE)
    (folder / "test_shop.py").write_text(TESTS)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n  slow: s\n  network: n\npythonpath = .\n")
    benchmarks = Path(__file__).parents[2] / "benchmarks"
    path = os.pathsep.join([str(benchmarks), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    return {(line, change): outcome for _, line, change, outcome in found}


def test_mutants_are_killed_where_a_test_notices_and_survive_where_none_does(outcomes):
    survivors = {each for each, outcome in outcomes.items() if outcome == "survived"}
    assert survivors == {
        ("if price < 0:", "price < 0 -> price <= 0"),  # no test has a price of 0, nor of -1
        ("if price < 0:", "0 -> 1"),
        ("while price > 10:", "10 -> 11"),  # nor one that is 11 on its way
        ("def least(price):", "@cache -> left out"),
    }
    assert outcomes["return price * rate / 100", "price * rate -> price / rate"] == "killed"
    assert outcomes['raise ValueError(f"not a price: {price - 1}")', "left out"] == "killed"


def test_what_takes_effect_at_import_is_imported_anew(outcomes):
    assert outcomes["RATE = 2  # of the tax, in percent", "2 -> 3"] == "killed"


def test_an_endless_loop_is_ended(outcomes):
    assert outcomes["price = price - 3", "left out"] == "timed out"
    assert outcomes["price = price - 3", "price - 3 -> price + 3"] == "timed out"


def test_messages_docstrings_and_annotations_are_left_alone(tmp_path):
    path = tmp_path / "shop.py"
    path.write_text(MODULE)
    changes = [mutant.change for mutant in Source(path, "shop").mutants]
    assert not any("price - 1" in change or "Of a price" in change or "int" in change for change in changes)


def test_a_mutant_differs_from_its_file_in_one_place_and_the_next_one_starts_anew(tmp_path):
    path = tmp_path / "shop.py"
    path.write_text(MODULE)
    source = Source(path, "shop")
    plain = source.compile()
    assert all(source.compile(mutant) != plain for mutant in source.mutants)
    assert source.compile() == plain
    assert len({mutant.key for mutant in source.mutants}) == len(source.mutants)


def test_every_mutant_with_a_reason_is_there():
    assert mutation.find_stale(mutation.core()) == []
