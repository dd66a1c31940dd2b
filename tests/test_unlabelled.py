"""Losses of images without labels, and of a model that has grown: against loops written out by hand."""

import math

import pytest
import torch

import sla
from brute_force import log_softmax
from refusals import refused
from sla.losses import consistency_loss, growth_loss, marginal_view_loss, view_loss
from sla.methods import SLA, Before, RememberedSLA, StepContext, Unlabelled
from sla.methods.unlabelled import rising_trust
from sla.views import Rotation

B, D, N, M = 3, 5, 3, 4
VIEWS = torch.tensor([[2, 0], [1, 3], [0, 1]])


def logits(rows, columns, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return (3 * torch.randn(rows, columns, generator=draw).double()).requires_grad_()


def same(ours, by_hand, *inputs):
    assert ours.item() == pytest.approx(by_hand.item(), rel=1e-9)
    for a, b in zip(torch.autograd.grad(ours, inputs), torch.autograd.grad(by_hand, inputs), strict=True):
        torch.testing.assert_close(a, b)


def of_rows(views):
    """The view of each row of joint logits."""
    return list(range(M)) * B if views is None else views.flatten().tolist()


@pytest.mark.parametrize("views", [None, VIEWS])
def test_the_view_loss_is_that_of_the_sum_over_classes(views):
    seen = of_rows(views)
    joint, total = logits(len(seen), N * M), 0.0
    for row, view in zip(joint, seen, strict=True):
        log_joint = log_softmax(list(row))
        total = total - sum(log_joint[i * M + view].exp() for i in range(N)).log() / len(seen)
    same(marginal_view_loss(joint, M, views), total, joint)


def test_of_a_head_that_is_a_sum_it_is_the_view_loss_of_multi_task_learning():
    """w_ij = u_i + v_j: the classes are summed out, whatever u is."""
    u, v = logits(B * M, N, seed=1), logits(B * M, M, seed=2)
    joint = (u.unsqueeze(2) + v.unsqueeze(1)).flatten(1)
    ours = marginal_view_loss(joint, M)
    same(ours, view_loss(v), v)
    of_classes = sla.data_augmentation_loss(u, torch.tensor([0, 2, 1]), M)
    whole = sla.multi_task_loss(u, v, torch.tensor([0, 2, 1]), M)
    assert (whole - of_classes).item() == pytest.approx(ours.item(), rel=1e-9)


@pytest.mark.parametrize("views", [None, VIEWS])
@pytest.mark.parametrize("confidence", [0.0, 0.6, 1.0])
def test_confident_answers_are_joint_labels(views, confidence):
    seen = of_rows(views)
    joint = logits(len(seen), N * M)
    answers = torch.tensor([[3.0, 0, 0], [0, 0.3, 0.2], [-1, 0, 2]], requires_grad=True)  # 91%, 38%, 84%
    ours, confident = consistency_loss(joint, answers, M, confidence, views)
    total, count, each = 0 * joint.sum(), 0, len(seen) // B
    for image in range(B):
        probabilities = [float(value.exp()) for value in log_softmax(list(answers[image].detach()))]
        best = max(range(N), key=lambda i: probabilities[i])
        if probabilities[best] >= confidence:
            count += 1
            for row in range(image * each, (image + 1) * each):
                total = total - log_softmax(list(joint[row]))[best * M + seen[row]] / (B * each)
    same(ours, total, joint)
    assert confident.item() == pytest.approx(count / B)
    assert count == {0.0: 3, 0.6: 2, 1.0: 0}[confidence]
    assert not confident.requires_grad
    ours, _ = consistency_loss(joint, answers, M, confidence, views)
    assert torch.autograd.grad(ours, answers, allow_unused=True) == (None,)


def test_rows_that_do_not_fit_are_refused():
    refused("3 images x 4 views", consistency_loss, logits(8, N * M), logits(B, N), M, 0.5)


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_answers_among_old_labels_are_kept(temperature):
    old = {"joint": logits(4, 6), "plain": logits(4, 3, seed=1)}
    now = {"joint": logits(4, 8, seed=2), "plain": logits(4, 4, seed=3)}
    total = 0.0
    for name, before in old.items():
        for row in range(4):
            p = [value.detach() for value in log_softmax([x / temperature for x in before[row]])]
            q = log_softmax([x / temperature for x in now[name][row, : len(p)]])
            kl = sum(p[i].exp() * (p[i] - q[i]) for i in range(len(p)))
            total = total + temperature**2 * kl / 4
    same(growth_loss(old, now, temperature), total, *now.values())
    if temperature == 1:
        assert growth_loss(old, now).item() == pytest.approx(total.item())


def model_of(method):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 4 * 4, D), torch.nn.Tanh())
    return sla.Classifier(net, N, method, num_features=D)


def batch():
    draw = torch.Generator().manual_seed(5)
    images, more = (torch.rand(count, 3, 4, 4, generator=draw) for count in (4, B))
    return images, torch.tensor([0, 1, 2, 0]), more, torch.randn(B, N, generator=draw)


@pytest.mark.parametrize("views", [None, VIEWS])
def test_both_kinds_of_images_go_through_the_model_in_one_pass(views):
    method = SLA(Rotation(), view_weight=0.5, consistency_weight=2.0, confidence=0.4)
    model, (images, targets, more, answers) = model_of(method), batch()
    context = StepContext(unlabelled=Unlabelled(more, views, answers, share=0.75))
    found = model(images, targets, context)
    joint = model.heads["joint"](model.features(method.expand(more, views)))
    view, (consistent, confident) = (
        marginal_view_loss(joint, M, views),
        consistency_loss(joint, answers, M, 0.4, views),
    )
    labelled = model(images, targets)["loss"]
    assert found["loss"].item() == pytest.approx((labelled + 0.75 * (0.5 * view + 2 * consistent)).item())
    assert [found[name].item() for name in method.unlabelled_parts] == pytest.approx(
        [view.item(), consistent.item(), confident.item()]
    )
    assert found["output"].shape == (4, N)
    assert [name for name, value in found.items() if value.requires_grad] == ["loss"]
    refused("needs the answers", model, images, targets, StepContext(unlabelled=Unlabelled(more)))


@pytest.mark.parametrize("trust", [0.0, 0.25, torch.tensor(0.25), 3.0])
def test_trust_is_a_factor_of_the_loss_of_answers(trust):
    method = SLA(Rotation(), view_weight=0.5, consistency_weight=2.0, confidence=0.4)
    model, (_, _, more, answers) = model_of(method), batch()
    context = StepContext(unlabelled=Unlabelled(more, None, answers, trust=trust))
    found = method.unlabelled_losses(model.heads, model.features(method.expand(more)), context)
    view, consistent = (found[name].item() for name in ("unlabelled_view", "unlabelled_consistency"))
    assert consistent > 0.1
    assert found["loss"].item() == pytest.approx(0.5 * view + 2.0 * float(trust) * consistent)


def test_trust_on_a_device_is_not_waited_for():
    method = SLA(Rotation(), consistency_weight=1.0)
    heads = method.build_heads(D, N).to("meta")
    on_meta = [torch.empty(shape, device="meta") for shape in ((B, 3, 4, 4), (B * M, D), (B, N), ())]
    images, rows, answers, trust = on_meta
    context = StepContext(unlabelled=Unlabelled(images, None, answers, trust=trust))
    assert method.unlabelled_losses(heads, rows, context)["loss"].is_meta


@pytest.mark.parametrize("some", [False, True])
def test_a_student_learns_their_aggregated_answer(some):
    method = SLA(Rotation(), distill=True)
    model, (images, targets, more, _) = model_of(method), batch()
    views = torch.tensor([[0, 2], [0, 1], [0, 3]]) if some else None
    found = model(images, targets, StepContext(unlabelled=Unlabelled(more, views)))
    features = model.features(method.expand(more, views))
    joint, count = model.heads["joint"](features), len(features) // B
    seen, kl = of_rows(views), 0.0
    for image in range(B):
        rows = range(image * count, (image + 1) * count)
        blocks = [[joint[row, i * M + seen[row]] for i in range(N)] for row in rows]
        teacher = log_softmax([sum(block[i] for block in blocks).detach() / count for i in range(N)])
        student = log_softmax(list(model.heads["plain"](features[image * count])))
        kl = kl + sum(teacher[i].exp() * (teacher[i] - student[i]) for i in range(N)) / B
    assert found["unlabelled_distillation"].item() == pytest.approx(kl.item(), rel=1e-5)
    expected = model(images, targets)["loss"] + marginal_view_loss(joint, M, views) + kl
    assert found["loss"].item() == pytest.approx(expected.item(), rel=1e-5)
    assert [name for name, value in found.items() if value.requires_grad] == ["loss"]


def test_a_student_with_another_teacher_learns_from_labelled_images():
    method = RememberedSLA(Rotation())
    assert method.unlabelled_parts == ("unlabelled_view",)
    model, (images, targets, more, _) = model_of(method), batch()
    memory = method.build_memory(4, N)
    context = StepContext(indices=torch.arange(4), memory=memory, unlabelled=Unlabelled(more))
    assert "unlabelled_distillation" not in model(images, targets, context)


def test_a_grown_model_keeps_its_answers_in_every_view():
    method = SLA(Rotation(), distill=True)
    model, (images, targets, _, _) = model_of(method), batch()
    rows = method.expand(images)
    with torch.no_grad():
        before = method.growing_logits(model.heads, model.features(rows))
    assert {name: tuple(value.shape) for name, value in before.items()} == {
        "joint": (16, 12),
        "plain": (16, 3),
    }
    model.grow(2)
    plain = model(images, targets)["loss"]
    grown = model(images, targets, StepContext(before=Before(before, 3.0, 2.0)))
    assert grown["kept"].item() == pytest.approx(0, abs=1e-6)
    assert grown["loss"].item() == pytest.approx(plain.item())
    torch.nn.init.normal_(model.heads["joint"].weight)
    grown = model(images, targets, StepContext(before=Before(before, 3.0, 2.0)))
    expected = growth_loss(before, method.growing_logits(model.heads, model.features(rows)), 2.0)
    assert grown["kept"].item() == pytest.approx(expected.item())
    assert expected > 0.1
    changed = model(images, targets)["loss"]
    assert grown["loss"].item() == pytest.approx((changed + 3 * expected).item(), rel=1e-5)
    usual = model(images, targets, StepContext(before=Before(before)))
    expected = growth_loss(before, method.growing_logits(model.heads, model.features(rows)))
    assert usual["loss"].item() == pytest.approx((changed + expected).item(), rel=1e-5)


@pytest.mark.slow
def test_the_loss_compiles():
    method = SLA(Rotation(), distill=True, consistency_weight=1.0, confidence=0.4)
    model, (images, targets, more, answers) = model_of(method), batch()
    context = StepContext(unlabelled=Unlabelled(more, None, answers))
    compiled = torch.compile(model, backend="aot_eager")
    ours, eager = compiled(images, targets, context), model(images, targets, context)
    for name, value in eager.items():
        torch.testing.assert_close(ours[name], value)


def test_what_is_not_possible_is_refused():
    images, targets, more, _ = batch()
    model = model_of(sla.Baseline())
    refused(
        "Baseline learns nothing from images without",
        model,
        images,
        targets,
        StepContext(unlabelled=Unlabelled(more)),
    )
    refused("must be at least 0", SLA, view_weight=-1.0)
    refused("confidence must be from 0 to 1", SLA, confidence=1.5)


def test_answers_that_cannot_be_are_refused():
    model = sla.create("resnet8", num_classes=3, method=sla.SLA(consistency_weight=1.0))
    images, targets, more = torch.randn(2, 3, 8, 8), torch.tensor([0, 1]), torch.randn(4, 3, 8, 8)

    def loss(images_without, **given):
        return model(images, targets, sla.StepContext(unlabelled=sla.Unlabelled(images_without, **given)))

    for answers in (
        torch.zeros(4, 2),
        torch.zeros(4, 5),
        torch.zeros(3, 3),
        torch.zeros(4, 3, dtype=torch.int64),
    ):
        refused(r"answers must be class logits, float \(4, 3\)", loss, more, answers=answers)
    for trust in (-3.0, float("nan"), float("inf")):
        refused("trust must be a number of at least 0", loss, more, answers=torch.zeros(4, 3), trust=trust)
    refused("has no image", loss, more[:0], answers=torch.zeros(0, 3))


def test_trust_in_answers_rises_to_one_in_the_first_half_of_the_run():
    found = [rising_trust(step, 8) for step in range(9)]
    by_hand = [-5.0, -2.8125, -1.25, -0.3125, 0, 0, 0, 0, 0]  # -5 (1 - t)^2 at t = 0, 1/4, 1/2, 3/4, 1
    assert found == pytest.approx([math.exp(power) for power in by_hand])
    assert rising_trust(0, 0) == pytest.approx(math.exp(-5))  # a run of unknown length


def test_an_answer_of_exactly_the_confidence_counts():
    joint = logits(2 * M, 2 * M)
    _, confident = consistency_loss(joint, torch.zeros(2, 2), M, 0.5)
    assert confident.item() == 1
