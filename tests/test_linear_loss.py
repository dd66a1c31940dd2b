"""The loss of many labels in parts: equal to plain cross entropy of all logits, values and gradients."""

import itertools

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

import sla
from refusals import refused
from sla import linear_loss, losses
from sla.heads import JointHead
from sla.imbalance import LDAM, Focal, LogitAdjusted
from sla.linear_loss import linear_cross_entropy
from sla.methods import StepContext

ROWS, CLASSES, VIEWS, WIDTH = 11, 3, 4, 5
COUNTS = [100, 20, 3]


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    """Parts of four rows: three, of which the last is smaller."""
    monkeypatch.setattr(linear_loss, "LEAST_ROWS", 4)
    monkeypatch.setattr(linear_loss, "MOST_ROWS", 4)
    monkeypatch.setattr(linear_loss, "BLOCK", 5)


def made(dtype=torch.float64):
    torch.manual_seed(0)
    shapes = ((ROWS, WIDTH), (CLASSES * VIEWS, WIDTH), (CLASSES * VIEWS,))
    return [(3 * torch.randn(shape, dtype=dtype)).requires_grad_() for shape in shapes]


def targets():
    a, b = torch.randint(CLASSES * VIEWS, (2, ROWS), generator=torch.Generator().manual_seed(1))
    lam = torch.linspace(0, 1, ROWS)
    return {"hard": a, "mixed": sla.MixedTarget(a, b, lam), "one lam": sla.MixedTarget(a, b, 0.3)}


def same(ours, plain, inputs, **close):
    torch.testing.assert_close(ours, plain, **close)
    found, wanted = (torch.autograd.grad(2.5 * loss, inputs, retain_graph=True) for loss in (ours, plain))
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, **close)


@pytest.mark.parametrize("kind", targets())
@pytest.mark.parametrize("weight", [None, torch.tensor([0.3, 1.0, 2.5], dtype=torch.float64)])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
def test_values_and_gradients_are_those_of_plain_cross_entropy(kind, weight, smoothing):
    target = targets()[kind]
    for with_bias in (True, False):
        inputs = made()[: 2 + with_bias]
        bias = inputs[2] if with_bias else None
        plain = sla.cross_entropy(F.linear(inputs[0], inputs[1], bias), target, weight, smoothing)
        same(linear_cross_entropy(*inputs[:2], bias, target, weight, smoothing), plain, inputs)


@pytest.mark.parametrize("kind", targets())
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_gradients_by_differences(kind, smoothing):
    weight, target = torch.tensor([0.3, 1.0, 2.5], dtype=torch.float64), targets()[kind]
    assert torch.autograd.gradcheck(
        lambda *parts: linear_cross_entropy(*parts, target, weight, smoothing), made()
    )


@pytest.mark.parametrize("kind", targets())
@pytest.mark.parametrize("head", ["linear", "cosine"])
@pytest.mark.parametrize("make", [LDAM, LogitAdjusted])
def test_criteria_of_imbalanced_classes(kind, head, make):
    for weight, smoothing in ((None, 0.0), (torch.tensor([0.3, 1.0, 2.5]), 0.1)):
        criterion = make(COUNTS, weight=weight, label_smoothing=smoothing)
        joint = JointHead(WIDTH, CLASSES, VIEWS, head).double()
        features, target = made()[0], targets()[kind]
        inputs = [features, *joint.parameters()]
        ours = criterion.of_linear(*joint.linear_form(features), target)
        same(ours, criterion(joint(features), target), inputs, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_keeps_the_loss_and_sums_in_float32(dtype):
    inputs, target = made(torch.float32), targets()["mixed"]
    with torch.autocast("cpu", dtype=dtype):
        ours = linear_cross_entropy(*inputs, target)
        plain = sla.cross_entropy(F.linear(*inputs), target)
    assert ours.dtype == torch.float32
    exact = torch.autograd.grad(linear_cross_entropy(*inputs, target), inputs)
    found, rounded = (torch.autograd.grad(loss * 2**15, inputs) for loss in (ours, plain))
    for one, other, best in zip(found, rounded, exact, strict=True):
        assert one.dtype == torch.float32
        assert (one / 2**15 - best).norm() < 1.2 * (other / 2**15 - best).norm() + 1e-3 * best.norm()
    half = [part.detach().to(dtype).requires_grad_() for part in inputs]
    gradients = torch.autograd.grad(linear_cross_entropy(*half, target), half)
    assert all(gradient.dtype == dtype for gradient in gradients)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_of_logits_in_half_precision_the_rest_is_exact(dtype):
    inputs, target = [part.detach() for part in made(torch.float32)], targets()["hard"]
    with torch.autocast("cpu", dtype=dtype):
        logits = F.linear(*inputs)
        ours = linear_cross_entropy(*inputs, target, None, 0.1)
    assert logits.dtype == dtype
    exact = F.cross_entropy(logits.double(), target, label_smoothing=0.1)
    assert ours.item() == pytest.approx(exact.item(), rel=1e-5)


def test_a_second_backward_pass_gives_the_same():
    inputs, target = made(), targets()["mixed"]
    loss = linear_cross_entropy(*inputs, target)
    first = torch.autograd.grad(7 * loss, inputs, retain_graph=True)
    second = torch.autograd.grad(loss, inputs)
    for one, other in zip(first, second, strict=True):
        torch.testing.assert_close(one, 7 * other)


def test_what_needs_no_gradient_has_none():
    features, weight, bias = made()
    target = targets()["hard"]
    linear_cross_entropy(features.detach(), weight, bias, target).backward()
    assert features.grad is None
    with torch.no_grad(), Largest() as largest:
        linear_cross_entropy(features, weight, bias, target)
    assert largest.products == 3  # the logits of each part, nothing for gradients


PRODUCTS = (torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.addmm_)


class Largest(TorchDispatchMode):
    """The largest result of an operation, and the number of matrix products."""

    count = products = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.products += func.overloadpacket in PRODUCTS
        if isinstance(result, torch.Tensor):
            self.count = max(self.count, result.numel())
        return result


def test_no_tensor_is_larger_than_a_part_of_the_logits():
    features, weight = torch.randn(64, 2, requires_grad=True), torch.randn(1000, 2, requires_grad=True)
    with Largest() as largest:
        linear_cross_entropy(features, weight, None, torch.randint(1000, (64,))).backward()
    assert largest.count == 4 * 1000
    assert largest.products == 3 * 16


def test_compiled_without_a_break():
    inputs, target = made(torch.float32), targets()["mixed"]
    compiled = torch.compile(linear_cross_entropy, fullgraph=True, backend="aot_eager")
    same(compiled(*inputs, target), linear_cross_entropy(*inputs, target), inputs)


METHODS = [
    (sla.Baseline, {}),
    (sla.DataAugmentation, {}),
    (sla.MultiTask, {}),
    (sla.SLA, {}),
    (sla.SLA, {"view_reduction": "sum", "head": "cosine"}),
    (sla.SLA, {"distill": True, "temperature": 2.0}),
    (sla.SLA, {"distill": True, "view_reduction": "sum", "criterion": sla.CrossEntropy(torch.rand(3), 0.1)}),
]


@pytest.mark.parametrize(("make", "options"), METHODS)
@pytest.mark.parametrize("chosen", [False, True])
@pytest.mark.parametrize("kind", ["hard", "mixed"])
def test_every_method_gives_the_same_with_and_without_all_logits(make, options, chosen, kind, monkeypatch):
    method = make(**options)
    heads = method.build_heads(WIDTH, CLASSES).double()
    views = torch.tensor([[0, 2], [0, 1], [0, 3]]) if chosen and len(method.views) > 1 else None
    rows = 3 * (len(method.views) if views is None else 2)
    torch.manual_seed(0)
    features = torch.randn(rows, WIDTH, dtype=torch.float64, requires_grad=True)
    target = torch.tensor([0, 2, 1])
    if kind == "mixed":
        target = sla.MixedTarget(target, torch.tensor([1, 1, 0]), torch.rand(3))
    inputs = [features, *heads.parameters()]
    plain = method.losses(heads, features, target, StepContext(views))
    monkeypatch.setattr(losses, "LARGE", 0)
    parts = method.losses(heads, features, target, StepContext(views))
    assert plain.keys() == parts.keys()
    for name in plain:
        torch.testing.assert_close(parts[name], plain[name])
    assert not parts["output"].requires_grad
    same(parts["loss"], plain["loss"], inputs)


class Doubled(sla.CrossEntropy):
    """A criterion of one's own that only defines `forward`."""

    def forward(self, input, target):
        return 2 * super().forward(input, target)


def test_criteria_that_need_all_logits_get_them(monkeypatch):
    monkeypatch.setattr(losses, "LARGE", 0)
    head, features, target = JointHead(WIDTH, CLASSES, 1), torch.randn(3, WIDTH), torch.tensor([0, 1, 2])
    for criterion in (Doubled(), Focal(), lambda logits, target: logits.sum()):
        logits = losses.head_logits(head, features, target, criterion)
        assert torch.equal(logits, head(features))
    held = losses.head_logits(head, features, target, sla.CrossEntropy())
    assert isinstance(held, losses.LinearLogits)
    assert held.shape == head(features).shape
    learnt = sla.MixedTarget(target, target, torch.rand(3, requires_grad=True))
    assert torch.is_tensor(losses.head_logits(head, features, learnt))
    assert torch.is_tensor(losses.head_logits(torch.nn.Linear(WIDTH, CLASSES), features, target))


def test_the_mean_of_blocks_against_a_loop():
    features = torch.randn(2 * VIEWS, WIDTH, dtype=torch.float64)
    for kind, views in itertools.product(
        ("linear", "cosine"), (None, torch.tensor([[3, 1, 0, 2], [1, 0, 3, 2]]))
    ):
        head = JointHead(WIDTH, CLASSES, VIEWS, kind).double()
        numbers = [range(VIEWS)] * 2 if views is None else views.tolist()
        by_hand = [
            sum(head.block(features[b * VIEWS + i : b * VIEWS + i + 1], j)[0] for i, j in enumerate(own))
            / VIEWS
            for b, own in enumerate(numbers)
        ]
        torch.testing.assert_close(head.mean_of_blocks(features, views), torch.stack(by_hand))


def test_a_model_in_ddp(tmp_path, monkeypatch):
    monkeypatch.setattr(losses, "LARGE", 0)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model = sla.Classifier(torch.nn.Flatten(), 5, sla.SLA(distill=True), num_features=12)
        images, target = torch.randn(3, 3, 2, 2), torch.tensor([0, 4, 2])
        DistributedDataParallel(model)(images, target)["loss"].backward()
        found = [parameter.grad.clone() for parameter in model.parameters()]
        model.zero_grad()
        monkeypatch.setattr(losses, "LARGE", 10**9)
        model(images, target)["loss"].backward()
        for one, parameter in zip(found, model.parameters(), strict=True):
            torch.testing.assert_close(one, parameter.grad)
    finally:
        dist.destroy_process_group()


def test_shapes_that_do_not_fit_are_refused():
    features, weight, bias = made()
    words, target = "needs features (B, D) and a target (B,), not (11, 5) and (10,)", torch.zeros(10).long()
    refused(words, linear_cross_entropy, features, weight, bias, target)


class Warmed(JointHead):
    """A head of one's own, whose logits are not those of its weights."""

    def forward(self, features):
        return 2 * super().forward(features)


def test_a_head_of_ones_own_is_called(monkeypatch):
    monkeypatch.setattr(losses, "LARGE", 0)
    head, features = Warmed(WIDTH, CLASSES, 1), torch.randn(3, WIDTH)
    assert torch.equal(losses.head_logits(head, features, torch.tensor([0, 1, 2])), head(features))


class Learnt(sla.CrossEntropy):
    """One whose scale is learnt, which the loss in parts would give no gradient."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(()))

    def of_linear(self, input, weight, bias, target):
        return self.scale * super().of_linear(input, weight, bias, target)


def test_logits_are_held_up_to_a_size_and_beyond_it_where_they_must_be(monkeypatch):
    head, features, target = JointHead(WIDTH, CLASSES, 1), torch.randn(3, WIDTH), torch.tensor([0, 1, 2])
    ours = (sla.cross_entropy, sla.CrossEntropy(), LDAM(COUNTS), LogitAdjusted(COUNTS))
    for large, held in ((10**9, True), (10, True), (9, False), (0, False)):
        monkeypatch.setattr(losses, "LARGE", large)
        for criterion in ours:
            assert torch.is_tensor(losses.head_logits(head, features, target, criterion)) == held
        assert torch.is_tensor(losses.head_logits(head, features, target, Learnt()))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32])
def test_labels_of_any_whole_type_mean_the_same(dtype):
    inputs = made()
    for target in targets().values():
        if torch.is_tensor(target):
            short = target.to(dtype)
        else:
            short = sla.MixedTarget(target.a.to(dtype), target.b.to(dtype), target.lam)
        assert torch.equal(linear_cross_entropy(*inputs, short), linear_cross_entropy(*inputs, target))
