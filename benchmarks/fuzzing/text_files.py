"""Text that people write or download: label lists, CSV, YAML, JSON; by line, by word and by tree."""

import csv
import io
import json
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import yaml
from PIL import Image

from fuzzing.guard import Reader
from fuzzing.mutate import TRAP, WORDS, encoded, json_text, mutate_bytes, mutate_text, mutate_tree
from fuzzing.pictures import _png
from sla.augment.policy import make_policy, read_policy
from sla.datasets.catalogue import read_catalogue
from sla.datasets.formats import cifar, lists, wordnet
from sla.datasets.scan import read_csv
from sla.errors import InputError
from sla.reproduce.plan import read_plan
from sla.reproduce.records import Record, add_records, read_records
from sla.runs.config import read_config, write_config
from sla.serve.corrections import Corrections
from sla.tasks.registry import make_config
from sla.trees import parse_json, parse_yaml

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


YAML_SEEDS = (
    "a: 1\nb: [x, 2.5, {c: null}]\nd: |\n  text\n",
    "- &one {a: 1, b: 2}\n- <<: *one\n  c: 3\n- [*one, *one]\n",
    "? [a, b]\n: !!set {x, y}\nd: 2020-01-02\ne: 0x1F\n",
    "run:\n  seed: 3\n  iterations: 10\nmethod: {name: sla, views: rot4}\n",
)
TAGS = (
    "!!int",
    "!!float",
    "!!bool",
    "!!timestamp",
    "!!binary",
    "!!set",
    "!!omap",
    "!!pairs",
    "!!null",
    "!!map",
    "!!seq",
)
TAGS += (
    "!!str",
    "!!merge",
    "!!value",
    "!!python/object/apply:os.system",
    f"!!python/name:{TRAP}.Name",
    "!own",
)
TOKENS = (
    *TAGS,
    "&a ",
    "*a",
    "*one",
    "<<: ",
    "? ",
    ": ",
    "- ",
    "\n",
    "  ",
    "[",
    "]",
    "{",
    "}",
    "'",
    '"',
    "|",
    ">",
    "---\n",
)
TOKENS += (
    "...\n",
    "%YAML 9.9\n",
    "#",
    "2020-13-45",
    "2020-01-01T25:61:61Z",
    "1:99:99",
    ".inf",
    ".nan",
    "0b2",
    "0o9",
    "~",
)


def make_yaml(rng: Random) -> bytes:
    kind = rng.random()
    if kind < 0.15:
        return _laughs(rng).encode()
    if kind < 0.3:
        words = (
            *TAGS,
            "a",
            "1",
            "''",
            "[]",
            "{}",
            "{a: 1}",
            "[1]",
            "&x",
            "*x",
            "? a",
            ": b",
            "\n",
            "- ",
            " ",
        )
        return encoded(rng, " ".join(rng.choice(words) for _ in range(rng.randrange(1, 15))))
    return encoded(rng, mutate_text(rng, rng.choice(YAML_SEEDS), TOKENS))


def _laughs(rng: Random) -> str:
    """Anchors that repeat each other, wide or deep, in lists, keys or merges, the last one first."""
    count, width = rng.choice(((4, 3), (9, 9), (30, 2), (60, 1), (110, 1), (200, 1)))
    form = rng.choice(("[{}]", "{{<<: [{}]}}", "{{k: [{}]}}", "{{? [{}] : 1}}", "!!set {{{}}}"))
    lines = ["- - - &a0 {x: 1}"]
    lines += [f"    - &a{i} " + form.format(", ".join([f"*a{i - 1}"] * width)) for i in range(1, count)]
    last = rng.choice((f"- *a{count - 1}", f"- {{<<: *a{count - 1}}}", f"- ? *a{count - 1}\n  : 1"))
    return "\n".join([*lines, last])


def open_yaml(_: Path):
    def read(path: Path) -> None:
        try:
            tree = parse_yaml(path.read_text(encoding="utf-8"))
        except ValueError as error:  # as those who call it report it
            raise InputError(f"{path}: {error}") from None
        repr(tree)  # what an error message does with it

    return read


def make_json(rng: Random) -> bytes:
    tree = {"a": [1, 2.5, "x", None, True], "b": {"c": {"d": []}}}
    return encoded(rng, json_text(rng, mutate_tree(rng, tree)))


def open_json(_: Path):
    def read(path: Path) -> None:
        try:
            tree = parse_json(path.read_bytes())
        except ValueError as error:
            raise InputError(f"{path}: {error}") from None
        repr(tree)
        json.dumps(tree)

    return read


POLICY = [[["Rotate", 0.5, 0.3], ["Invert", 1, 0]], [["Color", 0.1, 0.9]]]


def make_policy_file(rng: Random) -> bytes:
    tree: Any = POLICY if rng.random() < 0.5 else {"scale": 10, "sub_policies": POLICY, "name": "x"}
    return encoded(
        rng, json_text(rng, mutate_tree(rng, tree, ("Rotate", "Posterize", "Cutout", [["Rotate", 1, 1]])))
    )


def open_policy(_: Path):
    def read(path: Path) -> None:
        policy = make_policy(read_policy(path), str(path))
        assert np.isfinite(policy._table).all()
        assert policy.plain()

    return read


@cache
def config_trees() -> list[dict[str, Any]]:
    """Full configurations of every task, as runs keep them."""
    data = {"source": "digits"}
    trees = [{"data": data}, {"task": "fewshot", "data": data}, {"task": "simclr", "data": data}]
    return [yaml.safe_load(write_config(make_config(tree))) | tree for tree in trees]


SHORT = 400  # characters: YAML is read slowly


def make_config_file(rng: Random) -> bytes:
    """A few branches, each with a few of its keys: reading a whole one takes ten times as long."""
    tree = rng.choice(config_trees())
    part: dict[str, Any] = {key: tree[key] for key in ("task", "data") if key in tree}
    for key in rng.sample(list(tree), 2):
        value = tree[key]
        part[key] = (
            {name: value[name] for name in rng.sample(list(value), min(3, len(value)))}
            if isinstance(value, dict)
            else value
        )
    tree = mutate_tree(
        rng, part, ("crop(4), flip", "mixup(0.2)", f"{TRAP}:Name", [0.5, 0.5], "cosine", {"width": 8})
    )
    try:
        text = yaml.safe_dump(tree) if rng.random() < 0.5 else json.dumps(tree)
    except (RecursionError, ValueError, yaml.YAMLError):
        text = "run: {seed: 0x" + "f" * 5000 + "}"
    return encoded(rng, (mutate_text(rng, text, TOKENS) if rng.random() < 0.3 else text)[:SHORT])


def open_config(_: Path):
    def read(path: Path) -> None:
        assert make_config(read_config(path), str(path)).model_dump(mode="json")

    return read


WEB = {
    "title": "site",
    "base": "https://example.org/",
    "files": [{"url": "a.zip", "checksum": "md5:" + "0" * 32, "bytes": 9}],
}
ENTRY: dict[str, Any] = {
    "title": "Birds",
    "num_classes": 2,
    "splits": {"train": 4, "test": 2},
    "shape": [3, 8, 8],
}
CATALOGUE = [
    {"birds": {**ENTRY, "routes": [WEB]}},
    {"birds": {**ENTRY, "mean": [0.5, 0.5, 0.5], "std": [0.2, 0.2, 0.2], "folders": ["b"]}},
    {
        "birds": {
            **ENTRY,
            "class_folders": {"splits": {"train": "train"}},
            "few_shot": True,
            "installed": ["x"],
        }
    },
]


def make_catalogue(rng: Random) -> bytes:
    return _yaml_bytes(
        rng, mutate_tree(rng, rng.choice(CATALOGUE), ("birds", {"train": 3}, [{"title": "x"}]))
    )


def _yaml_bytes(rng: Random, tree: Any) -> bytes:
    try:
        text = json.dumps(tree)
    except (RecursionError, ValueError):
        text = "[" * 200
    return encoded(rng, (mutate_text(rng, text, TOKENS) if rng.random() < 0.2 else text)[:SHORT])


def make_plan(rng: Random) -> bytes:
    tree = [
        {"experiment": "table1", "columns": ["cifar10"], "rows": [], "seeds": 3, "budget": "a"},
        {"experiment": "x"},
    ]
    return _yaml_bytes(rng, mutate_tree(rng, tree))


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
    Reader("CIFAR, sheets", make_sheet, open_sheet),
    Reader("YAML", make_yaml, open_yaml),
    Reader("JSON", make_json, open_json),
    Reader("policy", make_policy_file, open_policy, "p.json"),
    Reader("configuration", make_config_file, open_config, "config.yaml"),
    Reader("catalogue", make_catalogue, lambda _: read_catalogue, "catalogue.yaml"),
    Reader("plan of runs", make_plan, lambda _: read_plan, "plan.yaml"),
    Reader("runs.csv", make_records, lambda _: read_records, "runs.csv"),
    Reader("corrections.csv", make_corrections, open_corrections),
]
