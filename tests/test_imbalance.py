"""Criteria for imbalanced classes against values worked out by hand, loops, torch and finite differences."""

import math
from decimal import Decimal

import pytest
import torch
import torch.nn.functional as F

import brute_force as brute
import sla
from refusals import refused
from sla.errors import InputError
from sla.imbalance import CRITERIA, log_priors

COUNTS = [16, 1, 81]
MARGINS = [0.25, 0.5, 1 / 6]  # half of 1/2, 1 and 1/3
TAIL = [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]


def batch(labels=3, size=6, seed=0):
    """Logits, a hard target and a mixed one, in double precision."""
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(size, labels, generator=generator, dtype=torch.float64)
    a, b = (torch.randint(labels, (size,), generator=generator) for _ in range(2))
    lam = torch.rand(size, generator=generator, dtype=torch.float64)
    return logits, a, sla.MixedTarget(a, b, lam)


def by_hand(scores, target, weight, smoothing):
    """Sums over images and parents; `scores(row, label)` are what stands for log p of every label."""
    top = bottom = 0.0
    for number, parents in enumerate(brute.parents(target)):
        for label, share in parents:
            row = scores(number, label)
            smooth = sum(weight[c] * -row[c] for c in range(len(row))) / len(row)
            top += share * ((1 - smoothing) * weight[label] * -row[label] + smoothing * smooth)
            bottom += share * weight[label]
    return top / bottom


def test_weights_are_one_over_the_effective_number_scaled_to_the_number_of_classes():
    # beta 0.9: effective numbers 1 and 1.9, weights 1 and 1/1.9, scaled to sum 2.
    expected = torch.tensor([2 / (1 + 1 / 1.9), 2 / (1.9 + 1)])
    torch.testing.assert_close(sla.class_balanced_weights([1, 2], beta=0.9), expected)
    raw = [(1 - Decimal("0.9999")) / (1 - Decimal("0.9999") ** n) for n in TAIL]
    exact = torch.tensor([float(10 * w / sum(raw)) for w in raw])
    torch.testing.assert_close(sla.class_balanced_weights(TAIL), exact, rtol=1e-6, atol=0)
    torch.testing.assert_close(sla.class_balanced_weights([7, 7, 7]), torch.ones(3))
    # beta 0 counts nothing; towards 1 it is one over the count.
    assert sla.class_balanced_weights([1, 500], beta=0).tolist() == [1, 1]
    inverse = sla.class_balanced_weights([1, 3], beta=1 - 1e-9)
    torch.testing.assert_close(inverse, torch.tensor([1.5, 0.5]))


def test_margins_and_priors_are_those_worked_out_by_hand():
    torch.testing.assert_close(sla.ldam_margins(COUNTS), torch.tensor(MARGINS))
    expected = torch.tensor([math.log(16 / 98), math.log(1 / 98), math.log(81 / 98)])
    torch.testing.assert_close(log_priors(COUNTS), expected)


def test_a_class_that_repeats_for_its_views_keeps_weight_and_margin():
    """What joint labels inherit is what they would get with counts of their own."""
    repeated = [n for n in TAIL for _ in range(4)]
    for values in (sla.class_balanced_weights, sla.ldam_margins):
        torch.testing.assert_close(values(repeated), values(TAIL).repeat_interleave(4))


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("views", [1, 4])
@pytest.mark.parametrize("mixed", [False, True])
def test_each_criterion_is_its_sum_written_out(mixed, views, weighted, smoothing):
    logits, hard, soft = batch(3 * views)
    target = soft if mixed else hard
    weight = torch.tensor([0.3, 2.0, 0.7], dtype=torch.float64) if weighted else None
    spread = [float(w) for w in (weight if weighted else torch.ones(3)) for _ in range(views)]
    margins = [m for m in MARGINS for _ in range(views)]
    priors = [math.log(n / 98) for n in COUNTS for _ in range(views)]

    def with_margin(number, label):
        row = [value - 30 * margins[c] if c == label else value for c, value in enumerate(logits[number])]
        return brute.log_softmax(row)

    def focused(number, label):
        return [(1 - v.exp()) ** 2 * v for v in brute.log_softmax(list(logits[number]))]

    def adjusted(number, label):
        return brute.log_softmax([value + priors[c] for c, value in enumerate(logits[number])])

    for criterion, scores in (
        (sla.LDAM(COUNTS, weight, smoothing), with_margin),
        (sla.Focal(2.0, weight, smoothing), focused),
        (sla.LogitAdjusted(COUNTS, 1.0, weight, smoothing), adjusted),
    ):
        expected = by_hand(scores, target, spread, smoothing)
        # Margins and priors are kept in single precision.
        torch.testing.assert_close(criterion(logits, target), expected, rtol=1e-6, atol=1e-6)


def test_known_special_cases_are_torchs_cross_entropy():
    logits, hard, _ = batch()
    plain = F.cross_entropy(logits, hard)
    torch.testing.assert_close(sla.focal_loss(logits, hard, gamma=0.0), plain)
    torch.testing.assert_close(sla.LogitAdjusted([9, 9, 9])(logits, hard), plain)
    torch.testing.assert_close(sla.ldam(logits, hard, torch.zeros(3)), plain)
    # Two parents of the same class are a hard target.
    same = sla.MixedTarget(hard, hard, 0.3)
    for criterion in (sla.LDAM(COUNTS), sla.Focal(), sla.LogitAdjusted(COUNTS)):
        torch.testing.assert_close(criterion(logits, same), criterion(logits, hard))


def test_logit_adjustment_leaves_nothing_to_learn_from_counts_alone():
    """Images that look alike, in the classes' proportions: the best logits are equal, not log priors."""
    target = torch.repeat_interleave(torch.arange(3), torch.tensor(COUNTS))
    logits = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    criterion = sla.LogitAdjusted(COUNTS)
    (gradient,) = torch.autograd.grad(criterion(logits.expand(len(target), 3), target), logits)
    torch.testing.assert_close(gradient, torch.zeros(3, dtype=torch.float64), atol=1e-7, rtol=0)
    (plain,) = torch.autograd.grad(F.cross_entropy(logits.expand(len(target), 3), target), logits)
    assert plain.abs().max() > 0.1


@pytest.mark.parametrize("mixed", [False, True])
def test_gradients_are_those_of_finite_differences(mixed):
    _, hard, soft = batch(6, size=4)
    target = soft if mixed else hard
    margins, prior = (values.double() for values in (sla.ldam_margins(COUNTS), log_priors(COUNTS)))
    weight = sla.class_balanced_weights(COUNTS, 0.9).double()
    torch.manual_seed(0)
    features = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    head = sla.JointHead(5, 3, 2, "cosine").double()
    rows = head.weight.detach().clone().requires_grad_()

    def loss_of(criterion):
        return lambda *given: criterion(torch.func.functional_call(head, {"weight": given[1]}, given[:1]))

    for criterion in (
        lambda logits: sla.ldam(logits, target, margins, 30.0, weight, 0.1),
        lambda logits: sla.focal_loss(logits, target, 2.0, weight),
        lambda logits: sla.logit_adjusted_loss(logits, target, prior, 1.5, weight),
    ):
        assert torch.autograd.gradcheck(loss_of(criterion), (features, rows))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [0.0, 1.0, 30.0, 1e4])
def test_no_criterion_gives_nan(dtype, scale):
    """Scores up to 1e4 of either sign, on and off the target; classes of one image and of a million."""
    counts = [1, 10**6, 3, 1000]
    weights = sla.class_balanced_weights(counts)
    signs = torch.tensor([[1.0, -1, -1, -1], [-1, 1, -1, -1], [1, 1, 1, 1], [-1, -1, -1, -1]])
    target = torch.tensor([0, 0, 1, 0])
    mixed = sla.MixedTarget(target, target.flip(0), torch.tensor([0.0, 1.0, 0.5, 0.25]))
    for criterion in (
        sla.CrossEntropy(weights),
        sla.LDAM(counts, weights),
        sla.Focal(weight=weights),
        sla.Focal(0.5),
        sla.Focal(0.0),
        sla.LogitAdjusted(counts, weight=weights),
    ):
        for given in (target, mixed):
            logits = (scale * signs).to(dtype).requires_grad_()
            loss = criterion(logits, given)
            loss.backward()
            assert loss.isfinite(), criterion
            assert logits.grad.isfinite().all(), criterion
    assert weights.isfinite().all()
    assert (weights > 0).all()


def test_classes_with_one_image_are_fine_and_with_none_are_refused():
    for values in (sla.class_balanced_weights, sla.ldam_margins, log_priors):
        assert values([1, 1]).isfinite().all()
        assert values([1, 10**6]).isfinite().all()
        refused(r"class 1 has 0 training images: .* at least one", values, [3, 0, 2])
        refused(r"class 0 has 0 training images \(1 more like it\)", values, [0, 4, -2])
        refused("class 1 has nan", values, torch.tensor([1.0, math.nan]))
        for shape in ([], [[1, 2]]):
            refused("one number per class", values, shape)
    for wrong in (lambda: sla.class_balanced_weights([1], 1.0), lambda: sla.ldam_margins([1], -1.0)):
        with pytest.raises(InputError):
            wrong()
    refused("gamma", sla.Focal, -1.0)


@pytest.mark.parametrize("method", ["baseline", "da", "mt", "sla", "sla+sd"])
def test_ldam_is_refused_on_a_linear_head_and_trains_on_a_cosine_one(method):
    criterion = sla.LDAM([4, 2, 1], sla.class_balanced_weights([4, 2, 1]), start=0.5)
    with pytest.raises(InputError, match="LDAM needs a cosine head, not a linear one: its margins are parts"):
        sla.create_method(method, criterion=criterion)
    model = sla.create("resnet8", 3, sla.create_method(method, criterion=criterion, head="cosine"))
    losses = model.losses(torch.randn(4, 3, 8, 8), torch.tensor([0, 1, 2, 0]))
    losses["loss"].backward()
    assert losses["loss"].isfinite()
    assert not [name for name in model.state_dict() if name.startswith("criterion")]


def test_values_for_another_number_of_classes_are_refused_also_after_growing():
    for criterion, words in (
        (sla.CrossEntropy(torch.ones(2)), "2 class weights do not fit 4 classes"),
        (sla.LDAM([4, 2]), "2 margins do not fit 4 classes"),
        (sla.LogitAdjusted([4, 2]), "2 class priors do not fit 4 classes"),
        (sla.Focal(weight=torch.ones(2), start=0.5), "2 class weights do not fit 4 classes"),
    ):
        refused(words, sla.create, "resnet8", 4, sla.SLA(criterion=criterion, head="cosine"))
        model = sla.create("resnet8", 2, sla.SLA(criterion=criterion, head="cosine"))
        model.grow(2)
        refused(words, model.losses, torch.randn(2, 3, 8, 8), torch.tensor([0, 3]))


def test_deferred_weights_count_from_their_share_of_the_run_on():
    logits, hard, _ = batch()
    weights = sla.class_balanced_weights(COUNTS, 0.9)
    criterion = sla.LDAM(COUNTS, weights, start=0.8)
    before, after = sla.LDAM(COUNTS)(logits, hard), sla.LDAM(COUNTS, weights)(logits, hard)
    assert not torch.isclose(before, after)
    assert torch.equal(criterion(logits, hard), before)
    for step, expected in ((0, before), (159, before), (160, after), (199, after), (3, before)):
        criterion.on_step(step, 200)
        assert torch.equal(criterion(logits, hard), expected), step
    at_once = sla.CrossEntropy(weights)
    at_once.on_step(0, 200)
    assert torch.equal(at_once.weight, weights)
    for wrong in ({"start": 0.5}, {"weight": weights, "start": 1.5}):
        refused("share of the run", sla.CrossEntropy, **wrong)


def test_a_compiled_criterion_is_not_compiled_again_when_weights_begin_to_count():
    logits, hard, _ = batch()
    criterion = sla.LDAM(COUNTS, sla.class_balanced_weights(COUNTS, 0.9), start=0.5)
    with torch._dynamo.config.patch(error_on_recompile=True):
        compiled = torch.compile(lambda values: criterion(values, hard), backend="eager")
        for step in range(4):
            criterion.on_step(step, 4)
            assert torch.equal(compiled(logits), criterion(logits, hard))


def test_values_are_accepted_up_to_their_limits():
    logits, hard, _ = batch()
    assert sla.class_balanced_weights([3, 1], beta=0.0).tolist() == [1, 1]
    assert sla.ldam_margins(COUNTS, largest=0.0).tolist() == [0, 0, 0]
    assert sla.Focal(gamma=0.0)(logits, hard).item() == pytest.approx(F.cross_entropy(logits, hard).item())
    for smoothing in (0.0, 1.0):
        ours = sla.CrossEntropy(label_smoothing=smoothing)(logits, hard)
        torch.testing.assert_close(ours, F.cross_entropy(logits, hard, label_smoothing=smoothing))
    weight = torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64)
    torch.testing.assert_close(sla.CrossEntropy(weight)(logits, hard), F.cross_entropy(logits, hard, weight))
    assert sla.CrossEntropy(weight, start=1.0).weight.tolist() == [1, 1, 1]
    for beta in (-0.1, 1.0, math.nan):
        refused("beta must be at least 0 and below 1", sla.class_balanced_weights, COUNTS, beta)
    for largest in (-0.1, math.inf):
        refused("largest margin must be at least 0", sla.ldam_margins, COUNTS, largest)
    for gamma in (-0.1, math.inf):
        refused("gamma must be at least 0", sla.Focal, gamma)
    for smoothing in (-0.1, 1.1, math.nan):
        refused("label smoothing must be between 0 and 1", sla.CrossEntropy, label_smoothing=smoothing)
    for start in (-0.1, 1.1, math.nan):
        refused("share of the run", sla.CrossEntropy, weight, start=start)
    for counts in ([[1, 2]], [], torch.tensor(3)):
        refused("counts must be one number per class", log_priors, counts)
    refused(r"class 1 has 0\.5 training images \(2 more like it\)", log_priors, [1, 0.5, math.inf, math.nan])
    refused(r"class 2 has 0 training images:", log_priors, [1, 5, 0])


def test_defaults_are_those_of_the_papers():
    """Cui et al.: beta 0.9999; Cao et al.: margin 0.5, scale 30; Lin et al.: gamma 2; Menon et al.: tau 1."""
    logits, hard, _ = batch()
    torch.testing.assert_close(sla.Focal()(logits, hard), sla.focal_loss(logits, hard, 2.0))
    torch.testing.assert_close(sla.focal_loss(logits, hard), sla.focal_loss(logits, hard, 2.0))
    prior = log_priors(COUNTS)
    ours = sla.logit_adjusted_loss(logits, hard, prior)
    torch.testing.assert_close(ours, F.cross_entropy(logits + prior, hard))
    margins = torch.tensor(MARGINS, dtype=torch.float64)
    torch.testing.assert_close(sla.ldam(logits, hard, margins), sla.ldam(logits, hard, margins, 30.0))
    torch.testing.assert_close(sla.LDAM(COUNTS)(logits, hard), sla.ldam(logits, hard, margins))
    torch.testing.assert_close(sla.LogitAdjusted(COUNTS)(logits, hard), ours)
    assert sla.LDAM(COUNTS).margins.max() == 0.5
    beta = 0.9999
    raw = [(1 - beta) / (1 - beta**n) for n in (10, 5000)]
    expected = torch.tensor([2 * w / sum(raw) for w in raw])
    torch.testing.assert_close(sla.class_balanced_weights([10, 5000]), expected, rtol=1e-4, atol=0)


def test_criteria_by_name_have_the_smoothing_weights_and_start_they_are_given():
    logits, hard, _ = batch()
    made = {name: declared.make(COUNTS, 0.1, 0.5) for name, declared in CRITERIA.items()}
    weights = sla.class_balanced_weights(COUNTS)
    expected = {
        "none": sla.CrossEntropy(label_smoothing=0.1),
        "cb": sla.CrossEntropy(weights, 0.1),
        "ldam-drw": sla.LDAM(COUNTS, label_smoothing=0.1),  # until half of the run
        "focal": sla.Focal(2.0, label_smoothing=0.1),
        "logit-adjust": sla.LogitAdjusted(COUNTS, label_smoothing=0.1),
    }
    assert made.keys() == expected.keys()
    for name, criterion in made.items():
        assert type(criterion) is type(expected[name])
        torch.testing.assert_close(criterion(logits, hard), expected[name](logits, hard))
    made["ldam-drw"].on_step(5, 10)
    torch.testing.assert_close(made["ldam-drw"](logits, hard), sla.LDAM(COUNTS, weights, 0.1)(logits, hard))
    heads = {name: declared.head for name, declared in CRITERIA.items()}
    assert heads == dict.fromkeys(expected, "linear") | {"ldam-drw": "cosine"}


def test_a_class_without_images_plays_no_part_in_logit_adjustment():
    logits, _, _ = batch(labels=3)
    target = torch.tensor([0, 2, 2, 0, 0, 2])
    ours = CRITERIA["logit-adjust"].make([60, 0, 5], 0.0, 0.0)(logits, target)
    without = sla.LogitAdjusted([60, 5])(logits[:, [0, 2]], target // 2)
    torch.testing.assert_close(ours, without)
