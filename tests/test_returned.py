"""What methods, criteria and views of one's own return: what is wrong gets one line."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn

import sla
from refusals import fails, refused
from sla.datasets.load import load

VIEWS = sla.Rotation()
QUICK = {
    "backbone": "convnet4",
    "model__options": {"width": 4},
    "run__iterations": 2,
    "run__batch_size": 16,
    "run__compile": False,
    "data__workers": 0,
}


@pytest.fixture(scope="module")
def digits():
    train = load("digits").train
    return train.read(range(120)).images, train.targets[:120]


def answer(method, digits):
    """The losses of eight images, then their class logits."""
    model = sla.create("convnet4", 10, method, in_channels=1, width=4)
    losses = model(digits[0][:8] / 255, torch.as_tensor(digits[1][:8]))
    return losses, model.logits_by_inference(digits[0][:8] / 255)


@dataclass(frozen=True)
class Changed(sla.Baseline):
    """The baseline, whose dict of losses was changed."""

    change: object = None

    def losses(self, heads, features, target, context=sla.StepContext()):  # noqa: B008
        return self.change(super().losses(heads, features, target, context))


@pytest.mark.parametrize(
    ("words", "change"),
    [
        ("Changed.losses returned a NoneType, not a dict with loss and output", lambda found: None),
        ("Changed.losses returned a Tensor", lambda found: found["loss"]),
        ("its dict lacks 'loss'; it has 'output'", lambda found: {"output": found["output"]}),
        ("its dict lacks 'output'; it has 'loss'", lambda found: {"loss": found["loss"]}),
        ("its dict lacks 'loss'; it has nothing", lambda found: {}),
        ("'loss' is a float, not a tensor", lambda found: found | {"loss": 1.5}),
        ("'loss' is torch.float32 (8, 10), not a scalar", lambda found: found | {"loss": found["output"]}),
        ("'loss' has no gradient", lambda found: found | {"loss": found["loss"].detach()}),
        ("'output' is a tensor (4, 10), not class", lambda found: found | {"output": found["output"][:4]}),
        ("'part' is torch.float32 (8, 10), not a", lambda found: found | {"part": found["output"]}),
        ("a part of the loss is a text, not nan", lambda found: found | {torch.nan: found["loss"]}),
    ],
)
def test_losses_of_a_method(digits, words, change):
    refused(words, answer, Changed(change=change), digits)


def test_heads_and_logits_of_a_method(digits):
    @dataclass(frozen=True)
    class ListOfHeads(sla.Baseline):
        def build_heads(self, in_features, num_classes):
            return nn.ModuleList()

    @dataclass(frozen=True)
    class JointAnswers(sla.SLA):
        def classify(self, heads, features, inference):
            return heads["joint"](features)

    refused(
        "ListOfHeads.build_heads returned a ModuleList, not an nn.ModuleDict", answer, ListOfHeads(), digits
    )

    @dataclass(frozen=True)
    class ListOfAnswers(sla.Baseline):
        def classify(self, heads, features, inference):
            return heads["plain"](features).tolist()

    words = "JointAnswers.classify returned (8, 40), not class logits (B, 10)"
    refused(words, answer, JointAnswers(), digits)
    words = "ListOfAnswers.classify returned a list, not class logits (B, 10)"
    refused(words, answer, ListOfAnswers(), digits)


def test_fields_inferences_and_memory_of_a_method(digits, tmp_path):
    @dataclass(frozen=True)
    class Bare(sla.Method):
        views: sla.Views = VIEWS

    @dataclass(frozen=True)
    class Other(sla.Baseline):
        inferences = ("averaged",)

    @dataclass(frozen=True)
    class TensorMemory(sla.Baseline):
        def build_memory(self, num_images, num_classes):
            return torch.zeros(num_images)

    refused("Bare has no criterion: a method has fields views, criterion and head", answer, Bare(), digits)
    refused("Other.one_pass is 'single', but its inferences are averaged", answer, Other(), digits)
    words = "TensorMemory.build_memory returned a Tensor, not a module with buffers"
    refused(words, sla.fit, *digits, tmp_path / "run", method=TensorMemory(), **QUICK)


def test_a_method_that_is_no_dataclass_is_saved_without_its_options(tmp_path):
    class Plain(sla.Method):
        views, criterion, head = sla.Identity(), sla.cross_entropy, "linear"

    sla.save(sla.create("convnet4", 3, Plain(), width=4), tmp_path / "model.safetensors")
    refused("method: an object that was passed from Python (Plain)", sla.load, tmp_path / "model.safetensors")
    assert sla.load(tmp_path / "model.safetensors", method=Plain()).num_classes == 3


def test_criteria(digits):
    each = nn.CrossEntropyLoss(reduction="none")
    words = "the criterion CrossEntropyLoss returned a tensor (8,), not a scalar tensor"
    refused(words, answer, sla.Baseline(criterion=each), digits)
    words = "the criterion CrossEntropyLoss returned a tensor (32,), not a scalar tensor"
    refused(words, answer, sla.SLA(distill=True, criterion=each), digits)
    for method in (sla.Baseline, sla.SLA, sla.DataAugmentation, sla.MultiTask):
        found = method(criterion=lambda logits, target: None)
        refused("the criterion <lambda> returned a NoneType, not a scalar tensor", answer, found, digits)


def test_views(digits):
    class Unnamed(sla.Views):
        def apply(self, input, view):
            return input

    wrong = sla.CustomViews(odd=lambda images: images.numpy())
    refused("view 'odd' returned a ndarray, not a batch (8, 1, 8, 8)", answer, sla.SLA(wrong), digits)
    wrong = sla.CustomViews(odd=lambda images: images[..., :4])
    refused("view 'odd' turned (8, 1, 8, 8) into (8, 1, 8, 4)", answer, sla.SLA(wrong), digits)
    refused("Unnamed.names must name each view, the unchanged image first", sla.SLA, Unnamed())


def test_a_run_refuses_them_in_one_line_too(digits, tmp_path):
    method = Changed(change=lambda found: {})
    refused("its dict lacks 'loss'", sla.fit, *digits, tmp_path / "run", method=method, **QUICK)
    method = Changed(change=lambda found: found | {"odd": found["loss"].detach() * torch.nan})
    words = "'odd', a part of the loss, is NaN or infinite at step"
    fails(sla.SLAError, words, sla.fit, *digits, tmp_path / "nan", method=method, **QUICK)


def test_methods_that_cannot_be_made_again(digits, tmp_path):
    class Plain(sla.Method):
        views, criterion, head = sla.Identity(), sla.cross_entropy, "linear"

    class Own(sla.Baseline):  # not a dataclass of its own
        def __init__(self, alpha):
            super().__init__()

    options = {"out": tmp_path / "run", **QUICK}
    refused("Plain: a method's class must be a frozen dataclass", sla.fit, *digits, method=Plain(), **options)
    refused("cannot be made from its fields", sla.fit, *digits, method=Own(2), **options)


@dataclass(frozen=True)
class Counting(sla.Baseline):
    """Counts how often an image was seen; `strict`: it needs its memory."""

    strict: bool = True

    def build_memory(self, num_images, num_classes):
        memory = nn.Module()
        memory.register_buffer("seen", torch.zeros(num_images))
        return memory

    def losses(self, heads, features, target, context=sla.StepContext()):  # noqa: B008
        if self.strict or context.memory is not None:
            context.memory.seen[context.indices] += 1
        return super().losses(heads, features, target, context)


@dataclass(frozen=True)
class Mistaken(Counting):
    """A mistake that has nothing to do with the memory."""

    def losses(self, heads, features, target, context=sla.StepContext()):  # noqa: B008
        return features.nothing


@dataclass(frozen=True)
class Forgetful(sla.Baseline):
    """A mistake with None in a method without a memory."""

    def losses(self, heads, features, target, context=sla.StepContext()):  # noqa: B008
        return context.memory.seen


def test_a_mistake_of_a_method_without_a_memory_is_shown_as_it_is(digits):
    with pytest.raises(AttributeError, match="'NoneType' object has no attribute 'seen'"):
        answer(Forgetful(), digits)


@dataclass(frozen=True)
class Untaught(Counting):
    """A mistake with None in a method that has its memory."""

    def losses(self, heads, features, target, context=sla.StepContext()):  # noqa: B008
        return context.teacher.shape


def test_a_mistake_of_a_method_with_its_memory_is_shown_as_it_is(digits):
    model = sla.create("convnet4", 10, Untaught(), in_channels=1, width=4)
    context = sla.StepContext(indices=torch.arange(4), memory=model.method.build_memory(120, 10))
    with pytest.raises(AttributeError, match="'NoneType' object has no attribute 'shape'"):
        model(digits[0][:4] / 255, torch.as_tensor(digits[1][:4]), context)


def test_parts_of_a_loss_are_scalars_of_real_numbers(digits):
    for value in (torch.tensor(3), torch.zeros(1)):
        method = Changed(change=lambda found, value=value: found | {"part": value})
        refused("'part' is torch.*, not a scalar", answer, method, digits)


def test_a_memory_is_asked_for_in_a_loop_of_ones_own(digits):
    words = "Counting keeps a memory of each training image, which this step did not get: sla.fit passes it"
    refused(words, answer, Counting(), digits)
    answer(Counting(strict=False), digits)  # it does without
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        answer(Mistaken(), digits)
    model = sla.create("convnet4", 10, Counting(), in_channels=1, width=4)
    memory = model.method.build_memory(120, 10)
    batch = digits[0][:4] / 255, torch.as_tensor(digits[1][:4])
    refused("pass their places, StepContext(indices=...)", model, *batch, sla.StepContext(memory=memory))
    model(*batch, sla.StepContext(indices=torch.tensor([3, 4, 5, 6]), memory=memory))
    assert memory.seen[3:7].tolist() == [1, 1, 1, 1]
