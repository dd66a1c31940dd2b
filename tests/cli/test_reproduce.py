"""The command `sla reproduce`: running, rendering and merging, and what it refuses to overwrite."""

import pytest

from sla.cli.reproduce import RunnerDisplay
from sla.reproduce.jobs import cells_of, jobs_of


@pytest.fixture
def folder(tmp_path, stopped):
    words = ("--scale", "smoke", "--seeds", 1, "--columns", "cifar10", "--out", tmp_path / "out")
    said = stopped(0, "reproduce", "table8", *words)
    assert "CIFAR10, ten-crop, seed 0 (ten-crop): ten-crop " in said
    return tmp_path / "out"


def test_smoke_alone_is_no_document_and_tables_are_not_overwritten(folder, tmp_path, stopped):
    assert "no row at paper or small scale" in stopped(
        2, "reproduce", "render", "--out", folder, "--document", tmp_path / "r.md"
    )
    table = folder / "runs.csv"
    before = table.read_text()
    table.write_text(before.replace(",smoke,", ",small,"))
    for option in ("--document", "--page"):
        assert "ends in" in stopped(2, "reproduce", "render", "--out", folder, option, table)
    assert table.read_text() == before.replace(",smoke,", ",small,")


def test_rows_and_columns_are_named_and_a_document_lies_beside_its_table(folder, tmp_path, stopped):
    said = stopped(0, "reproduce", "table6", "--list")
    assert "--rows\tprotonet-ag\tProtoNet + SLA+AG\t" in said
    assert "--columns\tfc100-1\tFC100, 1-shot" in said
    said = stopped(0, "reproduce", "student-pilots", "--list")
    assert "--rows\tlate\tstudent in the last third, 4 C\tit is no longer in the code" in said
    (tmp_path / "runs.csv").write_text((folder / "runs.csv").read_text().replace(",smoke,", ",small,"))
    said = stopped(0, "reproduce", "render", "--out", tmp_path)
    assert (tmp_path / "results.md").is_file()
    assert (tmp_path / "results.html").is_file()


def test_only_one_run_by_its_key_and_merged(folder, tmp_path, stopped):
    words = ("reproduce", "table8", "--scale", "smoke", "--seeds", 1, "--columns", "cifar10")
    lines = stopped(0, *words, "--print-commands", "--out", tmp_path / "else where").splitlines()
    assert len(lines) == 3
    key = lines[0].split("--only ")[1]
    stopped(0, *words, "--only", key, "--out", tmp_path / "one")
    said = stopped(0, "reproduce", "merge", tmp_path / "one" / "runs.csv", "--out", folder)
    assert said.startswith("0 new of 1 rows")
    said = stopped(0, "reproduce", "merge", folder / "runs.csv", "--out", tmp_path / "one")
    assert said.startswith("2 new of 3 rows")
    assert "no job of table8" in stopped(2, *words, "--only", "0" * 16, "--out", tmp_path / "one")


def test_recipes_are_listed_with_cost_and_expected_scores(stopped):
    said = stopped(0, "reproduce", "recipes")
    assert "cifar100\t4.2e+15\t68.27; AG 74.14, SD 71.85\n" in said


def test_the_time_left_does_not_count_what_a_resumed_run_had_done(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr("sla.cli.reproduce.time.monotonic", lambda: now[0])
    display = RunnerDisplay()
    resumed, other = jobs_of(cells_of("table8", "smoke", 2, ["baseline"], ["cifar10"]))
    display.begin({resumed.key: 1e9, other.key: 1e9}, 0)
    display.advance(resumed, 0.75)  # of 2e9 FLOP, 1.25e9 are left
    now[0] = 90.0
    display.advance(resumed, 1.0)  # 0.25e9 in 90 seconds, so 1e9 in 6 minutes
    assert "50%  6 minutes left" in capsys.readouterr().out
