"""Mixed targets: lam of one parent's loss and the rest of the other's, for every method and criterion."""

import math

import pytest
import torch
import torch.nn.functional as F

import sla
from sla.labels import split_target
from sla.methods import StepContext

BATCH, CLASSES, FEATURES = 5, 3, 6
WEIGHTS = torch.tensor([0.3, 1.0, 2.5])
CRITERIA = [  # (name, criterion, class weights): append a criterion and every test below runs it
    ("cross entropy", sla.CrossEntropy(), None),
    ("class weights", sla.CrossEntropy(WEIGHTS), WEIGHTS),
    ("smoothing", sla.CrossEntropy(label_smoothing=0.1), None),
    ("weights and smoothing", sla.CrossEntropy(WEIGHTS, 0.1), WEIGHTS),
]
METHODS = ["baseline", "da", "mt", "sla", "sla+sd"]
SHARES = [torch.rand(BATCH, generator=torch.Generator().manual_seed(1)), 0.3, 0.0, 1.0]


def one_by_one(criterion, weight, logits, a, b, lam, num_views):
    """Each row alone with each hard label, weighted by share and class weight: a loop, no mixed target.

    A criterion of one row divides by the row's own weight, so that is what it is multiplied by here.
    """
    total, mass = 0.0, 0.0
    for row in range(len(logits)):
        for label, share in ((a[row], lam[row]), (b[row], 1 - lam[row])):
            w = 1.0 if weight is None else float(weight[int(label) // num_views])
            total = total + share * w * criterion(logits[row : row + 1], label.view(1))
            mass = mass + share * w
    return total / mass


def by_hand(name, method, heads, features, target, weight, views):
    """The method's loss from its logits; views (B, k) are those that were seen."""
    count, num_views = views.shape[1], len(method.views)
    lam = torch.as_tensor(target.lam).double().expand(BATCH)
    rows = [(b, int(v)) for b in range(BATCH) for v in views[b]]
    shares = torch.stack([lam[b] for b, _ in rows])

    def labels(parent, joint):
        return torch.stack([parent[b] * num_views + v if joint else parent[b] for b, v in rows])

    def loss(logits, joint):
        a, b = labels(target.a, joint), labels(target.b, joint)
        return one_by_one(method.criterion, weight, logits, a, b, shares, num_views if joint else 1)

    if name in ("baseline", "da", "mt"):
        found = loss(heads["plain"](features), joint=False)
        if name == "mt":
            found = found + F.cross_entropy(heads["view"](features), torch.tensor([v for _, v in rows]))
        return found
    joint_logits = heads["joint"](features)
    found = loss(joint_logits, joint=True)
    if name == "sla":
        return found
    student = heads["plain"](features[::count])
    scores = joint_logits.detach().view(BATCH, count, CLASSES, num_views)
    own = [torch.stack([scores[b, k, :, views[b, k]] for k in range(count)]) for b in range(BATCH)]
    teacher = torch.stack(own).mean(1).softmax(1)
    divergence = (teacher * (teacher.log() - student.log_softmax(1))).sum(1).mean()
    hard = one_by_one(method.criterion, weight, student, target.a, target.b, lam, 1)
    return found + divergence + method.beta * hard


@pytest.mark.parametrize("some_views", [False, True], ids=["all views", "some views"])
@pytest.mark.parametrize("lam", SHARES, ids=["each", "one", "0", "1"])
@pytest.mark.parametrize(
    ("criterion", "weight"), [row[1:] for row in CRITERIA], ids=[row[0] for row in CRITERIA]
)
@pytest.mark.parametrize("name", METHODS)
def test_a_mixed_loss_is_the_weighted_sum_of_hard_ones(name, criterion, weight, lam, some_views):
    if some_views and name == "baseline":
        return
    torch.manual_seed(0)
    options = {"beta": 0.7} if name == "sla+sd" else {}
    method = sla.create_method(name, sla.Rotation(), criterion=criterion, **options)
    heads = method.build_heads(FEATURES, CLASSES).double()
    views = torch.tensor([[0, 2], [0, 1], [0, 3], [0, 2], [0, 1]]) if some_views else None
    seen = views if some_views else torch.arange(len(method.views)).expand(BATCH, -1)
    features = torch.randn(BATCH * seen.shape[1], FEATURES, dtype=torch.float64, requires_grad=True)
    target = sla.MixedTarget(torch.tensor([0, 1, 2, 2, 1]), torch.tensor([1, 1, 0, 2, 0]), lam)
    ours = method.losses(heads, features, target, StepContext(views=views))["loss"]
    expected = by_hand(name, method, heads, features, target, weight, seen)
    assert ours.item() == pytest.approx(expected.item(), rel=1e-6)
    inputs = [features, *heads.parameters()]
    gradients = [torch.autograd.grad(loss, inputs) for loss in (ours, expected)]
    for got, wanted in zip(*gradients, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-6, atol=1e-9)


def test_a_target_is_split_as_its_images_are():
    a, b = torch.arange(7), torch.arange(7).flip(0)
    images = torch.arange(7.0)
    for lam in (torch.linspace(0, 1, 7), torch.tensor(0.4), 0.4):
        parts = split_target(sla.MixedTarget(a, b, lam), 3)
        assert [len(part.a) for part in parts] == [len(part) for part in images.tensor_split(3)]
        assert torch.equal(torch.cat([part.a for part in parts]), a)
        assert torch.equal(torch.cat([part.b for part in parts]), b)
        shares = torch.cat([part.lam for part in parts])
        assert torch.equal(shares, torch.as_tensor(lam).expand(7))
    assert [part.tolist() for part in split_target(a, 2)] == [[0, 1, 2, 3], [4, 5, 6]]


def test_parts_of_a_batch_add_up_to_the_whole():
    """Accumulation: shares of the parts' losses sum to the loss of the whole batch."""
    torch.manual_seed(0)
    model = sla.create("convnet4", CLASSES, sla.SLA(distill=True), width=4, in_channels=1).eval()
    images = torch.randn(7, 1, 16, 16)
    target = sla.MixedTarget(torch.tensor([0, 1, 2, 0, 1, 2, 0]), torch.tensor([2, 1, 0, 2, 1, 0, 2]), 0.3)
    whole = model.losses(images, target)["loss"].item()
    pieces = zip(images.tensor_split(3), split_target(target, 3), strict=True)
    parts = [len(piece) / 7 * model.losses(piece, part)["loss"].item() for piece, part in pieces]
    assert math.fsum(parts) == pytest.approx(whole, rel=1e-5)
