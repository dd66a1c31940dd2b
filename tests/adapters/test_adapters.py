"""The doors to timm, Lightning and scikit-learn, each tested where its library is installed."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import sla
from refusals import refused
from sla.datasets.load import load


@pytest.fixture(scope="module")
def digits():
    parts = [(load("digits").train, 300), (load("digits").test, 200)]
    return [value for data, n in parts for value in (data.read(range(n)).images, data.targets[:n])]


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
    lightning = pytest.importorskip("lightning.pytorch")
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
    fitted = SLAClassifier(epochs=np.int64(1)).fit(images, [0, 1, 0, 1])
    images[1, 2, 3] = np.nan
    for call in (lambda: SLAClassifier().fit(images, [0, 1, 0, 1]), lambda: fitted.predict(images)):
        refused("NaN or infinite", call)
