"""One file adds a dataset: a YAML entry for images in class folders, a Python file for other formats."""

import importlib
import subprocess
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

from made_data import picture
from refusals import refused
from sla.cli.data import app
from sla.datasets.catalogue import CATALOGUE, read_catalogue, register
from sla.datasets.entry import Entry
from sla.datasets.load import load

ENTRY = """
coins:
  title: Coins, heads and tails
  num_classes: 2
  splits: {train: 4, test: 2}
  shape: [3, 16, 16]
"""
PYTHON_FILE = """
import numpy as np

from sla.datasets.catalogue import register
from sla.datasets.entry import Entry
from sla.datasets.formats import Arrays

CLASSES = ("dark", "light")
SPLITS = {"train": 6, "test": 2}


def read(folder):
    pixels = np.load(folder / "stripes.npy")
    cut = SPLITS["train"]
    labels = np.arange(len(pixels)) % 2
    return {
        "train": Arrays(pixels[:cut], labels[:cut], CLASSES),
        "test": Arrays(pixels[cut:], labels[cut:], CLASSES),
    }


register(Entry("stripes", "Stripes", 2, SPLITS, (1, 8, 8)), read, marks=["stripes.npy"])
"""


@pytest.fixture(autouse=True)
def _same_catalogue_afterwards():
    before = dict(CATALOGUE)
    yield
    CATALOGUE.clear()
    CATALOGUE.update(before)


@pytest.fixture
def coins(data_folder):
    """The entry and its pictures."""
    (data_folder / "catalogue.yaml").write_text(ENTRY)
    names = (
        "train/heads/a",
        "train/heads/b",
        "train/tails/a",
        "train/tails/b",
        "test/heads/a",
        "test/tails/a",
    )
    for place in names:
        picture(data_folder / "coins" / f"{place}.png", sum(place.encode()) % 256, 16)


@pytest.mark.usefixtures("coins")
def test_class_folders_need_an_entry_and_nothing_else(data_folder):
    [entry] = read_catalogue(data_folder / "catalogue.yaml")
    register(entry)
    splits = load("coins")  # the whole dataset: no warning
    assert splits.train.classes == ("heads", "tails")
    assert (len(splits.train), len(splits.test), splits.mean) == (4, 2, (0.5, 0.5, 0.5))
    run = CliRunner().invoke(app, ["check", "coins"])
    assert run.exit_code == 0, run.output
    assert "train: 4 images, 2 classes, 2 per class" in run.output


@pytest.mark.usefixtures("coins")
def test_the_command_line_knows_the_entry():
    command = [sys.executable, "-m", "sla", "data", "list"]  # it reads the entries when it starts
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "coins\t2\t4 + 2\tnone\tyes" in listed.splitlines()


def test_one_python_file_with_a_reader(data_folder, tmp_path, monkeypatch):
    (tmp_path / "stripes_dataset.py").write_text(PYTHON_FILE)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("stripes_dataset")
    refused(r"stripes: not in .*: no stripes/ with stripes\.npy; it has no download", load, "stripes")
    (data_folder / "stripes").mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (8, 1, 8, 8), dtype=np.uint8)
    np.save(data_folder / "stripes" / "stripes.npy", pixels)
    splits = load("stripes")
    assert splits.train.read([5]).images[0].tolist() == pixels[5].tolist()
    assert splits.test.targets.tolist() == [0, 1]
    listed = CliRunner().invoke(app, ["list"]).output
    assert "stripes\t2\t6 + 2\tnone\tyes" in listed


def test_training_knows_a_registered_dataset(data_folder):
    from sla.runs.defaults import native_size, same_source

    register(Entry("coins", "Coins", 2, {"train": 4, "test": 2}, (3, 16, 16)))
    assert native_size("coins") == 16
    assert not same_source("coins", "digits")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("num_classes: 2", "num_classes: two"), r"coins: num_classes: Input should be a valid integer"),
        (("title:", "titel:"), r"coins: title: Field required"),
        (("  shape", "  colour: red\n  shape"), r"coins: colour: Unexpected keyword"),
        (
            ("train: 4", "training: 4"),
            r"coins: splits are train and perhaps val and test, not training, test",
        ),
        (("[3, 16, 16]", "[3, 16, 16]\n  mean: [0.5]"), r"coins: 1 means and 3 stds for 3 channels"),
        (("coins:", "coins: 3 #"), r"catalogue\.yaml: not YAML"),
        ((ENTRY, "- coins"), r"catalogue\.yaml: needs entries"),
        ((ENTRY, "coins: 3"), r"coins: needs fields such as title"),
    ],
)
def test_a_wrong_entry_is_one_line(data_folder, change, reason):
    (data_folder / "catalogue.yaml").write_text(ENTRY.replace(*change))
    message = refused(reason, read_catalogue, data_folder / "catalogue.yaml")
    assert message.startswith(str(data_folder / "catalogue.yaml"))
    assert "\n" not in message


def test_names_layouts_and_readers_are_checked(data_folder):
    entry = Entry("coins", "Coins", 2, {"train": 4}, (3, 16, 16))
    refused("`read` needs `marks`", register, entry, read=lambda folder: {})
    register(entry)
    refused("already a dataset called 'coins'", register, entry)
    register(Entry("notes", "Notes", 2, {"train": 4}, (3, 16, 16), layouts=("cifar",)))
    refused("notes: unknown layout 'cifar', did you mean 'cifar1", load, "notes")
