"""Rare classes in whole runs: what is found and chosen, long tails, and a resume in the deferred phase."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch

import sla
from refusals import refused
from sla.datasets.load import load
from sla.errors import InputError
from sla.runs.checkpoint import find_checkpoint
from sla.runs.signals import StoppedError
from sla.sampling.protocols import long_tailed, places_by_class
from sla.session import train
from sla.tasks.classifier.config import MethodConfig
from sla.tasks.classifier.imbalance import build_criterion, choose_imbalance
from sla.tasks.classifier.plan import make_plan
from sla.tasks.registry import make_config

CLASSES = ("ant", "bee", "cat")
TAIL = {
    "data": {"source": "digits", "workers": 0, "long_tail": 20, "long_tail_max": 100},
    "model": {"backbone": "convnet4", "options": {"width": 8}},
    "method": {"name": "sla+sd", "imbalance": "ldam-drw", "deferred": 0.5},
    "optimizer": {"learning_rate": 0.05},
    "run": {"iterations": 10, "batch_size": 32, "evaluations": 2, "compile": False},
}


def tail(**parts):
    """TAIL with parts of it replaced."""
    return make_config({key: {**value, **parts.get(key, {})} for key, value in TAIL.items()})


@pytest.mark.parametrize(
    ("given", "counts", "imbalance", "head", "words"),
    [
        ("none", [30, 31, 29], "none", "linear", None),
        ("none", [300, 31, 30], "none", "linear", "30 to 300 training images: rare ones .* --imbalance auto"),
        ("auto", [30, 31, 29], "none", "linear", "29 to 31 .*, less than 10 times as many: imbalance none"),
        ("auto", [299, 31, 30], "none", "linear", "less than 10 times"),
        ("auto", [300, 1000, 100], "logit-adjust", "linear", "at least 10 times as many: imbalance logit"),
        ("auto", [1, 1, 1], "none", "linear", "1 to 1"),
        ("ldam-drw", [9, 8, 7], "ldam-drw", "cosine", "^imbalance ldam-drw; classes have 7 to 9"),
        ("cb", [9, 8, 7], "cb", "linear", "^imbalance cb;"),
        ("none", [9, 0, 7], "none", "linear", None),
    ],
)
def test_what_is_chosen_follows_from_the_counts_and_is_said(given, counts, imbalance, head, words):
    part, reasons = choose_imbalance(MethodConfig(imbalance=given), np.array(counts), CLASSES)
    assert (part.imbalance, part.head) == (imbalance, head)
    if words is None:
        assert reasons == []
    else:
        (reason,) = reasons
        assert re.search(words, reason), reason


def test_a_class_without_training_images_is_refused_by_name():
    for imbalance in ("auto", "cb", "ldam-drw", "focal", "logit-adjust"):
        with pytest.raises(InputError, match=r"class 'bee' has no training image: method\.imbalance="):
            choose_imbalance(MethodConfig(imbalance=imbalance), np.array([5, 0, 3]), CLASSES)


def test_criteria_are_built_from_the_counts():
    counts = np.array([16, 1, 81])

    def built(**values):
        return build_criterion(MethodConfig(label_smoothing=0.1, **values), counts)

    assert type(built()) is sla.CrossEntropy
    assert built().weight is None
    torch.testing.assert_close(built(imbalance="cb").weight, sla.class_balanced_weights([16, 1, 81]))
    margin = built(imbalance="ldam-drw", deferred=0.7)
    torch.testing.assert_close(margin.margins, torch.tensor([0.25, 0.5, 1 / 6]))
    assert margin.start == 0.7
    assert margin.weight.tolist() == [1, 1, 1]
    torch.testing.assert_close(margin.deferred, sla.class_balanced_weights([16, 1, 81]))
    assert built(imbalance="focal").gamma == 2
    assert built(imbalance="logit-adjust").log_prior.exp().tolist() == pytest.approx([n / 98 for n in counts])
    for name in ("cb", "ldam-drw", "focal", "logit-adjust"):
        assert built(imbalance=name).label_smoothing == 0.1


def test_a_long_tail_is_cut_and_what_it_left_out_is_chosen_on():
    plan = make_plan(tail(method={"imbalance": "auto"}))
    # int(100 * 20^(-c/9))
    assert plan.train.counts().tolist() == [100, 71, 51, 36, 26, 18, 13, 9, 6, 5]
    digits = load("digits").train
    kept, left_out = long_tailed(digits, 20, 100)
    assert np.array_equal(plan.train.rows, kept.rows)
    assert set(plan.val.rows.tolist()) <= set(left_out.rows.tolist())
    assert set(plan.val.counts().tolist()) == {round(0.1 * len(digits) / 10)}  # balanced
    assert plan.config.method.imbalance == "logit-adjust"
    assert "a long tail of ratio 20: 335 images" in plan.reasons
    assert (
        f"{len(plan.val):,} images that the tail left out are held out to choose the checkpoint"
        in plan.reasons
    )
    assert make_plan(tail(data={"hold_out": 0})).val is None
    other = make_plan(tail(data={"hold_out_seed": 1}))
    assert np.array_equal(other.train.rows, plan.train.rows)
    assert not np.array_equal(other.val.rows, plan.val.rows)


def test_tails_that_cannot_be_are_refused():
    for data, words in (
        ({"per_class": 5}, "data.per_class and data.long_tail both"),
        ({"long_tail": None}, "data.long_tail_max needs data.long_tail"),
        ({"long_tail_max": 10_000}, "10000 are needed"),
    ):
        refused(words, make_plan, tail(data=data))
    splits = load("digits")
    first, second = places_by_class(splits.train)[:2]
    exact = splits.train.subset(np.concatenate([first[:10], second[:5]]))
    two = replace(exact, classes=("0", "1"))
    with pytest.raises(InputError, match="the tail leaves no image to hold out"):
        make_plan(tail(data={"long_tail": 2, "long_tail_max": 10}), replace(splits, train=two, test=None))


def test_ldam_on_a_linear_head_is_refused_before_training(tmp_path):
    refused("LDAM needs a cosine head", train, tail(method={"head": "linear"}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def weights_of(folder):
    return (find_checkpoint(folder / "checkpoint", "last") / "weights.safetensors").read_bytes()


@pytest.mark.parametrize("step", [3, 7])
def test_a_resume_before_or_in_the_deferred_phase_is_exact(step, tmp_path, stop_at):
    """Weights count from step 5 of 10 on: stopped before it, and in the middle of what follows."""
    whole = train(tail(), tmp_path / "whole")
    with pytest.raises(StoppedError, match=f"stopped after step {step} of 10"):
        train(tail(), tmp_path / "run", progress=stop_at(step))
    run = train(tail(), tmp_path / "run", resume=True)
    assert weights_of(run.folder) == weights_of(whole.folder)
    assert (run.folder / "metrics.csv").read_bytes() == (whole.folder / "metrics.csv").read_bytes()


def test_the_deferred_phase_begins_where_it_is_said_to(tmp_path):
    """Losses agree with a run that never re-weights until the step, and differ from it on."""
    rows = []
    for deferred in (0.5, 1.0, 0.0):
        run = train(tail(method={"deferred": deferred}), tmp_path / str(deferred))
        rows.append((run.folder / "metrics.csv").read_text().splitlines()[1:])
    same = [left == right for left, right in zip(rows[0], rows[1], strict=True)]
    assert same == [True] * 5 + [False] * 5
    assert rows[2][0] != rows[1][0]


def test_a_run_keeps_its_counts_and_what_auto_chose(tmp_path, messages):
    config = tail(method={"imbalance": "auto"})
    run = train(config, tmp_path / "run", progress=messages)
    assert any("imbalance logit-adjust" in line for line in messages.lines)
    assert run.config.method.imbalance == "logit-adjust"
    assert run.result["train_counts"] == [100, 71, 51, 36, 26, 18, 13, 9, 6, 5]
    assert run.model.method.head == "linear"
    again = train(config, tmp_path / "run", resume=True)  # auto was chosen: no other configuration
    assert again.result["train_counts"] == run.result["train_counts"]
    with pytest.raises(InputError, match=r"method\.imbalance: 'cb' is not 'logit-adjust'"):
        train(tail(method={"imbalance": "cb"}), tmp_path / "run", resume=True)


def test_every_criterion_trains_with_every_method_and_half_precision(tmp_path):
    for number, (imbalance, name) in enumerate(
        [("cb", "sla"), ("focal", "mt"), ("ldam-drw", "baseline"), ("logit-adjust", "da"), ("cb", "sla+sd")]
    ):
        config = tail(
            method={"imbalance": imbalance, "name": name, "label_smoothing": 0.1},
            run={"iterations": 3, "evaluations": 1, "precision": "bfloat16"},
        )
        run = train(config, tmp_path / str(number))
        assert run.result["accuracies"]["last"]["step"] == 3


def test_the_page_reports_on_what_the_tail_left_out_when_there_is_no_test(tmp_path):
    """Pictures in folders without a test part: the page's images are those held out of training."""
    from PIL import Image

    digits = load("digits").train
    for label, places in enumerate(places_by_class(digits)[:3]):
        for place in places[:40]:
            file = tmp_path / "data" / str(label) / f"{place}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(digits.read([place]).images[0, 0].numpy()).save(file)
    data = {"source": str(tmp_path / "data"), "long_tail": 4, "long_tail_max": 30}
    config = tail(data=data, run={"iterations": 2, "batch_size": 8, "evaluations": 1})
    run = train(config, tmp_path / "run")
    found = run.find_images()
    held_out = found.dataset
    assert found.what == "held-out images"
    assert run.result["train_counts"] == [30, 15, 7]
    assert held_out.counts().tolist() == [4, 4, 4]
    plan = make_plan(config)
    assert [held_out.name(i) for i in range(12)] == [plan.val.name(i) for i in range(12)]
    assert not {held_out.name(i) for i in range(12)} & {plan.train.name(i) for i in range(len(plan.train))}
