"""Students of SLA, and LoRot: each loss against loops over images, views and classes written out by hand."""

import pytest
import torch

import brute_force
import sla
from brute_force import log_softmax, parents, rows
from refusals import refused
from sla.errors import InputError, SLAWarning
from sla.methods import LoRot, RememberedSLA, StepContext
from sla.methods.lorot import QuadrantRotation
from sla.runs.checkpoint import WEIGHTS, find_checkpoint
from sla.runs.distributed import Group
from sla.runs.signals import StoppedError
from sla.sampling.draws import Draws
from sla.tasks.classifier.plan import make_plan
from sla.tasks.classifier.trainer import Trainer
from sla.tasks.registry import make_config
from sla.views import Rotation, expand_views, take_views

B, D, N, M = 5, 4, 3, 4
TARGET = torch.tensor([0, 2, 1, 1, 0])


def features(count, seed=0):
    return torch.randn(B * count, D, generator=torch.Generator().manual_seed(seed)).double().requires_grad_()


def heads_of(method):
    torch.manual_seed(1)
    return method.build_heads(D, N).double()


def kl(teacher, student):
    """sum_i p_i (log p_i - log q_i), of rows of logits."""
    p, q = log_softmax(list(teacher.detach())), log_softmax(list(student))
    return sum(p[i].exp() * (p[i] - q[i]) for i in range(len(p)))


def own_block(joint_row, view):
    return torch.stack([joint_row[i * M + view] for i in range(N)])


@pytest.mark.parametrize("count", [1, 2, None])
def test_the_memorys_teacher_is_the_mean_over_the_views_seen(count):
    """Three steps on images 7..11 of 20; the memory is a dictionary here."""
    method, memory = RememberedSLA(Rotation(), beta=0.5), {}
    heads, kept, indices = heads_of(method), method.build_memory(20, N), torch.arange(7, 7 + B)
    for step in range(3):
        draw = torch.rand(B, M, generator=torch.Generator().manual_seed(step))
        views = None if count is None else draw.argsort(1)[:, :count]
        z = features(count or M, step)
        context = StepContext(views, indices, step, 3, kept)
        found = method.losses(heads, z, TARGET, context)
        joint = heads["joint"](z)
        numbers = [list(range(M))] * B if views is None else views.tolist()
        total, classes, of_plain, labels, joint_labels = 0.0, [], [], [], []
        for image in range(B):
            for place, view in enumerate(numbers[image]):
                row = joint[image * len(numbers[image]) + place]
                memory[image, view] = torch.stack(log_softmax(list(own_block(row, view).detach())))
                joint_labels.append([(int(TARGET[image]) * M + view, 1.0)])
        for image in range(B):
            if 0 in numbers[image]:
                seen = [memory[image, view] for view in range(M) if (image, view) in memory]
                z_0 = z[image * len(numbers[image]) + numbers[image].index(0)]
                of_plain.append(heads["plain"](z_0[None])[0])
                total = total + kl(sum(seen) / len(seen), of_plain[-1])
                labels.append([(int(TARGET[image]), 1.0)])
        by_hand = brute_force.cross_entropy(rows(joint), joint_labels)
        if labels:
            classes = brute_force.cross_entropy([list(row) for row in of_plain], labels)
            by_hand = by_hand + total / len(labels) + 0.5 * classes
        assert found["loss"].item() == pytest.approx(by_hand.item(), abs=2e-3)  # 16 bits are remembered
    assert kept.seen.sum() == len(memory)
    assert not kept.seen[:7].any()
    assert not kept.seen[12:].any()
    refused("needs StepContext", method.losses, heads, z, TARGET, StepContext(views))


def test_without_a_plain_image_no_student_learns():
    method = RememberedSLA(Rotation())
    heads, z = heads_of(method), features(1)
    context = StepContext(
        torch.ones(B, 1, dtype=torch.int64), torch.arange(B), 0, 1, method.build_memory(B, N)
    )
    found = method.losses(heads, z, TARGET, context)
    assert found["loss"].item() == pytest.approx(found["joint"].item())
    found["loss"].backward()
    assert not heads["plain"].weight.grad.any()


@pytest.mark.parametrize("side", [6, 7])
def test_a_quadrant_is_rotated_and_nothing_else(side):
    image = torch.arange(2.0 * side * side).view(1, 2, side, side)
    half = side // 2
    for view, seen in enumerate(expand_views(image, QuadrantRotation())):
        quadrant, turns = divmod(view, 4)
        down, across = (side - half) * (quadrant // 2), (side - half) * (quadrant % 2)
        for y in range(side):
            for x in range(side):
                i, j = y - down, x - across
                inside = 0 <= i < half and 0 <= j < half
                for _ in range(turns if inside else 0):  # a quarter turn, counter-clockwise
                    i, j = j, half - 1 - i
                source = image[0, :, i + down, j + across] if inside else image[0, :, y, x]
                assert torch.equal(seen[:, y, x], source)


def test_lorot_predicts_class_and_place_of_the_changed_image():
    method = LoRot(place_weight=0.3)
    heads, z = heads_of(method), features(1)
    views = torch.tensor([[0], [15], [7], [4], [9]])
    found = method.losses(heads, z, TARGET, StepContext(views))
    of_class = brute_force.cross_entropy(rows(heads["plain"](z)), parents(TARGET))
    place = brute_force.cross_entropy(rows(heads["place"](z)), [[(int(v), 1.0)] for v in views])
    assert found["loss"].item() == pytest.approx((of_class + 0.3 * place).item(), rel=1e-6)
    assert LoRot().place_weight == 0.1
    images = torch.rand(2, 3, 4, 4)
    changed = take_views(images, method.views, torch.tensor([[0], [5]]))
    assert torch.equal(changed[0], images[0])
    assert torch.equal(changed[1, :, :2, 2:], torch.rot90(images[1, :, :2, 2:], 1, (1, 2)))
    refused("needs square images", method.expand, torch.rand(2, 3, 4, 5))
    model = sla.create("resnet8", num_classes=2, method=method)
    with pytest.raises(InputError, match=r"a random view of each image: StepContext\(views="):
        model(torch.rand(2, 3, 8, 8), torch.tensor([0, 1]))


def weights_of(folder):
    return (find_checkpoint(folder / "checkpoint", "last") / WEIGHTS).read_bytes()


@pytest.mark.parametrize("method", ["sla+memory", "lorot"])
def test_each_trains_resumes_to_the_same_bytes_and_is_read_again(method, tiny_settings, tmp_path, stop_at):
    settings = tiny_settings | {"method__name": method, "run__iterations": 6, "run__evaluations": 1}
    settings |= {"method__views_per_step": 1}
    whole = sla.fit("digits", tmp_path / "whole", **settings)
    with pytest.raises(StoppedError):
        sla.fit("digits", tmp_path / "part", progress=stop_at(4), **settings)
    sla.fit("digits", tmp_path / "part", resume=True, **settings)
    assert weights_of(tmp_path / "part") == weights_of(tmp_path / "whole")
    cost = whole.result["cost"]
    assert cost["training_flop"] == 6 * 32 * 3 * cost["inference_flop"]["single"]
    if method == "lorot":
        dataset = whole.dataset()
        with pytest.warns(SLAWarning, match="trained without flips"):
            flips = whole.flips(dataset)
        images, aspect = dataset.read(range(8))
        seen = whole.pipeline(images, Draws(0, 0, 8), aspect)
        with torch.no_grad():
            both = (whole.model(seen) + whole.model(seen.flip(-1))) / 2
        assert flips.logits["flips"][:8].numpy() == pytest.approx(both.numpy(), abs=1e-5)
        with pytest.warns(SLAWarning, match="trained without flips"):
            found = whole.predict(images.numpy(), "flips")
        expected = (both / whole.temperatures["single"]).softmax(1)
        assert found.probabilities.numpy() == pytest.approx(expected.numpy(), abs=1e-5)


def test_the_disk_must_have_room_for_the_memory(tmp_path):
    sizes = []
    for name in ("sla+sd", "sla+memory"):
        tree = {"data": {"source": "digits"}, "method": {"name": name}, "run": {"iterations": 1}}
        loop = Trainer(make_plan(make_config(tree)), tmp_path, Group())
        sizes.append(loop.bytes_needed())
    scores = len(loop.train) * 4 * (10 * 2 + 1)  # 16 bits a class, and whether the view was seen
    assert sizes[1] - sizes[0] == 2 * scores  # the old checkpoint and the new one


def test_one_view_of_lorot_by_default():
    tree = {"data": {"source": "digits"}, "method": {"name": "lorot"}}
    assert make_plan(make_config(tree)).config.method.views_per_step == 1
    with pytest.raises(InputError, match="lorot draws some of its 16 views, usually 1, not 16"):
        make_plan(make_config(tree | {"method": {"name": "lorot", "views_per_step": 16}}))
