"""Runs side by side: counts by hand, what there is to find is found, what cannot be compared is refused."""

import json
import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import commands
import sla
from made_data import digit_files
from refusals import refused
from sla.compare.comparison import Comparison, Entry, as_tree, compare
from sla.compare.shared_images import split_name
from sla.datasets.load import load
from sla.images.store import Splits
from sla.sampling.protocols import limited
from sla.tasks.classifier.run import Run
from sla.tasks.registry import make_config

DEMO = {  # the setting of `sla demo`
    "model__backbone": "convnet4",
    "model__options": {"width": 32},
    "run__iterations": 150,
    "run__batch_size": 50,
    "run__evaluations": 1,
    "optimizer__learning_rate": 0.1,
    "optimizer__warmup": 0.0,
    "optimizer__weight_decay": 5e-4,
    "augment": "crop(1)",
    "data__hold_out": 0,
    "data__workers": 0,
    "run__compile": False,
}


@pytest.fixture(scope="module")
def five_a_class(tmp_path_factory):
    """The digits as pictures: five of each to train on, the other 1,747 to test on."""
    folder, digits = tmp_path_factory.mktemp("digits"), load("digits")
    train = limited(digits.train, 5, seed=0)
    others = np.setdiff1d(digits.train.rows, train.rows)
    for part, data in (("train", train), ("test/a", digits.train.subset(others)), ("test/b", digits.test)):
        prefix, _, kind = part.partition("/")
        digit_files(data, range(len(data)), folder / prefix, f"{{label}}/{kind}{{place}}.png")
    return folder


@pytest.fixture(scope="module")
def runs(five_a_class, tmp_path_factory):
    """The baseline with seeds 0 and 1, and SLA with seed 0."""
    out = tmp_path_factory.mktemp("runs")
    for name, method, seed in (("base-0", "baseline", 0), ("base-1", "baseline", 1), ("sla-0", "sla", 0)):
        sla.fit(five_a_class, out / name, method__name=method, run__seed=seed, **DEMO)
    return out


def test_two_seeds_do_not_differ_and_sla_beats_the_baseline(runs):
    found = compare([str(runs / name) for name in ("base-0", "base-1")])
    (seeds,) = found.differences
    assert seeds.p > 0.05
    assert seeds.points.low < 0 < seeds.points.high
    assert seeds.verdict == "no clear difference"
    found = compare([str(runs / name) for name in ("base-0", "sla-0")])
    assert [entry.inference for entry in found.entries] == ["single", "aggregated"]
    (gain,) = found.differences
    assert gain.p < 0.01
    assert gain.points.low > 0
    assert gain.verdict == "better"
    assert "better" in found.summary()


def test_counts_are_those_of_a_loop_over_the_images(runs):
    names = [runs / "base-0", runs / "sla-0"]
    found = compare([f"{names[0]}", f"{names[1]}:single"])
    base, other = (Run(name).evaluate(inferences=("single",)) for name in names)
    counts = dict.fromkeys(((1, 1), (0, 1), (1, 0), (0, 0)), 0)
    flips = set()
    for place, target in enumerate(base.targets.tolist()):
        a = int(base.logits["single"][place].argmax()) == target
        b = int(other.logits["single"][place].argmax()) == target
        counts[a, b] += 1
        if b and not a:
            flips.add(place)
    (one,) = found.differences
    assert (one.both_right, one.gained, one.lost, one.both_wrong) == tuple(counts.values())
    assert sum(counts.values()) == 1747
    gained, lost = found.flipped(1)
    assert set(gained) == flips
    confidence = found.entries[1].confidence
    assert [float(confidence[i]) for i in lost] == sorted((float(confidence[i]) for i in lost), reverse=True)
    tree = json.loads(json.dumps(as_tree(found), allow_nan=False))
    assert len(tree["entries"][1]["flipped"]["gained"]) == one.gained
    first = tree["entries"][1]["flipped"]["gained"][0]
    assert first["class"] == first["this"] != first["first"]
    assert f"/{first['class']}/" in first["image"]
    assert tree["settings"]["method.name"] == ["baseline", "sla"]
    assert "run.seed" not in tree["settings"]
    assert tree["entries"][0]["cost"]["training_flop"] > 0


def test_the_command_prints_a_table_writes_a_page_and_gives_json(runs, tmp_path):
    words = ["compare", runs / "base-0", runs / "sla-0", "--out", tmp_path / "page.html"]
    told = commands.sla(*words)
    assert "better" in told
    assert "other seeds may differ" in told
    assert "<title>" in (tmp_path / "page.html").read_text(encoding="utf-8")
    tree = commands.sla_json(*words)
    assert tree["images"] == 1747
    assert f"{tree['entries'][1]['top1']['mean']:.2f}" in told


def test_other_data_can_be_named(runs, five_a_class):
    names = [str(runs / "base-0"), str(runs / "sla-0")]
    found = compare(names, data=five_a_class / "test", inference="single")
    own = compare(names, inference="single")
    assert found.differences == own.differences
    assert "images of" in found.what
    assert found.notes == []


def test_a_run_with_itself_under_two_kinds(finished_run):
    small = finished_run.folder
    found = compare([f"{small}:single", f"{small}:aggregated", str(small)])
    assert [entry.inference for entry in found.entries] == ["single", "aggregated", "distilled"]
    scores = Run(small).evaluate().scores()
    assert [one.mean for one in found.accuracies] == pytest.approx([one["top1"] for one in scores.values()])
    assert found.settings == {}
    assert found.groups == []


def test_classes_in_another_order_are_the_same_classes(finished_run, tiny_settings, tmp_path):
    digits = load("digits")

    def turned(part):
        return replace(part, targets=9 - part.targets, classes=part.classes[::-1])

    splits = Splits("digits", turned(digits.train), None, turned(digits.test))
    run = sla.fit(splits, tmp_path / "turned", **tiny_settings, method__name="baseline")
    assert run.classes == list("9876543210")
    found = compare([str(finished_run.folder), str(run.folder)])
    top1 = run.evaluate().scores()["single"]["top1"]
    assert top1 > 15
    assert found.accuracies[1].mean == pytest.approx(top1)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Two classes of digits as pictures, without a test part."""
    folder, digits = tmp_path_factory.mktemp("photos"), load("digits").train
    return digit_files(digits, np.flatnonzero(digits.targets < 2)[:80], folder)


def test_held_out_images_are_those_that_every_run_has_held_out(photos, tiny_settings, tmp_path):
    settings = tiny_settings | {"method__name": "baseline", "data__hold_out": 0.5}
    a, b = (sla.fit(photos, tmp_path / f"{seed}", data__hold_out_seed=seed, **settings) for seed in (0, 1))
    held = [{run.splits.val.name(i) for i in range(len(run.splits.val))} for run in (a, b)]
    found = compare([str(a.folder), str(b.folder)])
    assert {found.dataset.name(i) for i in range(len(found.dataset))} == held[0] & held[1]
    assert 0 < len(found.dataset) < 40
    assert any("held out" in note for note in found.notes)
    assert any(f"{len(found.dataset)} of 40" in note for note in found.notes)
    # Another image in the folder: what was held out is known all the same.
    shutil.copy(next(photos.glob("0/*.png")), photos / "0" / "new.png")
    try:
        again = compare([str(a.folder), str(b.folder)])
        assert len(again.dataset) == len(found.dataset)
        assert len([note for note in again.notes if "1 image is new" in note]) == 2
    finally:
        (photos / "0" / "new.png").unlink()
    c = sla.fit(photos, tmp_path / "c", **settings | {"data__hold_out": 0})
    refused("held none out", compare, [str(a.folder), str(c.folder)])
    refused("images were trained on", compare, [str(a.folder), str(c.folder)], data=photos)


def test_no_common_image_is_refused(photos, tiny_settings, tmp_path):
    settings = tiny_settings | {"method__name": "baseline", "data__hold_out": 0.1}
    a, b = (sla.fit(photos, tmp_path / f"{s}", data__hold_out_seed=s, **settings) for s in (0, 1))
    held = [{run.splits.val.name(i) for i in range(len(run.splits.val))} for run in (a, b)]
    if held[0] & held[1]:
        pytest.fail("choose other hold-out seeds: these have an image in common")
    refused("can be used for all of these runs", compare, [str(a.folder), str(b.folder)])


def test_what_cannot_be_compared_is_one_line(finished_run, photos, tiny_settings, tmp_path, stopped):
    small = finished_run.folder
    other = sla.fit(photos, tmp_path / "other", **tiny_settings, method__name="baseline").folder
    for names, line in (
        ([small], "two runs or more"),
        ([small, small], "distilled inference, is there twice"),
        ([small, f"{small}/../digits:distilled"], "is there twice"),
        ([f"{small}:single", f"{small}:singel"], "did you mean 'single'?"),
        ([small, other], "different label sets (10 and 2 classes; not in both: 2, 3, 4, 5, 6, and 3 more)"),
        ([small, other, "--inference", "aggregated"], "no aggregated inference"),
        ([small, tmp_path / "nowhere"], "not a run"),
        ([f"{small}:single", small, "--data", "nowhere"], "'nowhere' is neither a folder"),
    ):
        assert line in stopped(2, "compare", *names, "--out", tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


def test_a_folder_with_a_colon_is_a_folder(tmp_path):
    (tmp_path / "a:single").mkdir()
    assert split_name(str(tmp_path / "a:single")) == (tmp_path / "a:single", None)
    assert split_name(str(tmp_path / "b:single")) == (tmp_path / "b", "single")


def made_up(sides, seeds, count=400):
    """A comparison of runs that are no runs: method by method, seed by seed."""
    draws = np.random.default_rng(0)
    digits = load("digits").train.subset(range(count))
    targets = torch.as_tensor(digits.targets)
    entries = []
    for method, accuracy in sides.items():
        for seed in seeds[method]:
            config = make_config({"method": {"name": method}, "run": {"seed": seed}})
            run = SimpleNamespace(
                config=config, folder=f"{method}-{seed}", result={}, unfinished="", model_name=""
            )
            right = torch.from_numpy(draws.random(count) < accuracy)
            given = torch.where(right, targets, (targets + 1) % 10)
            entries.append(Entry(run, "single", given, torch.rand(count, dtype=torch.float64)))
    return Comparison(digits, "test images", entries, [])


def test_mcnemars_p_decides_and_a_row_says_where_the_interval_disagrees():
    """Five gained and none lost: p is 2 / 32, and the score interval excludes 0."""
    found = made_up({"baseline": 1.0, "sla": 1.0}, {"baseline": [0], "sla": [0]})
    found.entries[0].predicted[:5] = (found.entries[0].predicted[:5] + 1) % 10
    (one,) = found.differences
    assert (one.gained, one.lost, one.p) == (5, 0, 2 / 32)
    assert one.points.low > 0
    assert one.verdict == "no clear difference (p decides; the interval excludes 0)"
    assert one.verdict in found.summary()
    found.entries[0].predicted[5] = (found.entries[0].predicted[5] + 1) % 10
    (six,) = replace(found).differences
    assert (six.gained, six.p, six.verdict) == (6, 2 / 64, "better")


def test_seeds_are_put_together_and_paired_by_seed():
    stats = pytest.importorskip("scipy.stats")
    found = made_up({"baseline": 0.7, "sla": 0.8}, {"baseline": [0, 1, 2, 3], "sla": [3, 2, 1, 0]})
    base, other = found.groups
    assert (base.places, other.places) == ([0, 1, 2, 3], [4, 5, 6, 7])
    values = [100 * float(right.double().mean()) for right in found.right]
    assert other.spread == pytest.approx((np.mean(values[4:]), np.std(values[4:], ddof=1)))
    test = stats.ttest_rel(values[4:][::-1], values[:4])
    interval = other.difference(base)
    assert interval[1:] == pytest.approx(tuple(test.confidence_interval(0.95)))
    assert found.settings.keys() == {"method.name", "run.seed"}
    assert "Over 4 seeds" in found.summary()
    # Other seeds, or one seed, or a seed twice: not paired.
    for seeds in ([4, 5, 6, 7], [0], [0, 1, 2, 2], [0, 1]):
        base, other = made_up({"baseline": 0.7, "sla": 0.8}, {"baseline": [0, 1, 2, 3], "sla": seeds}).groups
        assert other.difference(base) is None
