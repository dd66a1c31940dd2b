"""Corrections: what is kept can be trained on, one row for each picture, whatever a class is called."""

import csv
import shutil
from pathlib import Path

import pytest
from PIL import Image

from made_images import as_tensor
from refusals import fails, refused
from sla.datasets.load import load
from sla.datasets.scan import scan_folder
from sla.errors import SLAError
from sla.images.decode import FORMATS, open_rgb
from sla.serve import corrections as module
from sla.serve.corrections import HIDDEN, Corrections

FOLDERS = ["cat", "dog", "=1+1", "-x", "'quoted", 'a:b?*"<>|\\', "ends.", "a\u00a0b", "two\nlines", "x" * 255]
OTHERS = ["../up", "a/b", "..", ".hidden", "a\0b", "__MACOSX", "checkpoint", "ä" * 128]
CLASSES = [*FOLDERS, *OTHERS]


@pytest.fixture
def kept(tmp_path):
    return Corrections(tmp_path, CLASSES)


def rows(kept):
    with open(kept.csv, newline="") as file:
        return list(csv.reader(file))


def test_what_is_kept_is_data_to_train_on(kept, digit, data_folder):
    for number, label in enumerate(CLASSES):
        path = kept.save(digit(number), label)
        assert (kept.folder / path).read_bytes() == digit(number)
        assert (kept.folder / path).resolve().parent.parent == kept.folder / "corrections"
    found = load(kept.csv, size=8).train
    assert set(found.classes) == set(CLASSES)
    for place in range(len(CLASSES)):
        label = found.classes[found.targets[place]]
        picture = as_tensor(open_rgb(found.name(place)))
        assert (found.read([place]).images[0] == picture).all()
        assert digit(CLASSES.index(label)) == Path(found.name(place)).read_bytes()
    assert kept.saved == len(CLASSES)


def test_copied_folders_are_the_classes(kept, digit, tmp_path):
    """As docs/serve.md has it; of the other classes nothing is added, and the answer says so."""
    for number, label in enumerate(CLASSES):
        kept.save(digit(number), label)
        assert kept.note(label) == (HIDDEN if label in OTHERS else "")
    shutil.copytree(kept.folder / "corrections", tmp_path / "photos")
    found = scan_folder(tmp_path / "photos")
    assert set(found.classes) == set(FOLDERS)
    assert len(found) == len(FOLDERS)


def test_no_cell_is_a_formula(kept, digit):
    for number, label in enumerate(CLASSES):
        kept.save(digit(number), label)
    header, *found = rows(kept)
    assert header == ["path", "label"]
    assert not any(cell[0] in "=+-@" for row in found for cell in row)


def test_a_picture_has_one_row(kept, digit):
    first = kept.save(digit(0), "cat")
    kept.save(digit(1), "dog")
    second = kept.save(digit(0), "dog")
    assert not (kept.folder / first).exists()
    assert rows(kept)[1:] == [[row, "dog"] for row in (rows(kept)[1][0], second)]
    kept.save(digit(0), "dog")
    assert len(rows(kept)) == 3


@pytest.mark.parametrize("kind", [*FORMATS, "MPO"])
def test_a_picture_of_any_format_is_found_in_its_class_folder(kept, digit, kind):
    """MPO is how phones save a JPEG with a second picture, such as a depth map."""
    options = {"save_all": True, "append_images": [Image.new("RGB", (8, 8))]}
    path = kept.save(digit(0, kind, **(options if kind == "MPO" else {})), "cat")
    assert list(scan_folder(kept.folder / "corrections").paths) == [str(kept.folder / path)]
    if kind in ("JPEG", "MPO"):
        assert path.endswith(".jpg")


def test_an_edited_table_removes_nothing_elsewhere(kept, digit, tmp_path):
    path = kept.save(digit(0), "cat")
    elsewhere = tmp_path / path.rpartition("/")[2]
    elsewhere.write_text("mine")
    kept.csv.write_text(f"path,label\n{elsewhere.name},cat\n")
    kept.save(digit(0), "dog")
    assert elsewhere.read_text() == "mine"


def test_what_is_refused(kept, digit, monkeypatch):
    refused("unknown class 'cta', did you mean 'cat'?", kept.save, digit(0), "cta")
    refused("not an image", kept.save, b"text", "cat")
    kept.save(digit(0), "cat")
    monkeypatch.setattr(module, "MOST", 1)
    fails(SLAError, "limit of 1 corrections", kept.save, digit(1), "cat")
    kept.save(digit(0), "dog")
    kept.csv.write_text("file;class\n")
    fails(SLAError, "its columns must be path and label", kept.save, digit(1), "cat")


def test_a_folder_that_cannot_be_written(kept, digit):
    (kept.folder / "corrections").write_text("in the way")
    fails(SLAError, "a correction cannot be written", kept.save, digit(0), "cat")


def test_over_http(client, run, digit, junk):
    response = client.post(
        "/api/corrections", data={"label": "3"}, files={"picture": ("../../x.exe", digit(0))}
    )
    path = response.json()["path"]
    assert (response.json()["label"], response.json()["note"]) == ("3", "")
    assert path.startswith("corrections/3/")
    assert (run.folder / path).read_bytes() == digit(0)
    for files, data, said in (
        ({"picture": ("a.png", digit(0))}, {}, "a field `label`"),
        ({"picture": ("a.png", digit(0))}, {"label": "11"}, "unknown class '11'"),
        ({"picture": ("a.png", junk["truncated.jpg"][0])}, {"label": "3"}, "a damaged image"),
    ):
        refusal = client.post("/api/corrections", data=data, files=files)
        assert refusal.status_code == 400
        assert said in refusal.json()["error"]
    elsewhere = {"origin": "https://evil.example"}
    refusal = client.post("/api/corrections", data={"label": "3"}, files={"a": digit(1)}, headers=elsewhere)
    assert refusal.status_code == 403
    assert len(rows(client.app.state.service.corrections)) == 2
