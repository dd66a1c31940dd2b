"""Cells that a spreadsheet would run: quoted in a CSV, and read back as they were."""

import pytest
from PIL import Image

from sla.datasets.load import load
from sla.datasets.spreadsheet_cells import FORMULA, escape_cell, unescape_cell


@pytest.mark.parametrize(
    "text", ["=1+1", "+x", "-x", "@x", "\tx", "plain", "'quoted", "'", "", "a=b", "'=x", "''=x"]
)
def test_a_cell_is_no_formula_and_comes_back(text):
    assert not escape_cell(text).startswith(FORMULA)
    assert unescape_cell(escape_cell(text)) == text


def test_labels_of_a_csv_are_read_as_they_were(tmp_path, data_folder):
    rows = ["path,label"]
    for number, label in enumerate(("=1+1", "@home", "plain")):
        Image.new("L", (8, 8), 80 * number).save(tmp_path / f"{number}.png")
        rows.append(f"{number}.png,{escape_cell(label)}")
    (tmp_path / "data.csv").write_text("\n".join(rows))
    assert set(load(tmp_path / "data.csv").train.classes) == {"=1+1", "@home", "plain"}
