"""Files of tensors: models, states, scores, weights; headers that lie, descriptions of other things."""

import contextlib
import json
import struct
from functools import cache
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from torch import Tensor

import sla
from fuzzing.guard import Reader, work_folder
from fuzzing.mutate import EXTREMES, TRAP, json_text, mutate_bytes, mutate_tree
from sla.augment.preprocessing import Preprocessing
from sla.errors import InputError
from sla.factory import create
from sla.model_file import _digest, read_model_file, write_model_file
from sla.runs.checkpoint import (
    Position,
    optimizer_tensors,
    read_position,
    read_state,
    restore_optimizer,
)
from sla.runs.deadline import parse_record
from sla.runs.images_record import ImagesRecord, read_record, write_record
from sla.runs.preprocessing import read_preprocessing
from sla.runs.scores import Scores, read_scores, write_scores
from sla.runs.weights import find_origin, load_backbone
from sla.tasks.classifier.unlike import UnlikeRule, read_unlike, write_unlike

DTYPES = (
    "F32",
    "F16",
    "BF16",
    "F64",
    "I64",
    "I32",
    "I8",
    "U8",
    "U16",
    "U64",
    "BOOL",
    "C64",
    "F8_E4M3",
    "F4",
    "x",
)


def parts_of(data: bytes) -> tuple[dict[str, Any], bytes]:
    """The header and the tensors' bytes of a safetensors file."""
    size = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + size]), data[8 + size :]


def joined(header: Any, body: bytes) -> bytes:
    text = (header if isinstance(header, str) else json.dumps(header)).encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(text)) + text + body


def lying_header(rng: Random, data: bytes) -> bytes:
    """The header with other types, shapes, places or names; or with a length that is not its own."""
    header, body = parts_of(data)
    names = [name for name in header if name != "__metadata__"]
    kind = rng.randrange(6)
    if kind == 0 or not names:
        return struct.pack("<Q", rng.choice(EXTREMES)) + data[8:]
    tensor = header[rng.choice(names)]
    if kind == 1:
        tensor["dtype"] = rng.choice(DTYPES)
    elif kind == 2:
        tensor["shape"] = rng.choice(
            ([], [0], [1 << 40], [1 << 62, 4], [-1], [2, 2, 2], tensor["shape"][::-1], [1] * 99)
        )
    elif kind == 3:
        tensor["data_offsets"] = [
            rng.choice((0, 1, len(body), len(body) + 1, 1 << 63)),
            rng.choice((0, 4, len(body))),
        ]
    elif kind == 4:
        return joined(json_text(rng, mutate_tree(rng, header)), body)
    else:
        return mutate_bytes(rng, data, ())
    return joined(header, body)


def described_anew(
    rng: Random, data: bytes, key: str, values: tuple[Any, ...] = (), checksum: bool = False
) -> bytes:
    """Another description of the same tensors; where it has a checksum, one that is right."""
    header, body = parts_of(data)
    tree = mutate_tree(rng, json.loads(header["__metadata__"][key]), values)
    if checksum and isinstance(tree, dict) and rng.random() < 0.9:
        tree["checksum"] = _digest_of(header, body)
    header["__metadata__"][key] = json_text(rng, tree)
    return joined(header, body)


def _digest_of(header: dict[str, Any], body: bytes) -> str:
    from safetensors.torch import load

    try:
        return _digest(load(joined(header, body)))
    except Exception:  # the reader finds out too
        return ""


@cache
def model_seeds() -> tuple[bytes, ...]:
    torch.manual_seed(0)
    seen = Preprocessing("crop(1)", 8, 8, (0.5,), (0.2,)).to_dict()
    with work_folder() as folder:
        path = folder / "a.safetensors"
        found = []
        for method in (sla.Baseline(), sla.SLA(sla.parse_views("rot2"))):
            model = create("convnet4", 3, method, width=2, in_channels=1)
            model.class_names = ["a", "b", "c"]
            sla.save(model, path, preprocessing=seen)
            found.append(path.read_bytes())
        return tuple(found)


def make_model(rng: Random) -> bytes:
    """Mostly another header; the description is changed by the next reader."""
    data = rng.choice(model_seeds())
    return lying_header(rng, data) if rng.random() < 0.7 else mutate_bytes(rng, data, model_seeds())


def open_model(_: Path):
    def read(path: Path) -> None:
        described, tensors = read_model_file(path, "a model")
        assert isinstance(described, dict)
        assert all(isinstance(value, Tensor) for value in tensors.values())

    return read


def make_description(rng: Random) -> bytes:
    values = (
        "convnet4",
        "resnet9_9999",
        "resnet8",
        "pyramidnet999_999",
        "wrn999_99",
        "resnet20",
        f"{TRAP}:Name",
        "sla",
    )
    values += (
        "timm:nothing",
        "rot4*rgb6",
        f"{TRAP}:Name*rot4",
        "rot(0,90)",
        {"name": "sla+sd", "views": "rot4"},
        3,
        1000,
    )
    values += (
        {"width": 4096},
        {"width": 10**9},
        {"width": 2, "in_channels": 10**6},
        {"pretrained": True},
        2**20,
    )
    return described_anew(rng, rng.choice(model_seeds()), "sla", values)


def open_description(_: Path):
    with contextlib.suppress(InputError):
        create("timm:resnet18", 3)  # timm imports a part of itself when it first builds a model

    def read(path: Path) -> None:
        model = sla.load(path)
        assert model.num_classes == 3
        read_preprocessing(model.about)
        find_origin(str(path))

    return read


@cache
def state_seed() -> bytes:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    model(torch.zeros(1, 2)).sum().backward()
    optimizer.step()
    position = {**Position(step=4, images=9, pace="1:2", row={"loss": 0.5}).__dict__}
    with work_folder() as folder:
        write_model_file(folder / "a", optimizer_tensors(optimizer), position, "position")
        return (folder / "a").read_bytes()


def make_state(rng: Random) -> bytes:
    if rng.random() < 0.6:
        return described_anew(rng, state_seed(), "position", ("1:2 3:4", {"loss": 1}, 4))
    return lying_header(rng, state_seed())


def open_state(folder: Path):
    checkpoint = folder / "last-00000004"
    checkpoint.mkdir()

    def read(path: Path) -> None:
        path.rename(checkpoint / "state.safetensors")
        position, tensors = read_state(checkpoint)
        assert position == read_position(checkpoint)
        assert position.step == 4
        parse_record(position.pace)
        optimizer = torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), 0.1, momentum=0.9)
        try:
            restore_optimizer(optimizer, tensors)
        except (ValueError, RuntimeError, KeyError, IndexError):  # as those who resume a run report it
            raise InputError("not the state of this run") from None

    return read


@cache
def table_seeds() -> dict[str, tuple[bytes, str]]:
    """Scores in both forms, the record of a run's images, the rule for unlike pictures: content and key."""
    keys = np.arange(3, dtype=np.uint64)
    with work_folder() as folder:
        write_scores(folder / "s", Scores({"single": torch.zeros(3, 2)}, keys))
        top = {
            "keys": torch.arange(3),
            "top.single": torch.ones(3, 2),
            "classes.single": torch.zeros(3, 2).int(),
        }
        top |= {"rest.single": torch.zeros(3), "count": torch.tensor(5)}
        top["classes.single"][:, 1] = 1
        write_model_file(folder / "t", top, {"weights": ""}, "scores", checksum=True)
        targets = {"train": np.array([0, 1, 1])}
        write_record(folder, ImagesRecord("file", {"train": keys}, targets, {"train": ("a", "b")}))
        write_unlike(folder, UnlikeRule(torch.ones(2, 3), 0.5, 0.02, 30))
        return {
            "scores": ((folder / "s").read_bytes(), "scores"),
            "top scores": ((folder / "t").read_bytes(), "scores"),
            "images": ((folder / "images.safetensors").read_bytes(), "images"),
            "unlike": ((folder / "unlike.safetensors").read_bytes(), "unlike"),
        }


def make_table(rng: Random) -> bytes:
    which = rng.randrange(4)
    data, key = list(table_seeds().values())[which]
    kind = rng.random()
    if kind < 0.4:
        data = described_anew(rng, data, key, ({"train": []}, {"train": "ab"}, {"test": ["a"]}, "file"), True)
    elif kind < 0.8:
        data = _other_tensors(rng, data, key)
    else:
        data = lying_header(rng, data)
    return bytes([which]) + data


def _other_tensors(rng: Random, data: bytes, key: str) -> bytes:
    """Tensors of other types and shapes under the same names, with a right checksum."""
    from safetensors.torch import load, save

    header, _ = parts_of(data)
    tensors = load(data)
    kinds = (torch.bfloat16, torch.float16, torch.int64, torch.int8, torch.bool, torch.float64, torch.uint8)
    shapes = ((), (0,), (3,), (3, 2), (2, 3), (1, 3), (3, 0), (3, 1, 2))
    for name in rng.sample(sorted(tensors), rng.randrange(1, len(tensors) + 1)):
        if rng.random() < 0.15:
            del tensors[name]
        elif name == "count" and rng.random() < 0.8:
            tensors[name] = torch.tensor(rng.choice((0, 1, 2, -1, 2**31, 2**40, 2**62)))
        else:
            tensors[name] = torch.full(rng.choice(shapes), rng.choice((0, 1, 5, -1))).to(rng.choice(kinds))
    about = json.loads(header["__metadata__"][key])
    try:
        about["checksum"] = _digest(tensors)
    except Exception:  # a type that numpy does not have: the reader finds out too
        about["checksum"] = "x"
    return save(tensors, {key: json.dumps(about)})


def open_table(folder: Path):
    def read(path: Path) -> None:
        data = path.read_bytes()
        name = list(table_seeds())[data[0]]
        file = {"images": "images.safetensors", "unlike": "unlike.safetensors"}.get(
            name, "scores-val.safetensors"
        )
        (folder / file).write_bytes(data[1:])
        if name == "images":
            record = read_record(folder)
            assert record is not None
            record.trained_on(np.arange(3, dtype=np.uint64))
            list(record._labels("train"))
        elif name == "unlike":
            rule = read_unlike(folder)
            assert rule is None or rule.means.ndim == 2
        else:
            scores = read_scores(folder / file)
            assert scores is None or all(len(logits) == len(scores.keys) for logits in scores.logits.values())
            if scores is not None:
                scores.of(np.arange(3, dtype=np.uint64))

    return read


@cache
def weight_seeds() -> tuple[bytes, ...]:
    """Bare weights, as torch saves them in its old and its new form."""
    import io

    found = []
    for options in ({}, {"_use_new_zipfile_serialization": False}):
        file = io.BytesIO()
        torch.save({"state_dict": torch.nn.Linear(2, 2).state_dict()}, file, **options)
        found.append(file.getvalue())
    return tuple(found)


def make_weights(rng: Random) -> bytes:
    return mutate_bytes(rng, rng.choice(weight_seeds()), weight_seeds())


def open_weights(_: Path):
    with contextlib.suppress(ImportError):
        for name in ("torch.nested._internal.ops", "torch._subclasses.schema_check_mode"):
            import_module(name)  # torch imports them when a file first has a nested tensor
    backbone = torch.nn.Linear(2, 2)
    return lambda path: load_backbone(backbone, str(path))


READERS = [
    Reader("model file", make_model, open_model, "a.safetensors"),
    Reader("model's description", make_description, open_description, "a.safetensors"),
    Reader("checkpoint's state", make_state, open_state),
    Reader("scores, images, unlike", make_table, open_table),
    Reader("weights of torch", make_weights, open_weights, "a.pt", claims=True),
]
