"""Eager or compiled: timed on copies, chosen by the clock, recorded in the run, and left alone afterwards."""

import hashlib
import json
import os
from types import SimpleNamespace

import pytest
import torch
import yaml

from sla.progress import QUIET, duration
from sla.session import preview, train
from sla.tasks.classifier import step_time
from sla.tasks.classifier.plan import make_plan
from sla.tasks.classifier.step_time import choose_mode, measure_seconds
from sla.tasks.classifier.time_shares import evaluation_steps
from sla.tasks.classifier.trainer import COMPILED_CODE, keep_compiled_code
from sla.tasks.registry import make_config

TREE = {
    "data": {"source": "digits"},
    "model": {"backbone": "convnet4", "options": {"width": 8}},
    "run": {"iterations": 4, "batch_size": 16, "evaluations": 1},
}
PLAN = SimpleNamespace(config=SimpleNamespace(run=SimpleNamespace(device="cpu")))  # all that a choice asks


def config(**run):
    return make_config(TREE | {"run": TREE["run"] | run})


@pytest.fixture
def timed(monkeypatch):
    """Replaces the measurements by these seconds of a step; says how often each was asked for."""
    asked = {"eager": 0, "both": 0}

    def use(eager, compiled):
        def once(plan, steps=12):
            asked["eager"] += 1
            return eager

        def both(plan):
            asked["both"] += 1
            if isinstance(compiled, Exception):
                raise compiled
            return eager, compiled, 30.0

        monkeypatch.setattr(step_time, "measure_seconds", once)
        monkeypatch.setattr(step_time, "_time_both", both)
        monkeypatch.setattr(step_time.shutil, "which", lambda name: name)
        return asked

    return use


@pytest.mark.parametrize(
    ("eager", "compiled", "iterations", "compiles", "reason"),
    [
        (1.0, 0.8, 1000, True, "compiled: 1000 ms per step eager, 800 ms compiled (after 30 s)"),
        (1.0, 1.1, 1000, False, "eager: 1000 ms per step eager, 1100 ms compiled (after 30 s)"),
        (1.0, 0.98, 1000, False, "eager: 1000 ms per step eager, 980 ms compiled (after 30 s)"),
        (0.1, 0.05, 1000, False, "eager: about 100 s of training is too short to try torch.compile"),
        (1.0, RuntimeError("no such\nthing"), 1000, False, "eager: torch.compile failed: no such"),
    ],
)
def test_the_faster_one_is_taken(timed, eager, compiled, iterations, compiles, reason):
    asked = timed(eager, compiled)
    mode = choose_mode(PLAN, iterations, 0.0, QUIET)
    assert (mode.compiles, mode.reason) == (compiles, reason)
    assert asked["both"] == (iterations * eager > 200)
    assert mode.step == (compiled if compiles else eager)


def test_without_a_compiler_it_is_eager(timed, monkeypatch):
    timed(1.0, 0.5)
    monkeypatch.setattr(step_time.shutil, "which", lambda name: None)
    mode = choose_mode(PLAN, 1000, 0.0, QUIET)
    assert (mode.compiles, mode.reason) == (False, "eager: there is no g++ to compile with")


def test_a_preview_compiles_nothing(timed, messages):
    asked = timed(300.0, 150.0)
    plan = preview(config(), progress=messages)
    assert "eager or compiled: both will be timed when the run starts" in messages.lines
    evaluated = duration(300.0 * evaluation_steps(plan))
    assert f"about 20 minutes of training, if not compiled; about {evaluated} of evaluation" in messages.lines
    assert plan.config.run.compile is None  # still open
    assert asked == {"eager": 1, "both": 0}


def test_choice_and_reason_are_recorded_and_followed(timed, tmp_path, stop_at, messages):
    asked = timed(300.0, 600.0)
    folder = tmp_path / "run"
    with pytest.raises(Exception, match="stopped"):
        train(config(), folder, progress=stop_at(2))
    stored = yaml.safe_load((folder / "config.yaml").read_text())["run"]
    assert (stored["compile"], stored["threads"]) == (False, 1)
    assert stored["compile_reason"].startswith("eager: 300000 ms per step eager, 600000 ms compiled")
    train(config(), folder, resume=True)
    cost = json.loads((folder / "result.json").read_text())["cost"]
    assert cost["compiled"] is False
    again = make_config(yaml.safe_load((folder / "config.yaml").read_text()))
    train(again, tmp_path / "again")
    assert asked["both"] == 1


def test_timing_changes_neither_weights_nor_random_numbers(tmp_path):
    weights = []
    for number, compile in enumerate((None, False)):
        run = train(config(compile=compile), tmp_path / str(number))
        (path,) = run.folder.glob("checkpoint/last-*/weights.safetensors")
        weights.append(hashlib.sha256(path.read_bytes()).hexdigest())
    assert weights[0] == weights[1]
    plan = make_plan(config())
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    assert measure_seconds(plan, 3) > 0
    assert torch.equal(torch.rand(3), expected)


def test_threads_are_those_of_the_record_and_the_callers_come_back(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: 5)
    monkeypatch.setattr(torch, "set_num_threads", seen.append)
    run = train(config(threads=3, compile=False), tmp_path / "run")
    assert seen == [3, 5]
    assert run.config.run.threads == 3


def test_compiled_code_is_kept_in_the_cache_folder_unless_torch_was_given_one(tmp_path, monkeypatch):
    monkeypatch.setenv("SLA_DATA", str(tmp_path / "cache"))
    monkeypatch.setenv(COMPILED_CODE, "elsewhere")
    keep_compiled_code()
    assert os.environ[COMPILED_CODE] == "elsewhere"
    monkeypatch.delenv(COMPILED_CODE)
    keep_compiled_code()
    assert os.environ[COMPILED_CODE] == str(tmp_path / "cache" / "compiled")
    monkeypatch.delenv(COMPILED_CODE)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SLA_DATA", str(tmp_path / "file"))  # no folder can be made in it
    keep_compiled_code()
    assert COMPILED_CODE not in os.environ


@pytest.mark.slow
def test_both_are_timed_in_turn_and_compiled_code_is_kept(tmp_path, monkeypatch):
    """With torch's own compiler; the second time finds its code in the cache folder."""
    monkeypatch.setenv("SLA_DATA", str(tmp_path))
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    plan = make_plan(config())
    eager, compiled, first = step_time._time_both(plan)
    assert min(eager, compiled, first) > 0
    assert any((tmp_path / "compiled").rglob("*.so"))
