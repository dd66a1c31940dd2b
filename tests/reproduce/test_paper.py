"""The paper as data against its own source: every printed number, every gain, and settings that exist."""

import math
import os
import re
from pathlib import Path

import pytest

from made_records import record_of
from refusals import refused
from sla.recipes import SCALES
from sla.recipes.load import config_settings, recipe
from sla.reproduce import paper
from sla.reproduce.jobs import NOT_RUN, cell_settings, cells_of, jobs_of
from sla.reproduce.names import EXPERIMENTS
from sla.reproduce.paper import experiment, experiments
from sla.reproduce.render import render
from sla.reproduce.work import WORK
from sla.tasks.registry import TASKS, make_config, with_values
from sla.views import parse_views

SHARED = Path(os.environ.get("SLA_SHARED_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))
SOURCE = SHARED.parent / "paper" / "paper.tex"
needs_paper = pytest.mark.skipif(not SOURCE.exists(), reason="needs the paper's source beside the repository")

TABLES = {f"table{number}": number - 1 for number in range(1, 12)}  # by their order in the source
TRANSPOSED = {"table1", "table2", "table3", "table8", "table10"}  # printed with a dataset a line


def printed_lines(number):
    """The cells with numbers of each line of a table, as LaTeX prints them; comments are left out."""
    source = re.sub(r"(?<!\\)%.*", "", SOURCE.read_text(encoding="utf-8"))
    body = re.findall(r"\\begin\{tabular\}\{[a-z]+\}(.*?)\\end\{tabular\}", source, re.S)[number]
    lines = [line for line in body.split(r"\\") if "&" in line]
    found = [[cell for part in line.split("&") if (cell := read_cell(part))] for line in lines]
    return [line for line in found if line]


def read_cell(text):
    """`{\\bf 92.50} {\\small (+0.94\\%)}` -> (92.50, +0.94%); text and whole numbers are no results."""
    if spread := re.search(r"\\ms\{([\d.]+)\}\{([\d.]+)\}", text):
        return f"{spread[1]} ± {spread[2]}", ""
    value = re.search(r"(?<![\d.+-])(\d+\.\d+)(?![\d\\])", text)
    gain = re.search(r"\(([+-][\d.]+)\\%\)", text)
    return (value[1], f"{gain[1]}%" if gain else "") if value else None


def cell_of(table, row, column):
    cell = table.printed[row][column]
    return cell.text, cell.gain_text


def our_lines(name):
    """The same cells in the same order, from the data."""
    table = experiment(name)
    rows = [row for row in table.rows if row in table.printed]
    if name in TRANSPOSED:
        return [[cell_of(table, row, column) for row in rows] for column in table.columns]
    if name == "table9":  # a line has single and aggregated of each dataset
        pairs = [(row, row) if row == "m1" else (row, row[:-2] + "ag") for row in rows if row[-2:] != "ag"]
        lines = [[cell_of(table, row, key) for key in table.columns for row in pair] for pair in pairs]
        return [lines[0][::2], *lines[1:]]  # the baseline's cells span both
    return [[cell_of(table, row, column) for column in table.printed[row]] for row in rows]


def test_every_table_and_figure_loads():
    assert list(experiments()) == list(EXPERIMENTS)
    refused("did you mean 'table3'", experiment, "tabel3")


@needs_paper
@pytest.mark.parametrize("name", TABLES)
def test_every_printed_number_is_in_the_data(name):
    lines = printed_lines(TABLES[name])
    assert lines
    assert our_lines(name) == lines


@needs_paper
def test_numbers_of_the_text():
    text = re.sub(r"\s+", " ", SOURCE.read_text(encoding="utf-8"))
    toy = experiment("toy").printed
    for row, words in (("upright", "only upright 6s"), ("rotated", "rotated 6s"), ("joint", "rotated 6s")):
        value = f"{toy[row]['6v9'].value:g}"
        assert re.search(rf"{re.escape(value)}\\% error when classifying {words} and 9s", text)
    for number in (r"relatively up to 37.5\%", r"21.9\% without aggregation"):
        assert number in text
    notes = " ".join(experiment("figure4").notes)
    assert "37.5%" in notes
    assert "21.9%" in notes


def relative(new, old):
    return 100 * (new.value - old.value) / old.value


def rounded(value, like):
    """To as many digits as the paper prints of gains, halves up: two decimals below ten, then one."""
    factor = 10 if abs(like) >= 10 else 100
    return math.floor(abs(value) * factor + 0.5 + 1e-9) / factor * math.copysign(1, value)


def test_printed_gains_follow_from_printed_values_but_for_one():
    wrong = []
    for name, table in experiments().items():
        for row, cells in table.printed.items():
            for column, cell in cells.items():
                if cell.gain is None:
                    continue
                found = relative(cell, table.printed[table.rows[row].against][column])
                if rounded(found, cell.gain) != cell.gain:
                    wrong.append((name, row, column, cell.gain, round(found, 2)))
    assert wrong == [("table7", "ldam-drw-sd", "cifar100-10", 1.67, 2.01)]
    assert any("+2.01%" in note and "+1.67%" in note for note in experiment("table7").notes)


def test_gains_of_the_text_follow_from_printed_values():
    nine, six = experiment("table9").printed, experiment("table6").printed
    assert round(relative(nine["m12-ag"]["cub200"], nine["m1"]["cub200"]), 1) == 20.8
    assert round(relative(nine["m12-ag"]["stanford-dogs"], nine["m1"]["stanford-dogs"]), 1) == 15.4
    assert round(relative(six["metaoptnet-rr-ag"]["fc100-5"], six["metaoptnet-rr"]["fc100-5"]), 2) == 7.05


def test_a_number_printed_twice_is_the_same_but_for_one():
    """The same run in two tables: same recipe, same settings, same score."""
    seen, different = {}, []
    for name, table in experiments().items():
        for row, cells in table.printed.items():
            for key, cell in cells.items():
                what, where = table.rows[row], table.columns[key]
                if what.kind == "not-run":
                    continue
                run = (where.recipe, what.score, what.suffix, repr(what.set), what.kind, where.shot)
                if cell.value != seen.setdefault(run, (cell.value, name))[0]:
                    different.append((run[0], run[1], seen[run], (cell.value, name)))
    assert different == [("stanford-dogs", "aggregated", (68.70, "table3"), (67.03, "table9"))]
    for name in ("table3", "table9"):
        assert any("68.70" in note and "67.03" in note for note in experiment(name).notes)


def test_which_cells_are_cited():
    """Those without SLA of PyramidNet, long tails and few-shot learning; the authors ran the rest."""
    for name, table in experiments().items():
        for row in table.printed:
            with_sla = "SLA" in table.rows[row].label
            expected = name in ("table6", "table7") or row in ("pyramidnet", "mixup", "cutmix")
            assert table.rows[row].cited == (expected and not with_sla), (name, row)
            assert not table.rows[row].ours


def rows_and_columns(name):
    table = experiment(name)
    for key, row in table.rows.items():
        for column in row.columns or table.columns:
            yield key, row, column, table.columns[column]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_views_of_a_row_are_as_many_as_its_label_says(name):
    for _, row, _, _ in rows_and_columns(name):
        if said := re.search(r"M=(\d+)", row.label):
            plain = row.set["method.name"] == "baseline"
            assert (1 if plain else len(parse_views(row.set["method.views"]))) == int(said[1]), row.label


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_settings_are_a_configuration(name, scale):
    """Every key is one of the task's configuration, and its value is accepted."""
    for _, row, _, column in rows_and_columns(name):
        assert row.kind in {"train", *WORK, *NOT_RUN, *TASKS}
        if row.removed or row.kind in ("toy", "not-run"):  # with keys of their own
            continue
        settings = cell_settings(row, column, scale)
        tree = {"task": recipe(column.recipe + row.suffix).task}
        assert tree["task"] == row.kind or row.kind not in TASKS
        config = make_config(with_values(tree, config_settings(settings)))
        assert (config.data.source == "digits") == (scale == "smoke")


@pytest.fixture
def paper_file(tmp_path, monkeypatch):
    """A copy of paper.yaml that is read instead of it."""
    path = tmp_path / "paper.yaml"
    own, *others = paper.SOURCES
    path.write_text(own.read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.setattr(paper, "SOURCES", [path, *others])
    experiments.cache_clear()
    yield path
    experiments.cache_clear()


def test_a_new_row_needs_one_file(paper_file):
    """Two lines in paper.yaml give cells, jobs with their settings, and a line of the document."""
    text = paper_file.read_text(encoding="utf-8")
    row = "    smooth: {label: Smooth, set: {method.name: sla, method.label_smoothing: 0.1}, "
    row += "score: aggregated, against: baseline}\n"
    text = text.replace("    da: {label: DA,", row + "    da: {label: DA,", 1)
    text = text.replace("    da: {cifar10:", "    smooth: {cifar10: 12.34 -86.6%}\n    da: {cifar10:", 1)
    paper_file.write_text(text, encoding="utf-8")
    found = cells_of("table1", "small", 2, ["smooth"])
    columns = ("cifar10", "cifar100", "tiny-imagenet")
    assert [(cell.column, cell.seed) for cell in found] == [
        (name, seed) for name in columns for seed in (0, 1)
    ]
    assert len(jobs_of(found)) == 6
    records = {}
    for cell in (*found, *cells_of("table1", "small", 2, ["baseline"])):
        job, mean = cell.job, 60.0 if cell.row == "smooth" else 50.0
        smoothing = job.settings["method.label_smoothing"]
        assert smoothing == (0.1 if cell.row == "smooth" else 0.0)
        records[job.key] = record_of(job, scores={"last": {cell.score: mean + cell.seed}})
    markdown, page = render(records)
    line = "| CIFAR10: Smooth | 60.50 ± 0.71 | 2 |  | +10.00 (+10.00 to +10.00) | -80.05 |"
    assert line in markdown
    assert "CIFAR10: Smooth" in page
