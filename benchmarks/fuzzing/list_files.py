"""Tables and lists in text: labels, lists of files, results of runs, corrections; by line and by cell."""

import csv
import io
import json
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from PIL import Image

from fuzzing.guard import Reader
from fuzzing.mutate import WORDS, encoded, json_text, mutate_bytes, mutate_text, mutate_tree
from fuzzing.pictures import _png
from sla.datasets.formats import cifar, lists, wordnet
from sla.datasets.scan import read_csv
from sla.reproduce.records import Record, add_records, read_records
from sla.serve.corrections import Corrections

CELLS = (
    ",",
    ";",
    "\t",
    '"',
    '""',
    "\r\n",
    "\n",
    "path",
    "label",
    "split",
    "train",
    "test",
    "=1",
    "'=1",
    "\0",
)


def make_csv(rng: Random) -> bytes:
    rows = [
        ["path", "label", "split"],
        ["a.png", "cat", "train"],
        ["d/b.png", "dog", "train"],
        ["c.png", "cat", "test"],
    ]
    rows = [row[: rng.choice((2, 3, 3))] for row in rows] if rng.random() < 0.1 else rows
    file = io.StringIO()
    csv.writer(file, delimiter=rng.choice(",,;\t"), lineterminator=rng.choice(("\n", "\r\n"))).writerows(rows)
    return encoded(rng, mutate_text(rng, file.getvalue(), CELLS))


def open_csv(folder: Path):
    (folder / "d").mkdir()
    for name in ("a.png", "d/b.png", "c.png"):
        (folder / name).touch()

    def read(path: Path) -> None:
        index = read_csv(path)
        assert len(index.paths) == len(index.targets) == len(index.splits) > 0
        assert index.targets.max() < len(index.classes)

    return read


@cache
def list_seeds() -> list[tuple[str, str]]:
    """(file, content) of datasets whose owners list files; each is read with the others as they should be."""
    names = wordnet.class_lists("mini-imagenet")["train"][:2]
    nature: dict[str, Any] = {
        "images": [{"id": 1, "file_name": "a/1.jpg"}, {"id": 2, "file_name": "b/2.jpg"}],
        "annotations": [{"image_id": 1, "category_id": 5}, {"image_id": 2, "category_id": 7}],
        "categories": [{"id": 5, "name": "x"}, {"id": 7, "name": "y"}],
    }
    return [
        ("images.txt", "1 a/1.jpg\n2 b/2.jpg\n"),
        ("image_class_labels.txt", "1 1\n2 2\n"),
        ("train_test_split.txt", "1 1\n2 0\n"),
        ("classes.txt", "1 a\n2 b\n"),
        ("TrainImages.txt", "a/1.jpg\nb/2.jpg\n"),
        ("TestImages.txt", "a/1.jpg\n"),
        ("train2018.json", json.dumps(nature)),
        ("val2018.json", json.dumps(nature)),
        ("train.csv", f"filename,label\n1.jpg,{names[0]}\n2.jpg,{names[1]}\n"),
        ("LOC_val_solution.csv", "ImageId,PredictionString\n1,n01440764 1 2 3 4\n2,n01443537 1 2 3 4\n"),
        ("note.xml", "<annotation><object><name>n01440764</name></object></annotation>"),
        ("val_annotations.txt", "1.jpg\tn01440764\t0\t0\n2.jpg\tn01443537\t0\t0\n"),
    ]


def make_list(rng: Random) -> bytes:
    which = rng.randrange(len(list_seeds()))
    name, text = list_seeds()[which]
    if name.endswith(".json") and rng.random() < 0.7:
        text = json_text(rng, mutate_tree(rng, json.loads(text)))
    else:
        text = mutate_text(rng, text, ("1 ", "/", "a/1.jpg", "../", "\t", ",", "n01440764", "0", "2", '"'))
    return bytes([which]) + encoded(rng, text)


def open_list(folder: Path):
    root = folder / "top" / "Data" / "CLS-LOC"  # as deep as ImageNet's
    notes = folder / "top" / "Annotations" / "CLS-LOC" / "val"
    for place in (root, root / "images", root / "Images", root / "val" / "images", notes):
        for name in ("a/1.jpg", "b/2.jpg", "1.jpg", "2.jpg"):
            file = place / name
            if place != notes:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.touch()
    notes.mkdir(parents=True)
    for synset in ("n01440764", "n01443537"):
        (root / "train" / synset).mkdir(parents=True)
        (root / "train" / synset / "1.JPEG").touch()
    places = {"LOC_val_solution.csv": folder / "top", "note.xml": notes, "val_annotations.txt": root / "val"}
    for name, text in list_seeds():
        if name not in places:
            (root / name).write_text(text)
    (root / "val" / "val_annotations.txt").write_text(list_seeds()[-1][1])
    classes = ["n01440764", "n01443537"]

    def read(path: Path) -> None:
        data = path.read_bytes()
        name, good = list_seeds()[data[0]]
        place = places.get(name, root) / name
        place.write_bytes(data[1:])
        try:
            _read_lists(name, root, classes)
        finally:
            place.unlink() if name in ("LOC_val_solution.csv", "note.xml") else place.write_text(good)

    return read


def _read_lists(name: str, root: Path, classes: list[str]) -> None:
    if name in ("TrainImages.txt", "TestImages.txt"):
        found = lists.read_mit67(root)
    elif name.endswith(".json"):
        found = lists.read_inaturalist(root)
    elif name == "train.csv":
        mini = wordnet.class_lists("mini-imagenet")["train"]
        found = {"train": wordnet._mini_csv(root / name, mini)}
    elif name in ("LOC_val_solution.csv", "note.xml"):
        _, pairs = wordnet._imagenet_val(root)
        found = {"test": wordnet._labelled(root, root / "val", pairs, classes)}
    elif name == "val_annotations.txt":
        found = {"test": wordnet._tiny_val(root, classes)}
    else:
        found = lists.read_cub(root)
    for part in found.values():
        assert len(part.paths) == len(part.targets)
        assert not len(part.targets) or part.targets.max() < len(part.classes)
        assert all(isinstance(label, str) for label in part.classes)


@cache
def sheet() -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.zeros((1, 1024, 3), np.uint8)).save(file, "PNG")
    return file.getvalue()


def make_sheet(rng: Random) -> bytes:
    if rng.random() < 0.5:
        return b"L" + encoded(rng, json_text(rng, mutate_tree(rng, [0, 9, 5])))
    return b"S" + (_png(rng, sheet()) if rng.random() < 0.8 else mutate_bytes(rng, sheet()))


def open_sheet(folder: Path):
    def read(path: Path) -> None:
        data = path.read_bytes()
        part = folder / ("train_lables.json" if data[:1] == b"L" else "test_batch.png")
        part.write_bytes(data[1:])
        if data[:1] == b"L":
            assert cifar._npm_labels(part).dtype == np.uint8
        else:
            assert cifar._npm_sheet(part).shape[1] == cifar.PIXELS

    return read


@cache
def record_rows() -> str:
    from fuzzing.guard import work_folder
    from sla.reproduce.jobs import content_key

    settings = {"data.source": "cifar10", "method.name": "sla"}
    more = {"error": 2.5, "curve": [{"step": 3, "train": 50.0, "test": 40.0}]}
    rows = [
        Record(
            key=content_key("train", settings, seed, []),
            kind="train",
            scale="small",
            label="SLA",
            seed=seed,
            settings=settings,
            scores={"last": {"single": 50.0}},
            more=more,
        )
        for seed in (0, 1)
    ]
    with work_folder() as folder:
        add_records(folder / "runs.csv", rows)
        return (folder / "runs.csv").read_text()


def make_records(rng: Random) -> bytes:
    text = record_rows()
    if rng.random() < 0.6:
        rows = list(csv.DictReader(text.splitlines()))
        row, column = (
            rng.choice(rows),
            rng.choice(("scores", "more", "more", "settings", "seed", "members", "versions", "seconds")),
        )
        if column in ("seed", "seconds"):
            row[column] = rng.choice(WORDS)
        else:
            row[column] = json_text(rng, mutate_tree(rng, json.loads(row[column])))
        file = io.StringIO()
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
        return encoded(rng, file.getvalue())
    return encoded(rng, mutate_text(rng, text, CELLS))


def make_corrections(rng: Random) -> bytes:
    text = "path,label\ncorrections/cat/0123456789abcdef0123.png,cat\ncorrections/dog/ab.png,'=dog\n"
    return encoded(rng, mutate_text(rng, text, (*CELLS, "corrections/", "../../")))


def open_corrections(folder: Path):
    data = sheet()

    def read(path: Path) -> None:
        run = folder / "run"
        run.mkdir(exist_ok=True)
        (run / "corrections.csv").write_bytes(path.read_bytes())
        saved = Corrections(run, ["cat", "dog"]).save(data, "cat")
        assert (run / saved).read_bytes() == data

    return read


READERS = [
    Reader("CSV of labels", make_csv, open_csv, "labels.csv"),
    Reader("lists of files", make_list, open_list),
    Reader("CIFAR, sheets", make_sheet, open_sheet, claims=True),
    Reader("runs.csv", make_records, lambda _: read_records, "runs.csv"),
    Reader("corrections.csv", make_corrections, open_corrections),
]
