"""The page and the CSV of labels worth checking, and the section of a run's page."""

import csv
import io

import numpy as np
import pytest
import torch

from commands import sla
from made_data import digit_files
from sla.datasets.load import load
from sla.images.store import ArrayImages, Dataset
from sla.report.labels import COLUMNS, SHOWN, label_page, write_label_page
from sla.report.run import run_page, write_run_page
from sla.tasks.classifier.label_doubts import Judged, LabelCheck


@pytest.fixture
def check(made_up):
    dataset, outputs = made_up(12, 300)
    return LabelCheck(
        dataset.classes, [Judged("train", dataset, outputs.logits["single"])], "made-up answers"
    )


def test_the_page_has_the_most_doubted_and_the_table_has_all(check, tmp_path, parse, hostile):
    table = write_label_page(check, tmp_path / "labels.html", "some data")
    page = parse((tmp_path / "labels.html").read_text())
    assert f"The labels of {len(check.doubts)} of 300 pictures are doubted" in page.words
    assert len(page.named("img")) == min(len(check.doubts), SHOWN)
    first = check.doubts[0]
    assert f"{100 * first.probability:.1f}%" in page.words
    pairs = page.tables["Labels and suggestions"][1:]
    counted = [(one.label, one.suggested) for one in check.doubts]
    assert int(pairs[0][2]) == max(counted.count(pair) for pair in counted)
    assert hostile in page.text
    rows = list(csv.DictReader(io.StringIO(table.read_text())))
    assert tuple(rows[0]) == COLUMNS
    assert [row["file"] for row in rows] == [one.name for one in check.doubts]
    assert [row["suggested"] for row in rows] == [check.classes[one.suggested] for one in check.doubts]
    assert float(rows[0]["suggested_probability"]) == pytest.approx(first.probability, abs=1e-6)


def test_no_cell_is_taken_for_a_formula(tmp_path):
    names = ["=1+1", "+1", "-1", "@A1", "\tx", "plain", "a=b"]
    images = ArrayImages(torch.zeros(7, 1, 4, 4, dtype=torch.uint8), names=[f"{name}.png" for name in names])
    dataset = Dataset(images, np.arange(7), tuple(names))
    check = LabelCheck(dataset.classes, [Judged("train", dataset, -torch.eye(7))], "nothing")
    with open(write_label_page(check, tmp_path / "x.html", "x"), newline="") as file:
        rows = list(csv.reader(file))[1:]
    assert len(rows) == 7
    for row in rows:
        for cell in row[:4]:
            assert cell[0] not in "=+-@\t"
    assert {row[2] for row in rows} == {"'=1+1", "'+1", "'-1", "'@A1", "'\tx", "plain", "a=b"}


def test_a_page_without_doubts_says_so(check, parse):
    part = check.judged[0]
    right = torch.eye(12)[torch.from_numpy(part.dataset.targets)]
    page = parse(label_page(LabelCheck(check.classes, [part._replace(logits=right)], "x"), "x", "x.csv"))
    assert "No label of 300 pictures is doubted." in page.words
    assert not page.named("img")


def test_a_runs_page_has_a_section(finished_run, parse, tmp_path):
    write_run_page(finished_run, tmp_path / "page.html")
    page = parse((tmp_path / "page.html").read_text())
    held_out = finished_run.result["images"]["val"]
    assert (
        f"{held_out + 360} pictures were judged by a model that had not learnt from their labels"
        in page.words
    )
    assert "--labels --run" in page.words
    outputs = finished_run.evaluate(dataset := finished_run.dataset())
    page = parse(run_page(finished_run, dataset, outputs, "test images"))
    assert "360 pictures were judged" in page.words


def test_the_command_writes_both_and_prints_the_first(finished_run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    told = sla("data", "check", "digits", "--labels", "--run", finished_run.folder)
    page, table = (tmp_path / name for name in ("labels.html", "labels.csv"))
    assert page.is_file()
    rows = list(csv.DictReader(io.StringIO(table.read_text())))
    assert f"The labels of {len(rows)} of " in told
    assert f"labels: {rows[0]['file']}: {rows[0]['label']}, or {rows[0]['suggested']}?" in told
    assert "labels: labels.html, labels.csv" in told.splitlines()


def test_what_cannot_be_is_refused_before_the_work(stopped, finished_run, tmp_path, monkeypatch):
    monkeypatch.setattr("sla.datasets.check.check", lambda *_, **__: pytest.fail("it was checked"))
    digits = digit_files(load("digits").test, range(4), tmp_path / "digits")
    assert "--run is for --labels" in stopped(2, "data", "check", digits, "--run", finished_run.folder)
    words = ("data", "check", digits, "--labels", "--run", finished_run.folder, "--out", tmp_path / "x.txt")
    assert "ends in .html" in stopped(2, *words)
    assert "not a run" in stopped(2, "data", "check", digits, "--labels", "--run", tmp_path)


def test_a_csv_of_somebody_else_is_not_written_over(stopped, finished_run, tmp_path, monkeypatch):
    monkeypatch.setattr("sla.datasets.check.check", lambda *_, **__: pytest.fail("it was checked"))
    monkeypatch.chdir(tmp_path)
    digit_files(load("digits").test, range(4), tmp_path / "digits")
    own = tmp_path / "labels.csv"
    own.write_text(text := "path,label\ndigits/0.png,0\n")
    for data in ("labels.csv", "digits"):
        words = ("data", "check", data, "--labels", "--run", finished_run.folder)
        assert "labels.csv: exists, and is not a table of this command" in stopped(2, *words)
    own.write_text(",".join(COLUMNS) + "\n")
    assert "would replace it" in stopped(2, "data", "check", "labels.csv", "--labels")
    assert own.read_text() == ",".join(COLUMNS) + "\n"
    own.write_text(text)
    assert not (tmp_path / "labels.html").exists()
