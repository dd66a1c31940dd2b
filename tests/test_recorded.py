"""Runs that version 0.1.0 made: they open, evaluate to the same numbers, and can be trained again to them."""

import csv
import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

import sla
from refusals import refused
from sla.errors import SLAWarning
from sla.model_file import read_model_file, write_model_file
from sla.runs.config import read_config
from sla.session import train
from sla.tasks.registry import make_config

RECORDED = Path(__file__).parent / "recorded"
NAMES = sorted(path.name for path in RECORDED.iterdir())
# A cosine head now starts with rows of length 1, and CutMix has the box of public code.
MENDED = {"longtail", "mixed"}


def result_of(folder):
    return json.loads((folder / "result.json").read_text())


@pytest.mark.parametrize("name", NAMES)
def test_it_opens_and_evaluates_to_the_same_numbers(name):
    recorded = result_of(RECORDED / name)["accuracies"]["last"]["test"]
    run = sla.open_run(RECORDED / name)
    if run.task == "fewshot":
        found = {str(shot): values for shot, values in run.evaluate().items()}
        for shot, by_inference in recorded.items():
            for inference, scores in by_inference.items():
                assert found[shot][inference].mean() == pytest.approx(scores["top1"], abs=1e-6)
        return
    with pytest.warns(SLAWarning, match="written before runs recorded their images"):
        found = run.evaluate().scores(run.temperatures)
    for inference, scores in recorded.items():
        assert found[inference] == pytest.approx(scores, abs=1e-3)


@pytest.mark.parametrize("name", sorted(set(NAMES) - MENDED))
def test_its_configuration_trains_the_same_model_again(name, tmp_path):
    """To rounding: other processors sum in another order."""
    config = make_config(read_config(RECORDED / name / "config.yaml"))
    train(config, tmp_path / "again")
    tables = []
    for folder in (RECORDED / name, tmp_path / "again"):
        with open(folder / "metrics.csv", newline="") as file:
            tables.append(list(csv.DictReader(file)))
    assert [row.keys() for row in tables[0]] == [row.keys() for row in tables[1]]
    for old, new in zip(*tables, strict=True):
        for column in old:
            if not column.startswith(("train", "val")):  # accuracies jump where a logit is rounded
                assert float(new[column] or 0) == pytest.approx(float(old[column] or 0), rel=1e-3, abs=1e-4)
    first, second = (
        load_file(next(folder.glob("checkpoint/last-*/weights.safetensors")))
        for folder in (RECORDED / name, tmp_path / "again")
    )
    assert first.keys() == second.keys()
    for key, value in first.items():
        torch.testing.assert_close(second[key], value, rtol=1e-2, atol=1e-3)


def with_method(folder, **values):
    """A copy of the recorded student's run, with these values of its method in all its files; its weights."""
    shutil.copytree(RECORDED / "distilled", folder)
    tree = read_config(folder / "config.yaml")
    tree["method"] |= values
    (folder / "config.yaml").write_text(yaml.safe_dump(tree))
    weights = next(folder.glob("checkpoint/last-*/weights.safetensors"))
    described, tensors = read_model_file(weights, "a classifier")
    described["method"] |= values
    write_model_file(weights, tensors, described)
    return weights


def test_removed_options_at_their_defaults_change_nothing(tmp_path):
    with_method(tmp_path / "old", stop_gradient=False, student_from=0.0)
    images = torch.rand(4, 1, 8, 8)
    old, new = (sla.open_run(folder).model(images) for folder in (tmp_path / "old", RECORDED / "distilled"))
    assert torch.equal(old, new)
    assert sla.open_run(tmp_path / "old").config == sla.open_run(RECORDED / "distilled").config


@pytest.mark.parametrize(
    ("name", "value"), [("stop_gradient", True), ("student_from", 0.5), ("name", "sla+ema")]
)
def test_what_was_removed_is_refused_in_one_line(name, value, tmp_path):
    weights = with_method(tmp_path / "old", **{name: value})
    said = f"{value if name == 'name' else name}' no longer exists"
    refused(said, sla.open_run, tmp_path / "old")
    refused(said, sla.load, weights)
