"""Runs of several seeds, whose results are made up: means and differences by hand."""

from types import SimpleNamespace

import pytest

from sla.compare.seeds import compare_seeds
from sla.tasks.registry import make_config


def made(method, seed, last, averaged=None):
    """A run of 50 test images by its accuracies; with one of an average, that is the chosen model."""
    accuracies = {"last": {"test": {"single": {"top1": last}}}}
    result = {"headline": "single", "accuracies": accuracies, "images": {"test": 50, "val": 5}}
    if averaged is not None:
        accuracies["averaged"] = {"test": {"single": {"top1": averaged}}}
        result["chosen"] = {"checkpoint": "averaged", "inference": "single"}
    config = make_config({"data": {"source": "digits"}, "method": {"name": method}, "run": {"seed": seed}})
    return SimpleNamespace(config=config, result=result)


def test_methods_are_compared_by_the_models_that_answer():
    runs = [made("sla", 1, 60.0, 70.0), made("baseline", 1, 66.0, 64.0)]
    runs += [made("sla", 2, 62.0, 72.0), made("baseline", 2, 68.0, 68.0)]
    table = compare_seeds(runs)
    assert table.headlines == {"sla": "as chosen", "baseline": "as chosen"}
    ((sla, baseline, points),) = table.differences()
    assert (list(sla.values.values()), list(baseline.values.values())) == ([70.0, 72.0], [64.0, 68.0])
    assert points.mean == pytest.approx(5.0)  # 6 and 4


def test_runs_without_a_choice_are_compared_by_their_last_checkpoint():
    table = compare_seeds([made("sla", 1, 60.0), made("baseline", 1, 55.0, 65.0)])
    assert table.headlines == {"sla": "single", "baseline": "as chosen"}
    assert compare_seeds([made("sla", 1, 60.0), made("sla", 2, 61.0, 70.0)]).headlines == {"sla": "single"}
