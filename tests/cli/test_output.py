"""Names of classes, files and folders are strangers' text: no command lets them control the terminal."""

import ast
import csv
import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import sla.cli.output as output
from commands import sla
from sla.cli.predict import print_answers

CLASSES = ("cat\x1b[31m\x07", "=1+1")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """Pictures in folders with such names, a run on them in another one, and what its training printed."""
    above, draw = tmp_path_factory.mktemp("hostile"), np.random.default_rng(0)
    data, run = above / "data\x1b[2J", above / "run\x1b]0;owned\x07"
    for place, name in enumerate(CLASSES):  # dark and bright, but for a few: the weakest class is named
        (data / name).mkdir(parents=True)
        for number in range(12):
            low = 156 if place or number < 3 else 0
            pixels = draw.integers(low, low + 100, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(data / name / f"{number}\x1b[1m\n.png")
    small = "run.compile=false", "run.batch_size=8", "model.backbone=convnet4", "model.options={width: 4}"
    small += "data.workers=0", "data.hold_out=0.5"
    settings = [word for one in small for word in ("--set", one)]
    return data, run, sla("train", data, "--out", run, "--iterations", 40, *settings)


def assert_plain(text):
    assert not [character for character in text if not character.isprintable() and character not in "\n\t"]


def test_training_prints_no_escapes(hostile):
    assert_plain(hostile[2])
    assert r"cat\x1b[31m\x07" in hostile[2]


@pytest.mark.parametrize(
    "words",
    [
        "predict RUN DATA",
        "predict RUN DATA --json",
        "evaluate RUN",
        "report RUN",
        "compare RUN:single RUN:aggregated --out PAGE",
        "data check DATA",
    ],
)
def test_commands_print_no_escapes(hostile, words, tmp_path):
    places = {"RUN": hostile[1], "DATA": hostile[0], "PAGE": tmp_path / "page\x1b[1m.html"}
    for name, place in places.items():
        words = words.replace(name, str(place))
    assert_plain(sla(*words.split(" ")))


def test_errors_print_no_escapes_and_are_one_line(stopped, tmp_path):
    assert_plain(stopped(2, "predict", tmp_path / "no\x1b[31m\nsla: all is well", "x.png"))
    assert_plain(stopped(2, "train", f"{tmp_path}/no\x1b[31m"))


def test_nothing_else_in_the_commands_prints():
    """`say`, tables and displays escape names; the version and the last line of an error are in __init__."""
    for file in Path(output.__file__).parent.glob("*.py"):
        calls = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)]
        plain = [node.lineno for node in calls if getattr(node.func, "id", "") == "print"]
        typer = [node.lineno for node in calls if getattr(node.func, "attr", "") in ("echo", "secho")]
        assert file.name in ("output.py", "display.py") or not plain, (file.name, plain)
        assert file.name == "__init__.py" or not typer, (file.name, typer)


def test_no_cell_of_a_csv_is_a_formula(capsys):
    """Text gets a quote before it, probabilities stay numbers; invalid bytes of a name are written out."""
    classes = ["=1+1", "+x", "-y", "@SUM(A1)", "\t=2", "cat"]
    paths = [Path("-a.png"), Path("b\udcff.png")]
    print_answers(paths, torch.eye(6)[:2], classes, 1, "csv")
    header, *rows = csv.reader(io.StringIO(capsys.readouterr().out))
    assert header == ["file", "class", "'=1+1", "'+x", "'-y", "'@SUM(A1)", "\\t=2", "cat"]
    assert rows[0] == ["'-a.png", "'=1+1", "1.000000", *["0.000000"] * 5]
    assert rows[1][:2] == ["b\\udcff.png", "'+x"]
