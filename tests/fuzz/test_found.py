"""What fuzzing found: for every defect a small file that showed it."""

import contextlib
import gzip
import io
import json
import pickle
import struct
import tarfile
import tracemalloc

import numpy as np
import pytest
import torch

import sla
from refusals import refused
from sla.augment.preprocessing import Preprocessing
from sla.datasets.archives import unpack_into
from sla.datasets.catalogue import read_catalogue
from sla.datasets.formats import cifar, lists, wordnet
from sla.datasets.formats.idx import read_idx
from sla.datasets.unpickle import load_pickle
from sla.errors import InputError, SLAError
from sla.model_file import SizeLimit, write_model_file
from sla.reproduce.jobs import content_key
from sla.reproduce.records import read_records
from sla.runs.config import read_config
from sla.runs.deadline import read_pace
from sla.runs.images_record import ImagesRecord, read_record, write_record
from sla.runs.metrics import MetricsFile, has_row
from sla.runs.scores import read_scores
from sla.serve.corrections import Corrections
from sla.tasks.classifier.result_check import check_result
from sla.tasks.classifier.unlike import read_unlike
from sla.trees import parse_json, parse_yaml

MANY = "9" * 5000  # digits, which Python does not turn into a number


def peak(call):
    """The most memory, in bytes, that Python had allocated during a call."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("sizes", [[1] * 65, [0] + [0xFFFFFFFF] * 3], ids=["65 dimensions", "0 and huge"])
def test_an_idx_file_of_an_impossible_shape(tmp_path, sizes):
    body = bytes(1 if 0 not in sizes else 0)
    (tmp_path / "a").write_bytes(
        b"\0\0\x08" + bytes([len(sizes)]) + struct.pack(f">{len(sizes)}I", *sizes) + body
    )
    refused("not an idx file", read_idx, tmp_path / "a")


@pytest.mark.parametrize("names", [5, None, [b"\xff", 3], [10**5000] * 100, {"a": 1}])
def test_names_of_cifar_that_are_none(tmp_path, names):
    meta = {"fine_label_names": names, "coarse_label_names": ["a"] * 20}
    (tmp_path / "meta").write_bytes(pickle.dumps(meta))
    refused("meta: has no list of names", cifar.read_cifar100_python, tmp_path)


@pytest.mark.parametrize(
    "code",
    [
        b"K\1r" + struct.pack("<I", 1 << 24) + b".",  # the compiled reader makes a table of so many places
        b"\x8e" + struct.pack("<Q", 1 << 28) + b"ab.",
        b"\x96" + struct.pack("<Q", 1 << 28) + b"ab.",
        b"\x95" + struct.pack("<Q", 1 << 28) + b"K\1.",
        b"T" + struct.pack("<I", 1 << 28) + b"ab.",
    ],
    ids=["place", "bytes", "bytearray", "frame", "text"],
)
def test_a_pickle_takes_no_more_memory_than_it_has_bytes(tmp_path, code):
    (tmp_path / "a").write_bytes(b"\x80\5" + code)

    def read():
        with contextlib.suppress(InputError):
            assert load_pickle(tmp_path / "a") == 1

    assert peak(read) < 1 << 22


def test_a_pickle_keeps_no_placeholder_as_a_key(tmp_path):
    (tmp_path / "a").write_bytes(b"\x80\2}cnumpy\ndtype\nK\1s.")
    refused("it holds a partial", load_pickle, tmp_path / "a")


def test_a_damaged_pickle_is_one_printable_line(tmp_path):
    (tmp_path / "a").write_bytes(b"\x80\2C\2\0\1K\1R.")
    assert refused("damaged pickle", load_pickle, tmp_path / "a").isprintable()


@pytest.mark.parametrize("error", [IndexError("index out of range"), MemoryError()])
def test_a_sheet_of_images_that_pillow_fails_at(tmp_path, monkeypatch, error):
    def fails(*_, **__):
        raise error

    monkeypatch.setattr(cifar.Image, "open", fails)
    refused("a.png: not a sheet of images", cifar._npm_sheet, tmp_path / "a.png")


def test_a_row_of_runs_that_is_nested_deeply(tmp_path):
    deep = '{""a"":' * 980 + "1" + "}" * 980
    (tmp_path / "runs.csv").write_text(f'key,kind,scale,label,seed,settings\nx,train,small,x,0,"{deep}"\n')
    refused("row 2: a field: nested deeper than 100 levels", read_records, tmp_path / "runs.csv")


def synsets(monkeypatch, rows):
    monkeypatch.setattr(wordnet, "read_mat", lambda _: {"synsets": rows})


@pytest.mark.parametrize(
    "rows",
    [3, [3], [{"WNID": "n1"}], [{"ILSVRC2012_ID": [[]], "WNID": "n1"}], [{"ILSVRC2012_ID": 1, "WNID": []}]],
)
def test_synsets_that_are_none(tmp_path, monkeypatch, rows):
    synsets(monkeypatch, rows)
    refused("needs 'synsets' with", wordnet._wordnet_names, tmp_path / "meta.mat")


def test_lists_that_are_not_utf_8(tmp_path):
    folder = tmp_path / "top" / "Data" / "CLS-LOC"
    folder.mkdir(parents=True)
    (tmp_path / "top" / "LOC_val_solution.csv").write_bytes(b"ImageId,x\n1,\xff\n")
    refused("LOC_val_solution.csv: not a table of text", wordnet._imagenet_val, folder)
    (tmp_path / "top" / "LOC_val_solution.csv").unlink()
    notes = tmp_path / "top" / "Annotations" / "CLS-LOC" / "val"
    notes.mkdir(parents=True)
    (notes / "1.xml").write_bytes(b"\x96")
    refused("1.xml: not a text file", wordnet._imagenet_val, folder)
    (tmp_path / "train.csv").write_bytes(b"filename,label\n\xff,n01532829\n")
    refused("train.csv: not a table of text", wordnet._mini_csv, tmp_path / "train.csv", ["n01532829"])


def header(name, size, kind=tarfile.REGTYPE):
    """The header of a tar's member, with any size."""
    info = tarfile.TarInfo(name)
    info.type = kind
    head = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    head[124:136] = bytes([0x80 if size >= 0 else 0xFF]) + (size % (1 << 88)).to_bytes(11, "big")
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    return bytes(head)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (header("a", -(1 << 40)) + bytes(1024), "claims -1,099,511,627,776 bytes"),
        (header("a", 1 << 24, tarfile.GNUTYPE_LONGNAME) + bytes(1 << 24), "claims 16,777,216 bytes"),
        (header("a", 0) + bytes(1 << 23), "unpacks to more than is allowed"),  # zeros after the end
    ],
    ids=["negative", "a name of 16 MiB", "endless zeros"],
)
def test_a_tar_that_claims_or_hides_too_much(tmp_path, data, words):
    (tmp_path / "a.tgz").write_bytes(gzip.compress(data))
    (tmp_path / "out").mkdir()
    refused(words, unpack_into, tmp_path / "a.tgz", tmp_path / "out", max_bytes=1 << 20, max_files=100)


def test_a_sparse_member_is_refused(tmp_path):
    info = tarfile.TarInfo("a")
    info.pax_headers = {"GNU.sparse.map": f"{1 << 60},1", "GNU.sparse.size": "4", "GNU.sparse.name": "a"}
    info.size = 1
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.PAX_FORMAT) as file:
        file.addfile(info, io.BytesIO(b"x"))
    (tmp_path / "out").mkdir()
    refused("'a' is a sparse file", unpack_into, tmp_path / "a.tar", tmp_path / "out")


def chain(count):
    """Anchors that hold each other, the last one merged before the others are reached."""
    lines = ["- - - &a0 {x: 1}", *(f"    - &a{i} {{<<: *a{i - 1}}}" for i in range(1, count))]
    return "\n".join([*lines, f"- {{<<: *a{count - 1}}}"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (chain(1300), "nested deeper than 100 levels"),
        ("a: 0x" + "f" * 5000, "more than 400 digits in line 1"),
        *((f"!!{tag} {value}", "not what its tag says") for tag, value in (("int", '""'), ("bool", "x"))),
        *(
            (f"!!{tag} {value}", "not what its tag says")
            for tag, value in (("timestamp", "x"), ("float", '""'))
        ),
        ("!!map a", "expected a mapping node"),
    ],
)
def test_yaml_that_broke_its_reader(tmp_path, text, words):
    with pytest.raises(ValueError, match=words):
        parse_yaml(text)
    (tmp_path / "config.yaml").write_text(text)
    refused(words, read_config, tmp_path / "config.yaml")


def test_json_that_python_reads_but_does_not_write():
    deep = 940
    with pytest.raises(ValueError, match="nested deeper than 100 levels"):
        parse_json("[" * deep + "]" * deep)
    assert parse_json("[" * 100 + "]" * 100)


def test_text_that_cannot_be_written():
    assert parse_json(r'"\ud83d\ude00"') == "\U0001f600"
    for text in (r'["\ud800"]', r'{"\udfff": 1}', b'"\xed\xa0\x80"'):
        with pytest.raises(UnicodeError):
            parse_json(text)
    with pytest.raises(ValueError, match="half a character in line 1"):
        parse_yaml(r'a: "\ud800"')


def test_a_list_of_files_with_a_nul(tmp_path):
    (tmp_path / "Images").mkdir()
    (tmp_path / "TrainImages.txt").write_bytes(b"a\0/1.jpg\n")
    refused("but there is no such file", lists.read_mit67, tmp_path)


def test_a_format_of_unprintable_text(tmp_path):
    described = {"format": "\u2028" * 99, "backbone": "convnet4"}
    write_model_file(tmp_path / "m", {"w": torch.zeros(1)}, described)
    assert len(refused("written in format", sla.load, tmp_path / "m")) < 200 + len(str(tmp_path))


def test_a_catalogue_with_an_unprintable_field(tmp_path):
    fields = {"title": "x", "num_classes": 2, "splits": {"train": 1}, "shape": [3, 8, 8]}
    (tmp_path / "c.yaml").write_text(json.dumps({"a": fields}))
    assert read_catalogue(tmp_path / "c.yaml")[0].title == "x"
    (tmp_path / "c.yaml").write_text(json.dumps({"a": {**fields, "\u2028": 1}}))
    assert refused(r"c.yaml: a: \\u2028: ", read_catalogue, tmp_path / "c.yaml").isprintable()
    (tmp_path / "c.yaml").write_text(json.dumps({"a": {**fields, "splits": {"train": 1, "\n": 2}}}))
    assert refused("c.yaml: a: ", read_catalogue, tmp_path / "c.yaml").isprintable()


def test_steps_of_thousands_of_digits(tmp_path):
    (tmp_path / "metrics.csv").write_text(f"step,loss\n1,2.5\n{MANY},1\n")
    file = MetricsFile(tmp_path / "metrics.csv", ["loss"])
    assert not has_row(file.path, 7)
    file.start(5)
    assert [row["step"] for row in file.read()] == ["1"]
    (tmp_path / "pace.csv").write_text(f"taken,step\n1,2\n3,{MANY}\n")
    assert read_pace(tmp_path / "pace.csv") == {1: 2}


KEYS = torch.arange(3)


@pytest.mark.parametrize(
    "tensors",
    [
        {"keys": KEYS, "logits.single": torch.zeros(3, 2, dtype=torch.bool)},
        {"keys": KEYS.to(torch.int8), "logits.single": torch.zeros(3, 2)},
        {"keys": KEYS.reshape(1, 3), "logits.single": torch.zeros(1, 2)},
        {"keys": torch.tensor(1), "logits.single": torch.zeros(3, 2)},
        {
            "keys": KEYS,
            "top.single": torch.ones(3, 1),
            "classes.single": torch.zeros(3, 1).int(),
            "rest.single": torch.zeros(3),
            "count": torch.tensor(1 << 40),
        },
    ],
    ids=["bool", "int8 keys", "keys of rows", "one key", "2**40 classes"],
)
def test_scores_of_other_tensors_are_none(tmp_path, tensors):
    write_model_file(tmp_path / "s", tensors, {"weights": ""}, "scores", checksum=True)
    assert read_scores(tmp_path / "s") is None


def test_scores_in_bfloat16_are_read(tmp_path):
    held = {"keys": KEYS, "logits.single": torch.ones(3, 2, dtype=torch.bfloat16)}
    write_model_file(tmp_path / "s", held, {"weights": ""}, "scores", checksum=True)
    found = read_scores(tmp_path / "s")
    assert found is not None
    assert found.logits["single"].tolist() == [[1.0, 1.0]] * 3


@pytest.mark.parametrize(
    ("classes", "targets"),
    [
        ({"train": ("a", "b")}, [0, 2, 1]),
        ({"train": ("a", "b")}, [0, -1, 1]),
        ({"train": ("a", "b")}, [0, 1]),
        ({"train": (1, 2)}, [0, 1, 1]),
        (["train"], [0, 1, 1]),
        ({}, [0, 1, 1]),
    ],
)
def test_a_record_of_images_with_other_classes(tmp_path, classes, targets):
    keys = np.arange(3, dtype=np.uint64)
    write_record(tmp_path, ImagesRecord("file", {"train": keys}, {"train": np.array(targets)}, classes))
    refused("images.safetensors: damaged", read_record, tmp_path)


def test_a_rule_for_unlike_pictures_of_no_matrix(tmp_path):
    about = {"threshold": 0.5, "rate": 0.1, "images": 20, "weights": ""}
    write_model_file(
        tmp_path / "unlike.safetensors", {"means": torch.zeros(3)}, about, "unlike", checksum=True
    )
    assert read_unlike(tmp_path) is None


@pytest.mark.parametrize(
    "more",
    [{"curve": [{"step": 1, "train": "x", "test": 1}]}, {"curve": [{"step": 1, "train": [], "test": 1}]}],
)
def test_a_row_of_runs_with_a_curve_of_text(tmp_path, more):
    key = content_key("train", {}, 0, [])
    cells = (f'"{json.dumps(more)}"'.replace('"', '""')[1:-1],)
    row = f"{key},train,small,x,0,{{}},{cells[0]}\n"
    (tmp_path / "runs.csv").write_text("key,kind,scale,label,seed,settings,more\n" + row)
    refused("row 2: train at 1 is .*, not a percentage", read_records, tmp_path / "runs.csv")


def test_corrections_that_are_not_utf_8(tmp_path):
    from PIL import Image

    (tmp_path / "corrections.csv").write_bytes(b"path,label\n\xc4,cat\n")
    picture = io.BytesIO()
    Image.new("RGB", (2, 2)).save(picture, "PNG")
    with pytest.raises(SLAError, match=r"corrections\.csv: its columns must be"):
        Corrections(tmp_path, ["cat"]).save(picture.getvalue(), "cat")


WHOLE = {
    "headline": "single",
    "accuracies": {"last": {"step": 3, "val": {"single": {"top1": 50.0, "ece": 2.0}}}},
    "images": {"val": 10},
    "chosen": {"checkpoint": "last", "inference": "single"},
    "anytime": {"last": []},
}


@pytest.mark.parametrize(
    "change",
    [
        {"headline": None},
        {"images": {}},
        {"images": {"val": "10"}},
        {"chosen": {"checkpoint": "last"}},
        {"anytime": {"last": 3}},
        {"accuracies": {"last": {"val": {"single": {"top1": "x", "ece": 2.0}}}}},
        {"accuracies": {"last": {"val": {"single": {"top1": 50.0}}}}},
        {"view_accuracy": {}},
    ],
)
def test_a_result_that_cannot_be_shown(tmp_path, change):
    check_result(WHOLE, tmp_path)
    check_result({}, tmp_path)
    refused("result.json: damaged", check_result, {**WHOLE, **change}, tmp_path)


@pytest.mark.parametrize("options", [{"width": 4096}, {"width": 2, "in_channels": 10**9}])
def test_a_model_file_cannot_describe_a_larger_network_than_it_holds(tmp_path, options):
    model = sla.create("convnet4", 3, sla.Baseline(), width=2)
    assert sla.load(saved(model, tmp_path / "good.safetensors")).num_classes == 3
    model.spec = {"backbone": "convnet4", "options": options}
    refused("describes a larger network", sla.load, saved(model, tmp_path / "large.safetensors"))


def saved(model, path):
    sla.save(model, path)
    return path


def test_the_limit_of_sizes_counts_every_way_to_give_one():
    for make in (
        lambda n: torch.empty(n, n),
        lambda n: torch.zeros((n, n)),
        lambda n: torch.ones(size=(n, n)),
    ):
        with SizeLimit({"w": torch.zeros(4)}):
            assert make(8).numel() == 64
            refused("describes a larger network", make, 1 << 12)


def test_a_preprocessing_with_numbers_that_no_float_has():
    good = Preprocessing("none", 8, 8, (0.5,), (0.2,)).to_dict()
    for change in ({"mean": [10**4000]}, {"std": [10**4000]}, {"resolution": 10**6}, {"stored_size": 10**30}):
        refused("preprocessing: ", Preprocessing.from_dict, {**good, **change})
