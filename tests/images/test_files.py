"""Files as a store: the right picture under the right row, small to hold and to send, errors in order."""

import os
import pickle
import threading
import time

import numpy as np
import pytest
import torch
from PIL import Image

from refusals import refused
from sla.images.decode import BadImageError
from sla.images.files import CHUNK, FileImages, find_bad, in_threads, load_into_memory
from sla.images.paths import Paths


def make_files(folder, count):
    """Picture i is one colour, (i, 2i, 3i), and i + 1 pixels wide."""
    names = []
    for i in range(count):
        names.append(f"{i:03}.png")
        Image.new("RGB", (i + 1, 4), (i, 2 * i % 256, 3 * i % 256)).save(folder / names[-1])
    return names


def test_rows_come_in_the_order_asked(tmp_path):
    files = FileImages(make_files(tmp_path, 9), (4, 5), tmp_path)
    assert (len(files), files.shape, files.in_memory) == (9, (3, 4, 5), False)
    pixels, aspect = files.read(np.array([7, 0, 7, 3]))
    assert (pixels.dtype, pixels.shape, aspect.dtype) == (torch.uint8, (4, 3, 4, 5), torch.float32)
    assert pixels[:, :, 0, 0].tolist() == [[7, 14, 21], [0, 0, 0], [7, 14, 21], [3, 6, 9]]
    assert aspect.tolist() == [2.0, 0.25, 2.0, 1.0]
    assert files.name(3) == str(tmp_path / "003.png")
    assert files.read([]).images.shape == (0, 3, 4, 5)
    refused("height 0 and width 8", FileImages, ["a.png"], (0, 8))


def test_in_memory_is_what_lazy_reading_gives(tmp_path, on_advance):
    files = FileImages(make_files(tmp_path, CHUNK + 20), (3, 3), tmp_path)
    calls: list[tuple[str, int, int]] = []
    loaded = load_into_memory(files, progress=on_advance(lambda *call: calls.append(call)))
    assert loaded.in_memory
    assert loaded.shape == (3, 3, 3)
    for row in range(len(files)):
        one = files.read([row])
        assert (loaded.read([row]).images == one.images).all()
        assert loaded.read([row]).aspect == one.aspect
        assert loaded.name(row) == files.name(row)
    assert calls == [("reading images", CHUNK, CHUNK + 20), ("reading images", CHUNK + 20, CHUNK + 20)]


def test_any_name_survives(tmp_path):
    names = ["ein Bär.png", "a\nb.png", "猫/🐈.png", "x" * 200 + ".png", os.fsdecode(b"caf\xe9.png"), " .png"]
    paths = Paths.of(names, tmp_path)
    (tmp_path / "猫").mkdir()
    for name in names:
        Image.new("RGB", (2, 2), "red").save(tmp_path / name)
    assert list(paths) == [os.path.join(tmp_path, name) for name in names]
    assert FileImages(paths, (2, 2)).read(range(len(names))).images[:, 0].unique().tolist() == [255]
    assert paths[-1] == paths[len(names) - 1]
    assert paths[1:3] == list(paths)[1:3]
    with pytest.raises(IndexError):
        paths[len(names)]
    kept = paths.keep(np.array([False, True, True, False, False, True]))
    assert list(kept) == [os.path.join(tmp_path, names[i]) for i in (1, 2, 5)]


def test_absolute_paths_stay(tmp_path):
    elsewhere = str(tmp_path / "other" / "a.png")
    assert list(Paths.of(["a.png", elsewhere], "/root/of/all")) == ["/root/of/all/a.png", elsewhere]


def test_many_paths_are_small_to_pickle():
    names = [f"class_{i // 1000:04}/picture_{i:08}.jpg" for i in range(100_000)]
    files = FileImages(names, (8, 8), "/data")
    pickled = pickle.dumps(files)
    assert len(pickled) < sum(map(len, names)) + 8 * len(names) + 2000  # the bytes, a number each, no objects
    again = pickle.loads(pickled)
    assert again.name(99_999) == "/data/class_0099/picture_00099999.jpg"
    assert len(again) == 100_000


def test_keys_change_with_the_file(tmp_path):
    paths = Paths.of([*make_files(tmp_path, 3), "gone.png"], tmp_path)
    before = paths.keys()
    assert len(set(before.tolist())) == 4
    assert before[3] == 0
    assert (paths.keys() == before).all()
    os.utime(tmp_path / "001.png", ns=(1, 1))
    with open(tmp_path / "002.png", "ab") as file:
        file.write(b"x")
    assert (paths.keys() == before).tolist() == [True, False, False, True]


def test_the_first_bad_file_is_named_with_the_way_out(tmp_path):
    names = make_files(tmp_path, 3 * CHUNK)
    for row in (CHUNK + 3, 5):
        (tmp_path / names[row]).write_text("no picture")
    before = threading.active_count()
    with pytest.raises(BadImageError, match=r"005\.png: not an image .*--on-bad-image skip") as caught:
        load_into_memory(FileImages(names, (2, 2), tmp_path))
    assert caught.value.path == str(tmp_path / "005.png")
    assert "skip" not in caught.value.reason
    copy = pickle.loads(pickle.dumps(caught.value))  # as it comes from a worker
    assert (str(copy), copy.reason) == (str(caught.value), caught.value.reason)
    assert threading.active_count() == before  # no thread is left behind


def test_find_bad_decodes_the_given_rows(tmp_path):
    names = make_files(tmp_path, 2 * CHUNK)
    for row in (3, 7, CHUNK + 9):
        (tmp_path / names[row]).write_bytes(b"")
    rows = np.arange(5, 2 * CHUNK)
    found, places = {}, []
    for part, bad in find_bad(FileImages(names, (2, 2), tmp_path), rows):
        found.update(bad)
        places.extend(part)
    assert found == {7: "an empty file", CHUNK + 9: "an empty file"}
    assert places == list(range(len(rows)))


def test_threads_keep_order_and_do_not_run_far_ahead():
    started: list[int] = []

    def slow_first(rows):
        started.append(rows[0])
        time.sleep(0.05 if rows[0] == 0 else 0)
        return rows[0]

    results = in_threads(slow_first, range(100 * CHUNK), threads=2)
    assert next(results) == (range(CHUNK), 0)
    assert len(started) <= 6
    assert [value for _, value in results] == list(range(CHUNK, 100 * CHUNK, CHUNK))
