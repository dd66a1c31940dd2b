"""A run of several stages, by a task made up for it: stopped anywhere, it resumes to the same bytes."""

from dataclasses import replace
from functools import partial
from typing import Literal

import numpy as np
import pytest
import torch

from refusals import refused
from sla.datasets.load import load
from sla.errors import InputError
from sla.model_file import write_model_file
from sla.progress import Progress
from sla.runs.checkpoint import Position, find_checkpoint, read_state, save_checkpoint
from sla.runs.defaults import override
from sla.runs.signals import StoppedError
from sla.runs.stages import Stage
from sla.session import fit, open_run, train
from sla.tasks import registry
from sla.tasks.classifier.config import ClassifierConfig
from sla.tasks.classifier.plan import make_plan
from sla.tasks.classifier.record import record_run
from sla.tasks.classifier.run import Run
from sla.tasks.classifier.trainer import Trainer
from sla.tasks.task import Task

SECOND_STEPS = 4
TREE = {
    "task": "twice",
    "data": {"source": "digits", "workers": 0},
    "model": {"backbone": "convnet4", "options": {"width": 4}},
    "method": {"name": "baseline"},
    "run": {"iterations": 6, "batch_size": 16, "evaluations": 2, "compile": False},
}


class TwiceConfig(ClassifierConfig):
    task: Literal["twice"] = "twice"


class TwiceRun(Run):
    task = "twice"
    config_class = TwiceConfig
    stage = "linear"


class Means:
    """A stage without a network: the sum of the training images, half of them in each of two steps."""

    steps = 2

    def __init__(self, plan, folder):
        self.plan, self.folder, self.position = plan, folder / "checkpoint", Position()
        self.total = torch.zeros(plan.train.images.shape, dtype=torch.float64)

    def bytes_needed(self):
        return 1000

    def resume(self):
        if (found := find_checkpoint(self.folder, "last")) is not None:
            self.position, tensors = read_state(found)
            self.total = tensors["total"]

    def fit(self, stop, progress):
        while self.position.step < self.steps:
            places = np.arange(self.position.step, len(self.plan.train), self.steps)
            self.total = self.total + self.plan.train.read(places).images.double().sum(0)
            self.position.step += 1
            progress.step(self.position.step, self.steps, {})
            written = partial(write_model_file, tensors={"total": self.total}, described={})
            save_checkpoint(self.folder, "last", self.position, written, {"total": self.total})
            if stop.requested and self.position.step < self.steps:
                return False
        return True


class Builder:
    """Adds the images, trains a classifier, then new heads on its frozen backbone; keeps what was built."""

    def __init__(self):
        self.built = []

    def stages(self, plan, group):
        return [
            Stage("means", 2, partial(self.build, "means", plan, group)),
            Stage("train", 6, partial(self.build, "train", plan, group)),
            Stage("linear", SECOND_STEPS, partial(self.build, "linear", plan, group)),
        ]

    def build(self, name, plan, group, folder):
        self.built.append(name)
        if name == "means":
            return Means(plan, folder)
        if name == "linear":
            config = override(plan.config, "model", weights=str(folder.parent))
            config = override(config, "optimizer", frozen=0.9)
            plan = replace(plan, config=override(config, "run", iterations=SECOND_STEPS))
        return Trainer(plan, folder, group)


def make_result(loop, progress):
    return {"headline": "single", "accuracies": {"last": {"step": loop.position.step}}, "images": {}}


class StopAtCall(Progress):
    """Asks to stop after so many steps, counted over all stages."""

    def __init__(self, stop_at, calls):
        self.stop, self.left = stop_at(0), calls

    def step(self, done, total, metrics):
        self.left -= 1
        if self.left == 0:
            self.stop.step(0, total, metrics)


@pytest.fixture
def task(monkeypatch):
    """The stages of a task that is registered for the test."""
    builder = Builder()
    made = Task("twice", TwiceConfig, TwiceRun, make_plan, builder.stages, make_result, record_run)
    monkeypatch.setitem(registry.TASKS, "twice", made)
    return builder


def files_of(folder):
    """Weights and metrics of all stages."""
    found = [read_state(find_checkpoint(folder / "means" / "checkpoint", "last"))[1]["total"].tolist()]
    for part in (folder, folder / "linear"):
        found += [
            (find_checkpoint(part / "checkpoint", kind) / "weights.safetensors").read_bytes()
            for kind in ("last", "best")
        ]
        found.append((part / "metrics.csv").read_bytes())
    return found


@pytest.mark.parametrize(
    ("steps", "where", "built_again"),
    [
        (1, "stopped after step 1 of 2 of stage means; ", ["means", "train", "linear"]),
        (2, "stopped after stage means; ", ["train", "linear"]),
        (5, "stopped after step 3 of 6; ", ["train", "linear"]),
        (8, "stopped after stage train; ", ["linear"]),
        (10, "stopped after step 2 of 4 of stage linear; ", ["linear"]),
    ],
    ids=["in the first", "after the first", "in the second", "after the second", "in the third"],
)
def test_stopped_anywhere_it_resumes_to_the_same_bytes(task, tmp_path, stop_at, steps, where, built_again):
    config = registry.make_config(TREE)
    whole = train(config, tmp_path / "whole")
    assert isinstance(whole, TwiceRun)
    assert whole.model.about["step"] == SECOND_STEPS
    with pytest.raises(StoppedError) as error:
        train(config, tmp_path / "run", progress=StopAtCall(stop_at, steps))
    assert str(error.value).startswith(where + "to continue: sla train --resume --out ")
    assert not (tmp_path / "run" / "result.json").exists()
    task.built.clear()
    run = train(config, tmp_path / "run", resume=True)
    assert task.built == built_again
    assert files_of(run.folder) == files_of(whole.folder)
    assert run.is_finished
    config_text = (run.folder / "config.yaml").read_text()
    assert config_text == (whole.folder / "config.yaml").read_text()
    assert config_text.startswith("task: twice\n")


def test_a_run_stopped_before_it_trained_still_knows_its_images(task, tmp_path, stop_at):
    config, splits = registry.make_config(TREE), load("digits")
    with pytest.raises(StoppedError, match="stage means"):
        train(config, tmp_path, splits=splits, progress=StopAtCall(stop_at, 2))
    fewer = replace(splits, train=splits.train.subset(range(1000)))
    with pytest.raises(InputError, match=r"the data has changed since the run began: .* gone"):
        train(config, tmp_path, splits=fewer, resume=True)


def test_a_finished_run_is_opened_by_its_task_and_resumed_without_doing_anything_again(task, tmp_path):
    run = fit("digits", tmp_path / "run", config=TREE)
    task.built.clear()
    before = {path: path.read_bytes() for path in run.folder.rglob("*.safetensors")}
    assert train(run.config, run.folder, resume=True).result == run.result
    assert task.built == ["linear"]  # which the result would be made from
    assert before == {path: path.read_bytes() for path in run.folder.rglob("*.safetensors")}
    assert isinstance(open_run(run.folder, "best"), TwiceRun)
    refused("a run of task twice; this needs one of task classifier", Run, run.folder)


def test_the_task_of_a_configuration_is_found(task):
    assert registry.find_task({}).name == "classifier"
    assert registry.find_task({"episodes": {}}).name == "fewshot"  # as the first version wrote them
    assert registry.find_task({"task": "classifier"}).name == "classifier"
    assert registry.with_values({}, {"task": "fewshot", "episodes.way": 3})["episodes"] == {"way": 3}
    with pytest.raises(InputError, match=r"x\.yaml: task: no task 'fewshots', did you mean 'fewshot'\?"):
        registry.make_config({"task": "fewshots"}, "x.yaml")
    refused("no task 3", registry.make_config, {"task": 3})
