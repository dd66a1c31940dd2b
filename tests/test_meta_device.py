"""Devices that are not here: on torch's meta device, mixing devices and waiting for a value are errors.

What stays outside, and why:
- Random draws are made on the CPU and moved; nothing comes back.
- Checks of values (labels in range, lam in [0, 1], view 0 first) are made on the CPU only.
- The SVM's Cholesky factorisation waits on a GPU for its error code, once per Newton step, though not here:
  a kernel without a solution must be reported, not trained on. On the CPU its search ends early; elsewhere
  it takes all its steps, of which those after the end change nothing.
- The student of sla+memory learns from the images of a step that were drawn in view 0: how many these are is
  known on the host alone.
- Loaders, metrics and checkpoints read values by their purpose, once per row of metrics or checkpoint.
"""

import pytest
import torch
from torch import nn

import sla
from sla.augment.mixing import CutMix, Mixup
from sla.augment.ops import (
    CenterCrop,
    CenterWindow,
    ColorJitter,
    Cutout,
    Flip,
    Normalize,
    Pipeline,
    RandomCrop,
    RandomErasing,
    RandomResizedCrop,
    Resize,
    VerticalFlip,
)
from sla.augment.policy_ops import OPERATIONS, apply_operations
from sla.augment.ten_crop import ten_crop_pipelines
from sla.augment.transforms import random_boxes
from sla.imbalance import LDAM, Focal, LogitAdjusted
from sla.labels import MixedTarget
from sla.methods import METHODS, StepContext, create_method
from sla.sampling.draws import Draws
from sla.tasks.fewshot.heads import HEADS, create_head
from sla.tasks.fewshot.model import FewShotModel
from sla.views import ColorPermutation, CustomViews, Identity, Rotation, expand_views, take_views

BATCH, CLASSES, SIZE = 6, 5, 8
DRAWS = Draws(seed=0, step=1, batch_size=BATCH)


def on_meta(*shape, dtype=torch.float32):
    return torch.empty(*shape, dtype=dtype, device="meta")


def labels(*shape):
    return on_meta(*shape, dtype=torch.int64)


def network():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())


def test_a_wait_is_an_error_here():
    with pytest.raises(RuntimeError):
        on_meta(2).tolist()
    with pytest.raises((RuntimeError, NotImplementedError)):
        on_meta(2).nonzero()
    with pytest.raises(RuntimeError):
        on_meta(2) + torch.ones(2)


@pytest.mark.parametrize("name", [name for name in METHODS if name != "sla+memory"])
@pytest.mark.parametrize("kind", ["hard", "mixed", "one lam"])
@pytest.mark.parametrize("chosen", [False, True])
def test_a_training_step_of_every_method(name, kind, chosen, monkeypatch):
    for large in (False, True):
        if large:
            monkeypatch.setattr("sla.losses.LARGE", 0)
        model = sla.Classifier(network(), CLASSES, create_method(name), num_features=4).to("meta").train()
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        target = labels(BATCH)
        if kind != "hard":
            target = MixedTarget(target, labels(BATCH), on_meta(BATCH) if kind == "mixed" else 0.3)
        chosen_views = (chosen or name == "lorot") and len(model.method.views) > 1
        views = labels(BATCH, 2) if chosen_views else None
        teacher = on_meta(BATCH, CLASSES) if name == "distilled" else None
        found = model(on_meta(BATCH, 3, SIZE, SIZE), target, StepContext(views, teacher=teacher))
        found["loss"].backward()
        optimizer.step()
        assert all(value.is_meta for value in found.values())
        assert all(parameter.grad.is_meta for parameter in model.parameters())
        assert found["output"].shape == (BATCH, CLASSES)


@pytest.mark.parametrize("name", METHODS)
def test_every_kind_of_inference(name):
    model = sla.Classifier(network(), CLASSES, create_method(name), num_features=4).to("meta").eval()
    images = on_meta(BATCH, 3, SIZE, SIZE)
    for inference in model.method.inferences:
        averages = ("logits", "probabilities", "marginal")[: 3 if name.startswith("sla") else 2]
        for average in averages if inference == "aggregated" else ("logits",):
            assert model.predict(images, inference, average).labels.is_meta
    assert set(model.logits_by_inference(images)) == set(model.method.inferences)
    model.method.predict_view(model.heads, model.features(images))


WEIGHTS, COUNTS = torch.rand(CLASSES), [9, 7, 5, 3, 1]
CRITERIA = [
    sla.CrossEntropy(WEIGHTS, 0.1, start=0.5),
    LDAM(COUNTS, WEIGHTS),
    Focal(2.0, WEIGHTS),
    LogitAdjusted(COUNTS),
]


@pytest.mark.parametrize("criterion", CRITERIA, ids=lambda one: type(one).__name__)
def test_every_criterion(criterion):
    criterion = criterion.to("meta")
    criterion.on_step(3, 4)
    for target in (labels(BATCH), MixedTarget(labels(BATCH), labels(BATCH), on_meta(BATCH))):
        logits = on_meta(BATCH, 4 * CLASSES).requires_grad_()
        criterion(logits, target).backward()
        assert logits.grad.is_meta


OPS = [
    RandomCrop(SIZE, 2),
    RandomResizedCrop(SIZE),
    CenterCrop(SIZE),
    CenterWindow(SIZE - 1),
    Resize(SIZE + 3),
    Flip(),
    VerticalFlip(),
    ColorJitter(0.4, 0.4, 0.4, 0.1),
    Normalize((0.5,) * 3, (0.2,) * 3),
    Cutout(3),
    RandomErasing(),
]


@pytest.mark.parametrize("op", OPS, ids=lambda op: type(op).__name__)
def test_every_augmentation(op):
    images = on_meta(BATCH, 3, SIZE, SIZE, dtype=torch.uint8)
    for aspect in (torch.ones(BATCH), on_meta(BATCH)):
        assert Pipeline((op,))(images, DRAWS, aspect).is_meta


def test_ten_crops():
    images = on_meta(BATCH, 3, SIZE, SIZE, dtype=torch.uint8)
    for pipeline in ten_crop_pipelines(Pipeline((CenterCrop(SIZE),)), SIZE):
        assert pipeline(images, DRAWS, on_meta(BATCH)).is_meta


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_operation_of_a_policy(name):
    import numpy as np

    kind, magnitude = np.full(BATCH, OPERATIONS.index(name)), np.full(BATCH, 3.0)
    images = on_meta(BATCH, 3, SIZE, SIZE, dtype=torch.uint8)
    assert apply_operations(images, kind, magnitude, np.full((BATCH, 2), 0.5)).is_meta


@pytest.mark.parametrize("mix", [Mixup(), Mixup(each=True), CutMix(), CutMix(each=True)], ids=repr)
def test_every_mixing(mix):
    assert all(part.is_meta for part in mix(on_meta(BATCH, 3, SIZE, SIZE), DRAWS))


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("views", [Identity(), Rotation()], ids=["plain", "four views"])
def test_every_few_shot_head(name, views):
    model = FewShotModel(network(), create_head(name), views).to("meta")
    support, query = on_meta(2, 10, 3, SIZE, SIZE), on_meta(2, 6, 3, SIZE, SIZE)
    found = model.losses(support, labels(2, 10), query, labels(2, 6), CLASSES, 0.1)
    found["loss"].backward()
    assert found["output"].shape == (12, CLASSES)
    assert found["output"].is_meta


VIEWS = [
    Rotation(),
    ColorPermutation(),
    Rotation() * ColorPermutation(),
    CustomViews(mirror=lambda x: x.flip(-1)),
]


@pytest.mark.parametrize("views", VIEWS, ids=lambda views: views.text)
def test_chosen_views_are_the_same_on_a_device_and_compiled(views, monkeypatch):
    images = torch.randn(4, 3, SIZE, SIZE)
    index = torch.randint(len(views), (4, 3), generator=torch.Generator().manual_seed(0))
    every = expand_views(images, views).unflatten(0, (4, len(views)))
    by_hand = torch.stack([every[b, j] for b in range(4) for j in index[b]])
    here = take_views(images, views, index)
    monkeypatch.setattr("sla.views.is_readable", lambda values: False)
    assert torch.equal(here, by_hand)
    assert torch.equal(take_views(images, views, index), by_hand)


def test_a_step_with_chosen_views_compiles_without_a_break():
    torch.manual_seed(0)
    model = sla.Classifier(nn.Flatten(), CLASSES, sla.SLA(distill=True), num_features=48)
    images, target = torch.randn(4, 3, 4, 4), torch.tensor([0, 4, 2, 1])
    views = torch.tensor([[0, 1], [0, 2], [0, 3], [0, 1]])

    def step(images, target, views):
        return model(images, target, StepContext(views))["loss"]

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(images, target, views), step(images, target, views))


def test_boxes_are_drawn_where_the_aspects_are():
    uniform, aspect = DRAWS.uniform("resized_crop", 22), torch.linspace(0.3, 3, BATCH)
    boxes = random_boxes(uniform, aspect, (0.08, 1.0), (3 / 4, 4 / 3))
    images = torch.randint(256, (BATCH, 3, SIZE, SIZE), dtype=torch.uint8)
    wanted = sla.augment.transforms.resized_crop(images, boxes, SIZE)
    assert torch.equal(RandomResizedCrop(SIZE)(images, DRAWS, aspect), wanted)
