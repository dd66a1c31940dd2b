"""The cache of resized images: right bytes, also after an interruption, a change, or with company."""

import json
import multiprocessing
import os
import pickle
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from refusals import fails, refused
from sla.disk import exclusive, replacing
from sla.errors import SLAError, SLAWarning
from sla.images import cache as cache_module
from sla.images.cache import build_cache
from sla.images.cache_paths import cache_dir
from sla.images.content import content_keys, dataset_keys, key_kind
from sla.images.decode import BadImageError, decode_array
from sla.images.files import CHUNK, FileImages
from sla.images.store import Dataset

SIZE = (6, 5)


@pytest.fixture
def files(tmp_path):
    rng = np.random.default_rng(1)
    (tmp_path / "data").mkdir()
    names = [f"{i:03}.png" for i in range(5 * CHUNK + 7)]
    for i, name in enumerate(names):
        noise = rng.integers(0, 256, (8 + i % 5, 9, 3), dtype=np.uint8)
        Image.fromarray(noise).save(tmp_path / "data" / name)
    return FileImages(names, SIZE, tmp_path / "data")


def check(images, files):
    """Every row against its file, decoded on its own."""
    pixels, aspect = images.read(range(len(files)))
    for row in range(len(files)):
        expected, ratio = decode_array(files.name(row), SIZE)
        assert (pixels[row] == expected).all()
        assert aspect[row] == np.float32(ratio)


def count_reads(files, monkeypatch):
    rows_read: list[int] = []
    real = FileImages.read
    monkeypatch.setattr(FileImages, "read", lambda self, rows: (rows_read.extend(rows), real(self, rows))[1])
    return rows_read


def test_cached_rows_are_the_decoded_files(files, tmp_path, monkeypatch, on_advance):
    calls: list[tuple[str, int, int]] = []
    images = build_cache(files, tmp_path / "c", "x", progress=on_advance(lambda *call: calls.append(call)))
    check(images, files)
    assert (len(images), images.shape, images.in_memory) == (len(files), (3, *SIZE), False)
    assert images.name(4) == files.name(4)
    assert calls[-1] == ("reading images", len(files), len(files))
    one, _ = decode_array(files.name(9), SIZE)
    got = images.read(np.array([3, 9, 3]))
    assert (got.images[1] == one).all()
    assert (got.images[0] == got.images[2]).all()
    assert (got.images.dtype, got.aspect.dtype) == (torch.uint8, torch.float32)
    read = count_reads(files, monkeypatch)
    check(build_cache(files, tmp_path / "c", "x"), files)
    assert read == []  # opened, not rebuilt
    assert not list((tmp_path / "c").glob("*.partial"))
    got.images.zero_()  # the caller's copy: the file does not change
    check(images, files)


def test_it_is_sent_to_workers_without_its_bytes(files, tmp_path):
    images = build_cache(files, tmp_path / "c", "x")
    pickled = pickle.dumps(images)
    assert len(pickled) < len(pickle.dumps(files)) + 1000
    check(pickle.loads(pickled), files)


class StoppedError(Exception):
    pass


@pytest.mark.parametrize("saved_bytes", [0, 1 << 40])
def test_an_interrupted_build_resumes(files, tmp_path, monkeypatch, saved_bytes, on_advance):
    monkeypatch.setattr(cache_module, "SAVED_BYTES", saved_bytes)

    def interrupt(what, done, total):
        if done >= 3 * CHUNK:
            raise StoppedError

    with pytest.raises(StoppedError):
        build_cache(files, tmp_path / "c", "x", progress=on_advance(interrupt))
    [partial] = (tmp_path / "c").glob("*.partial")
    assert not list((tmp_path / "c").glob("*.npy"))
    [header] = (tmp_path / "c").glob("*.json")
    assert json.loads(header.read_text())["filled"] == 2 * CHUNK
    with open(partial, "ab") as file:
        file.write(b"half a row that never reached its save point")
    read = count_reads(files, monkeypatch)
    check(build_cache(files, tmp_path / "c", "x"), files)
    assert sorted(read) == list(range(2 * CHUNK, len(files)))
    assert not partial.exists()


def test_a_killed_build_resumes_from_its_save_point(files, tmp_path, monkeypatch, on_advance):
    monkeypatch.setattr(cache_module, "SAVED_BYTES", 0)
    context = multiprocessing.get_context("fork")

    def die(what, done, total):
        if done >= 3 * CHUNK:
            os._exit(9)

    options = {"progress": on_advance(die)}
    worker = context.Process(target=build_cache, args=(files, tmp_path / "c", "x"), kwargs=options)
    worker.start()
    worker.join(60)
    assert worker.exitcode == 9
    read = count_reads(files, monkeypatch)
    check(build_cache(files, tmp_path / "c", "x"), files)
    assert sorted(read) == list(range(2 * CHUNK, len(files)))


@pytest.mark.parametrize("damage", ["no header", "bad header", "other head"])
def test_a_damaged_partial_cache_is_rebuilt(files, tmp_path, monkeypatch, damage, on_advance):
    def interrupt(what, done, total):
        raise StoppedError

    with pytest.raises(StoppedError):
        build_cache(files, tmp_path / "c", "x", progress=on_advance(interrupt))
    [partial] = (tmp_path / "c").glob("*.partial")
    header = partial.with_suffix(".json")
    header.write_text({"no header": "", "bad header": "{", "other head": '{"filled": 9}'}[damage])
    if damage == "no header":
        header.unlink()
    elif damage == "other head":
        partial.write_bytes(b"\0" * 5000)
    check(build_cache(files, tmp_path / "c", "x"), files)


def test_a_changed_file_is_decoded_again_and_no_other(files, tmp_path, monkeypatch):
    build_cache(files, tmp_path / "c", "x")
    other = build_cache(FileImages(files.paths, (4, 4)), tmp_path / "c", "x")
    kept = build_cache(files, tmp_path / "c", "y")
    Image.new("RGB", (3, 3), "blue").save(tmp_path / "data" / "005.png")
    os.utime(tmp_path / "data" / "005.png", ns=(1, 1))
    read = count_reads(files, monkeypatch)
    images = build_cache(files, tmp_path / "c", "x")
    assert read == [5]
    check(images, files)
    assert images.read([5]).images[0, :, 0, 0].tolist() == [0, 0, 255]
    left = {path.name for path in (tmp_path / "c").glob("*.npy")}
    assert left == {images.path.name, other.path.name, kept.path.name}  # the outdated one is gone, no other


def test_another_choice_of_files_takes_over_what_it_can(files, tmp_path, monkeypatch):
    some = [files.paths.relative(i) for i in range(10, 20)]
    Image.new("RGB", (7, 7), "green").save(tmp_path / "data" / "new.png")
    build_cache(files, tmp_path / "c", "x")
    read = count_reads(files, monkeypatch)
    chosen = FileImages(["new.png", *reversed(some)], SIZE, tmp_path / "data")
    check(build_cache(chosen, tmp_path / "c", "x"), chosen)
    assert read == [0]


def test_pixels_of_another_decoder_are_not_taken_over(files, tmp_path, monkeypatch):
    build_cache(files, tmp_path / "c", "x")
    monkeypatch.setattr(cache_module, "DECODER", cache_module.DECODER + 1)
    read = count_reads(files, monkeypatch)
    build_cache(files, tmp_path / "c", "x")
    assert sorted(read) == list(range(len(files)))


def test_a_truncated_cache_is_rebuilt(files, tmp_path):
    path = build_cache(files, tmp_path / "c", "x").path
    os.truncate(path, path.stat().st_size // 2)
    with pytest.warns(SLAWarning, match="is damaged and built again"):
        check(build_cache(files, tmp_path / "c", "x"), files)


@pytest.mark.parametrize("damage", ["empty", "zeroed header", "half a header"])
def test_a_cache_with_a_damaged_head_is_rebuilt(files: FileImages, tmp_path: Path, damage: str) -> None:
    path = build_cache(files, tmp_path / "c", "x").path
    whole = path.read_bytes()
    start = {"empty": b"", "zeroed header": bytes(128) + whole[128:], "half a header": whole[:60] + bytes(68)}
    path.write_bytes(start[damage] + (whole[128:] if damage == "half a header" else b""))
    with pytest.warns(SLAWarning, match="is damaged and built again"):
        check(build_cache(files, tmp_path / "c", "x"), files)
    assert path.read_bytes() == whole


@pytest.mark.parametrize("field", ["key", "content", "aspect", "check", "pixels"])
def test_a_flipped_bit_in_a_row_is_decoded_again(files: FileImages, tmp_path: Path, field: str) -> None:
    path = build_cache(files, tmp_path / "c", "x").path
    whole = path.read_bytes()
    kind = cache_module.row_type(SIZE)
    start = len(whole) - (len(files) - 9) * kind.itemsize  # of row 9
    damaged = bytearray(whole)
    damaged[start + kind.fields[field][1] + 2] ^= 16
    damaged[start + 3 * kind.itemsize : start + 4 * kind.itemsize] = bytes(kind.itemsize)  # row 12: zeros
    path.write_bytes(damaged)
    images = build_cache(files, tmp_path / "c", "x")
    with pytest.warns(SLAWarning, match="damaged rows are decoded again"):
        check(images, files)
    assert path.read_bytes() == whole
    check(images, files)


def test_damaged_rows_of_an_outdated_cache_are_not_taken_over(files: FileImages, tmp_path: Path) -> None:
    path = build_cache(files, tmp_path / "c", "x").path
    damaged = bytearray(path.read_bytes())
    damaged[-5] ^= 1
    path.write_bytes(damaged)
    os.utime(tmp_path / "data" / "005.png", ns=(1, 1))
    check(build_cache(files, tmp_path / "c", "x"), files)


def test_a_cache_knows_the_content_of_its_images(files: FileImages, tmp_path: Path) -> None:
    images = build_cache(files, tmp_path / "c", "x")
    dataset = Dataset(images, np.zeros(len(files)), ("a",)).subset(range(40, 10, -1))
    expected = content_keys(dataset.read(range(30)).images)
    assert np.array_equal(dataset_keys(dataset), expected)
    assert key_kind(dataset) == "pixels"


def _build(files, folder, queue, on_advance):
    decoded: list[int] = []
    slowly = on_advance(lambda what, done, total: (decoded.append(done), time.sleep(0.02))[1])
    build_cache(files, folder, "x", progress=slowly)
    queue.put(len(decoded))


def test_two_processes_at_once_build_it_once(files, tmp_path, on_advance):
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    workers = [
        context.Process(target=_build, args=(files, tmp_path / "c", queue, on_advance)) for _ in range(2)
    ]
    for worker in workers:
        worker.start()
    parts = sorted(queue.get(timeout=60) for _ in workers)
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0, 0]
    assert parts == [0, 6]  # one did all of it, the other waited
    check(build_cache(files, tmp_path / "c", "x"), files)


def test_a_bad_image_is_named_and_the_work_before_it_is_kept(files, tmp_path, monkeypatch):
    corrupt = tmp_path / "data" / f"{3 * CHUNK:03}.png"
    corrupt.write_text("no picture")
    fails(BadImageError, f"{corrupt.name}: not an image", build_cache, files, tmp_path / "c", "x")
    without = FileImages(files.paths.keep(np.arange(len(files)) != 3 * CHUNK), SIZE)
    read = count_reads(files, monkeypatch)
    check(build_cache(without, tmp_path / "c", "x"), without)
    assert sorted(read) == list(range(3 * CHUNK, len(without)))


def test_a_full_disk_is_seen_before_it_is_full(files, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    refused(r"the image cache needs 0\.0 MB and 0\.0 MB are free", build_cache, files, tmp_path / "c", "x")


def test_a_place_that_cannot_be_written_is_named(files, tmp_path):
    (tmp_path / "file").write_text("x")
    fails(SLAError, "file: the image cache cannot be written", build_cache, files, tmp_path / "file", "x")


def test_the_cache_folder_is_where_the_platform_wants_it(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SLA_DATA", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    assert cache_dir() == tmp_path / ".cache" / "sla"
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_dir() == Path("/xdg/sla")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # the rule says: not absolute, not valid
    assert cache_dir() == tmp_path / ".cache" / "sla"
    monkeypatch.setattr("sys.platform", "darwin")
    assert cache_dir() == tmp_path / "Library" / "Caches" / "sla"
    monkeypatch.setattr("sys.platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    assert cache_dir() == tmp_path / "local" / "sla"
    monkeypatch.setenv("SLA_DATA", "~/pictures")
    assert cache_dir() == tmp_path / "pictures"


def test_replacing_leaves_the_old_file_when_it_fails(tmp_path):
    path = tmp_path / "new" / "a.bin"
    with replacing(path) as file:
        file.write(b"one")
        assert not path.exists()
    with pytest.raises(StoppedError), replacing(path) as file:  # noqa: PT012
        file.write(b"two")
        raise StoppedError
    assert path.read_bytes() == b"one"
    assert os.listdir(path.parent) == ["a.bin"]


def _hold(lock, queue):
    with exclusive(lock):
        queue.put(True)
        time.sleep(60)


def test_a_lock_keeps_others_out_until_its_process_is_dead(tmp_path):
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    holder = context.Process(target=_hold, args=(tmp_path / "lock", queue))
    holder.start()
    assert queue.get(timeout=30)
    with pytest.raises(BlockingIOError), exclusive(tmp_path / "lock", wait=False):
        pytest.fail("two are inside")
    holder.kill()
    holder.join(30)
    with exclusive(tmp_path / "lock", wait=False):
        pass
