"""Files of arrays: CIFAR's batches, idx, MATLAB's; their structure changed, not only their bytes."""

import contextlib
import gzip
import io
import json
import pickle
import struct
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from fuzzing.guard import Reader
from fuzzing.mutate import EXTREMES, mutate_bytes
from sla.datasets.formats import cifar, lists, mat, wordnet
from sla.datasets.formats.idx import read_idx, read_mnist
from sla.errors import InputError


@cache
def batches() -> list[dict[str, Any]]:
    pixels, names = np.arange(2 * cifar.PIXELS).reshape(2, -1).astype(np.uint8), [f"f{i}" for i in range(100)]
    return [
        {"data": pixels, "labels": [1, 9]},
        {"data": pixels, "fine_labels": [1, 99], "coarse_labels": [0, 19]},
        {"fine_label_names": names, "coarse_label_names": names[:20]},
    ]


def make_batch(rng: Random) -> bytes:
    """A batch, or the names, of CIFAR's python files with another value somewhere."""
    which = rng.randrange(3)
    held = dict(batches()[which])
    values = [0, -1, 1.5, None, "ab", b"\xff", [], [0], [0, 0, 0], [[0, 1]], {}, (1, 2), 10**30, [10**30, 1]]
    values += [
        ["1", "2"],
        [b"1", b"x"],
        [None, 1],
        np.zeros((2, 3072)),
        np.zeros(2, np.uint8),
        [float("nan")] * 2,
    ]
    values += [
        np.zeros((0, 3072), np.uint8),
        np.array(["a", "b"]),
        [True, False],
        [b"\xff"] * 100,
        [10**5000] * 20,
    ]
    values += [
        np.zeros((1, 2, 1536), np.uint8),
        [[]] * 20,
        list(range(100)),
        {"a": 1},
        np.uint8(3),
        "x" * 100,
    ]
    if rng.random() < 0.8:
        key = rng.choice([*held, "data", "other"])
        if rng.random() < 0.2:
            held.pop(key, None)
        else:
            held[key] = rng.choice(values)
    data = pickle.dumps(held, rng.choice((2, 4)))
    return bytes([which]) + (mutate_bytes(rng, data) if rng.random() < 0.3 else data)


def open_batches(folder: Path):
    good = [pickle.dumps(batch, 2) for batch in batches()]
    root = folder / "cifar-100-python"
    root.mkdir()

    def read(path: Path) -> None:
        data = path.read_bytes()
        which, body = data[0], data[1:]
        if which == 0:
            (folder / "data_batch_1").write_bytes(body)
            check_arrays(cifar.read_python([folder / "data_batch_1"], cifar.CLASSES_10))
            return
        (root / "train").write_bytes(good[1])
        (root / "test").write_bytes(body if which == 1 else good[1])
        (root / "meta").write_bytes(body if which == 2 else good[2])
        for part in cifar.read_cifar100_python(root).values():
            check_arrays(part)

    return read


def check_arrays(found: Any) -> None:
    assert found.pixels.dtype == np.uint8
    assert found.pixels.ndim == 4
    assert len(found.pixels) == len(found.targets)
    assert all(isinstance(name, str) for name in (*found.classes, *found.groups))
    assert not len(found.targets) or 0 <= found.targets.min() <= found.targets.max() < len(found.classes)


def make_records(rng: Random) -> bytes:
    coarse = rng.random() < 0.5
    record = bytes([rng.randrange(25), rng.randrange(110)][: 1 + coarse]) + bytes(cifar.PIXELS)
    data = record * rng.randrange(4)
    return bytes([coarse]) + (mutate_bytes(rng, data)[:20_000] if rng.random() < 0.5 else data)


def open_records(folder: Path):
    names = tuple(map(str, range(100)))

    def read(path: Path) -> None:
        data = path.read_bytes()
        (folder / "a.bin").write_bytes(data[1:])
        check_arrays(cifar.read_binary([folder / "a.bin"], names if data[0] else cifar.CLASSES_10))

    return read


def make_idx(rng: Random) -> bytes:
    count = rng.choice((0, 1, 3, 3, 3, 4, 32, 33, 64, 65, 255))
    sizes = [rng.choice((0, 1, 1, 2, 28)) for _ in range(count)]
    if count and rng.random() < 0.3:
        sizes[rng.randrange(count)] = rng.choice(EXTREMES) & 0xFFFFFFFF
    body = bytes(min(int(np.prod(sizes, dtype=np.float64)), 3000) if sizes else 1)
    data = b"\0\0\x08" + bytes([count]) + struct.pack(f">{count}I", *sizes) + body
    data = mutate_bytes(rng, data) if rng.random() < 0.4 else data
    data = gzip.compress(data, 1) if rng.random() < 0.3 else data
    return mutate_bytes(rng, data) if rng.random() < 0.2 else data


def open_idx(folder: Path):
    names = [f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]
    good = (
        b"\0\0\x08\3" + struct.pack(">3I", 2, 2, 2) + bytes(8),
        b"\0\0\x08\1" + struct.pack(">I", 2) + b"\1\0",
    )
    for name in names:
        (folder / name).write_bytes(good["labels" in name])

    def read(path: Path) -> None:
        data = path.read_bytes()
        if len(data) % 2:
            assert read_idx(path).dtype == np.uint8
            return
        changed = folder / names[len(data) // 2 % 2]
        before = changed.read_bytes()
        changed.write_bytes(data)
        try:
            for part in read_mnist(folder, tuple("0123456789")).values():
                check_arrays(part)
        finally:
            changed.write_bytes(before)

    return read


@cache
def mat_seeds() -> list[bytes]:
    from scipy.io import savemat

    words = np.array(["a/1.jpg", "b/2.jpg"], dtype=object).reshape(2, 1)
    kinds = [("ILSVRC2012_ID", object), ("WNID", object)]
    rows = np.array([(1, "n01440764"), (2, "n01443537")], kinds)
    values = [
        {"file_list": words, "labels": np.array([[1.0], [2.0]])},
        {"synsets": rows},
        {"a": np.eye(2), "b": "x"},
    ]
    found = []
    for value in values:
        for options in ({}, {"do_compression": True}, *([{"format": "4"}] if "a" in value else [])):
            file = io.BytesIO()
            savemat(file, value, **options)
            found.append(file.getvalue())
    return found


@cache
def mat_values() -> list[Any]:
    """What a MATLAB file may hold where paths, labels and synsets are expected."""
    return [
        0,
        -1.0,
        1e300,
        float("nan"),
        "",
        "a/1.jpg",
        "n01440764",
        [],
        [[]],
        [0],
        [[1.5]],
        [[2.0], [3.0]],
        ["x"],
    ]


def make_mat(rng: Random) -> bytes:
    data = rng.choice(mat_seeds())
    if rng.random() < 0.3:
        from scipy.io import savemat

        def value(depth: int) -> Any:
            one = rng.choice(mat_values())
            if depth and rng.random() < 0.4:
                one = rng.choice(({"ILSVRC2012_ID": value(depth - 1), "WNID": value(depth - 1)}, {"a": one}))
            if isinstance(one, list) and rng.random() < 0.5:
                one = np.array([*one, None], dtype=object)[:-1]
            return one

        file = io.BytesIO()
        try:
            savemat(file, {name: value(2) for name in rng.sample(("file_list", "labels", "synsets"), 2)})
        except (ValueError, TypeError, OverflowError):
            return data
        data = file.getvalue()
        return mutate_bytes(rng, data) if rng.random() < 0.2 else data
    body = mutate_bytes(rng, data[128:], mat_seeds())
    return data[:128] + body if rng.random() < 0.9 else mutate_bytes(rng, data)


def open_mat(folder: Path):
    """What the process of `read_mat` does, here in this one; then what is made of its answer."""
    (folder / "Images").mkdir()

    def answer(path: Path) -> dict[str, Any]:
        text = ""
        with contextlib.suppress(Exception):  # ends that process with an error
            text = json.dumps(mat.read_here(path))
        if not text:
            raise InputError("a damaged MATLAB file")
        return json.loads(text)

    (folder / "good").write_bytes(mat_seeds()[0])
    answer(folder / "good")  # scipy is imported now
    lists.read_mat = wordnet.read_mat = answer  # type: ignore[assignment]

    def read(path: Path) -> None:
        found = answer(path)
        if "synsets" in found:
            assert all(isinstance(name, str) for name in wordnet._wordnet_names(path).values())
        else:
            names, labels = lists._dog_list(path)
            assert len(names) == len(labels)

    return read


READERS = [
    Reader("CIFAR, python", make_batch, open_batches),
    Reader("CIFAR, binary", make_records, open_records),
    Reader("idx", make_idx, open_idx),
    Reader("mat", make_mat, open_mat, seconds=mat.TIMEOUT, own_process=True),
]
