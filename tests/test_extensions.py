"""Whatever can be added is added in one file: the module of docs/extending.md, by command line and Python."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import sla
from commands import sla as sla_command
from refusals import refused
from sla.imbalance import CRITERIA, Declared
from sla.runs.config import read_config, validate
from sla.runs.signals import StoppedError
from sla.tasks.classifier.config import MethodConfig
from sla.tasks.classifier.imbalance import build_criterion
from sla.views import FAMILIES, register_views

PAGE = Path(__file__).resolve().parents[1] / "docs" / "extending.md"
QUICK = ["--iterations", "6", "--no-report", "--set", "run.compile=false", "--set", "run.batch_size=16"]
TINY = ["--backbone", "convnet4", "--set", "model.options={width: 4, in_channels: 1}"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the page's mine.py in it."""
    found = re.search(r"<!-- file: mine.py -->\n```python\n(.*?)```", PAGE.read_text(), re.S)
    folder = tmp_path_factory.mktemp("own")
    (folder / "mine.py").write_text(found[1])
    return folder


def call(folder, *words):
    """What `sla WORDS` prints, typed in this folder by a person who has allowed nothing yet."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr("sla.plugins._allowed", set())
        for module in ("mine", "learnt"):
            patch.delitem(sys.modules, module, raising=False)
        return sla_command(*words)


def weights(run):
    (found,) = Path(run).glob("checkpoint/last-*/weights.safetensors")
    return load_file(found)


@pytest.fixture(scope="module")
def remembering(folder):
    """Trained by a process of its own, as a person would."""
    options = ["--set", "method.options={pull: 0.2}", "--set", "run.checkpoint_every=4"]
    words = ["train", "digits", "--out", "memory", "--method", "mine:Remembering", *TINY, *QUICK, *options]
    done = subprocess.run([sys.executable, "-m", "sla", *words], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "memory"


def test_a_method_with_a_memory_is_trained_saved_by_name_and_opened_only_when_allowed(folder, remembering):
    assert "name: mine:Remembering" in (remembering / "config.yaml").read_text()
    refused("--allow mine:Remembering", call, folder, "evaluate", "memory")
    found = json.loads(call(folder, "evaluate", "memory", "--json", "--allow", "mine:Remembering"))
    assert set(found["inference"]) == {"single", "aggregated"}
    (state,) = remembering.glob("checkpoint/last-*/state.safetensors")
    memory = load_file(state)["memory.scores"]
    assert memory.shape[1] == 10
    assert 0 < (memory != 0).any(1).sum() <= 6 * 16
    assert not any(name.startswith("memory") for name in weights(remembering))


def test_a_memory_is_exact_on_resume(folder, remembering, monkeypatch, stop_at):
    monkeypatch.chdir(folder)
    monkeypatch.setattr("sla.plugins._allowed", {"mine:Remembering"})
    tree = read_config("memory/config.yaml")
    with pytest.raises(StoppedError):
        sla.fit("digits", "again", config=tree, progress=stop_at(5))
    sla.fit("digits", "again", config=tree, resume=True)
    assert (folder / "again" / "metrics.csv").read_bytes() == (remembering / "metrics.csv").read_bytes()
    first, second = weights(remembering), weights(folder / "again")
    assert all(torch.equal(first[name], second[name]) for name in first)
    states = (
        next(run.glob("checkpoint/last-*/state.safetensors")) for run in (remembering, folder / "again")
    )
    assert torch.equal(*(load_file(state)["memory.scores"] for state in states))


def test_a_memory_is_refused_where_it_means_nothing(folder):
    words = ["train", "digits", "--out", "mixed", "--method", "mine:Remembering", *TINY, *QUICK]
    refused(r"keeps a memory of each training image: .*mix", call, folder, *words, "--mix", "mixup(1.0)")


def test_views_of_ones_own_from_the_command_line(folder):
    words = "train digits --out mirror --method sla --views mine:Mirror"
    call(folder, *words.split(), *TINY, *QUICK)
    refused("--allow mine:Mirror", call, folder, "predict", "mirror", "mine.py")
    found = json.loads(call(folder, "evaluate", "mirror", "--json", "--allow", "mine:Mirror"))
    assert set(found["inference"]) == {"single", "aggregated"}
    assert weights(folder / "mirror")["heads.joint.weight"].shape[0] == 2 * 10


def test_a_criterion_of_ones_own_is_for_training_alone(folder):
    words = "train digits --out squared --method baseline --criterion mine:squared"
    call(folder, *words.split(), *TINY, *QUICK)
    call(folder, "train", "digits", "--out", "plain", "--method", "baseline", *TINY, *QUICK)
    first, second = weights(folder / "squared"), weights(folder / "plain")
    assert any(not torch.equal(first[name], second[name]) for name in first)
    assert "single" in call(folder, "evaluate", "squared")  # nobody's code is needed for that


def test_a_backbone_of_ones_own(folder):
    own = ["--backbone", "mine:Small", "--set", "model.options={in_channels: 1}", "--method", "sla"]
    call(folder, "train", "digits", "--out", "small", *own, *QUICK)
    refused("--allow mine:Small", call, folder, "evaluate", "small")
    assert "aggregated" in call(folder, "evaluate", "small", "--allow", "mine:Small")


def test_a_configuration_file_alone_imports_nothing(folder):
    (folder / "theirs.yaml").write_text("method: {name: 'mine:Remembering'}\ndata: {source: digits}\n")
    words = ["train", "--config", "theirs.yaml", "--out", "theirs", *TINY, *QUICK]
    refused("mine:Remembering is custom code", call, folder, *words)
    assert not (folder / "theirs").exists()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mine:Absent", "mine has no 'Absent'"),
        ("nowhere:Method", "no module 'nowhere'"),
        ("mine:Small", "must be a subclass of sla.Method"),
    ],
)
def test_wrong_names_get_one_line(folder, name, words):
    refused(words, call, folder, "train", "digits", "--out", "wrong", "--method", name, *QUICK)


def test_a_method_registered_in_one_file_is_an_option_of_the_configuration():
    """What a file of the package would do; the registry and the keys are put back afterwards."""
    from dataclasses import dataclass

    from sla.methods import METHODS, option, register_method

    try:

        @register_method("halved")
        @dataclass(frozen=True)
        class Halved(sla.Baseline):
            factor: float = option(0.5, "of the loss", ge=0)

            def losses(self, heads, features, target, context=sla.StepContext()):  # noqa: B008
                losses = super().losses(heads, features, target, context)
                return losses | {"loss": self.factor * losses["loss"]}

        from sla.tasks.classifier import config as module

        fields = module._option_fields()
        assert fields["factor"][1].description == "of the loss"  # the key method.factor
        method = sla.create_method("halved", factor=0.25)
        refused("has no option 'factr', did you mean 'factor'", sla.create_method, "halved", factr=1)
        images, targets = torch.randn(4, 3, 8, 8), torch.tensor([0, 1, 2, 0])
        torch.manual_seed(0)
        model = sla.create("convnet4", 3, method, width=4).eval()
        torch.manual_seed(0)
        plain = sla.create("convnet4", 3, sla.Baseline(), width=4).eval()
        torch.testing.assert_close(model(images, targets)["loss"], 0.25 * plain(images, targets)["loss"])
    finally:
        METHODS.pop("halved", None)


def test_views_and_criteria_are_declared_once(monkeypatch):
    """A name in one registry is a term of `method.views`, or a value of `method.imbalance`."""
    monkeypatch.setattr("sla.views.FAMILIES", dict(FAMILIES))

    @register_views("shift", shift3=(0, 1, 2))
    class Shift(sla.Views):
        def __init__(self, *pixels):
            self.pixels, self.names = pixels, tuple(map(str, pixels))
            self.text = f"shift({','.join(self.names)})"

        def apply(self, input, view):
            return input.roll(self.pixels[view], -1)

    images = torch.rand(2, 3, 4, 4)
    assert torch.equal(sla.parse_views("rot2*shift3").apply(images, 5), images.rot90(2, (2, 3)).roll(2, -1))
    assert sla.parse_views("shift(0,3)").pixels == (0, 3)
    refused("did you mean 'shift3'", sla.parse_views, "shift4")
    refused("shift(0,1,2)*shift(0,3) repeats views", sla.parse_views, "shift3*shift(0,3)")
    monkeypatch.setitem(CRITERIA, "most", Declared(lambda counts, *_: sla.CrossEntropy(torch.tensor(counts))))
    part = MethodConfig(imbalance="most")
    assert build_criterion(part, np.array([3, 1])).weight.tolist() == [3, 1]
    refused(
        "unknown imbalance 'mots', did you mean 'most'", validate, MethodConfig, {"imbalance": "mots"}, "x"
    )


class Whitened(nn.Module):
    """A backbone whose first layer is made from training images, and that follows the steps."""

    num_features = 4

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.layer = nn.Linear(64, 4)
        self.calls = []

    def init_from_data(self, images):
        self.mean.copy_(images.mean())
        self.seen.copy_(torch.tensor(len(images)))

    def on_step(self, step, steps):
        self.calls.append((step, steps))

    def forward(self, input):
        return self.layer((input - self.mean).flatten(1))


def test_the_hooks_are_found_on_any_module_and_called_by_a_run(tmp_path, monkeypatch):
    from sla.backbones import _FACTORIES, register

    made = []

    @register("whitened")
    def whitened(name, *, in_channels=3):
        made.append(Whitened())
        return made[-1]

    try:
        run = sla.fit(
            "digits",
            tmp_path / "run",
            model__backbone="whitened",
            run__iterations=3,
            run__compile=False,
            method__name="baseline",
        )
    finally:
        _FACTORIES.pop("whitened")
    assert run.model.backbone.seen > 0
    assert run.model.backbone.mean != 0
    trained = max(made, key=lambda module: len(module.calls))
    assert [step for step, _ in trained.calls] == [0, 1, 2, 3]
    assert {steps for _, steps in trained.calls} == {3}


def test_a_method_of_ones_own_may_declare_options_and_is_planned_with_them(tmp_path, monkeypatch):
    (tmp_path / "declared.py").write_text(
        "from dataclasses import dataclass\nimport sla\nfrom sla.methods import option\n\n\n"
        "@dataclass(frozen=True)\nclass Declared(sla.SLA):\n"
        "    few: int = option(1, 'views of a step', ge=1)\n\n"
        "    @property\n    def least_views(self):\n        return self.few\n"
    )
    monkeypatch.chdir(tmp_path)
    tiny = {"model__backbone": "convnet4", "run__iterations": 2, "run__compile": False}
    own = {"method__name": "declared:Declared", "method__options": {"few": 3}}
    run = sla.fit("digits", tmp_path / "run", **tiny, **own)
    assert run.model.method.few == 3
    own["method__views_per_step"] = 2
    refused("needs 3 views of each image", sla.fit, "digits", tmp_path / "wrong", **tiny, **own)


def test_a_criterion_with_parameters_is_kept_for_resuming_and_not_needed_to_open(folder, tmp_path):
    (folder / "learnt.py").write_text(
        "import torch\nfrom torch import nn\n\n\nclass Scaled(nn.CrossEntropyLoss):\n"
        "    def __init__(self):\n        super().__init__()\n"
        "        self.scale = nn.Parameter(torch.ones(()))\n\n"
        "    def forward(self, input, target):\n        return super().forward(self.scale * input, target)\n"
    )
    words = ["train", "digits", "--out", "scaled", "--method", "baseline", "--criterion", "learnt:Scaled"]
    call(folder, *words, *TINY, *QUICK)
    assert not any(name.startswith("criterion") for name in weights(folder / "scaled"))
    (state,) = (folder / "scaled").glob("checkpoint/last-*/state.safetensors")
    assert load_file(state)["criterion.scale"] != 1
    assert "single" in call(folder, "evaluate", "scaled")
    call(folder, "train", "--resume", "--out", "scaled", "--allow", "learnt:Scaled", "--no-report")
