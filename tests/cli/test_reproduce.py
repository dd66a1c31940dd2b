"""The command `sla reproduce`: running, rendering and merging, and what it refuses to overwrite."""

import pytest

from sla.cli import main


def sla(capsys, *words):
    with pytest.raises(SystemExit) as end:
        main([str(word) for word in words])
    said = capsys.readouterr()
    return end.value.code, said.out + said.err


@pytest.fixture
def folder(tmp_path, capsys):
    code, said = sla(
        capsys,
        "reproduce",
        "table8",
        "--scale",
        "smoke",
        "--seeds",
        1,
        "--columns",
        "cifar10",
        "--out",
        tmp_path / "out",
    )
    assert code == 0, said
    assert "CIFAR10, ten-crop, seed 0 (ten-crop): ten-crop " in said
    return tmp_path / "out"


def test_smoke_alone_is_no_document_and_tables_are_not_overwritten(folder, tmp_path, capsys):
    code, said = sla(capsys, "reproduce", "render", "--out", folder, "--document", tmp_path / "r.md")
    assert (code, "no row at paper or small scale" in said) == (2, True)
    table = folder / "runs.csv"
    before = table.read_text()
    table.write_text(before.replace(",smoke,", ",small,"))
    for option in ("--document", "--page"):
        code, said = sla(capsys, "reproduce", "render", "--out", folder, option, table)
        assert (code, "ends in" in said) == (2, True)
    assert table.read_text() == before.replace(",smoke,", ",small,")


def test_rows_and_columns_are_named_and_a_document_lies_beside_its_table(folder, tmp_path, capsys):
    code, said = sla(capsys, "reproduce", "table6", "--list")
    assert code == 0
    assert "--rows\tprotonet-ag\tProtoNet + SLA+AG\t" in said
    assert "--columns\tfc100-1\tFC100, 1-shot" in said
    (tmp_path / "runs.csv").write_text((folder / "runs.csv").read_text().replace(",smoke,", ",small,"))
    code, said = sla(capsys, "reproduce", "render", "--out", tmp_path)
    assert code == 0, said
    assert (tmp_path / "results.md").is_file()
    assert (tmp_path / "results.html").is_file()


def test_only_one_run_by_its_key_and_merged(folder, tmp_path, capsys):
    words = ("reproduce", "table8", "--scale", "smoke", "--seeds", 1, "--columns", "cifar10")
    code, said = sla(capsys, *words, "--print-commands", "--out", tmp_path / "else where")
    lines = said.splitlines()
    assert (code, len(lines)) == (0, 3)
    key = lines[0].split("--only ")[1]
    code, said = sla(capsys, *words, "--only", key, "--out", tmp_path / "one")
    assert code == 0, said
    code, said = sla(capsys, "reproduce", "merge", tmp_path / "one" / "runs.csv", "--out", folder)
    assert (code, said.startswith("0 new of 1 rows")) == (0, True)
    code, said = sla(capsys, "reproduce", "merge", folder / "runs.csv", "--out", tmp_path / "one")
    assert (code, said.startswith("2 new of 3 rows")) == (0, True)
    code, said = sla(capsys, *words, "--only", "0" * 16, "--out", tmp_path / "one")
    assert (code, "no job of table8" in said) == (2, True)


def test_recipes_are_listed_with_cost_and_expected_scores(capsys):
    code, said = sla(capsys, "reproduce", "recipes")
    assert code == 0
    assert "cifar100\t4.2e+15\t68.27; AG 74.14, SD 71.85\n" in said
