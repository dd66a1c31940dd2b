"""The search for a policy, in tiny form: what it writes, that it goes on, and that it tells good from bad."""

import json
import sys

import pytest
import torch

import commands
from refusals import fails, refused
from sla.augment.policy import make_policy, read_policy
from sla.datasets.load import load
from sla.errors import MissingExtraError
from sla.policy_search import SearchSettings, _Scorer, search_policy
from sla.progress import QUIET, Progress
from sla.sampling.protocols import hold_out
from sla.tasks.classifier.run import Run
from sla.tasks.registry import make_config

pytest.importorskip("optuna", reason="needs the extra search")

TINY = {
    "data": {"source": "digits", "workers": 0},
    "model": {"backbone": "convnet4", "options": {"width": 8}},
    "method": {"name": "baseline"},
    "augment": "crop(1)",
    "run": {"iterations": 40, "batch_size": 64, "evaluations": 1, "compile": False},
}
SETTINGS = {"folds": 2, "trials": 4, "images": 80, "best": 2, "draws": 2}


def search(folder, progress=QUIET, **changes):
    settings = SearchSettings(**{**SETTINGS, **changes})
    return search_policy(make_config(TINY), settings, folder, "sla augment search digits", progress=progress)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("search") / "work"
    return search(folder), folder


def test_a_search_gives_the_best_candidates_and_says_how(found):
    content, folder = found
    assert len(content["sub_policies"]) == 2 * 2 * 5  # folds, candidates, sub-policies
    make_policy(content, "found")
    for fold, told in enumerate(content["folds"]):
        trials = [json.loads(line) for line in (folder / f"trials-{fold}.jsonl").read_text().splitlines()]
        best = sorted(trial["loss"] for trial in trials)[:2]
        assert told["kept_losses"] == best
        assert told["trials"] == len(trials) == 4
        assert told["scored_on"] == 80
        winner = min(trials, key=lambda trial: trial["loss"])
        assert all(sub in content["sub_policies"] for sub in winner["policy"])
    assert content["command"] == "sla augment search digits"


def test_a_network_never_sees_what_candidates_are_scored_on(found):
    _, folder = found
    train = hold_out(load("digits").train, 0.1)[0]  # what is held out of a run is not searched on
    learnt, scored = hold_out(train, 0.4, seed=0)
    assert not set(learnt.rows) & set(scored.rows)
    assert json.loads((folder / "fold-0" / "result.json").read_text())["images"]["train"] == len(learnt)


def test_a_stopped_search_continues_to_the_same_policy(found, tmp_path, messages):
    whole, _ = found

    class StoppedError(Exception):
        pass

    class StopSoon(Progress):
        def advance(self, what, done, total):
            if what == "fold 1: candidates" and done == 2:
                raise StoppedError

    settings = SearchSettings(**SETTINGS)
    arguments = (make_config(TINY), settings, tmp_path / "work", "sla augment search digits")
    with pytest.raises(StoppedError):
        search_policy(*arguments, progress=StopSoon())
    log = tmp_path / "work" / "trials-1.jsonl"
    assert len(log.read_text().splitlines()) == 2
    with open(log, "a") as file:
        file.write('{"params": {"0.0.op')  # the power went while it wrote
    again = search(tmp_path / "work", messages)
    assert again == whole
    assert not any("training" in line for line in messages.lines)  # both networks were finished


def test_another_search_does_not_mix_into_a_folder(found):
    _, folder = found
    refused("a search with other settings", search, folder, seed=1)


def test_harmless_policies_score_better_than_harmful_ones(found):
    """Digits turned by 30 degrees half of the time are still known; nearly black ones are not."""
    _, folder = found
    run = Run(folder / "fold-0")
    scored = hold_out(hold_out(load("digits").train, 0.1)[0], 0.4, seed=0)[1]
    scorer = _Scorer(run, scored, SearchSettings(draws=3))
    nothing = scorer.score(None)
    harmless = scorer.score([[["Brightness", 1.0, 0.5]]])  # a factor of 1
    harmful = scorer.score([[["Brightness", 1.0, 0.0], ["TranslateX", 1.0, 1.0]]])
    assert harmless["loss"] == pytest.approx(nothing["loss"], rel=1e-5)
    assert harmful["loss"] > nothing["loss"] + 0.3
    assert harmful["accuracy"] < nothing["accuracy"]
    with torch.inference_mode():
        images, aspect = scored.read(range(len(scored)))
        logits = run.model.eval()(run.pipeline(images, None, aspect))
    plain = 100 * (logits.argmax(1) == torch.from_numpy(scored.targets)).float().mean().item()
    assert nothing["accuracy"] >= plain - 2  # the best of three draws


def test_minutes_are_a_budget(tmp_path):
    content = search(tmp_path / "work", minutes=0.02, folds=1)
    assert content["folds"][0]["trials"] >= 1
    assert len(content["sub_policies"]) >= 5


@pytest.mark.parametrize(
    ("changes", "line"),
    [({"folds": 0}, "folds must be at least 1"), ({"minutes": 0.0}, "minutes must be above 0")],
)
def test_settings_that_cannot_be_are_refused(changes, line):
    refused(line, SearchSettings, **{**SETTINGS, **changes})


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["absent"], "absent"),
        (["digits", "--backbone", "resnet7"], "resnet7"),
        (["digits", "--augment", "autoaugment"], "the search itself finds a policy"),
        (["digits", "--augment", "cutout(99)"], "at most that of the image"),
    ],
)
def test_a_refused_search_leaves_nothing(words, line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused(line, commands.sla, "augment", "search", *words)
    assert list(tmp_path.iterdir()) == []


def test_without_optuna_it_is_said_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    fails(MissingExtraError, r"install .*\[search\]'", search, tmp_path / "work")


def test_the_command_writes_a_file_that_training_takes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small = ["--backbone", "convnet4", "--set", "model.options={width: 8}", "--set", "run.compile=false"]
    words = ["augment", "search", "digits", "--trials", "2", "--folds", "1", "--images", "40", *small]
    said = commands.sla(*words, "--set", "run.iterations=5")
    assert "10 sub-policies: policy.json" in said
    assert "--augment 'policy(policy.json), crop(1)'" in said
    assert len(make_policy(read_policy("policy.json"), "policy.json").sub_policies) == 10
    words = ["train", "digits", "--iterations", "2", "--augment", "policy(policy.json), crop(1)", *small]
    commands.sla(*words, "--mix", "cutmix(1.0, 0.5)")
    assert "cutmix(1.0, 0.5)" in (tmp_path / "runs" / "digits" / "config.yaml").read_text()
