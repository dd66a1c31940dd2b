"""Anytime aggregation against loops written by hand, and its rules against what they promise."""

import json
import math
import shutil
from itertools import pairwise

import pytest
import torch
from torch.testing import assert_close

import sla
from refusals import refused
from sla.anytime import AnytimeRule, classify_until_settled, margins, running_averages, settle
from sla.datasets.load import load
from sla.errors import InputError
from sla.stats import at_most
from sla.tasks.classifier.anytime import LEVELS, calibrate, choose_order, find_rules
from sla.tasks.classifier.evaluation import Outputs, infer

RULE = AnytimeRule((2, 0, 3, 1), 1.5, 0.95, 100)


def made_up(count, num_views=4, num_classes=5, seed=0):
    """Class logits (n, M, N) of images that are more or less easy."""
    draw = torch.Generator().manual_seed(seed)
    ease = 3 * torch.rand(count, 1, num_classes, generator=draw) ** 3
    return 2 * ease + torch.randn(count, num_views, num_classes, generator=draw)


def by_loop(class_logits, rule):
    """One image after the other, one view after the other, in float64."""
    answers, counts, total = [], [], len(rule.order)
    for views in class_logits.double():
        seen = torch.zeros(views.shape[1], dtype=torch.float64)
        for k, view in enumerate(rule.order, 1):
            seen = seen + views[view]
            mean = seen / k
            best, second = sorted(mean.tolist())[-1:-3:-1]
            if k == total or best - second >= rule.strictness * math.sqrt((total - k) / (k * total)):
                break
        answers.append(mean)
        counts.append(k)
    return torch.stack(answers), torch.tensor(counts)


@pytest.mark.parametrize("strictness", [0.0, 0.7, 1.5, 40.0])
def test_settle_is_the_loop(strictness):
    logits, rule = made_up(200), AnytimeRule((2, 0, 3, 1), strictness)
    found, (answers, counts) = settle(logits, rule), by_loop(logits, rule)
    assert torch.equal(found.views, counts)
    assert_close(found.logits.double(), answers, rtol=1e-5, atol=1e-5)
    assert strictness not in (0.7, 1.5) or found.views.unique().tolist() == [1, 2, 3, 4]


def test_an_answer_at_the_bound_is_overturned_as_often_after_any_number_of_views():
    """A mean with a flat prior, given k normal draws with their mean at the bound; then the other draws."""
    rule, draw, overturned = AnytimeRule((0, 1, 2, 3, 4, 5), 1.0), torch.Generator().manual_seed(0), []
    for k, bound in enumerate(rule.thresholds[:-1], 1):
        mean = bound + torch.randn(100_000, 1, generator=draw) / math.sqrt(k)
        others = mean + torch.randn(100_000, 6 - k, generator=draw)
        overturned.append((k * bound + others.sum(1) < 0).double().mean().item())
    assert overturned == pytest.approx([0.158655] * 5, abs=0.005)  # the normal distribution below -1


def test_after_all_views_the_average_is_the_aggregated_one_bit_for_bit():
    logits = made_up(50)
    assert torch.equal(running_averages(logits, (3, 1, 0, 2))[:, -1], logits.mean(1))
    assert torch.equal(settle(logits, AnytimeRule((3, 1, 0, 2), math.inf)).logits, logits.mean(1))


class Counting(torch.nn.Module):
    """A backbone that counts the images it gets."""

    num_features = 12

    def __init__(self):
        super().__init__()
        self.layer, self.seen = torch.nn.Linear(3 * 4 * 4, 12), []

    def forward(self, input):
        self.seen.append(len(input))
        return self.layer(input.flatten(1)).tanh() * 4


@pytest.mark.parametrize("method", [sla.SLA(), sla.DataAugmentation(), sla.SLA(head="cosine", distill=True)])
def test_a_model_takes_no_more_views_than_each_image_needs(method):
    torch.manual_seed(0)
    model = sla.Classifier(Counting(), 5, method).eval()
    model.anytime_rule = AnytimeRule((2, 0, 3, 1), 1.0)
    images = torch.randn(40, 3, 4, 4)
    with torch.no_grad():
        expected = settle(model.view_logits(model.view_features(images)), model.anytime_rule)
        model.backbone.seen.clear()
        found = model.anytime(images)
    assert_close(found.logits, expected.logits)
    assert torch.equal(found.views, expected.views)
    assert model.backbone.seen == [
        int((found.views >= k).sum()) for k in range(1, int(found.views.max()) + 1)
    ]
    assert 1 < found.views.float().mean() < 4
    assert torch.equal(model.predict(images, "anytime").labels, found.logits.argmax(1))
    assert_close(model.logits_by_inference(images)["anytime"], found.logits)
    assert list(model.logits_by_inference(images)) == list(model.inferences)
    assert model.anytime(images[:0]).logits.shape == (0, 5)


def test_the_views_average_to_aggregation_and_the_extremes_are_aggregated_and_single():
    model = sla.Classifier(Counting(), 5, sla.SLA()).eval()
    images = torch.randn(9, 3, 4, 4)
    aggregated = model.logits(images, "aggregated")
    assert_close(model.view_logits(model.view_features(images)).mean(1), aggregated)
    model.anytime_rule = AnytimeRule((1, 0, 2, 3), math.inf)
    assert torch.equal(model.logits(images, "anytime"), aggregated)
    assert model.anytime(images).views.tolist() == [4] * 9
    model.anytime_rule = AnytimeRule((0, 1, 2, 3), 0.0)
    assert torch.equal(model.logits(images, "anytime"), model.logits(images, "single"))


def test_gradients_flow_through_it():
    model = sla.Classifier(Counting(), 5, sla.SLA())
    model.anytime_rule = RULE
    model.logits(torch.randn(9, 3, 4, 4), "anytime").sum().backward()
    assert model.backbone.layer.weight.grad.abs().sum() > 0


def test_the_rule_is_saved_with_the_model_and_a_file_without_one_has_none(tmp_path):
    model = sla.create("convnet4", 5, sla.SLA(), width=4).eval()
    sla.save(model, tmp_path / "without")
    assert sla.load(tmp_path / "without").anytime_rule is None
    assert "anytime" not in sla.load(tmp_path / "without").inferences
    model.anytime_rule = RULE
    sla.save(model, tmp_path / "with")
    again = sla.load(tmp_path / "with")
    assert again.anytime_rule == RULE
    assert again.inferences == ("single", "aggregated", "anytime")
    assert again.method.headline == "aggregated"
    images = torch.randn(4, 3, 32, 32)
    assert torch.equal(again.logits(images, "anytime"), model.logits(images, "anytime"))


def test_what_is_refused():
    model = sla.Classifier(Counting(), 5, sla.SLA()).eval()
    refused("no anytime rule", model.logits, torch.randn(2, 3, 4, 4), "anytime")
    with pytest.raises(InputError, match="no anytime inference"):
        sla.Classifier(Counting(), 5, sla.Baseline()).logits(torch.randn(2, 3, 4, 4), "anytime")
    model.anytime_rule = RULE
    refused("averages logits", model.logits, torch.randn(2, 3, 4, 4), "anytime", average="marginal")
    refused("4 views does not fit 3", settle, made_up(2, 3), RULE)
    for order in ((), (0, 2), (0, 0), (0.0, 1.0)):
        refused("every view number once", AnytimeRule, order, 1.0)
    for values in (None, {}, {**RULE.to_dict(), "order": 3}, {**RULE.to_dict(), "strictness": math.nan}):
        with pytest.raises(InputError):
            AnytimeRule.from_dict(values)
    assert AnytimeRule.from_dict(json.loads(json.dumps(RULE.to_dict()))) == RULE


def test_binomial_tail():
    for hits, count, share in ((0, 5, 0.3), (3, 20, 0.1), (20, 20, 0.5), (7, 300, 0.01)):
        exact = sum(math.comb(count, k) * share**k * (1 - share) ** (count - k) for k in range(hits + 1))
        assert at_most(hits, count, share) == pytest.approx(min(exact, 1))
    assert at_most(0, 10, 0.0) == 1
    assert at_most(3, 10, 1.0) == 0
    assert at_most(0, 299, 0.01) <= 0.05 < at_most(0, 298, 0.01)  # what 99% needs


def test_a_rule_agrees_as_often_as_it_says():
    """On 4,000 other images: a rule below its level is found once in twenty calibrations at most."""
    fresh, failed, calibrations = made_up(4000, seed=1), 0, 40
    answers = fresh.mean(1).argmax(1)
    for seed in range(calibrations):
        rules = calibrate(made_up(500, seed=2 + seed))
        assert [rule.agreement for rule in rules] == [0.9, 0.95, 0.98, 0.99]  # 400 images show no more
        assert all(loose.strictness <= strict.strictness for loose, strict in pairwise(rules))
        found = settle(fresh, rules[1])
        failed += (found.logits.argmax(1) == answers).float().mean() < 0.95 - 0.007  # two standard errors
        assert found.views.float().mean() < 3.5
    assert failed <= 4


def test_few_images_give_no_rule_and_useful_views_come_first():
    assert calibrate(made_up(20)) == []
    assert calibrate(made_up(0)) == []
    assert calibrate(made_up(900, num_views=1)) == []
    logits = made_up(300, num_views=3)
    logits[:, 0] = 0.01 * torch.randn(300, 5)  # says nothing
    assert choose_order(logits)[2] == 0
    (order,) = {rule.order for rule in calibrate(logits)}
    assert sorted(order) == [0, 1, 2]


def test_a_method_that_aggregates_otherwise_gets_no_rule():
    logits, targets = made_up(400), torch.zeros(400, dtype=torch.int64)
    same = Outputs({"aggregated": logits.mean(1)}, targets, by_view=logits)
    assert find_rules(same)
    other = Outputs({"aggregated": logits.amax(1)}, targets, by_view=logits)
    assert find_rules(other) == []
    rule = find_rules(same)[0]
    added = same.add_anytime(rule)
    changed = (settle(logits, rule).logits.argmax(1) != logits.mean(1).argmax(1)).sum()
    assert added.scores()["anytime"]["changed"] == added.changed == changed
    assert added.scores()["anytime"]["views"] == pytest.approx(settle(logits, rule).views.float().mean())

    class Own(sla.SLA):
        def aggregate(self, heads, features, average):
            return super().aggregate(heads, features, average) * 2

    class Plain(sla.Method):
        inferences, views, criterion, head = ("single", "aggregated"), sla.Rotation(), None, "linear"

        def aggregate(self, heads, features, average):
            return features

    assert sla.Classifier(Counting(), 5, Own()).aggregates_by_view  # found by its numbers, as above
    assert not sla.Classifier(Counting(), 5, Plain()).aggregates_by_view


def test_with_aggregation_no_view_goes_through_the_network_twice(finished_run):
    run, dataset = sla.open_run(finished_run.folder), load("digits").test.subset(range(20))
    run.model.anytime_rule = AnytimeRule((2, 0, 1, 3), 0.5)
    alone, passed = infer(run.model, dataset, run.pipeline, inferences=("anytime",)), []
    run.model.backbone.register_forward_hook(lambda _, given, __: passed.append(len(given[0])))
    both = infer(run.model, dataset, run.pipeline, inferences=("aggregated", "anytime"))
    assert sum(passed) == 4 * 20
    assert torch.equal(both.views, alone.views)
    assert_close(both.logits["anytime"], alone.logits["anytime"])


def test_a_run_has_its_rules_and_every_command_takes_them(finished_run, stopped, tmp_path, capsys):
    shutil.copytree(finished_run.folder, tmp_path / "run")
    folder, kept = tmp_path / "run", finished_run.result["anytime"]["last"]
    assert [rule["agreement"] for rule in kept] == [level for level in LEVELS if level < 0.98]
    refused(
        r"no anytime rule with agreement 0.99: 144 held-out images are too few", finished_run.use_agreement
    )
    found = json.loads(stopped(0, "evaluate", folder, "--agreement", 0.95, "--json"))["inference"]
    assert list(found) == ["single", "aggregated", "anytime", "distilled"]
    assert 1 <= found["anytime"]["views"] <= 4
    assert found["anytime"]["changed"] <= 0.2 * 360
    assert "held-out images to agree on 95%" in stopped(0, "evaluate", folder, "--agreement", 0.95)
    assert "no anytime rule with agreement 0:" in stopped(2, "evaluate", folder, "--agreement", 0)
    assert "--agreement is for anytime" in stopped(
        2, "evaluate", folder, "--agreement", 0.9, "--inference", "single"
    )
    assert "no anytime rule" in stopped(2, "compare", f"{folder}:anytime", f"{folder}:single")
    run = sla.open_run(folder)
    run.use_agreement(0.95)
    outputs = run.outputs(run.dataset(), inferences=("anytime", "aggregated"))
    assert outputs.changed == found["anytime"]["changed"]
    refused("one ONNX graph cannot", run.export, tmp_path / "x.onnx", "anytime")


def test_a_comparison_takes_an_agreement(finished_run, stopped, tmp_path):
    """Anytime against aggregated inference flips no more images than answers differ."""
    folder, page = finished_run.folder, tmp_path / "page.html"
    for words in (
        (f"{folder}:aggregated", folder),
        (f"{folder}:aggregated", f"{folder}:anytime"),
        (f"{folder}:aggregated", folder, "--inference", "anytime"),
    ):
        said = stopped(0, "compare", *words, "--agreement", 0.95, "--out", page, "--json")
        found = json.loads(said[: said.rindex("}") + 1])
        assert [entry["inference"] for entry in found["entries"]] == ["aggregated", "anytime"]
        assert any("on 95% of images" in note for note in found["notes"])
    scores = json.loads(stopped(0, "evaluate", folder, "--agreement", 0.95, "--json"))["inference"]
    assert found["entries"][1]["top1"]["mean"] == pytest.approx(scores["anytime"]["top1"])
    flips = found["entries"][1]["flipped"]
    assert len(flips["gained"]) + len(flips["lost"]) <= scores["anytime"]["changed"]
    names = (f"{folder}:aggregated", f"{folder}:single", "--agreement", 0.95, "--out", page)
    assert "--agreement is for anytime inference, not aggregated and single" in stopped(2, "compare", *names)


def test_a_run_from_before_is_calibrated_when_asked(finished_run, tmp_path):
    shutil.copytree(finished_run.folder, tmp_path / "run")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    kept = result.pop("anytime")["last"]
    (tmp_path / "run" / "result.json").write_text(json.dumps(result))
    run = sla.open_run(tmp_path / "run")
    rule = run.use_agreement(0.9)
    assert rule.order == tuple(kept[0]["order"])
    assert rule.strictness == pytest.approx(kept[0]["strictness"], rel=1e-4)


def test_a_rule_that_cannot_be_is_refused():
    for values in ({"agreement": 7.0}, {"agreement": math.nan}, {"agreement": "x"}, {"images": -5}):
        refused("an anytime rule has an", AnytimeRule, (0, 1), 1.0, **values)
    refused("an anytime rule has an order", AnytimeRule, 4, 1.0)
    refused("an anytime rule has an order", AnytimeRule, (0, 1), None)
    model = sla.create("resnet8", num_classes=3, method=sla.SLA()).eval()
    for order in ((0, 1), (0, 1, 2, 3, 4, 5)):
        model.anytime_rule = AnytimeRule(order, 1.0)
        refused(
            f"a rule for {len(order)} views|rule for {len(order)} views does not fit 4",
            model.anytime,
            torch.randn(2, 3, 8, 8),
        )


def test_a_rule_at_its_limits():
    rule = AnytimeRule([1, 0, 2], 0)
    assert (rule.order, rule.agreement, rule.images) == ((1, 0, 2), 1.0, 0)
    assert hash(rule) == hash(AnytimeRule((1, 0, 2), 0))
    assert rule.thresholds == (0.0, 0.0, -math.inf)
    assert AnytimeRule((0, 1), 1.0, 0.0, 1).agreement == 0
    assert [AnytimeRule((0, 1), strict).takes_all for strict in (0.0, 5.0, math.inf)] == [False, False, True]
    assert AnytimeRule((0, 1), 6.0).thresholds == pytest.approx((6 * math.sqrt(1 / 2), -math.inf))
    refused("strictness of an anytime rule is 0 or more", AnytimeRule, (0, 1), -0.1)
    refused("0 or more images", AnytimeRule, (0, 1), 1.0, 1.0, -1)
    for agreement in (-0.01, 1.01):
        refused("agreement from 0 to 1", AnytimeRule, (0, 1), 1.0, agreement)
    refused("every view number once", AnytimeRule, (1, 2), 1.0)


def test_the_values_of_a_rule_are_plain_and_complete():
    assert RULE.to_dict() == {"order": [2, 0, 3, 1], "strictness": 1.5, "agreement": 0.95, "images": 100}
    for change in ({"strictness": "x"}, {"images": math.inf}, {"agreement": None}, {"order": None}):
        refused("not an anytime rule", AnytimeRule.from_dict, RULE.to_dict() | change)
    refused("has order, strictness, agreement, images", AnytimeRule.from_dict, RULE.to_dict() | {"more": 1})
    refused("has order, strictness, agreement, images", AnytimeRule.from_dict, list(RULE.to_dict()))


def test_margins_are_between_the_two_largest():
    logits = torch.tensor([[1.0, 5.0, 3.5], [0.0, -2.0, 0.0]])
    assert margins(logits).tolist() == [1.5, 0.0]
    assert margins(logits.view(1, 2, 3)).tolist() == [[1.5, 0.0]]


def test_a_margin_at_the_bound_settles_the_answer():
    """Strictness 0 stops after one view, also where two classes are equal there."""
    logits = torch.tensor([[[1.0, 1.0], [0.0, 5.0]], [[3.0, 0.0], [0.0, 5.0]]])
    for rule, expected in ((AnytimeRule((0, 1), 0.0), [1, 1]), (AnytimeRule((0, 1), 0.1), [2, 1])):
        assert settle(logits, rule).views.tolist() == expected
        found = classify_until_settled(lambda rows, view: rows[:, view], logits, rule)
        assert found.views.tolist() == expected
        assert torch.equal(found.logits, settle(logits, rule).logits)


def test_it_stays_on_the_device_of_the_logits():
    found = settle(torch.empty(3, 4, 5, device="meta"), RULE)
    assert (found.logits.is_meta, found.views.is_meta) == (True, True)
