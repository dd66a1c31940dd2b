"""Several runs by one command: seeds, another method at the same length or cost, resumed, and their table."""

import json
import math
import shutil
import statistics

import pytest

from commands import sla
from refusals import refused
from sla import fit
from sla.cli.several import list_jobs, print_seeds
from sla.compare.comparison import compare
from sla.compare.seeds import SeedRow, SeedTable, compare_seeds
from sla.runs.defaults import override
from sla.tasks.classifier.run import Run

SMALL = ("--backbone", "convnet4", "--set", "model.options={width: 4}", "--set", "run.compile=false")
SMALL += ("--set", "data.per_class=20", "--no-report")
WORDS = ("train", "digits", "--method", "sla", "--iterations", 6, "--seeds", 2, *SMALL)


def result(folder):
    return json.loads((folder / "result.json").read_text())


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """Two seeds of two methods at the same cost; what was printed."""
    folder = tmp_path_factory.mktemp("seeds")
    return folder, sla(*WORDS, "--compare", "baseline", "--equal-cost", "--out", folder / "run")


def table_of(said):
    lines = [line.split("\t") for line in said.splitlines()]
    header = next(place for place, cells in enumerate(lines) if cells[:2] == ["method", "seed 1"])
    return {cells[0]: cells[1:] for cells in lines[header + 1 :] if len(cells) == len(lines[header])}


def test_each_seed_has_its_folder_and_the_table_has_mean_and_interval(both):
    folder, said = both
    names = {path.name for path in folder.iterdir()}
    assert names == {"run-seed1", "run-seed1-baseline", "run-seed2", "run-seed2-baseline"}
    assert [result(folder / f"run-seed{seed}")["seed"] for seed in (1, 2)] == [1, 2]
    table = table_of(said)
    assert {"sla, single", "sla, aggregated *", "baseline, single *"} == set(table)
    for row, ending, inference in (
        ("sla, aggregated *", "", "aggregated"),
        ("baseline, single *", "-baseline", "single"),
    ):
        found = [result(folder / f"run-seed{seed}{ending}") for seed in (1, 2)]
        values = [one["accuracies"]["last"]["test"][inference]["top1"] for one in found]
        mean, half = statistics.fmean(values), 12.7062 * statistics.stdev(values) / 2**0.5
        expected = [*(f"{value:.2f}" for value in values), f"{mean:.2f}"]
        ends = f"{mean - half:.1f} to {mean + half:.1f}" if half else "all seeds equal"
        assert table[row] == [*expected, ends]
    assert "accuracy in percent on 360 test images, by seed" in said
    assert "sla (aggregated) against baseline (single), paired by seed: " in said


def test_the_other_method_gets_the_same_flop(both):
    folder, _ = both
    ours, other = (result(folder / f"run-seed1{ending}")["cost"] for ending in ("", "-baseline"))
    assert (ours["iterations"], other["iterations"]) == (6, 24)  # of four views, and of one
    assert ours["training_flop"] == other["training_flop"]
    assert Run(folder / "run-seed1-baseline").config.run.flop == ours["training_flop"]


def test_only_what_is_missing_is_done_when_resumed(both):
    folder, said = both
    words = (*WORDS, "--compare", "baseline", "--equal-cost", "--out", folder / "run")
    refused("run-seed1: exists already; --resume continues what was begun", sla, *words)
    lost = folder / "run-seed2-baseline"
    before = {path: path.stat().st_mtime_ns for path in folder.glob("*/result.json")}
    (lost / "result.json").unlink()
    again = sla(*words, "--resume")
    changed = {path for path, when in before.items() if path.stat().st_mtime_ns != when}
    assert changed == {lost / "result.json"}
    assert table_of(again) == table_of(said)


def test_seeds_of_one_configuration_are_grouped_whatever_was_measured(both, tmp_path):
    import shutil

    folder, names = both[0], []
    for seed in (1, 2):
        names.append(str(shutil.copytree(folder / f"run-seed{seed}", tmp_path / str(seed))))
        file = tmp_path / str(seed) / "config.yaml"
        text = file.read_text().replace("iterations: 6", f"iterations: {5 + seed}")
        text = text.replace("minutes: null", "minutes: 1").replace(
            "pace: null", f"pace: {{train: '3:{seed}'}}"
        )
        file.write_text(text.replace("compile_reason: null", f"compile_reason: eager, {seed} ms"))
    (group,) = compare(names).groups
    assert sorted(group.seeds) == [1, 2]


def test_names_and_seeds_follow_what_was_asked_for(tmp_path):
    jobs = list_jobs({"run": {"seed": 5}}, tmp_path / "x", 2, "pkg.mod:My", False)
    assert [job.folder.name for job in jobs] == [
        "x-seed5",
        "x-seed5-pkg.mod-My",
        "x-seed6",
        "x-seed6-pkg.mod-My",
    ]
    (job,) = list_jobs({}, tmp_path / "x", None, None, False)
    assert (job.folder.name, job.settings) == ("x", {})


def test_a_dry_run_says_both_lengths_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = sla(*WORDS, "--compare", "baseline", "--equal-cost", "--dry-run")
    assert said.count("6 iterations of 50 images") == 1
    assert said.count("24 iterations are ") == 1
    assert list(tmp_path.iterdir()) == []


def test_finished_seeds_of_another_configuration_are_refused(both, tmp_path):
    folder, _ = both
    copied = shutil.copytree(folder, tmp_path / "copy")
    words = ("train", "digits", "--method", "sla", "--iterations", 7, "--seeds", 2, *SMALL)
    words += ("--resume", "--out", copied / "run")
    refused("cannot resume with another configuration: run.iterations: ", sla, *words)


def test_seeds_that_agree_by_chance_are_no_proof():
    """Two seeds, one picture more each: not clearly better."""
    rows = [
        SeedRow("sla", "single", {1: 100.0, 2: 100.0}),
        SeedRow("baseline", "single", {1: 95.83, 2: 95.83}),
    ]
    table = SeedTable("test", 24, [1, 2], rows, {"sla": "single", "baseline": "single"})
    [(_, _, points)] = table.differences()
    assert points.mean == pytest.approx(4.17)
    assert points.sign == 0
    assert [math.isnan(end) for end in rows[0].mean] == [False, True, True]


def test_seeds_of_quick_models_are_said_to_be_one(finished_run, tiny_settings, tmp_path, capsys):
    settings = {"data__per_class": 5, "model__weights": str(finished_run.folder), "method__name": "features"}
    run = fit("digits", tmp_path / "run", **tiny_settings, **settings)
    folder = shutil.copytree(run.folder, tmp_path / "other")
    for name in ("config.yaml", "result.json"):
        text = (folder / name).read_text().replace("\n  seed: 0", "\n  seed: 1")
        text = text.replace('"seed": 0', '"seed": 1')
        (folder / name).write_text(text)
    print_seeds([run, Run(folder)])
    assert "which does not depend on the seed" in capsys.readouterr().out


def test_seeds_on_other_images_are_not_averaged(both, tmp_path):
    folder, _ = both
    runs = [Run(shutil.copytree(folder / f"run-seed{seed}", tmp_path / str(seed))) for seed in (1, 2)]
    runs[1].result["images"]["test"] -= 1
    refused("not as many images as .*1 is judged on", compare_seeds, runs)
    runs[1].result["images"]["test"] += 1
    runs[1].config = override(runs[1].config, "data", per_class=19)
    refused("other data than .*: data.per_class", compare_seeds, runs)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--equal-cost"], "--equal-cost is for --compare"),
        (["--equal-cost", "--compare", "features"], "features is not trained for a number of FLOP"),
        (
            ["--equal-cost", "--compare", "baseline", "--method", "features"],
            "features is not trained for a number of FLOP",
        ),
        (["--seeds", "2", "--use-all"], "--seeds is for classifiers, without --use-all"),
        (["--compare", "basline"], "--compare: unknown method 'basline', did you mean 'baseline'?"),
        (["--compare", "sla/sd"], "--compare: unknown method 'sla/sd'"),
        (["--compare", "distilled"], "--compare distilled: a student learns from a run: `sla distill RUN`"),
    ],
)
def test_what_does_not_go_together_is_refused(words, line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused(line, sla, "train", "digits", *words)
    assert not list(tmp_path.iterdir())  # before anything was trained
