"""The page of a comparison: its numbers are those of the comparison, and names are text."""

import re
import shutil
from dataclasses import replace

import numpy as np
import pytest

from sla.compare.comparison import Entry
from sla.report.compare import compare_page
from sla.tasks.classifier.run import Run


def test_flipped_images_are_shown_with_both_predictions(comparison, parse):
    page = parse(compare_page(comparison))
    gained, lost = comparison.flipped(1)
    figures = [parse(figure) for figure in re.findall(r"<figure>.*?</figure>", page.source, re.S)]
    most = 6  # of each kind, for two pairs
    flips = [images for place in (1, 2) for images in comparison.flipped(place)]
    assert len(figures) == sum(min(len(images), most) for images in flips)
    image, classes = gained[0], comparison.dataset.classes
    assert f"true class {classes[comparison.dataset.targets[image]]}" in figures[0].text
    for entry, who in zip(comparison.entries, ("first", "this"), strict=False):
        probability = 100 * float(entry.confidence[image])
        assert f"{who}: {classes[int(entry.predicted[image])]}, {probability:.1f}%" in figures[0].text
    assert np.array_equal(figures[0].pixels(""), comparison.dataset.read([image]).images[0, 0].numpy())
    assert all(comparison.dataset.name(image) in page.text for image in (*gained, *lost))


def test_cells_are_under_their_headings(comparison, parse):
    head, *rows = parse(compare_page(comparison)).tables["Differences on the same images"]
    for row, one in zip(rows, comparison.differences, strict=True):
        cells = dict(zip(head, row, strict=True))
        assert (cells["gained"], cells["lost"]) == (str(one.gained), str(one.lost))
        assert (cells["both correct"], cells["both wrong"]) == (str(one.both_right), str(one.both_wrong))
        assert cells["points"] == f"{100 * (one.gained - one.lost) / 300:+.2f}"
        assert (cells["p"], cells["p, 2 tests"]) == (f"{one.p:.3f}", f"{one.adjusted:.3f}")
        assert cells["verdict"] == "no clear difference"


def test_text_is_text_and_every_part_has_a_description(comparison, parse, hostile):
    page = parse(compare_page(comparison))
    assert page.named("script") == []
    assert hostile in page.text
    assert "A note with <b>tags</b>." in page.text
    assert all(th.get("scope") for th in page.named("th"))
    assert all(img["alt"] for img in page.named("img"))
    assert all(svg.get("aria-label") or svg.get("aria-hidden") for svg in page.named("svg"))
    assert "They do not cover the variation from one training to the next" in page.words


def test_runs_that_differ_in_their_seed_are_grouped(comparison, finished_run, tmp_path, parse):
    runs = [finished_run]
    for seed in (1, 2):
        folder = shutil.copytree(finished_run.folder, tmp_path / str(seed))
        config = folder / "config.yaml"
        config.write_text(re.sub(r"\bseed: \d+", f"seed: {seed}", config.read_text()))
        runs.append(Run(folder))
    first, second, third = comparison.entries
    # Two seeds of single against two of aggregated, and one of distilled on its own.
    entries = [Entry(run, "single", first.predicted, first.confidence) for run in runs[:2]]
    entries += [Entry(run, "aggregated", second.predicted, second.confidence) for run in runs[:2]]
    entries.append(Entry(runs[2], "distilled", third.predicted, third.confidence))
    found = replace(comparison, entries=entries)
    page = parse(compare_page(found))
    rows = page.tables["Over seeds"][1:]
    assert [row[1] for row in rows] == ["0, 1", "0, 1", "2"]
    assert [row[3] for row in rows] == ["0.00", "0.00", "one seed"]
    points = found.differences[2].points.mean
    assert [float(row[4] or "nan") for row in rows[:2]] == pytest.approx(
        [np.nan, points], abs=0.01, nan_ok=True
    )
    assert [row[5] for row in rows] == ["reference", f"{points:+.1f} to {points:+.1f}", "different seeds"]
    assert page.tables["Settings that differ"][1:] == [["run.seed", "0", "1", "0", "1", "2"]]
