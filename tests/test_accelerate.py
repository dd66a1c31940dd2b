"""Faster copies of a model: equal to rounding, and the model itself stays as it was."""

import copy
import logging

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import sla
from sla import accelerate
from sla.accelerate import Engine, fold_batch_norm, try_onnxruntime

BACKBONES = {  # and how many of its batch norms follow a convolution
    "resnet8": 7,
    "resnet9_4": 8,
    "convnet4": 4,
    "airbench": 3,
    "efficientnet_lite0": 49,
}


def trained(name, **options):
    """A model whose batch norms do something."""
    torch.manual_seed(0)
    model = sla.create(name, 5, sla.SLA(), **options)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.2)
            module.running_var.uniform_(0.5, 2)
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, 0, 0.2)
    return model.eval()


@pytest.mark.parametrize("name", BACKBONES)
def test_folding_changes_nothing_but_rounding(name):
    model = trained(name, **({"width": 0.1} if name == "airbench" else {})).double()
    images, folded = torch.randn(3, 3, 32, 32).double(), copy.deepcopy(model.backbone)
    assert fold_batch_norm(folded, images[:1]) == BACKBONES[name]
    left = sum(isinstance(module, nn.BatchNorm2d) for module in folded.modules())
    before = sum(isinstance(module, nn.BatchNorm2d) for module in model.backbone.modules())
    assert left == before - BACKBONES[name]
    assert_close(folded(images), model.backbone(images), rtol=1e-9, atol=1e-9)


def test_a_copy_has_the_same_logits_and_the_model_does_not_change():
    model, images = trained("resnet8"), torch.randn(6, 3, 16, 16)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    expected = {kind: model.logits(images, kind) for kind in model.inferences}
    fast = accelerate.accelerate(model, images[:2])
    assert fast is not model
    assert not any(isinstance(module, nn.BatchNorm2d) for module in fast.modules())
    for kind, logits in expected.items():
        assert_close(fast.logits(images, kind), logits, rtol=1e-4, atol=1e-4)
    assert model.state_dict().keys() == weights.keys()
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert all(torch.equal(model.logits(images, kind), logits) for kind, logits in expected.items())


class Reused(nn.Module):
    """One convolution with two batch norms, and one whose output is used twice."""

    num_features = 4

    def __init__(self):
        super().__init__()
        self.first, self.norms = nn.Conv2d(3, 4, 1), nn.ModuleList([nn.BatchNorm2d(4), nn.BatchNorm2d(4)])
        self.second, self.norm = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)

    def forward(self, input):
        hidden = self.norms[0](self.first(input)) + self.norms[1](self.first(input))
        twice = self.second(hidden)
        return (self.norm(twice) + twice).mean((2, 3))


def test_what_cannot_be_folded_is_left_as_it_is():
    model = sla.Classifier(Reused(), 5, sla.SLA()).eval()
    for norm in (*model.backbone.norms, model.backbone.norm):
        norm.running_mean.normal_()
        norm.running_var.uniform_(2, 3)
    assert fold_batch_norm(copy.deepcopy(model.backbone), torch.randn(2, 3, 4, 4)) == 1  # the wrong one
    assert accelerate.accelerate(model, torch.randn(2, 3, 4, 4)) is model  # found by its numbers


class NormAndReLU(nn.BatchNorm2d):
    """A batch norm that does more, as timm's BatchNormAct2d."""

    def forward(self, input):
        return super().forward(input).relu()


class Unusual(nn.Module):
    """Batch norms of other kinds, and one of the usual kind."""

    num_features = 4

    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv2d(channels, 4, 1) for channels in (3, 4, 4)])
        self.norms = nn.ModuleList(
            [nn.BatchNorm2d(4), nn.BatchNorm2d(4, track_running_stats=False), NormAndReLU(4)]
        )

    def forward(self, input):
        for conv, norm in zip(self.convs, self.norms, strict=True):
            input = norm(conv(input))
        return input.mean((2, 3))


def test_batch_norms_of_other_kinds_stay_and_the_usual_one_is_folded():
    torch.manual_seed(0)
    model, images = sla.Classifier(Unusual(), 5, sla.SLA()).eval(), torch.randn(32, 3, 4, 4)
    for norm in (model.backbone.norms[0], model.backbone.norms[2]):
        norm.running_mean.normal_(0, 0.2)
        norm.running_var.uniform_(0.5, 2)
    with Engine(model, 32).on(images) as used:
        kinds = [type(norm) for norm in used.backbone.norms]
        assert kinds == [nn.Identity, nn.BatchNorm2d, NormAndReLU]
        assert_close(used.logits(images, "single"), model.logits(images, "single"), rtol=1e-4, atol=1e-4)


@pytest.mark.slow  # the exporter of torch alone takes seconds
def test_onnxruntime_takes_over_where_it_pays_and_gives_the_same(monkeypatch):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model, images = trained("resnet8"), torch.randn(96, 3, 8, 8)
    expected = model.logits(images, "aggregated")
    monkeypatch.setattr(accelerate, "MIN_SECONDS_LEFT", -1.0)
    monkeypatch.setattr(
        accelerate, "_seconds", lambda module, images: float(isinstance(module, sla.backbones.resnet.ResNet))
    )
    engine, found, kinds = Engine(model, 96), [], []
    with torch.inference_mode():
        for part in images.split(24):
            with engine.on(part) as used:
                found.append(used.logits(part, "aggregated"))
                kinds.append(type(used.backbone).__name__)
    assert kinds == ["ResNet", "ResNet", "OnnxBackbone", "OnnxBackbone"]
    assert_close(torch.cat(found), expected, rtol=1e-4, atol=1e-4)


def test_without_onnxruntime_or_with_few_images_the_model_stays(monkeypatch):
    model, images = trained("resnet8"), torch.randn(4, 3, 8, 8)

    def missing():
        raise sla.MissingExtraError("export", "export")

    monkeypatch.setattr(accelerate, "import_onnxruntime", missing)
    assert try_onnxruntime(model, images) is model
    for engine in (Engine(model, 4), Engine(model, 1000, enabled=False)):
        with engine.on(images) as used:
            assert used is model


def test_any_error_of_onnxruntime_leaves_the_model_and_the_callers_logging(monkeypatch):
    model, images = trained("resnet8"), torch.randn(4, 3, 8, 8)

    class FailError(Exception):
        """As those of onnxruntime: derived from Exception alone."""

    def build(backbone, example):
        raise FailError

    def compute(backbone, example):
        def run(input):
            raise FailError

        return run

    before = logging.root.manager.disable
    logging.disable(logging.INFO)
    try:
        for broken in (build, compute):
            monkeypatch.setattr(accelerate, "OnnxBackbone", broken)
            assert try_onnxruntime(model, images) is model
            assert logging.root.manager.disable == logging.INFO
    finally:
        logging.disable(before)
