"""Test labels choose nothing: they cannot be read while anything is chosen, and others change no choice."""

from dataclasses import replace

import numpy as np
import pytest

from sla.datasets.load import load
from sla.images.store import Dataset
from sla.runs.checkpoint import WEIGHTS
from sla.session import train
from sla.tasks.classifier.judge import Judge
from sla.tasks.classifier.trainer import Trainer
from sla.tasks.registry import make_config

TINY = {
    "data": {"source": "digits", "workers": 0, "hold_out": 0.4},
    "model": {"backbone": "convnet4", "options": {"width": 4, "in_channels": 1}},
    "run": {"iterations": 6, "batch_size": 16, "evaluations": 2, "compile": False},
}


def tree(weights, **more):
    """A run in which everything is chosen that a run can choose."""
    model = TINY["model"] | {"weights": str(weights)}
    return TINY | {"model": model, "stages": "features, train"} | more


KINDS = {
    "quick and trained": {},
    "quick, trained and distilled": {"stages": "features, train, distil", "method": {"name": "sla"}},
    "rare classes": {"method": {"name": "sla", "imbalance": "auto"}},
}


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    """A run whose weights others start from."""
    folder = tmp_path_factory.mktemp("first") / "run"
    return train(make_config(TINY | {"method": {"name": "baseline"}}), folder)


@pytest.mark.parametrize("kind", KINDS)
def test_test_labels_cannot_be_read_while_something_is_chosen(kind, started, tmp_path, monkeypatch):
    splits = load("digits")
    copied = type(splits.test.images)(splits.test.images.read(range(len(splits.test)))[0])
    test = Dataset(copied, splits.test.targets, splits.test.classes)
    sealed, plain, read = [], Dataset.__getattribute__, []

    def get(self, name):
        if name == "targets" and plain(self, "images") is copied:
            assert not sealed, "a test label was read"
            read.append(name)
        return plain(self, name)

    def opening(*parts):
        sealed.clear()
        return score(*parts)

    def sealing(self, *parts, **more):
        sealed.append(True)
        start(self, *parts, **more)

    score, start = Judge.test, Trainer.__init__
    monkeypatch.setattr(Dataset, "__getattribute__", get)
    monkeypatch.setattr(Judge, "test", opening)
    monkeypatch.setattr(Trainer, "__init__", sealing)
    config = make_config(tree(started.folder, **KINDS[kind]))
    run = train(config, tmp_path / "run", splits=replace(splits, test=test))
    assert not sealed
    assert read
    assert run.result["accuracies"]["last"]["test"]


@pytest.mark.parametrize("kind", KINDS)
def test_other_test_labels_change_test_scores_alone(kind, started, tmp_path):
    splits = load("digits")
    other = replace(splits.test, targets=np.random.default_rng(0).permutation(splits.test.targets))
    config = make_config(tree(started.folder, **KINDS[kind]))
    ours = train(config, tmp_path / "ours", splits=splits)
    theirs = train(config, tmp_path / "theirs", splits=replace(splits, test=other))
    assert ours.config == theirs.config
    weights = [sorted((tmp_path / name).rglob(WEIGHTS)) for name in ("ours", "theirs")]
    assert len(weights[0]) >= 2
    assert [one.read_bytes() for one in weights[0]] == [one.read_bytes() for one in weights[1]]
    for key in ("chosen", "temperatures", "temperature_intervals", "anytime", "view_accuracy"):
        assert ours.result.get(key) == theirs.result.get(key)
    scores = [run.result["accuracies"]["last"] for run in (ours, theirs)]
    assert scores[0]["val"] == scores[1]["val"]
    assert scores[0]["test"] != scores[1]["test"]
