"""A run's page: its numbers are those of the outputs, names are text, few or many classes."""

import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
import typer
from typer.testing import CliRunner

import sla
from made_data import digit_files
from refusals import refused
from sla.cli.report import report
from sla.datasets.load import load
from sla.errors import SLAWarning
from sla.report.calibration import most_confident_mistakes, reliability
from sla.report.confusion import class_accuracies, confusion_matrix, confusions
from sla.report.ending import chance_accuracy, describe_end
from sla.report.run import run_page, write_run_page
from sla.report.views import view_accuracy
from sla.stats import share
from sla.tasks.classifier.run import Run


@pytest.fixture(scope="module")
def outputs(finished_run):
    return finished_run.evaluate(finished_run.dataset())


@pytest.fixture(scope="module")
def page(finished_run, outputs, parse):
    return parse(run_page(finished_run, finished_run.dataset(), outputs, "test images"))


def test_accuracies_and_calibration_are_those_counted_by_hand(finished_run, outputs, page):
    lines = page.tables["Accuracy by inference"][1:]
    assert [line[0] for line in lines] == ["single", "aggregated", "distilled *"]
    for line in lines:
        inference = line[0].removesuffix(" *")
        logits = outputs.logits[inference].double()
        right = [int(row.argmax() == target) for row, target in zip(logits, outputs.targets, strict=True)]
        assert line[1] == f"{100 * sum(right) / len(right):.2f}%"
        confidence = (logits / finished_run.temperatures[inference]).softmax(1).max(1).values.tolist()
        gap = 0.0
        for bin in range(15):
            inside = [i for i, value in enumerate(confidence) if min(int(value * 15), 14) == bin]
            gap += abs(sum(right[i] for i in inside) - sum(confidence[i] for i in inside))
        assert line[4] == f"{100 * gap / len(right):.2f}%"
    right = (outputs.logits["distilled"].argmax(1) == outputs.targets).sum()
    assert f"Distilled inference classifies {right} of 360 test images correctly" in page.words


def test_intervals_are_wilsons():
    stats = pytest.importorskip("scipy.stats")
    for hits, count in ((0, 7), (7, 7), (1, 3), (356, 515), (5123, 10_000)):
        wilson = stats.binomtest(hits, count).proportion_ci(method="wilson")
        expected = (100 * hits / count, 100 * wilson.low, 100 * wilson.high)
        assert share(hits, count) == pytest.approx(expected, abs=1e-9)
    assert share(0, 0)[1:] == (0, 100)


def test_matrix_and_classes_are_those_counted_by_hand(outputs, page):
    predicted = outputs.logits["distilled"].argmax(1).tolist()
    pairs = list(zip(outputs.targets.tolist(), predicted, strict=True))
    head, *lines = page.tables["Confusion matrix"]
    assert head[1:] == [str(digit) for digit in range(10)]
    for true, line in enumerate(lines):
        assert line == [str(true), *(str(pairs.count((true, other)) or "") for other in range(10))]
    worst = max(pairs.count((t, g)) for t in range(10) for g in range(10) if t != g)
    assert page.tables["Most frequent confusions"][1][2] == str(worst)
    accuracies = []
    for name, images, correct, accuracy, *_ in page.tables["Accuracy per class"][1:]:
        assert int(images) == sum(true == int(name) for true, _ in pairs)
        assert int(correct) == pairs.count((int(name), int(name)))
        assert accuracy == f"{100 * int(correct) / int(images):.1f}%"
        accuracies.append(int(correct) / int(images))
    assert len(accuracies) == 10
    assert accuracies == sorted(accuracies)


def test_classes_without_images_come_last():
    targets = torch.tensor([0, 0, 1])
    first, second, empty = class_accuracies(targets, torch.tensor([0, 1, 1]), ["a", "b", "c"])
    assert first == ("a", 2, 1, share(1, 2), (0, 1, 1, 50))
    assert second == ("b", 1, 1, share(1, 1), None)
    assert (empty.name, empty.images) == ("c", 0)
    assert confusions(targets, torch.tensor([2, 2, 0])) == [(0, 2, 2, 100), (1, 0, 1, 100)]


def test_mistakes_are_the_most_confident_wrong_predictions(finished_run, outputs, page, parse):
    temperature, dataset = finished_run.temperatures["distilled"], finished_run.dataset()
    probabilities = (outputs.logits["distilled"].double() / temperature).softmax(1)
    wrong = [
        (float(row.max()), place)
        for place, (row, target) in enumerate(zip(probabilities, outputs.targets, strict=True))
        if row.argmax() != target
    ]
    expected = [(place, confidence) for confidence, place in sorted(wrong, reverse=True)[:12]]
    assert most_confident_mistakes(outputs.logits["distilled"], outputs.targets, temperature, 12) == expected
    place, confidence = expected[0]
    card = parse(re.search(r"<figure>.*?</figure>", page.source, re.S)[0])
    said = f"{probabilities[place].argmax()}, {100 * confidence:.1f}%true class {outputs.targets[place]}"
    assert card.text == said + dataset.name(place)
    assert np.array_equal(card.pixels(""), dataset.read([place]).images[0, 0].numpy())


def test_a_page_without_mistakes_says_so(finished_run, outputs, parse):
    right = {name: torch.nn.functional.one_hot(outputs.targets, 10).float() for name in outputs.logits}
    perfect = replace(outputs, logits=right)
    page = parse(run_page(finished_run, finished_run.dataset(), perfect, "test images"))
    assert page.words.count("very image was classified correctly") == 2
    assert "Most frequent confusions" not in page.tables
    assert page.named("figure") == []


def test_bins_contain_every_image_and_give_the_calibration_error(made_up):
    _, outputs = made_up(5, 400)
    bins = reliability(outputs.logits["single"], outputs.targets, 0.7)
    assert sum(one.images for one in bins) == 400
    assert all(one.low <= one.confidence <= one.high for one in bins)
    gap = sum(one.images * abs(one.confidence - one.accuracy) for one in bins) / 400
    assert 100 * gap == pytest.approx(outputs.scores({"single": 0.7})["single"]["ece"])


def test_curves_go_through_the_numbers_of_the_run(finished_run, page):
    labels = [svg.get("aria-label", "") for svg in page.named("svg")]
    (loss,) = [label for label in labels if label.startswith("Loss")]
    rows = [line.split(",") for line in (finished_run.folder / "metrics.csv").read_text().splitlines()]
    values = [float(row[rows[0].index("loss")]) for row in rows[1:]]
    assert f"loss {values[0]:.3g} to {values[-1]:.3g}" in loss
    assert any("held-out, distilled" in label for label in labels)


def test_damaged_curves_and_missing_results_are_left_out(finished_run, hostile, parse, tmp_path):
    folder = shutil.copytree(finished_run.folder, tmp_path / "run")
    column = hostile.replace('"', "")
    (folder / "metrics.csv").write_text(f"step,loss,{column},train\n1,2.5,1,oops\n2,nan,2,\n")
    (folder / "result.json").unlink()
    with pytest.warns(SLAWarning, match="unfinished"):
        write_run_page(Run(folder), tmp_path / "page.html")
    page = parse((tmp_path / "page.html").read_text())
    assert page.named("script") == []
    assert any(svg.get("aria-label", "").endswith(f"loss 2.5; {column} 1 to 2") for svg in page.named("svg"))
    for words in ("No temperature was fitted", "the run is not finished", "per class is unknown"):
        assert words in page.words
    (folder / "metrics.csv").unlink()
    result = finished_run.result | {"train_counts": list(range(9, 19)), "cost": {"seconds": 5}}
    (folder / "result.json").write_text(json.dumps(result))
    write_run_page(Run(folder), tmp_path / "page.html")
    page = parse((tmp_path / "page.html").read_text())
    assert "No curves" in page.words
    assert "so the groups are of equal size" in page.words
    assert page.tables["Cost of the run"][1:3] == [["training time", "5 seconds"], ["steps", "unknown"]]


def test_two_hundred_classes_with_a_hostile_name(finished_run, made_up, parse, hostile):
    dataset, outputs = made_up(200, 4000, finished_run.model.method.inferences)
    page = parse(run_page(finished_run, dataset, outputs, "test images"))
    assert page.named("script") == []
    assert page.text.count(hostile) >= 2
    pixels = page.pixels("Confusion matrix of 200 classes")
    counts = np.zeros((200, 200), int)
    np.add.at(counts, (dataset.targets, outputs.logits["distilled"].argmax(1).numpy()), 1)
    assert np.array_equal(pixels[:, :, 3] > 0, counts > 0)
    green = pixels[:, :, 1] > pixels[:, :, 0]
    assert np.array_equal(green, np.eye(200, dtype=bool))
    assert len(page.tables["Accuracy per class"]) == 201
    assert len(page.source) < 400_000


def test_more_classes_than_pixels_share_them():
    targets = torch.arange(1000)
    matrix = confusion_matrix(targets, targets.roll(1), 1000)
    assert matrix.picture.shape == (4, 334, 334)
    assert matrix.together == 3


def test_every_table_image_and_chart_has_a_description(page):
    assert all(th.get("scope") or th.get("colspan") for th in page.named("th"))
    assert all(img["alt"] for img in page.named("img"))
    assert all(svg.get("aria-label") or svg.get("aria-hidden") for svg in page.named("svg"))
    regions = [div for div in page.named("div") if "scroll" in (div.get("class") or "")]
    assert regions
    assert all(div["tabindex"] == "0" and div["aria-label"] and div["role"] == "region" for div in regions)


def test_page_shows_cost_command_configuration_and_views(finished_run, page):
    cost = dict(page.tables["Cost of the run"][1:])
    assert cost["steps"] == "12"
    assert cost["images processed, counting every view"] == f"{12 * 32 * 4:,}"
    assert finished_run.result["command"] in page.text
    assert (finished_run.folder / "config.yaml").read_text().rstrip() in page.text
    first = finished_run.dataset().targets[0]  # class y in view j is label 4y + j
    assert page.pixels(f"{first}, 90°: label {4 * first + 1}").shape == (8, 8)


def test_page_says_how_recognisable_the_views_are_and_a_damaged_result_is_left_out(finished_run, page):
    found = finished_run.result["view_accuracy"]
    assert found["advice"] in page.text
    rows = page.tables["View accuracy"][1:]
    assert [row[0] for row in rows] == ["all views", *found["by_view"]]
    assert [row[1] for row in rows[1:]] == [f"{one[0]:.1f}%" for one in found["by_view"].values()]
    for damaged in (None, {**found, "by_view": 3}, {**found, "on": "train"}, {**found, "chance": "x"}):
        assert view_accuracy({"view_accuracy": damaged}) is None
    assert view_accuracy({}) is None


def test_the_baseline_has_one_view_and_no_view_accuracy(baseline_run, parse):
    dataset = baseline_run.dataset()
    page = parse(run_page(baseline_run, dataset, baseline_run.evaluate(dataset), "test images"))
    assert "in the one view of the method" in page.words
    assert "View accuracy" not in page.tables
    assert [line[0] for line in page.tables["Accuracy by inference"][1:]] == ["single *"]


@pytest.fixture
def photos(tmp_path):
    """Digits as pictures in class folders; one class has a name like a tag."""
    digits = load("digits").train
    named = replace(digits, classes=("one &lt; b>", "<img src=x onerror=alert(1)>", *digits.classes[2:]))
    places = np.flatnonzero(digits.targets < 2)[:60]
    return digit_files(named, places, tmp_path / "photos", "{label}/<b>{place}.png")


def test_without_test_images_held_out_ones_are_used_and_named(photos, tiny_settings, parse, tmp_path):
    settings = tiny_settings | {"method__name": "baseline", "data__hold_out": 0.25}
    run = sla.fit(str(photos), tmp_path / "run", **settings)
    app = typer.Typer()
    app.command()(report)
    done = CliRunner().invoke(app, [str(run.folder), "--checkpoint", "best"], catch_exceptions=False)
    assert done.exit_code == 0
    assert "of 15 held-out images" in done.output.replace("\n", " ")
    page = parse((run.folder / "report.html").read_text(encoding="utf-8"))
    assert "This data has no test images" in page.words
    assert "one &lt; b>" in page.text
    assert not any("onerror" in img for img in page.named("img"))
    accuracy = Run(run.folder, "best").result["accuracies"]["best"]["val"]["single"]["top1"]
    assert f"{accuracy:.2f}%" in page.text
    # Other data with the same classes, into another file.
    other = tmp_path / "other.html"
    with pytest.warns(SLAWarning, match="45 of the 60 images were trained on and are left out"):
        CliRunner().invoke(app, [str(run.folder), str(photos), "--out", str(other)], catch_exceptions=False)
    assert "of 15 images of" in other.read_text(encoding="utf-8")


def test_nothing_to_report_on_is_one_line(photos, tiny_settings, tmp_path):
    settings = tiny_settings | {"method__name": "baseline", "data__hold_out": 0}
    run = sla.fit(str(photos), tmp_path / "run", **settings)
    refused("no test images, and none were held out", write_run_page, run, tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


def test_images_that_were_not_square_are_shown_in_their_shape(finished_run, parse):
    digits = load("digits").test
    test = replace(digits, images=replace(digits.images, aspect=torch.full((len(digits.images),), 1.5)))
    source = run_page(finished_run, test, finished_run.evaluate(test), "test images")
    assert parse(re.search(r"<figure>.*?</figure>", source, re.S)[0]).pixels("").shape == (8, 12)


def test_a_run_that_learnt_nothing_is_told_so_and_gets_no_advice_to_use_it(finished_run, outputs):
    def end(logits):
        made = replace(outputs, logits={"distilled": logits.float()})
        return " ".join(describe_end(finished_run, made, finished_run.classes, "test").lines)

    one_class = torch.nn.functional.one_hot(torch.full((360,), 3), 10)
    random = torch.rand(360, 10, generator=torch.Generator().manual_seed(0))
    for logits in (one_class, random):
        said = end(logits)
        assert re.search(r"no better than chance \(10%\)|not clearly better than", said)
        assert "--epochs" in said
        assert "sla data check digits" in said
        assert "sla predict" not in said
        assert "more pictures of" not in said
    half = torch.nn.functional.one_hot(outputs.targets, 10).float()
    half[::2] = one_class[::2].float()
    assert "chance" not in end(half)
    assert "sla predict" in end(half)
    assert "more pictures of" in end(half)
    assert " (often predicted as 3)" in end(half)


def test_one_wrong_picture_is_no_pattern(finished_run, outputs):
    logits = torch.nn.functional.one_hot(outputs.targets, 10).float()
    logits[0] = 0.0
    logits[0, (outputs.targets[0] + 1) % 10] = 1.0
    made = replace(outputs, logits={"distilled": logits})
    said = " ".join(describe_end(finished_run, made, finished_run.classes, "test").lines)
    assert f" (once predicted as {(outputs.targets[0] + 1) % 10})" in said
    assert "more pictures of" not in said


def test_of_few_pictures_nothing_is_concluded(finished_run, outputs):
    """Nine pictures that are all wrong show no lack of learning, a class of two no weakness."""
    wrong = torch.nn.functional.one_hot((outputs.targets + 1) % 10, 10).float()
    few = replace(outputs, logits={"distilled": wrong[:9]}, targets=outputs.targets[:9])
    said = " ".join(describe_end(finished_run, few, finished_run.classes, "test").lines)
    assert "Right on 0 of 9 pictures" in said
    assert "chance" not in said
    assert "Weakest" not in said
    ten = replace(outputs, logits={"distilled": wrong[:10]}, targets=outputs.targets[:10])
    assert "chance" in " ".join(describe_end(finished_run, ten, finished_run.classes, "test").lines)


def test_chance_is_what_shuffled_answers_have_right():
    draw = np.random.default_rng(0)
    targets = draw.choice(3, 500, p=[0.8, 0.15, 0.05])
    predicted = draw.choice(3, 500, p=[0.5, 0.4, 0.1])
    shuffled = [100 * np.mean(draw.permutation(predicted) == targets) for _ in range(2000)]
    found = chance_accuracy(torch.from_numpy(predicted), torch.from_numpy(targets))
    assert found == pytest.approx(np.mean(shuffled), abs=0.2)
    always = chance_accuracy(torch.zeros(500, dtype=torch.int64), torch.from_numpy(targets))
    assert always == pytest.approx(100 * np.mean(targets == 0))
