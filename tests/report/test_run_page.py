"""A run's page: its numbers are those of the outputs, names are text, few or many classes."""

import base64
import io
import re
import shutil
from dataclasses import replace
from importlib import util
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from PIL import Image
from typer.testing import CliRunner

import sla
from sla.cli.report import report
from sla.datasets.load import load
from sla.errors import InputError, SLAWarning
from sla.images.store import Dataset
from sla.report import html
from sla.report.calibration import most_confident_mistakes, reliability
from sla.report.charts import Series, line_chart, thinned
from sla.report.matrix import classes_part, confusions, matrix_part
from sla.report.run import run_page, write_run_page
from sla.stats import share
from sla.tasks.classifier.evaluation import Outputs
from sla.tasks.classifier.run import Run

spec = util.spec_from_file_location("pages", Path(__file__).with_name("test_pages.py"))
pages = util.module_from_spec(spec)
spec.loader.exec_module(pages)
Tags, browse, requests_of_page = pages.Tags, pages.browse, pages.requests_of_page

HOSTILE = "<script>alert(1)</script>"
SETTINGS = {
    "model__backbone": "convnet4",
    "model__options": {"width": 8},
    "run__iterations": 12,
    "run__batch_size": 32,
    "run__evaluations": 3,
    "run__compile": False,
    "data__workers": 0,
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return sla.fit("digits", tmp_path_factory.mktemp("runs") / "digits", **SETTINGS)


@pytest.fixture(scope="module")
def page(run):
    """The page of the run on its test images, with what it is made from."""
    dataset = run.dataset()
    outputs = run.evaluate(dataset)
    return run_page(run, dataset, outputs, "test images"), outputs


def made_up(num_classes, count, kinds, seed=0):
    """Outputs that are right about two times in three, and a dataset of the digits with as many classes."""
    draws = np.random.default_rng(seed)
    targets = draws.integers(0, num_classes, count)
    right = 3 * np.eye(num_classes)[targets]
    logits = {
        inference: torch.from_numpy(draws.normal(size=(count, num_classes)) + right).float()
        for inference in kinds
    }
    digits = load("digits").test
    names = (HOSTILE, *(f"{number:03d} a rather long name" for number in range(1, num_classes)))
    rows = draws.integers(0, len(digits.images), count)
    return Dataset(digits.images, targets, names, rows), Outputs(logits, torch.from_numpy(targets))


def rows_of(text, caption):
    """The cells of the table in the region of this name, row by row, without their tags."""
    table = re.search(rf'aria-label="{re.escape(caption)}"><table.*?</table>', text, re.S)[0]
    return [
        [re.sub("<.*?>", "", cell).strip() for cell in re.findall(r"<t[hd].*?</t[hd]>", row, re.S)]
        for row in re.findall(r"<tr>.*?</tr>", table, re.S)
    ]


def test_accuracies_and_calibration_are_those_counted_by_hand(run, page):
    text, outputs = page
    lines = rows_of(text, "Accuracy by kind of inference")[1:]
    assert [line[0].removesuffix(" *") for line in lines] == ["single", "aggregated", "distilled"]
    for line in lines:
        inference = line[0].removesuffix(" *")
        logits = outputs.logits[inference].double()
        right = [int(row.argmax() == target) for row, target in zip(logits, outputs.targets, strict=True)]
        assert line[1] == f"{100 * sum(right) / len(right):.2f}%"
        confidence = (logits / run.temperatures[inference]).softmax(1).max(1).values.tolist()
        gap = 0.0
        for bin in range(15):
            inside = [i for i, value in enumerate(confidence) if min(int(value * 15), 14) == bin]
            gap += abs(sum(right[i] for i in inside) - sum(confidence[i] for i in inside))
        assert line[4] == f"{100 * gap / len(right):.2f}%"
    assert lines[2][0] == "distilled *"
    right = (outputs.logits["distilled"].argmax(1) == outputs.targets).sum()
    assert f"Distilled inference is right on {right} of 360 test images" in text


def test_intervals_are_wilsons():
    stats = pytest.importorskip("scipy.stats")
    for hits, count in ((0, 7), (7, 7), (1, 3), (356, 515), (5123, 10_000)):
        wilson = stats.binomtest(hits, count).proportion_ci(method="wilson")
        expected = (100 * hits / count, 100 * wilson.low, 100 * wilson.high)
        assert share(hits, count) == pytest.approx(expected, abs=1e-9)
    assert share(0, 0)[1:] == (0, 100)


def test_matrix_and_classes_are_those_counted_by_hand(page):
    text, outputs = page
    predicted = outputs.logits["distilled"].argmax(1).tolist()
    pairs = list(zip(outputs.targets.tolist(), predicted, strict=True))
    head, *lines = rows_of(text, "Confusion matrix")
    assert head[1:] == [str(digit) for digit in range(10)]
    for true, line in enumerate(lines):
        assert line == [str(true), *(str(pairs.count((true, given)) or "") for given in range(10))]
    worst = max(pairs.count((t, g)) for t in range(10) for g in range(10) if t != g)
    assert rows_of(text, "Most often confused")[1][2] == str(worst)
    shares = []
    for name, images, right, accuracy, *_ in rows_of(text, "Accuracy of each class")[1:]:
        digit = int(name)
        assert int(images) == sum(true == digit for true, _ in pairs)
        assert int(right) == pairs.count((digit, digit))
        assert accuracy == f"{100 * int(right) / int(images):.1f}%"
        shares.append(int(right) / int(images))
    assert len(shares) == 10
    assert shares == sorted(shares)


def test_a_class_without_images_is_named_and_all_right_is_said():
    targets = torch.tensor([0, 0, 1])
    assert "No image was given a wrong class" in matrix_part(targets, targets, ["a", "b", "c"])
    lines = rows_of(classes_part(targets, torch.tensor([0, 1, 1]), ["a", "b", "c"]), "Accuracy of each class")
    assert [line[:3] for line in lines[1:]] == [["a", "2", "1"], ["b", "1", "1"], ["c", "0", ""]]
    assert lines[1][5] == "b (1)"
    assert confusions(targets, torch.tensor([2, 2, 0])) == [(0, 2, 2), (1, 0, 1)]


def test_mistakes_are_the_surest_wrong_answers(run, page):
    text, outputs = page
    temperature = run.temperatures["distilled"]
    probabilities = (outputs.logits["distilled"].double() / temperature).softmax(1)
    wrong = [
        (float(row.max()), place)
        for place, (row, target) in enumerate(zip(probabilities, outputs.targets, strict=True))
        if row.argmax() != target
    ]
    expected = [(place, confidence) for confidence, place in sorted(wrong, reverse=True)[:12]]
    assert most_confident_mistakes(outputs.logits["distilled"], outputs.targets, temperature, 12) == expected
    place, confidence = expected[0]
    card = re.search(r"<figure>.*?</figure>", text)[0]
    assert f"<b>{probabilities[place].argmax()}, {100 * confidence:.1f}%</b>" in card
    assert f"is {outputs.targets[place]}<br>{run.dataset().name(place)}<" in card
    data = base64.b64decode(re.search(r"base64,([^\"]+)", card)[1])
    shown = np.asarray(Image.open(io.BytesIO(data)))
    assert np.array_equal(shown, run.dataset().read([place]).images[0, 0].numpy())


def test_bins_hold_every_image_and_give_back_the_error():
    _, outputs = made_up(5, 400, ["single"])
    bins = reliability(outputs.logits["single"], outputs.targets, 0.7)
    assert sum(one.images for one in bins) == 400
    assert all(one.low <= one.confidence <= one.high for one in bins)
    gap = sum(one.images * abs(one.confidence - one.accuracy) for one in bins) / 400
    assert 100 * gap == pytest.approx(outputs.scores({"single": 0.7})["single"]["ece"])


def test_curves_pass_through_the_numbers_of_the_run(run, page):
    text, _ = page
    labels = [svg.get("aria-label", "") for svg in Tags(text).named("svg")]
    (loss,) = [label for label in labels if label.startswith("Loss")]
    rows = [line.split(",") for line in (run.folder / "metrics.csv").read_text().splitlines()]
    values = [float(row[rows[0].index("loss")]) for row in rows[1:]]
    assert f"loss {values[0]:.3g} to {values[-1]:.3g}" in loss
    assert any("held-out, distilled" in label for label in labels)
    chart = line_chart([Series("a", [(0, 0.0), (5, 50.0), (10, 100.0)])], "step", "x")
    assert 'd="M0.00 100.00 L50.00 50.00 L100.00 0.00"' in chart


def test_many_points_are_means_and_damaged_ones_are_left_out(run, tmp_path):
    points = [(float(i), float(i % 2)) for i in range(1000)]
    thin = thinned(points, 100)
    assert len(thin) == 100
    assert thin[0] == (4.5, 0.5)
    folder = shutil.copytree(run.folder, tmp_path / "run")
    (folder / "metrics.csv").write_text(f"step,loss,{HOSTILE},train\n1,2.5,1,oops\n2,nan,2,\n")
    (folder / "result.json").unlink()
    write_run_page(Run(folder), tmp_path / "page.html")
    page = Tags((tmp_path / "page.html").read_text())
    assert page.named("script") == []
    assert any(svg.get("aria-label", "").endswith(f"loss 2.5; {HOSTILE} 1 to 2") for svg in page.named("svg"))
    assert "No temperature was fitted" in page.text
    assert "the run is not finished" in page.text


def test_two_hundred_classes_with_a_hostile_name(run):
    dataset, outputs = made_up(200, 4000, run.model.method.inferences)
    text = run_page(run, dataset, outputs, "test images")
    page = Tags(text)
    assert page.named("script") == []
    assert page.text.count(HOSTILE) >= 2
    (matrix,) = [img for img in page.named("img") if img["alt"].startswith("Confusion matrix of 200 classes")]
    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(matrix["src"].partition(",")[2]))))
    counts = np.zeros((200, 200), int)
    np.add.at(counts, (dataset.targets, outputs.logits["distilled"].argmax(1).numpy()), 1)
    assert np.array_equal(pixels[:, :, 3] > 0, counts > 0)
    green = pixels[:, :, 1] > pixels[:, :, 0]
    assert np.array_equal(green, np.eye(200, dtype=bool))
    assert len(rows_of(text, "Accuracy of each class")) == 201
    assert len(text) < 400_000


def test_more_classes_than_pixels_share_them(run):
    targets = torch.arange(1000)
    text = matrix_part(targets, targets.roll(1), [str(c) for c in range(1000)])
    data = base64.b64decode(re.search(r"base64,([^\"]+)", text)[1])
    assert Image.open(io.BytesIO(data)).size == (334, 334)
    assert "true 3 classes" in text


def test_every_table_image_and_chart_speaks(page):
    tags = Tags(page[0])
    assert all(th.get("scope") or th.get("colspan") for th in tags.named("th"))
    assert all(img["alt"] for img in tags.named("img"))
    assert all(svg.get("aria-label") or svg.get("aria-hidden") for svg in tags.named("svg"))
    regions = [div for div in tags.named("div") if "scroll" in (div.get("class") or "")]
    assert regions
    assert all(div["tabindex"] == "0" and div["aria-label"] and div["role"] == "region" for div in regions)


def test_page_tells_cost_and_command(run, page):
    text = page[0]
    cost = dict(rows_of(text, "What the run cost")[1:])
    assert cost["steps"] == "12"
    assert cost["images seen, each view counted"] == f"{12 * 32 * 4:,}"
    assert run.result["command"] in Tags(text).text
    assert (run.folder / "config.yaml").read_text().rstrip() in Tags(text).text
    first = run.dataset().targets[0]  # class y in view j is label 4y + j
    assert f'alt="{first}, 90°: label {4 * first + 1}"' in text


def photos(folder, parts=("",)):
    """Digits as pictures in class folders; one class has a name like a script."""
    digits = load("digits").train
    for part in parts:
        for place in np.flatnonzero(digits.targets < 2)[:60]:
            name = ("one &lt; b>", "<img src=x onerror=alert(1)>")[digits.targets[place]]
            file = folder / part / name / f"<b>{place}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(digits.read([place]).images[0, 0].numpy()).save(file)
    return folder


def test_without_test_images_the_held_out_ones_are_used_and_it_is_said(tmp_path):
    source = photos(tmp_path / "photos")
    run = sla.fit(str(source), tmp_path / "run", **SETTINGS, method__name="baseline", data__hold_out=0.25)
    app = typer.Typer()
    app.command()(report)
    done = CliRunner().invoke(app, [str(run.folder), "--checkpoint", "best"], catch_exceptions=False)
    assert done.exit_code == 0
    assert "of 15 held-out images" in done.output.replace("\n", " ")
    page = Tags((run.folder / "report.html").read_text(encoding="utf-8"))
    assert "This data has no test images" in page.text
    assert "one &lt; b>" in page.text
    assert len([img for img in page.named("img") if "onerror" in img]) == 0
    accuracy = Run(run.folder, "best").result["accuracies"]["best"]["val"]["single"]["top1"]
    assert f"{accuracy:.2f}%" in page.text
    # Other data with the same classes, into another file.
    other = tmp_path / "other.html"
    with pytest.warns(SLAWarning, match="learnt from most of these"):
        CliRunner().invoke(app, [str(run.folder), str(source), "--out", str(other)], catch_exceptions=False)
    assert "of 60 images of" in other.read_text(encoding="utf-8")


def test_nothing_to_report_on_is_one_line(tmp_path):
    source = photos(tmp_path / "photos")
    run = sla.fit(str(source), tmp_path / "run", **SETTINGS, method__name="baseline", data__hold_out=0)
    with pytest.raises(InputError, match="no test images, and none were held out"):
        write_run_page(run, tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


def test_grey_and_odd_pictures_are_shown(run):
    """Data in memory: pictures that are not square in truth keep their shape."""
    digits = load("digits")
    images = replace(digits.test.images, aspect=torch.full((len(digits.test.images),), 1.5))
    test = replace(digits.test, images=images)
    text = run_page(run, test, run.evaluate(test), "test images")
    data = base64.b64decode(re.search(r"<figure>.*?base64,([^\"]+)", text)[1])
    assert Image.open(io.BytesIO(data)).size == (12, 8)


@pages.needs_chromium
def test_browser_shows_the_page_of_a_run(run, tmp_path):
    """No error, no request, nothing runs; at a phone's width nothing but tables scrolls sideways."""
    dataset, outputs = made_up(30, 600, run.model.method.inferences)
    page, log, outer = tmp_path / "page.html", tmp_path / "net.json", tmp_path / "outer.html"
    html.write(page, run_page(run, dataset, outputs, "test images"))
    script = (
        "<script>onload = () => { document.title = [...document.querySelectorAll('iframe')].map(f => "
        "f.contentDocument.documentElement.scrollWidth).join() }</script>"
    )
    inner = page.read_text(encoding="utf-8").replace("&", "&amp;").replace('"', "&quot;")
    frames = "".join(f'<iframe width="{w}" height="600" srcdoc="{inner}"></iframe>' for w in (364, 1444))
    outer.write_text(f"<!doctype html><title></title>{frames}{script}", encoding="utf-8")
    options = ("--dump-dom", "--enable-logging=stderr", "--v=0", f"--log-net-log={log}")
    result = browse(page, tmp_path, *options)
    assert result.returncode == 0, result.stderr
    assert "CONSOLE" not in result.stderr
    shown = Tags(result.stdout)
    assert shown.named("script") == []
    assert HOSTILE in shown.text
    assert requests_of_page(log) == []
    widths = re.search(r"<title>([\d,]+)</title>", browse(outer, tmp_path, "--dump-dom").stdout)[1]
    narrow, wide = map(int, widths.split(","))
    assert narrow <= 364
    assert wide <= 1444
