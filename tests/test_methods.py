"""Methods on features: what they return beside the loss, their limits, and how they are made by name."""

import math
from dataclasses import FrozenInstanceError, dataclass

import pytest
import torch
from torch import nn

import sla
from brute_force import cross_entropy, log_softmax, parents, rows
from refusals import refused
from sla.methods import (
    METHODS,
    NO_CONTEXT,
    Distilled,
    Features,
    LoRot,
    RememberedSLA,
    StepContext,
    create_method,
    find_method,
    method_options,
    option,
    register_method,
    takes_views,
)
from sla.methods.checks import refuse_teacher
from sla.methods.removed import drop_removed

B, D, N, M = 5, 4, 3, 4
TARGET = torch.tensor([0, 2, 1, 1, 0])
MIXED = sla.MixedTarget(
    TARGET, (TARGET + 1) % N, torch.tensor([0.9, 0.2, 0.5, 0.7, 1.0], dtype=torch.float64)
)


def features(count, seed=0):
    return torch.randn(B * count, D, generator=torch.Generator().manual_seed(seed)).double().requires_grad_()


def heads_of(method):
    torch.manual_seed(1)
    return method.build_heads(D, N).double()


def own_block(joint_row, view):
    return torch.stack([joint_row[i * M + view] for i in range(N)])


def context_of(method, views=None, step=0):
    """What each method needs besides its features."""
    memory = method.build_memory(9, N)
    teacher = torch.randn(B, N, generator=torch.Generator().manual_seed(3)).double()
    return StepContext(views, torch.arange(2, 2 + B), step, 4, memory, teacher)


VIEWS = torch.tensor([[0, 2], [0, 1], [0, 3], [0, 2], [0, 1]])


@pytest.mark.parametrize("views", [None, VIEWS], ids=["all views", "two views"])
@pytest.mark.parametrize("name", METHODS)
def test_parts_and_output_carry_no_gradient_and_the_output_is_of_the_first_view(name, views):
    method = create_method(name)
    alone = len(method.views) == 1
    if alone or name == "lorot":
        views = None if alone else VIEWS
    heads, count = heads_of(method), 1 if alone else M if views is None else 2
    z = features(count)
    found = method.losses(heads, z, TARGET, context_of(method, views))
    assert set(found) == {"loss", "output", *method.parts}
    assert found["loss"].requires_grad
    assert not [key for key, value in found.items() if key != "loss" and value.requires_grad]
    for image in range(B):
        if name in ("sla", "sla+memory"):
            expected = own_block(heads["joint"](z[image * count : image * count + 1])[0], 0)
        else:
            first = z[image * count : image * count + 1]
            expected = heads["plain"](first / first.norm() if name == "features" else first)[0]
        torch.testing.assert_close(found["output"][image], expected.detach())


def test_the_output_of_one_drawn_view_is_of_its_own_block():
    """Also with a memory, where the first view need not be the unchanged image."""
    views = torch.tensor([[3], [1], [0], [2], [1]])
    for method in (sla.SLA(), RememberedSLA()):
        heads, z = heads_of(method), features(1)
        found = method.losses(heads, z, TARGET, context_of(method, views))
        joint = heads["joint"](z).detach()
        by_hand = [own_block(joint[image], int(views[image, 0])) for image in range(B)]
        torch.testing.assert_close(found["output"], torch.stack(by_hand))


@pytest.mark.parametrize("one_lam", [False, True])
def test_a_student_with_a_memory_learns_mixed_labels_of_the_images_it_sees_unchanged(one_lam):
    method = RememberedSLA(beta=0.5)
    target = MIXED._replace(lam=0.3) if one_lam else MIXED
    views = torch.tensor([[3, 0], [1, 2], [0, 1], [2, 3], [1, 0]])
    heads, z = heads_of(method), features(2)
    found = method.losses(heads, z, target, context_of(method, views))
    as_tensor = target._replace(lam=torch.as_tensor(target.lam, dtype=torch.float64))
    labels = [parents(as_tensor)[image] for image in (0, 2, 4)]
    student = heads["plain"](z[[1, 4, 9]])
    assert found["student"].item() == pytest.approx(cross_entropy(rows(student), labels).item())
    whole = found["joint"] + found["distillation"] + 0.5 * found["student"]
    assert found["loss"].item() == pytest.approx(whole.item())


def test_scores_beyond_half_precision_are_remembered_as_numbers():
    method = RememberedSLA()
    heads, z = heads_of(method), features(M)
    nn.init.constant_(heads["joint"].bias, 0.0)
    with torch.no_grad():
        heads["joint"].bias[:M] = 1e6  # class 0, in each view: the others are at -1,000,000
    context = context_of(method)
    found = method.losses(heads, z, TARGET, context)
    assert context.memory.log_prob.isfinite().all()
    assert not context.memory.log_prob.requires_grad  # or it would keep every step's graph
    assert context.memory.log_prob.min() < -5e4
    assert found["distillation"].isfinite()


def test_a_memory_is_of_scores_in_two_bytes():
    memory = RememberedSLA().build_memory(7, N)
    assert {name: (tuple(each.shape), each.dtype) for name, each in memory.named_buffers()} == {
        "log_prob": ((7, M, N), torch.float16),
        "seen": ((7, M), torch.bool),
    }
    assert not memory.seen.any()


def test_a_linear_classifier_of_features_of_length_one():
    method = Features(criterion=sla.CrossEntropy(label_smoothing=0.1))
    heads, z = heads_of(method), features(1)
    weight, bias = heads["plain"].weight, heads["plain"].bias
    by_hand = torch.stack(
        [
            torch.stack(
                [
                    sum(w * x for w, x in zip(weight[i], row, strict=True)) / row.norm() + bias[i]
                    for i in range(N)
                ]
            )
            for row in z
        ]
    )
    torch.testing.assert_close(method.classify(heads, z, "single"), by_hand)
    torch.testing.assert_close(method.label_logits(heads, z), by_hand)
    torch.testing.assert_close(method.classify_view(heads, z, 0), by_hand)
    torch.testing.assert_close(method.classify_views(heads, z, torch.zeros(B, 1).long()), by_hand[:, None])
    torch.testing.assert_close(method.aggregate(heads, z, "logits"), by_hand)
    log_prob = torch.stack([torch.stack(log_softmax(list(row))) for row in by_hand])
    torch.testing.assert_close(method.aggregate(heads, z, "probabilities"), log_prob)
    loss = method.losses(heads, z, TARGET)["loss"]
    assert loss.item() == pytest.approx(cross_entropy(rows(by_hand), parents(TARGET), smoothing=0.1).item())
    refused("linear head, not 'cosine'", Features, head="cosine")


def test_two_views_of_lorot_are_two_rows_of_an_image():
    method, views = LoRot(place_weight=0.0), torch.tensor([[0, 15], [3, 7], [4, 4], [9, 2], [1, 8]])
    heads, z = heads_of(method), features(2)
    found = method.losses(heads, z, TARGET, StepContext(views))
    labels = [[(int(y), 1.0)] for y in TARGET for _ in range(2)]
    of_class = cross_entropy(rows(heads["plain"](z)), labels)
    places = cross_entropy(rows(heads["place"](z)), [[(int(v), 1.0)] for v in views.flatten()])
    assert (found["class"].item(), found["place"].item()) == pytest.approx((of_class.item(), places.item()))
    assert found["loss"].item() == pytest.approx(of_class.item())
    assert set(method.growing_logits(heads, z)) == {"plain"}  # places do not grow with the classes


@pytest.mark.parametrize(
    ("make", "accepted", "wrong"),
    [
        (
            Distilled,
            {"temperature": (0.01, 50.0), "label_share": (0.0, 1.0)},
            {"temperature": (0.0, math.inf)},
        ),
        (Distilled, {}, {"label_share": (-0.01, 1.01, math.nan)}),
        (LoRot, {"place_weight": (0.0, 9.0)}, {"place_weight": (-0.01, math.inf)}),
        (sla.SLA, {"beta": (0.0, 9.0), "temperature": (0.01,)}, {"beta": (-0.01, math.inf)}),
        (sla.SLA, {"view_weight": (0.0,)}, {"temperature": (0.0, -1.0, math.inf)}),
        (sla.SLA, {"consistency_weight": (0.0, 2.0)}, {"view_weight": (-0.01, math.inf)}),
        (sla.SLA, {"confidence": (0.0, 1.0)}, {"consistency_weight": (-0.01, math.inf)}),
        (sla.SLA, {}, {"confidence": (-0.01, 1.01)}),
    ],
)
def test_options_are_accepted_up_to_their_limits(make, accepted, wrong):
    for name, values in accepted.items():
        assert [getattr(make(**{name: value}), name) for value in values] == list(values)
    for name, values in wrong.items():
        for value in values:
            refused(f"{name}.* not .*{value}|must be .* not .*{value}", make, **{name: value})


@pytest.mark.parametrize(
    "name", ["baseline", "da", "mt", "sla", "sla+sd", "distilled", "lorot", "sla+memory"]
)
def test_margins_need_a_cosine_head_in_every_method(name):
    refused("LDAM needs a cosine head, not a linear one", create_method, name, criterion=sla.LDAM([3, 2, 1]))
    assert create_method(name, criterion=sla.LDAM([3, 2, 1]), head="cosine").head == "cosine"


def test_limits_of_options_are_declared_for_the_configuration():
    declared = {
        (name, each.name): (each.default, each.metadata["limits"])
        for name in ("sla+sd", "distilled", "lorot")
        for each in method_options(METHODS[name].make).values()
    }
    assert declared == {
        ("sla+sd", "view_weight"): (1.0, {"ge": 0}),
        ("sla+sd", "consistency_weight"): (0.0, {"ge": 0}),
        ("sla+sd", "confidence"): (0.95, {"ge": 0, "le": 1}),
        ("sla+sd", "beta"): (1.0, {"ge": 0}),
        ("sla+sd", "temperature"): (1.0, {"gt": 0}),
        ("sla+sd", "view_reduction"): ("mean", {}),
        ("distilled", "temperature"): (1.0, {"gt": 0}),
        ("distilled", "label_share"): (0.0, {"ge": 0, "le": 1}),
        ("lorot", "place_weight"): (0.1, {"ge": 0}),
    }


def test_methods_by_name():
    ours = ["baseline", "da", "mt", "sla", "sla+sd", "distilled", "features", "lorot", "sla+memory"]
    assert [name for name in METHODS if name in ours] == ours
    with_views = {"da", "mt", "sla", "sla+sd", "sla+memory"}
    assert {name for name in ours if takes_views(name)} == with_views
    for name in ours:
        method = create_method(name, sla.Rotation(0, 180), head="linear")
        assert isinstance(method, find_method(name).make)
        assert len(method.views) == {"lorot": 16}.get(name, 2 if name in with_views else 1)
        assert method.headline in method.inferences
        assert method.one_pass in method.inferences
        with pytest.raises(FrozenInstanceError):
            method.head = "cosine"
        assert (method.build_memory(3, 2) is not None) == (name == "sla+memory")
    assert len(create_method("sla").views) == 4
    assert {name: create_method(name).headline for name in ours} == {
        **dict.fromkeys(("baseline", "da", "mt", "features", "lorot"), "single"),
        **dict.fromkeys(("sla+sd", "sla+memory", "distilled"), "distilled"),
        "sla": "aggregated",
    }
    assert [create_method(name).distill for name in ("sla", "sla+sd", "sla+memory")] == [False, True, True]
    refused("method 'sla' has no option 'betta', did you mean 'beta'", create_method, "sla", betta=1)
    refused("option 'beta' is a number, not 'much'", create_method, "sla", beta="much")
    refused("'sla' is registered twice", register_method("sla"), sla.SLA)
    refused("method 'sla\\+ema' no longer exists", create_method, "sla+ema")


def test_views_of_a_step():
    assert [create_method(name).least_views for name in ("mt", "sla", "sla+sd")] == [1, 1, 2]
    assert create_method("sla+memory").least_views == 1
    assert (create_method("lorot").usual_views, create_method("sla").usual_views) == (1, None)
    heads, z = heads_of(sla.MultiTask()), features(M)
    torch.testing.assert_close(sla.MultiTask().predict_view(heads, z), heads["view"](z))
    assert sla.DataAugmentation().predict_view(heads, z) is None
    heads = heads_of(sla.SLA())
    joint = heads["joint"](z).detach()
    by_hand = [
        [sum(log_softmax(list(row))[i * M + j].exp() for i in range(N)).log() for j in range(M)]
        for row in joint
    ]
    torch.testing.assert_close(sla.SLA().predict_view(heads, z), torch.tensor(by_hand, dtype=torch.float64))


@pytest.mark.parametrize("name", METHODS)
def test_views_one_at_a_time_in_a_table_or_all_together(name):
    """The answer of each view by its own block; their mean is the aggregated one."""
    method = create_method(name)
    heads, count = heads_of(method), len(method.views)
    z = features(count)
    numbers = torch.arange(count).expand(B, -1)
    table = method.classify_views(heads, z, numbers)
    assert table.shape == (B, count, N)
    for view in range(count):
        rows_of_view = z[view::count]
        torch.testing.assert_close(method.classify_view(heads, rows_of_view, view), table[:, view])
        if "joint" in heads:
            by_hand = torch.stack([own_block(row, view) for row in heads["joint"](rows_of_view)])
            torch.testing.assert_close(table[:, view], by_hand)
    torch.testing.assert_close(method.aggregate(heads, z, "logits"), table.mean(1))
    expected = torch.stack(
        [torch.stack([torch.stack(log_softmax(list(row))) for row in own]) for own in table]
    )
    torch.testing.assert_close(method.aggregate(heads, z, "probabilities"), expected.exp().mean(1).log())
    torch.testing.assert_close(method.classify(heads, z[::count], method.inferences[0]), table[:, 0])


def test_what_a_method_does_not_define_is_refused():
    class Bare(sla.Method):
        views, criterion, head = sla.Identity(), sla.cross_entropy, "linear"

    heads, z = Bare().build_heads(D, N), torch.zeros(B, D)
    refused("Bare has no loss", Bare().losses, heads, z, TARGET)
    refused(
        "Bare learns nothing from images without labels", Bare().unlabelled_losses, heads, z, StepContext()
    )
    joint = heads_of(sla.SLA())
    refused("needs StepContext(unlabelled=", sla.SLA().unlabelled_losses, joint, features(M), StepContext())
    assert Bare().predict_view(heads, z) is None
    assert Bare().build_memory(3, N) is None


def test_options_of_earlier_versions_are_dropped_at_their_defaults_alone():
    options = {"beta": 2.0, "stop_gradient": False, "student_from": 0.0}
    assert drop_removed(options, ["beta"]) == {"beta": 2.0}
    assert drop_removed(options, ["beta", "student_from"]) == {"beta": 2.0, "student_from": 0.0}
    refused(
        "option 'stop_gradient' no longer exists, so it cannot be True",
        drop_removed,
        {"stop_gradient": True},
        [],
    )
    assert drop_removed({"stop_gradient": True}, ["stop_gradient"]) == {"stop_gradient": True}


@dataclass(frozen=True)
class Own(sla.Baseline):
    alpha: float = option(0.5, "of one's own", ge=0)


OWN = Own(alpha=2.0)


def test_a_method_of_ones_own_by_name():
    names = {what: f"{__name__}:{what}" for what in ("Own", "OWN", "B")}
    sla.allow(*names.values())
    assert create_method(names["Own"]) == Own()
    assert create_method(names["Own"], alpha=3.0).alpha == 3.0
    assert create_method(names["OWN"]) == OWN
    refused("it must be a subclass of sla.Method", create_method, names["B"])
    refused("is a number, not 'x'", create_method, names["Own"], alpha="x")


def test_a_step_that_knows_nothing_is_shared_and_cannot_be_changed():
    assert StepContext(None, None, 0, 0, None, None, None, None) == NO_CONTEXT
    with pytest.raises(FrozenInstanceError):
        NO_CONTEXT.step = 1


def test_only_a_student_needs_a_teacher():
    refused(
        "Distilled learns from a teacher, which this loop does not have",
        refuse_teacher,
        Distilled(),
        "this loop",
    )
    for name in METHODS:
        if name != "distilled":
            refuse_teacher(create_method(name), "this loop")
