"""Pickles of arrays, written by the real pickle and numpy; and pickles that try to run something."""

import io
import os
import pickle
import subprocess

import numpy as np
import pytest

from refusals import refused
from sla.datasets.unpickle import load_pickle


def written(path, value, protocol=2):
    path.write_bytes(pickle.dumps(value, protocol))
    return path


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("dtype", ["uint8", "int64", ">i4", "float32", "bool", "S5", "U3"])
def test_arrays_come_back_as_numpy_wrote_them(tmp_path, protocol, dtype):
    array = np.arange(24).reshape(2, 3, 4).astype(dtype)
    for written_as in (array, np.asfortranarray(array)):
        held = load_pickle(written(tmp_path / "a", {"data": written_as, "labels": [1, 2]}, protocol))
        assert held["data"].dtype == array.dtype
        np.testing.assert_array_equal(held["data"], array)
        assert held["labels"] == [1, 2]


@pytest.mark.parametrize("protocol", range(6))
def test_plain_values(tmp_path, protocol):
    value = {"b": b"\x00\xff", "t": (1, 2.5, None, True), "n": {"x": ["é"]}, "big": 10**30}
    assert load_pickle(written(tmp_path / "a", value, protocol)) == value
    assert load_pickle(written(tmp_path / "b", [np.int64(7), np.float32(0.5)], protocol)) == [7, 0.5]


def test_text_of_python_2_is_bytes_and_its_keys_become_text(tmp_path):
    # protocol 2 as Python 2 wrote it: SHORT_BINSTRING, which Python 3 no longer writes
    (tmp_path / "old").write_bytes(b"\x80\x02}q\x00(U\x05labelq\x01K\x03U\x04nameq\x02U\x03catq\x03u.")
    assert load_pickle(tmp_path / "old") == {"label": 3, "name": b"cat"}


def test_an_object_met_twice_is_one_object(tmp_path):
    shared: list = [1]
    for _ in range(60):  # 2**60 visits if each reference were followed
        shared = [shared, shared]
    held = load_pickle(written(tmp_path / "a", shared))
    assert held[0] is held[1]


class Runs:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize(
    ("function", "name"),
    [(os.system, "system"), (exec, "exec"), (subprocess.check_call, "check_call"), (io.open, "open")],
    ids=["os.system", "exec", "subprocess", "open"],
)
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_nothing_in_a_pickle_runs(tmp_path, function, name, protocol):
    marker = tmp_path / "it ran"
    arguments = {
        "system": (f"touch '{marker}'",),
        "exec": (f"open({str(marker)!r}, 'w')",),
        "check_call": (["touch", str(marker)],),
        "open": (str(marker), "w"),
    }[name]
    held = {"data": np.zeros(3), "labels": Runs(function, *arguments)}
    evil = written(tmp_path / "data_batch_1", held, protocol)
    refused(rf"data_batch_1: the pickle refers to '\w+\.{name}', which is refused", load_pickle, evil)
    assert not marker.exists()
    pickle.loads(evil.read_bytes())  # the same file does run for the plain unpickler
    assert marker.exists()


@pytest.mark.parametrize(
    "value",
    [
        np.array([{}, []], dtype=object),
        np.dtype([("a", "i4")]),
        {1, 2},
        1j,
        np.array([1j]),
        np.ma.masked_array([1]),
    ],
    ids=["object array", "record type", "set", "complex", "complex array", "masked array"],
)
def test_what_no_dataset_needs_is_refused(tmp_path, value):
    refused("odd: ", load_pickle, written(tmp_path / "odd", [value]))


def test_an_array_whose_bytes_do_not_fill_it_is_refused(tmp_path):
    good = pickle.dumps({"data": np.zeros((9, 7), np.uint8)}, 2)
    assert good.count(b"K\x09K\x07") == 1
    (tmp_path / "a").write_bytes(good.replace(b"K\x09K\x07", b"K\x7fK\x7f"))
    refused("damaged pickle", load_pickle, tmp_path / "a")


def test_damaged_and_missing_files(tmp_path):
    whole = pickle.dumps({"data": np.zeros(99)}, 4)
    for size in (0, 1, 20, len(whole) // 2, len(whole) - 1):
        (tmp_path / "cut").write_bytes(whole[:size])
        refused("cut: a damaged pickle", load_pickle, tmp_path / "cut")
    (tmp_path / "text").write_text("this is not a pickle")
    refused("text: ", load_pickle, tmp_path / "text")
    refused("no such file", load_pickle, tmp_path / "none")
