"""Classifier, methods and factory as a user meets them."""

import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

import sla
from refusals import refused
from sla.errors import InputError, SLAWarning

NAN = float("nan")
VIEWS = sla.Rotation()
METHODS = {
    "baseline": sla.Baseline(),
    "da": sla.DataAugmentation(VIEWS),
    "mt": sla.MultiTask(VIEWS),
    "sla": sla.SLA(VIEWS),
    "sla+sd": sla.SLA(VIEWS, distill=True),
    "sla+sd cosine": sla.SLA(VIEWS, distill=True, head="cosine"),
}
EVERY_METHOD = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)


class Tiny(nn.Module):
    """Features that differ from view to view: a linear map of the pixels."""

    num_features = 6

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3 * 4 * 4, 6)

    def forward(self, input):
        return self.layer(input.flatten(1))


def tiny(method, num_classes=5):
    torch.manual_seed(0)
    return sla.Classifier(Tiny(), num_classes, method).eval()


@pytest.fixture
def batch():
    torch.manual_seed(1)
    return torch.randn(3, 3, 4, 4), torch.tensor([0, 4, 2])


@EVERY_METHOD
def test_every_method_learns_in_a_plain_loop_and_predicts(method, batch):
    images, targets = batch
    model = tiny(method).train()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    history = []
    for _ in range(60):
        losses = model.losses(images, targets)
        optimizer.zero_grad()
        losses["loss"].backward()
        optimizer.step()
        history.append(losses["loss"].item())
    assert all(p.grad is not None for p in model.parameters())
    assert history[-1] < history[0] / 2
    model.eval()
    for inference in method.inferences:
        labels, probabilities = model.predict(images, inference)
        assert labels.tolist() == targets.tolist()
        torch.testing.assert_close(probabilities.sum(-1), torch.ones(3))
    assert losses["output"].shape == (3, 5)
    assert not losses["output"].requires_grad


def test_a_sla_model_by_hand(batch):
    """Every kind of inference from the weights, image by image."""
    images, _ = batch
    model = tiny(METHODS["sla+sd"])
    joint, plain = model.heads["joint"], model.heads["plain"]
    for b in range(3):
        turned = [model.backbone(torch.rot90(images[b : b + 1], k, (2, 3)))[0] for k in range(4)]
        own = [
            torch.stack([joint.weight[i * 4 + k] @ turned[k] + joint.bias[i * 4 + k] for i in range(5)])
            for k in range(4)
        ]
        torch.testing.assert_close(model.logits(images, "single")[b], own[0])
        torch.testing.assert_close(model.logits(images, "aggregated")[b], torch.stack(own).mean(0))
        probabilities = torch.stack(own).softmax(-1).mean(0).log()
        torch.testing.assert_close(model.logits(images, "aggregated", "probabilities")[b], probabilities)
        student = plain.weight @ turned[0] + plain.bias
        torch.testing.assert_close(model.logits(images, "distilled")[b], student)
        marginal = torch.stack([joint(z).softmax(-1).view(5, 4).sum(1) for z in turned]).mean(0).log()
        torch.testing.assert_close(model.logits(images, "aggregated", "marginal")[b], marginal)


@pytest.mark.parametrize("name", ["da", "mt"])
def test_invariant_methods_average_the_plain_head_over_the_views(name, batch):
    images, _ = batch
    model = tiny(METHODS[name])
    each = [model.logits(torch.rot90(images, k, (2, 3)), "single") for k in range(4)]
    torch.testing.assert_close(model.logits(images, "aggregated"), torch.stack(each).mean(0))
    probabilities = torch.stack([logits.softmax(-1) for logits in each]).mean(0).log()
    torch.testing.assert_close(model.logits(images, "aggregated", "probabilities"), probabilities)


def test_features_come_beside_logits_in_one_pass(batch):
    images, _ = batch
    model = tiny(METHODS["sla+sd"])
    features = model.features(images)
    assert features.shape == (3, 6)
    torch.testing.assert_close(model.classify(features), model(images))
    torch.testing.assert_close(model(images), model.logits(images, "distilled"))  # the best of one pass
    plain = tiny(METHODS["sla"])
    torch.testing.assert_close(plain(images), plain.logits(images, "single"))
    torch.testing.assert_close(model.classify(features, "single"), model.logits(images, "single"))
    refused("no aggregated inference", model.classify, features, "aggregated")


def test_one_random_view_an_image_trains_and_distilling_asks_for_the_plain_one(batch):
    images, targets = batch
    views = torch.tensor([[3], [1], [0]])
    losses = tiny(METHODS["sla"]).losses(images, targets, views)
    model = tiny(METHODS["sla"])
    by_hand = []
    for b in range(3):
        k = int(views[b])
        logits = model.heads["joint"](model.backbone(torch.rot90(images[b : b + 1], k, (2, 3))))
        by_hand.append(-logits.log_softmax(-1)[0, targets[b] * 4 + k])
    torch.testing.assert_close(losses["loss"], torch.stack(by_hand).mean())
    refused("view 0 first", tiny(METHODS["sla+sd"]).losses, images, targets, views)


@pytest.mark.parametrize("views", [sla.Rotation(), sla.Rotation(0, 180)], ids=["rot4", "rot2"])
def test_class_weights_are_asked_for_again_after_growing(views, batch):
    images, _ = batch
    criterion = sla.CrossEntropy(torch.tensor([1.0, 2.0]))
    model = sla.create("resnet8", 2, sla.SLA(views, criterion=criterion)).eval()
    model.grow(2)  # a multiple of two: the old weights must not be spread over the new classes
    target = torch.arange(len(images)) % 4
    refused("2 class weights do not fit 4 classes", model.losses, images, target)
    weight = torch.tensor([1.0, 2.0, 3.0, 4.0])
    model.criterion.weight = weight
    loss = model.losses(images, target)["loss"]
    joint = model.heads["joint"](model.features(model.method.expand(images)))
    labels = (target[:, None] * len(views) + torch.arange(len(views))).flatten()
    per_label = weight.repeat_interleave(len(views))
    torch.testing.assert_close(loss, torch.nn.functional.cross_entropy(joint, labels, per_label))


def test_growing_keeps_the_old_classes_in_every_kind_of_inference(batch):
    images, _ = batch
    for method in METHODS.values():
        model = tiny(method)
        before = {inference: model.logits(images, inference).detach() for inference in method.inferences}
        model.grow(3)
        for inference, logits in before.items():
            after = model.logits(images, inference)
            assert after.shape == (3, 8)
            torch.testing.assert_close(after[:, :5], logits)
        assert model.losses(images, torch.tensor([7, 0, 6]))["loss"].isfinite()


def test_new_classes_get_names_and_files_keep_them(tmp_path):
    model = sla.create("resnet8", 2, METHODS["sla"])
    model.grow(1)
    assert model.class_names is None
    model.class_names = ["a", "b", "c"]
    model.grow(2)
    model.grow(1, ["f"])
    assert model.class_names == ["a", "b", "c", "class 3", "class 4", "f"]
    refused("2 new classes need 2 names, not 1", model.grow, 2, ["g"])
    sla.save(model, tmp_path / "grown")
    again = sla.load(tmp_path / "grown")
    assert (again.num_classes, again.class_names) == (6, model.class_names)
    model.class_names = ["a"]
    refused("1 class names do not fit 6 classes", sla.save, model, tmp_path / "grown")
    unnamed = tiny(METHODS["sla"], num_classes=2)
    unnamed.grow(1, ["c"])
    assert unnamed.class_names == ["class 0", "class 1", "c"]


def test_a_feature_map_is_averaged_and_any_module_serves(batch):
    images, targets = batch
    backbone = nn.Conv2d(3, 7, 3)
    model = sla.Classifier(backbone, 5, METHODS["sla"], num_features=7)
    torch.testing.assert_close(model.features(images), backbone(images).mean((2, 3)))
    assert model.losses(images, targets)["loss"].isfinite()


def test_class_weights_move_with_the_model_and_stay_out_of_its_state(batch):
    images, targets = batch
    weight = torch.rand(5)
    model = tiny(sla.SLA(VIEWS, distill=True, criterion=sla.CrossEntropy(weight)))
    assert not any("criterion" in key for key in model.state_dict())
    assert model.double().criterion.weight.dtype == torch.float64
    assert model.losses(images.double(), targets)["loss"].dtype == torch.float64


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda m, x, y: sla.Classifier(Tiny(), 1, m.method), "at least two classes, not 1"),
        (lambda m, x, y: sla.Classifier(nn.Flatten(), 5, m.method), "num_features"),
        (lambda m, x, y: sla.Classifier(nn.Flatten(), 5, m.method, num_features=9)(x), "shape (3, 48)"),
        (lambda m, x, y: m.losses(x, y + 1), "target 5 is out of range"),
        (lambda m, x, y: m.losses(x, y[:2]), "target must be (3,)"),
        (lambda m, x, y: m.losses(x[..., :3], y), "square images"),
        (lambda m, x, y: m.logits(x, "aggregate"), "did you mean 'aggregated'"),
        (lambda m, x, y: m.logits(x, "distilled"), "its method gives single, aggregated"),
        (lambda m, x, y: m.logits(x, "aggregated", "max"), "unknown average 'max'"),
        (lambda m, x, y: sla.create_method("slaa"), "did you mean 'sla'"),
        (lambda m, x, y: sla.create("resnet33", 5), "resnet"),
        (lambda m, x, y: sla.create(Tiny(), 5, width=3), "options width"),
        (lambda m, x, y: sla.SLA(VIEWS, temperature=0), "temperature must be above 0"),
        (lambda m, x, y: sla.SLA(VIEWS, view_reduction="avg"), "unknown view_reduction 'avg'"),
        (lambda m, x, y: tiny(METHODS["baseline"]).logits(x, "aggregated"), "no aggregated inference"),
        (lambda m, x, y: sla.Classifier(Tiny(), 2.5, m.method), "at least two classes, not 2.5"),
        (lambda m, x, y: sla.Classifier(Tiny(), 5, method="sla"), "not text: create_method('sla')"),
        (lambda m, x, y: sla.Classifier(Tiny(), 5, method=sla.SLA), "such as SLA(), not <class"),
        (lambda m, x, y: sla.SLA("rot4"), "not text: parse_views('rot4')"),
        (lambda m, x, y: sla.DataAugmentation(4), "such as Rotation(), not 4"),
        (lambda m, x, y: sla.SLA(temperature=NAN), "temperature must be above 0 and beta at least 0"),
        (lambda m, x, y: sla.SLA(beta=NAN), "temperature must be above 0 and beta at least 0"),
        (lambda m, x, y: m.losses(x[:0], y[:0]), "the batch is empty"),
        (lambda m, x, y: m.losses(x, y, torch.tensor([[0], [1], [4]])), "view 4 is out of range"),
    ],
)
def test_wrong_input_gets_one_clear_line(call, words, batch):
    refused(words, call, tiny(METHODS["sla"]), *batch)


def test_nan_pixels_are_found_where_asked_for(batch):
    images, targets = batch
    images[1, 0, 2, 2] = float("nan")
    careless = tiny(METHODS["sla"])
    assert careless.losses(images, targets)["loss"].isnan()
    careful = sla.Classifier(Tiny(), 5, METHODS["sla"], check_input=True)
    for call in (lambda: careful.losses(images, targets), lambda: careful.predict(images)):
        refused("NaN or infinite", call)


def test_one_view_is_the_baseline_and_says_so(batch):
    images, targets = batch
    with pytest.warns(SLAWarning, match="it is the baseline"):
        method = sla.SLA(sla.Identity())
    one, baseline = tiny(method), tiny(METHODS["baseline"])
    torch.testing.assert_close(one.losses(images, targets)["loss"], baseline.losses(images, targets)["loss"])
    torch.testing.assert_close(one.logits(images, "aggregated"), baseline.logits(images))


@EVERY_METHOD
def test_saved_and_loaded_it_is_the_same_model(method, tmp_path):
    torch.manual_seed(0)
    model = sla.create("resnet8", 3, method).eval()
    model.class_names = ["a", "b", "<c>"]
    sla.save(model, tmp_path / "model.safetensors")
    again = sla.load(tmp_path / "model.safetensors")
    images = torch.randn(2, 3, 16, 16)
    for inference in model.method.inferences:
        assert torch.equal(again.logits(images, inference), model.logits(images, inference))
    assert again.method == model.method
    assert again.class_names == ["a", "b", "<c>"]
    assert [p.name for p in tmp_path.iterdir()] == ["model.safetensors"]


def test_files_that_are_no_saved_model_are_refused(tmp_path):
    (tmp_path / "text").write_text("hello")
    save_file({"x": torch.zeros(1)}, tmp_path / "other")
    save_file({"x": torch.zeros(1)}, tmp_path / "future", {"sla": json.dumps({"format": 99})})
    for name, words in (("text", "not a classifier"), ("other", "not a classifier"), ("future", "format 99")):
        refused(words, sla.load, tmp_path / name)
    refused("no such file", sla.load, tmp_path / "absent")
    sla.save(tiny(METHODS["sla"]), tmp_path / "tiny")
    refused("backbone: an object that was passed from Python", sla.load, tmp_path / "tiny")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "model"
    sla.save(sla.create("resnet8", 3, METHODS["sla"]), path)
    return path


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_classes": 4}, "weights do not fit the resnet8"),
        ({"num_classes": 10**12}, "num_classes 1000000000000 does not fit"),
        ({"num_classes": 2.5}, "lacks a valid 'num_classes'"),
        ({"num_classes": -1}, "at least two classes"),
        ({"method": None}, "lacks a valid 'method'"),
        ({"method": {}}, "description is damaged"),
        ({"method": {"name": "sla", "views": "rot5"}}, "did you mean 'rot4'"),
        ({"method": {"name": "sla", "views": 4}}, "description is damaged"),
        ({"method": {"name": "sla", "views": "rot4", "colour": 1}}, "description is damaged"),
        ({"backbone": "resnet20"}, "weights do not fit the resnet20"),
        ({"backbone": "resnet_of_nobody"}, "no backbone is called"),
        ({"options": {"in_channels": 1}}, "weights do not fit the resnet8"),
        ({"options": {"method": 1}}, "description is damaged"),
        ({"classes": ["a"]}, "does not fit its weights and class names"),
        ({"about": 3}, "lacks a valid 'about'"),
        ([1, 2], "its description is a list"),
        (None, "its description is a NoneType"),
    ],
)
def test_a_damaged_description_is_refused_in_one_clear_line(change, words, saved, tmp_path):
    with safe_open(saved, framework="pt") as file:
        described = json.loads(file.metadata()["sla"])
    described = described | change if isinstance(change, dict) else change
    save_file(load_file(saved), tmp_path / "damaged", {"sla": json.dumps(described)})
    with pytest.raises(InputError) as error:
        sla.load(tmp_path / "damaged")
    assert str(error.value).startswith(str(tmp_path / "damaged"))
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_a_description_without_a_key_and_a_truncated_file_are_refused(saved, tmp_path):
    with safe_open(saved, framework="pt") as file:
        described = json.loads(file.metadata()["sla"])
    for key in ("backbone", "options", "num_classes", "method", "classes", "about"):
        rest = {name: value for name, value in described.items() if name != key}
        save_file(load_file(saved), tmp_path / "lacking", {"sla": json.dumps(rest)})
        refused(f"lacks a valid '{key}'", sla.load, tmp_path / "lacking")
    whole = saved.read_bytes()
    for length in (0, 7, 100, len(whole) - 1):
        (tmp_path / "short").write_bytes(whole[:length])
        refused("not a classifier", sla.load, tmp_path / "short")


def test_predicting_during_training_changes_nothing():
    """A validation call inside one's own loop is as in evaluation mode; batch norm learns nothing."""
    torch.manual_seed(0)
    model = sla.create("resnet8", 3, sla.SLA()).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    images = torch.randn(4, 3, 32, 32)
    found = model.predict(images, "aggregated").probabilities
    assert model.training
    assert model.backbone.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    torch.testing.assert_close(found, model.eval().logits(images, "aggregated").softmax(-1))


def test_large_batches_are_answered_in_parts(monkeypatch):
    """The same answers, and no more pixels at once than allowed; training sees the whole batch."""
    torch.manual_seed(0)
    model = sla.create("resnet8", num_classes=3, method=sla.SLA(sla.Rotation()))
    images, rows = torch.randn(5, 3, 16, 16), []
    model.backbone.register_forward_pre_hook(lambda _, inputs: rows.append(len(inputs[0])))
    model.eval()
    with torch.no_grad():
        whole = model.logits(images, "aggregated")
        monkeypatch.setattr("sla.classifier.PIXELS", 6 * 16 * 16)
        parts = model.logits(images, "aggregated")
    assert rows == [20, 6, 6, 6, 2]
    assert torch.allclose(whole, parts, atol=1e-5)
    rows.clear()
    model.train()(images, torch.tensor([0, 1, 2, 0, 1]))["loss"].backward()
    assert rows == [20]
