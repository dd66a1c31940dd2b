"""Every loss and every inference against loops over (image, view, class), values and gradients."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

import brute_force as brute
import sla
from refusals import refused
from sla.losses import consistency_loss, first_logits, own_logits, view_loss

TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-10}


@st.composite
def cases(draw):
    """Sizes, logits, a hard or mixed target, class weights or none, smoothing or none."""
    batch, classes, views = draw(st.integers(1, 4)), draw(st.integers(2, 4)), draw(st.integers(1, 4))
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))

    def logits(rows, columns):
        scale = 10 ** draw(st.sampled_from([-1, 0, 1]))
        x = torch.randn(rows, columns, generator=generator, dtype=dtype) * scale
        return x.requires_grad_()

    def labels():
        return torch.randint(0, classes, (batch,), generator=generator)

    target = labels()
    kind = draw(st.sampled_from(["hard", "mixed", "mixed with one lam"]))
    if kind != "hard":
        lam = torch.rand(batch if kind == "mixed" else (), generator=generator, dtype=dtype)
        target = sla.MixedTarget(target, labels(), lam)
    weight = None
    if draw(st.booleans()):
        weight = torch.rand(classes, generator=generator, dtype=dtype) + 0.1
    smoothing = draw(st.sampled_from([0.0, 0.1]))
    given = {"batch": batch, "classes": classes, "views": views, "dtype": dtype}
    given |= {"target": target, "weight": weight, "smoothing": smoothing}
    shapes = {"joint": (batch * views, classes * views), "plain": (batch * views, classes)}
    shapes |= {"view": (batch * views, views), "student": (batch, classes)}
    return given | {name: logits(*shape) for name, shape in shapes.items()}


def check(ours, by_hand, inputs, dtype):
    assert ours.item() == pytest.approx(float(by_hand), rel=TOLERANCE[dtype], abs=TOLERANCE[dtype])
    got = torch.autograd.grad(ours, inputs)
    expected = torch.autograd.grad(by_hand, inputs)
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=TOLERANCE[dtype] * 10, atol=TOLERANCE[dtype])


@given(cases())
def test_cross_entropy(case):
    criterion = sla.CrossEntropy(case["weight"], case["smoothing"])
    by_hand = brute.cross_entropy(
        brute.rows(case["student"]), brute.parents(case["target"]), case["weight"], case["smoothing"]
    )
    check(criterion(case["student"], case["target"]), by_hand, [case["student"]], case["dtype"])


@given(cases())
def test_cross_entropy_is_torchs_for_hard_targets(case):
    target = case["target"] if isinstance(case["target"], torch.Tensor) else case["target"].a
    ours = sla.cross_entropy(case["student"], target, case["weight"], case["smoothing"])
    torchs = F.cross_entropy(case["student"], target, case["weight"], label_smoothing=case["smoothing"])
    check(ours, torchs, [case["student"]], case["dtype"])


@given(cases())
def test_sla_loss(case):
    criterion = sla.CrossEntropy(case["weight"], case["smoothing"])
    ours = sla.sla_loss(case["joint"], case["target"], case["views"], criterion)
    by_hand = brute.sla_loss(case["joint"], case["target"], case["views"], case["weight"], case["smoothing"])
    check(ours, by_hand, [case["joint"]], case["dtype"])
    summed = sla.sla_loss(case["joint"], case["target"], case["views"], criterion, view_reduction="sum")
    assert summed.item() == pytest.approx(case["views"] * ours.item(), rel=1e-6)


@given(cases())
def test_data_augmentation_loss(case):
    criterion = sla.CrossEntropy(case["weight"], case["smoothing"])
    ours = sla.data_augmentation_loss(case["plain"], case["target"], case["views"], criterion)
    labels = brute.class_targets(case["target"], case["views"])
    by_hand = brute.cross_entropy(brute.rows(case["plain"]), labels, case["weight"], case["smoothing"])
    check(ours, by_hand, [case["plain"]], case["dtype"])


@given(cases())
def test_multi_task_loss(case):
    criterion = sla.CrossEntropy(case["weight"], case["smoothing"])
    ours = sla.multi_task_loss(case["plain"], case["view"], case["target"], case["views"], criterion)
    labels = brute.class_targets(case["target"], case["views"])
    by_class = brute.cross_entropy(brute.rows(case["plain"]), labels, case["weight"], case["smoothing"])
    views = [[(j, 1.0)] for _ in range(case["batch"]) for j in range(case["views"])]
    by_hand = by_class + brute.cross_entropy(brute.rows(case["view"]), views)
    check(ours, by_hand, [case["plain"], case["view"]], case["dtype"])


@given(cases(), st.sampled_from([1.0, 2.0]))
def test_distillation_loss(case, temperature):
    ours = sla.distillation_loss(case["joint"], case["student"], case["views"], temperature)
    by_hand = brute.distillation(case["joint"], case["student"], case["views"], temperature)
    check(ours, by_hand, [case["student"]], case["dtype"])


@given(cases(), st.sampled_from([0.0, 1.0]), st.sampled_from([1.0, 3.0]))
def test_the_whole_of_sla_with_self_distillation(case, beta, temperature):
    """Method and heads together, from features; the gradient of the heads against the loop's."""
    if case["views"] == 1:
        return
    criterion = sla.CrossEntropy(case["weight"], case["smoothing"])
    views = sla.CustomViews(**{f"v{j}": lambda x: x for j in range(1, case["views"])})
    method = sla.SLA(views, distill=True, beta=beta, temperature=temperature, criterion=criterion)
    heads = method.build_heads(6, case["classes"]).to(case["dtype"])
    features = torch.randn(case["batch"] * case["views"], 6, dtype=case["dtype"], requires_grad=True)
    losses = method.losses(heads, features, case["target"])

    joint, student = heads["joint"](features), heads["plain"](features[:: case["views"]])
    by_hand = brute.sla_loss(joint, case["target"], case["views"], case["weight"], case["smoothing"])
    by_hand = by_hand + brute.distillation(joint, student, case["views"], temperature)
    student_loss = brute.cross_entropy(
        brute.rows(student), brute.parents(case["target"]), case["weight"], case["smoothing"]
    )
    check(losses["loss"], by_hand + beta * student_loss, [features, *heads.parameters()], case["dtype"])
    assert losses["student"].item() == pytest.approx(float(student_loss), rel=1e-4, abs=1e-5)


@given(cases())
def test_inference(case):
    joint, views = case["joint"].detach(), case["views"]
    close = {"rtol": TOLERANCE[case["dtype"]] * 10, "atol": TOLERANCE[case["dtype"]]}
    torch.testing.assert_close(sla.select_view(joint[::views], 0, views), brute.single(joint, views), **close)
    for mean in ("logits", "probabilities", "marginal"):
        ours = sla.aggregate_views(joint, views, mean)
        torch.testing.assert_close(ours, brute.aggregated(joint, views, mean), **close)
    view = torch.arange(views).repeat(case["batch"])
    own = sla.select_view(joint, view, views)
    by_hand = torch.stack(
        [
            torch.stack([row[i * views + int(j)] for i in range(case["classes"])])
            for row, j in zip(joint, view, strict=True)
        ]
    )
    assert torch.equal(own, by_hand)


def test_the_papers_listing_gives_the_same_numbers():
    """The slices of the paper's appendix: outputs[:, ::4] and outputs[k::4, k::4]."""
    torch.manual_seed(0)
    outputs = torch.randn(5 * 4, 10 * 4)
    torch.testing.assert_close(sla.select_view(outputs, 0, 4), outputs[:, ::4])
    aggregated = sum(outputs[k::4, k::4] / 4 for k in range(4))
    torch.testing.assert_close(sla.aggregate_views(outputs, 4), aggregated)


@given(st.integers(1, 5), st.integers(2, 6), st.integers(1, 5), st.integers(0, 10**6))
def test_additive_joint_weights_turn_sla_into_multi_task(batch, classes, views, seed):
    """w_ij = u_i + v_j: the joint softmax factorises, so L_SLA = L_MT, to 1e-6."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(batch * views, 8, generator=generator, dtype=torch.float64)
    u = torch.randn(classes, 8, generator=generator, dtype=torch.float64)
    v = torch.randn(views, 8, generator=generator, dtype=torch.float64)
    w = torch.stack([u[i] + v[j] for i in range(classes) for j in range(views)])
    target = torch.randint(0, classes, (batch,), generator=generator)
    joint = sla.sla_loss(features @ w.T, target, views)
    multi_task = sla.multi_task_loss(features @ u.T, features @ v.T, target, views)
    assert joint.item() == pytest.approx(multi_task.item(), abs=1e-6)


@given(st.integers(1, 5), st.integers(2, 6), st.integers(1, 5), st.integers(0, 10**6))
def test_shared_joint_weights_turn_sla_into_data_augmentation(batch, classes, views, seed):
    """w_ij = u_i: L_SLA = L_DA + log M, to 1e-6."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(batch * views, 8, generator=generator, dtype=torch.float64)
    u = torch.randn(classes, 8, generator=generator, dtype=torch.float64)
    target = torch.randint(0, classes, (batch,), generator=generator)
    joint = sla.sla_loss(features @ u.repeat_interleave(views, 0).T, target, views)
    augmented = sla.data_augmentation_loss(features @ u.T, target, views)
    assert joint.item() == pytest.approx(augmented.item() + math.log(views), abs=1e-6)


JOINT, CLASSES, TARGET = torch.zeros(24, 20), torch.zeros(24, 5), torch.tensor([0, 4, 1, 1, 2, 3])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: sla.sla_loss(JOINT[:23], TARGET, 4), "for each of 6 images x 4 views, not shape (23, 20)"),
        (lambda: sla.sla_loss(JOINT[:, :18], TARGET, 4), "18 joint logits are not a multiple of 4 views"),
        (lambda: sla.sla_loss(JOINT, TARGET, 4, views=torch.zeros(6, 2).long()), "6 images x 2 views"),
        (lambda: sla.sla_loss(JOINT, TARGET, 0), "at least one view, not 0"),
        (lambda: sla.data_augmentation_loss(CLASSES[:6], TARGET, 4), "6 images x 4 views, not shape (6, 5)"),
        (lambda: sla.multi_task_loss(CLASSES, CLASSES[:, :1], TARGET, 4), "must be (24, 4), not (24, 1)"),
        (lambda: sla.multi_task_loss(CLASSES, CLASSES[:12, :4], TARGET, 4), "must be (24, 4), not (12, 4)"),
        (lambda: sla.distillation_loss(JOINT, torch.zeros(6, 1), 4), "(6, 5), not (6, 1)"),
        (lambda: sla.distillation_loss(JOINT, torch.zeros(1, 5), 4), "(6, 5), not (1, 5)"),
        (lambda: sla.distillation_loss(JOINT, CLASSES[:6], 4, 0.0), "temperature must be a number above 0"),
        (lambda: sla.distillation_loss(JOINT, CLASSES[:6], 4, math.nan), "above 0, not nan"),
        (
            lambda: sla.distillation_loss(JOINT, CLASSES[:6], 4, views=torch.zeros(6, 2).long()),
            "not (24, 20) and (12,)",
        ),
        (lambda: sla.sla_loss(JOINT, TARGET, 4, view_reduction="meen"), "did you mean 'mean'"),
        (lambda: sla.aggregate_views(JOINT, 4, average="logit"), "did you mean 'logits'"),
        (lambda: sla.average_views(torch.zeros(1, 4, 2), average="marginal"), "needs the joint logits"),
        (lambda: sla.aggregate_views(JOINT[:5], 4), "5 rows are not a multiple of 4 views"),
        (lambda: sla.aggregate_views(JOINT, 0), "at least one view, not 0"),
        (lambda: sla.aggregate_views(JOINT[0], 4), "must be (B*M, N*M), not (20,)"),
        (lambda: sla.select_view(JOINT, 4, 4), "view 4 is out of range"),
        (lambda: sla.cross_entropy(CLASSES, TARGET), "not (24, 5) and (6,)"),
        (lambda: sla.cross_entropy(CLASSES[:6], sla.MixedTarget(TARGET, TARGET[:1], 0.5)), "(6, 5) and (1,)"),
    ],
)
def test_shapes_that_do_not_fit_are_refused_in_one_clear_line(call, words):
    refused(words, call)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_losses_of_half_precision_do_not_overflow(dtype):
    torch.manual_seed(0)
    logits, target = (torch.randn(4096, 1000) * 8).to(dtype), torch.randint(0, 1000, (4096,))
    loss = sla.cross_entropy(logits, target)
    assert loss.item() == pytest.approx(F.cross_entropy(logits.float(), target).item(), rel=1e-5)
    student = (torch.randn(4096, 1000) * 8).to(dtype)
    kl = sla.distillation_loss(logits, student, 1)
    p = logits.double().log_softmax(-1)
    by_hand = (p.exp() * (p - student.double().log_softmax(-1))).sum(-1).mean()
    assert kl.item() == pytest.approx(by_hand.item(), rel=1e-4)


@pytest.mark.parametrize("weight", [torch.tensor([1.0, -1.0]), torch.zeros(2), torch.ones(2, 2)])
def test_wrong_class_weights_are_refused(weight):
    refused("one number per class", sla.CrossEntropy, weight)


def test_pure_functions_compile_without_a_graph_break():
    torch.manual_seed(0)
    views = sla.parse_views("rot4*rgb3")

    def everything(images, weight, student, target):
        features = sla.expand_views(images, views).flatten(1)
        joint = features @ weight
        return (
            sla.sla_loss(joint, target, 12),
            sla.distillation_loss(joint, student, 12),
            sla.aggregate_views(joint, 12, "marginal"),
        )

    arguments = torch.rand(2, 3, 4, 4), torch.randn(48, 60), torch.randn(2, 5), torch.tensor([1, 4])
    compiled = torch.compile(everything, fullgraph=True, backend="aot_eager")
    for a, b in zip(compiled(*arguments), everything(*arguments), strict=True):
        torch.testing.assert_close(a, b)


def test_temperatures_and_view_logits_that_cannot_be():
    refused("above 0, not inf", sla.distillation_loss, JOINT, CLASSES[:6], 4, math.inf)
    for shape in ((6,), (5, 4), (2, 4, 4)):
        refused("view logits must be (B*M, M)", view_loss, torch.zeros(shape))
    for criterion in (sla.cross_entropy, sla.LDAM([3, 2, 1, 1, 1])):
        words = "cross entropy needs logits (B, K) and a target (B,), not (6, 1, 5) and (6,)"
        refused(words, criterion, torch.zeros(6, 1, 5), TARGET)
    refused("joint logits must have a row", sla.sla_loss, torch.zeros(6, 4, 20), TARGET, 4)


def test_numbers_of_views_that_are_no_table_are_refused():
    one = torch.zeros(6).long()
    refused("6 images x 6 views", sla.sla_loss, JOINT, TARGET, 4, views=one)
    refused("6 images x 6 views", consistency_loss, JOINT, CLASSES[:6], 4, 0.5, one)
    refused("6 images x 6 views", sla.multi_task_loss, CLASSES, CLASSES[:, :4], TARGET, 4, views=one)


def test_answers_of_teachers_have_no_gradient():
    joint, views = torch.randn(6, 12, requires_grad=True), torch.tensor([[0, 2], [3, 1], [1, 0]])
    for found in (own_logits(joint, 4, views), first_logits(joint, 4, 2, views), first_logits(joint)):
        assert not found.requires_grad
    by_hand = [
        [(joint[2 * b, i * 4 + views[b, 0]] + joint[2 * b + 1, i * 4 + views[b, 1]]) / 2 for i in range(3)]
        for b in range(3)
    ]
    assert own_logits(joint, 4, views).tolist() == [
        pytest.approx([float(x.detach()) for x in row]) for row in by_hand
    ]
    first = [[float(joint[2 * b, i * 4 + views[b, 0]].detach()) for i in range(3)] for b in range(3)]
    assert first_logits(joint, 4, 2, views).tolist() == [pytest.approx(row) for row in first]
    assert torch.equal(first_logits(joint, 4, 2), joint[::2, ::4])


@pytest.mark.parametrize("make", [sla.cross_entropy, sla.focal_loss])
def test_a_few_large_losses_of_half_precision_are_summed_in_float32(make):
    logits = torch.tensor([[6e4, 0.0]] * 4, dtype=torch.float16)
    assert make(logits, torch.ones(4).long()).item() == pytest.approx(float(logits[0, 0]))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
def test_labels_of_any_whole_type_mean_the_same(dtype):
    """As an index, uint8 would be taken for a mask."""
    torch.manual_seed(0)
    logits, a, b = torch.randn(4, 3), torch.tensor([0, 1, 1, 2]), torch.tensor([1, 1, 0, 2])
    weight = torch.tensor([0.5, 1.0, 2.0])
    for criterion in (sla.CrossEntropy(weight), sla.LDAM([5, 3, 1], weight), sla.Focal(weight=weight)):
        assert torch.equal(criterion(logits, a.to(dtype)), criterion(logits, a))
        mixed = criterion(logits, sla.MixedTarget(a.to(dtype), b.to(dtype), 0.3))
        assert torch.equal(mixed, criterion(logits, sla.MixedTarget(a, b, 0.3)))
