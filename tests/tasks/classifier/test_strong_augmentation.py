"""Policies, boxes and mixing in whole runs: one table of settings trains, resumes and exports."""

import json
import os
import subprocess
import sys
import warnings

import pytest
import torch
from safetensors.torch import load_file

import sla
from refusals import refused
from sla.datasets.load import load
from sla.errors import InputError, SLAWarning
from sla.runs.checkpoint import find_checkpoint
from sla.runs.config import read_config
from sla.runs.distributed import Group
from sla.runs.signals import Stop, StoppedError
from sla.sampling.loader import TrainLoader
from sla.session import train
from sla.tasks.classifier.plan import make_plan
from sla.tasks.classifier.trainer import Trainer
from sla.tasks.registry import make_config

POLICY = [[["Rotate", 0.7, 0.9], ["Contrast", 0.5, 0.2]], [["Cutout", 1.0, 0.8]]]
CANONICAL = {  # every named augmentation and way of mixing, as people would set it
    "autoaugment": {"augment": "autoaugment, crop(1), cutout(4)"},
    "autoaugment imagenet": {"augment": "autoaugment(imagenet), crop(1)"},
    "randaugment": {"augment": "randaugment(2, 9), crop(1)"},
    "trivialaugment": {"augment": "trivialaugment, crop(1)", "method": {"views": "rot2"}},
    "policy": {"augment": "policy(mine.json), crop(1)"},
    "erasing": {"augment": "resized(0.5), erasing(0.25)"},
    "vflip and jitter": {"augment": "crop(1), vflip, jitter(0.4)"},
    "mixup": {"augment": "crop(1)", "mix": "mixup(1.0)"},
    "mixup each": {"augment": "crop(1)", "mix": "mixup(0.2, each)"},
    "cutmix": {"augment": "crop(1)", "mix": "cutmix(1.0, 0.5)"},
    "cutmix each": {"augment": "none", "mix": "cutmix(1.0, 0.5, each)"},
    "everything": {"augment": "autoaugment, crop(1), flip, cutout(4)", "mix": "cutmix(1.0, 0.5)"},
}
METHODS = ["baseline", "da", "mt", "sla", "sla+sd"]


def tree(name, **run):
    """A canonical setting with a network and a run of seconds."""
    setting = CANONICAL[name]
    return {
        "data": {"source": "digits", "workers": 0},
        "model": {"backbone": "convnet4", "options": {"width": 4}},
        "optimizer": {"learning_rate": 0.05},
        "run": {"iterations": 6, "batch_size": 16, "evaluations": 1, "compile": False, **run},
        **setting,
    }


@pytest.fixture(scope="module")
def digits():
    return load("digits")


@pytest.fixture(autouse=True)
def _policy_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.json").write_text(json.dumps(POLICY))


@pytest.mark.parametrize("method", METHODS)
def test_every_setting_trains_one_step_under_every_method(method, digits, tmp_path):
    for name in CANONICAL:
        parts = tree(name)
        parts["method"] = {**parts.get("method", {}), "name": method}
        trainer = Trainer(make_plan(make_config(parts), digits), tmp_path, Group())
        before = [value.detach().clone() for value in trainer.model.parameters()]
        batch = next(iter(TrainLoader(digits.train, 16, seed=0, steps=1)))
        trainer.prepare(frozen=False)
        trainer.learn(batch)
        assert trainer.meter.finite, name
        changed = [not torch.equal(a, b) for a, b in zip(before, trainer.model.parameters(), strict=True)]
        assert all(changed), name
        assert 0 <= trainer.meter.sums["train"] <= 100


class StopAfter(Stop):
    """Asked to stop once some steps are done."""

    def __init__(self, steps):
        super().__init__()
        self.left = steps

    @property
    def requested(self):
        self.left -= 1
        return self.left <= 0

    @requested.setter
    def requested(self, value):
        pass


def weights_of(folder):
    return (find_checkpoint(folder / "checkpoint", "last") / "weights.safetensors").read_bytes()


RESUMED = [
    pytest.param(name, marks=() if name in ("everything", "policy", "mixup each") else pytest.mark.slow)
    for name in CANONICAL
]


@pytest.mark.parametrize("name", RESUMED)
def test_every_setting_goes_on_byte_for_byte(name, digits, tmp_path, monkeypatch):
    config = make_config(tree(name))
    whole = train(config, tmp_path / "whole", splits=digits)
    with monkeypatch.context() as patched:
        patched.setattr("sla.session.Stop", lambda: StopAfter(3))
        with pytest.raises(StoppedError, match="stopped after step 3 of 6"):
            train(config, tmp_path / "stopped", splits=digits)
    (tmp_path / "mine.json").unlink()  # a run that began has what the file held
    resumed = train(config, tmp_path / "stopped", resume=True, splits=digits)
    assert weights_of(whole.folder) == weights_of(resumed.folder)
    metrics = [(run.folder / "metrics.csv").read_text() for run in (whole, resumed)]
    assert metrics[0] == metrics[1]


EXPORTED = [
    name if name == "everything" else pytest.param(name, marks=pytest.mark.slow) for name in CANONICAL
]


@pytest.mark.parametrize("name", EXPORTED)
def test_every_setting_is_exported_without_its_augmentation(name, digits, tmp_path):
    pytest.importorskip("onnxscript", reason="needs the extra export")
    runtime = pytest.importorskip("onnxruntime", reason="needs the extra export")
    run = train(make_config(tree(name)), tmp_path / "run", splits=digits)
    (tmp_path / "mine.json").unlink()
    opened = sla.Run(run.folder)
    opened.export(tmp_path / "model.onnx")
    images = digits.test.read(range(5)).images
    seen = opened.pipeline(images, None, torch.ones(5))
    session = runtime.InferenceSession(tmp_path / "model.onnx")
    found = torch.from_numpy(session.run(None, {"images": seen.numpy()})[0])
    inference = opened.model.method.headline
    with torch.inference_mode():
        logits = opened.model.eval().logits(seen, inference) / opened.temperatures.get(inference, 1.0)
    torch.testing.assert_close(found, logits.softmax(1), rtol=1e-3, atol=1e-4)


def test_what_a_policy_file_held_is_written_down(digits, tmp_path):
    run = train(make_config(tree("policy")), tmp_path / "run", splits=digits)
    written = read_config(run.folder / "config.yaml")
    assert written["policies"] == {"mine.json": POLICY}
    (tmp_path / "mine.json").write_text("no longer a policy")
    again = train(make_config(written), tmp_path / "again", splits=digits)
    assert weights_of(again.folder) == weights_of(run.folder)
    refused(r"mine\.json: not a policy", train, make_config(tree("policy")), tmp_path / "new", splits=digits)
    other = {**written, "augment": "crop(1)"}
    assert make_plan(make_config(other), digits).config.policies == {}


def test_a_mixed_step_is_that_of_the_loss_written_out(digits, tmp_path):
    """The loop's gradient against mixing by hand: pipeline, mix, loss of a MixedTarget."""
    parts = tree("everything")
    parts["optimizer"] = {"learning_rate": 0.05, "accumulate": 3}
    parts["method"] = {"views_per_step": 4}  # all
    trainer = Trainer(make_plan(make_config(parts), digits), tmp_path, Group())
    trainer.model.eval()  # no batch statistics: then parts add up to the whole
    batch = next(iter(TrainLoader(digits.train, 16, seed=3, steps=1)))
    trainer.prepare(frozen=False)
    trainer.model.eval()
    trainer.learn(batch)
    got = [value.grad.clone() for value in trainer.model.parameters()]
    fresh = Trainer(make_plan(make_config(parts), digits), tmp_path, Group())
    fresh.model.eval()
    images = fresh.train_pipeline(batch.images, batch.draws, batch.aspect)
    mixed, partner, lam = sla.augment.mixing.CutMix(1.0, 0.5)(images, batch.draws)
    target = sla.MixedTarget(batch.targets, batch.targets[partner], lam)
    fresh.model.losses(mixed, target)["loss"].backward()
    for a, b in zip(got, fresh.model.parameters(), strict=True):
        torch.testing.assert_close(a, b.grad, rtol=1e-3, atol=1e-5)
    seen = trainer.meter.sums
    assert seen["steps"].item() == pytest.approx(1)


def test_training_accuracy_counts_the_share_of_the_predicted_class():
    from sla.runs.metrics import Meter

    meter = Meter()
    output = torch.eye(3)[[0, 1, 2, 0]]
    target = sla.MixedTarget(torch.tensor([0, 0, 0, 1]), torch.tensor([1, 1, 1, 2]), torch.tensor(0.75))
    meter.add({"loss": torch.tensor(1.0), "output": output}, target, 1.0)
    assert meter.sums["train"].item() == pytest.approx(100 * (0.75 + 0.25 + 0 + 0) / 4)


@pytest.mark.parametrize(
    ("augment", "views", "method", "reason"),
    [
        ("flip, vflip", "rot4", "sla+sd", "flip and vflip together: rotation by 180"),
        (
            "trivialaugment",
            "rot4",
            "da",
            "up to 135 degrees: rotation by 90, rotation by 270",
        ),
        ("flip, vflip", "rot4", "baseline", None),
        ("trivialaugment", "rot2", "sla", None),
        ("autoaugment, flip", "rot4", "sla", None),
    ],
)
def test_augmentation_that_contains_a_view_is_warned_of(augment, views, method, reason, digits):
    parts = tree("cutmix") | {"augment": augment, "method": {"views": views, "name": method}}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        make_plan(make_config(parts), digits)
    said = [str(found.message) for found in caught if issubclass(found.category, SLAWarning)]
    assert len(said) == (reason is not None)
    assert all(reason in line and augment in line for line in said)


def test_wrong_mixing_is_refused_before_anything_is_trained(digits, tmp_path):
    with pytest.raises(InputError, match="unknown mixing 'cutmx'"):
        train(make_config(tree("cutmix") | {"mix": "cutmx"}), tmp_path / "run", splits=digits)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_two_processes_and_a_compiled_step_take_mixed_targets(tmp_path):
    import yaml

    parts = tree("everything", iterations=4)
    parts["optimizer"] = {"learning_rate": 0.05, "accumulate": 2}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(parts))
    words = ["-m", "sla", "train", "--config", "run.yaml"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", *words]
    done = subprocess.run([*launch, "--out", "two"], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    compiled = [sys.executable, *words, "--out", "compiled", "--set", "run.compile=true"]
    done = subprocess.run(compiled, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    eager = train(make_config(parts), tmp_path / "eager")
    state = load_file(find_checkpoint(tmp_path / "compiled" / "checkpoint", "last") / "weights.safetensors")
    for name, value in eager.model.state_dict().items():
        torch.testing.assert_close(state[name], value, rtol=2e-2, atol=2e-3)
