"""Whether views are recognisable, before and after training; views chosen by trying."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
import view_accuracy

import sla
from refusals import refused
from sla.augment.pipelines import eval_pipeline
from sla.cli.report import report
from sla.datasets.load import load
from sla.errors import InputError
from sla.images.store import ArrayImages, Dataset, Splits
from sla.inference import marginal_over_classes
from sla.runs.config import read_config
from sla.sampling.protocols import hold_out
from sla.session import train
from sla.tasks.classifier import auto_views
from sla.tasks.classifier import view_probe as probe
from sla.tasks.classifier.plan import make_plan
from sla.tasks.classifier.run import Run
from sla.tasks.classifier.view_accuracy import CAN, CANNOT, HARD, UNKNOWN, ViewAccuracy, advise, measure_views
from sla.tasks.classifier.view_probe import fitting, probe_views, split_candidates
from sla.tasks.registry import make_config

TINY = {
    "data": {"source": "digits", "workers": 0},
    "model": {"backbone": "convnet4", "options": {"width": 8}},
    "method": {"name": "sla+sd", "views": "auto"},
    "run": {"iterations": 40, "batch_size": 32, "evaluations": 1, "compile": False},
}


@pytest.fixture(scope="module")
def textures():
    return view_accuracy.textures(1200, 12)


def grey(dataset):
    pixels = dataset.images.pixels[:, :1].contiguous()
    return Dataset(ArrayImages(pixels), dataset.targets, dataset.classes)


def verdicts(train, held_out, candidates, steps=60):
    views = fitting(candidates, train.images.shape[0])
    return {one.views.text: one.verdict for one in probe_views(train, held_out, views, steps=steps)}


def test_the_marginal_over_classes_is_the_sum_of_joint_probabilities():
    logits = torch.randn(5, 3 * 4, dtype=torch.float64)
    found = marginal_over_classes(logits, 4).exp()
    for row in range(5):
        joint = [float(value) for value in logits[row].softmax(0)]
        for view in range(4):
            assert found[row, view].item() == pytest.approx(sum(joint[c * 4 + view] for c in range(3)))


@pytest.mark.parametrize(
    ("hits", "images", "verdict"),
    [
        (250, 1000, CANNOT),
        (310, 1000, CANNOT),
        (400, 1000, HARD),
        (700, 1000, CAN),
        (5, 12, UNKNOWN),
        (12, 12, UNKNOWN),
        (0, 12, UNKNOWN),
        (40, 40, CAN),
    ],
)
def test_verdicts_go_by_the_way_from_guessing_to_never_wrong(hits, images, verdict):
    wrong = (images - hits) // 3
    counts = torch.full((4, 4), wrong) + (hits - wrong) * torch.eye(4, dtype=torch.int64)
    found = ViewAccuracy(sla.Rotation(), counts)
    assert found.verdict == verdict
    assert ("cannot help" in advise(found)) == (verdict == CANNOT)
    assert ("can help" in advise(found)) == (verdict == CAN)


def test_a_product_is_worth_its_worst_factor():
    """Rotation is always recognised, the colour is guessed: a third of all views is right."""
    views, counts = sla.parse_views("rot4*rgb3"), torch.zeros(12, 12, dtype=torch.int64)
    for true in range(12):
        for told in range(12):
            counts[true, told] = 100 if true // 3 == told // 3 else 0
    found = ViewAccuracy(views, counts)
    assert found.accuracy.mean == pytest.approx(100 / 3)
    assert [factor.accuracy.mean for factor in found.factors] == pytest.approx([100, 100 / 3])
    assert found.verdict == CANNOT
    assert advise(found) == (
        "rgb3 in rot4*rgb3: not recognisable here, it only costs time. Try --views 'rot4'."
    )


def test_rotation_is_advised_against_on_textures_and_for_on_digits(textures):
    train, held_out = hold_out(textures, 0.4)
    on_textures = verdicts(train, held_out, ("rot4", "rgb3", "rot4*rgb3"))
    assert on_textures == {"rot4": CANNOT, "rgb3": CAN, "rot4*rgb3": CANNOT}
    train, held_out = hold_out(load("digits").train, 0.2)
    assert verdicts(train, held_out, ("rot4", "rgb3"), 120) == {"rot4": CAN}


def test_the_probe_follows_from_its_seed_and_does_not_touch_random_state(textures):
    train, held_out = hold_out(textures, 0.1)
    views = fitting(("rot4",), 3)
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    first, again, other = (probe_views(train, held_out, views, steps=4, seed=s)[0] for s in (0, 0, 1))
    assert torch.rand(1) == expected
    assert torch.equal(first.confusion, again.confusion)
    assert not torch.equal(first.confusion, other.confusion)
    assert first.confusion.sum(1).tolist() == [len(held_out)] * 4


def test_candidates_are_parted_and_fit_the_channels():
    assert split_candidates("rot4, rgb(RGB,BGR),rot2") == ("rot4", "rgb(RGB,BGR)", "rot2")
    assert [views.text for views in fitting(probe.CANDIDATES, 1)] == ["rot4", "rot2"]
    refused("no views to try", fitting, ("rgb3", "none"), 1)


def test_a_trained_run_says_how_well_it_predicts_its_views(tmp_path, messages):
    parts = {**TINY, "method": {"name": "sla", "views": "rot4"}}
    run = train(make_config(parts), tmp_path / "run", progress=messages)
    found = run.result["view_accuracy"]
    plan = make_plan(make_config(parts))
    right, count = [], len(plan.val)
    mean, std = torch.tensor(run.config.model.mean), torch.tensor(run.config.model.std)
    images = (plan.val.read(range(count)).images / 255 - mean.view(-1, 1, 1)) / std.view(-1, 1, 1)
    run.model.eval()
    with torch.inference_mode():
        for view in range(4):
            logits = run.model.heads["joint"](run.model.features(torch.rot90(images, view, (2, 3))))
            by_view = logits.softmax(1).view(count, 10, 4).sum(1)
            right.append(int((by_view.argmax(1) == view).sum()))
    assert found["on"] == "val"
    assert found["images"] == count
    assert [one[0] for one in found["by_view"].values()] == pytest.approx([100 * r / count for r in right])
    assert found["accuracy"] == pytest.approx(100 * sum(right) / 4 / count)
    assert any("seconds of training" in line for line in messages.lines)
    assert "predicting views" in messages.passes


def test_methods_without_a_head_for_views_say_nothing():
    images = Dataset(ArrayImages(torch.zeros(4, 1, 8, 8, dtype=torch.uint8)), np.zeros(4), ("a", "b"))
    pipeline = eval_pipeline("none", 8, (0.5,), (0.5,))
    for name, tells in (("baseline", False), ("da", False), ("mt", True), ("sla", True)):
        model = sla.create("convnet4", 2, sla.create_method(name), in_channels=1, width=4)
        assert (measure_views(model, images, pipeline) is not None) == tells


def test_auto_tries_chooses_writes_it_down_and_does_not_search_again(tmp_path, monkeypatch, messages):
    monkeypatch.setattr(probe, "STEPS", 60)
    run = train(make_config(TINY), tmp_path / "run", progress=messages)
    chosen = run.config.method.views
    assert chosen in ("rot4", "rot2")
    (line,) = [line for line in messages.lines if line.startswith(f"views {chosen}: best of rot4 ")]
    scores = {text: float(line.split(f"{text} ")[-1].split("%")[0]) for text in ("rot4", "rot2")}
    assert scores[chosen] == max(scores.values())
    assert run.config.method.views_per_step == {"rot4": 4, "rot2": 2}[chosen]
    monkeypatch.setattr(auto_views, "probe_views", None)  # a second search would fail
    again = train(make_config(TINY), tmp_path / "run", resume=True)
    assert again.config.method.views == chosen
    written = make_config(read_config(tmp_path / "run" / "config.yaml"))
    assert train(written, tmp_path / "again").config == run.config


def test_auto_never_looks_at_test_images_and_needs_held_out_ones(tmp_path, monkeypatch):
    monkeypatch.setattr(probe, "STEPS", 20)
    splits = load("digits")
    chosen = []
    for number, test in enumerate((splits.test, splits.test.subset([0, 1, 2]))):
        run = train(make_config(TINY), tmp_path / str(number), splits=replace(splits, test=test))
        chosen.append((run.config, run.result["accuracies"]["last"]["val"]))
    assert chosen[0] == chosen[1]
    with pytest.raises(InputError, match="auto needs held-out images"):
        train(make_config({**TINY, "data": {"source": "digits", "hold_out": 0.0}}), tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_auto_leaves_the_baseline_where_no_view_is_recognisable(textures, tmp_path, monkeypatch, messages):
    monkeypatch.setattr(probe, "STEPS", 60)
    parts = {**TINY, "data": {"workers": 0, "hold_out": 0.4, "source": "textures"}}
    run = train(
        make_config(parts), tmp_path / "run", splits=Splits("textures", grey(textures)), progress=messages
    )
    assert (run.config.method.name, run.config.method.views) == ("baseline", "none")
    assert any("SLA cannot help: the baseline is trained" in line for line in messages.lines)
    assert run.result["view_accuracy"] is None
    train(make_config(parts), tmp_path / "run", splits=Splits("textures", grey(textures)), resume=True)


def test_report_of_a_run_has_the_section(tmp_path):
    parts = {**TINY, "method": {"name": "mt", "views": "rot2"}}
    train(make_config(parts), tmp_path / "run")
    report(tmp_path / "run", None, "last", None)
    assert "Are the views recognisable?" in (tmp_path / "run" / "report.html").read_text()
    assert Run(tmp_path / "run").result["view_accuracy"]["views"] == "rot2"
    assert json.loads((tmp_path / "run" / "result.json").read_text())["view_accuracy"]["chance"] == 50.0
