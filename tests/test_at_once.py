"""Ten processes on one cache folder: all succeed, one copy of everything remains, none reads half a file."""

import multiprocessing
import os
import shutil
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from made_data import digit_files
from sla.datasets import scan
from sla.datasets.index import load_index, save_index
from sla.datasets.load import load
from sla.datasets.scan import scan_folder
from sla.errors import SLAWarning
from sla.images.cache import CachedImages
from sla.images.cache_paths import cache_dir, index_file
from sla.images.files import FileImages
from sla.tasks.classifier.trainer import keep_compiled_code

PROCESSES = 10

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs fork")


def at_once(work, *given, count=PROCESSES, seconds=120):
    """What `work` returned in each of so many processes that began together; an error in one is raised."""
    context = multiprocessing.get_context("fork")
    barrier, answers = context.Barrier(count), context.Queue()
    started = [
        context.Process(target=_work, args=(work, given, number, barrier, answers), daemon=True)
        for number in range(count)
    ]
    for process in started:
        process.start()
    try:
        found = dict(answers.get(timeout=seconds) for _ in started)
        for process in started:
            process.join(60)
        assert [process.exitcode for process in started] == [0] * count
    finally:
        for process in started:
            process.kill()
    failed = [value for value in found.values() if isinstance(value, Exception)]
    assert not failed, failed[0]
    return [found[number] for number in range(count)]


def _work(work, given, number, barrier, answers):
    warnings.simplefilter("error", SLAWarning)  # a damaged row, an index that cannot be saved
    barrier.wait(60)
    try:
        answers.put((number, work(*given)))
    except Exception as error:
        answers.put((number, RuntimeError(f"{type(error).__name__}: {error}")))


@pytest.fixture
def pictures(tmp_path, data_folder):
    """A folder of digits, old enough for its index to be saved."""
    folder = digit_files(load("digits").train, range(60), tmp_path / "digits")
    for path in (folder, *folder.iterdir()):
        os.utime(path, (1e9, 1e9))
    return folder


def _prepare(pictures):
    """What `sla train` does first: the index, the list of readable files, the stored images."""
    options = {"on_bad_image": "skip", "cache": cache_dir() / "images", "memory_limit": 0}
    splits = load(str(pictures), size=8, **options)
    assert type(splits.train.images) is CachedImages
    return splits.train.read(range(60)).images.numpy(), splits.train.targets


def test_ten_processes_prepare_and_read_the_same_images(pictures, data_folder):
    expected = load(str(pictures), size=8, cache=None).train
    shutil.rmtree(data_folder / "index")
    scan._recent.clear()
    for pixels, targets in at_once(_prepare, pictures):
        assert np.array_equal(pixels, expected.read(range(60)).images.numpy())
        assert np.array_equal(targets, expected.targets)
    left = sorted(path.relative_to(data_folder) for path in data_folder.rglob("*") if path.is_file())
    kinds = [("images", ".json"), ("images", ".npy"), ("index", ".npy"), ("index", ".npz")]
    found = [(path.parts[0], path.suffix) for path in left if path.suffix != ".lock"]
    assert sorted(found) == kinds  # one copy, and nothing that was not finished


def _watch(images, index):
    """Opens what is there until a stored copy is: each file under its own name must be whole."""
    for _ in range(2000):
        for path in index.glob("[!.]*.npz"):
            with np.load(path, allow_pickle=False) as saved:
                assert {"names", "targets", "stamps"} <= set(saved.files)
        whole = list(images.glob("*.npy"))
        for path in whole:
            assert len(np.load(path, mmap_mode="r", allow_pickle=False)) == 60
        if whole:
            return True
        time.sleep(0.005)
    return False


def _prepare_or_watch(pictures, turn):
    with turn.get_lock():
        turn.value += 1
        mine = turn.value
    if mine == 1:
        return _watch(cache_dir() / "images", cache_dir() / "index")
    return len(_prepare(pictures)[0]) == 60


def test_whoever_looks_meanwhile_sees_no_half_written_file(pictures, monkeypatch):
    """One process looks while nine prepare; rows are written slowly, a few at a time."""
    slow = FileImages.read
    monkeypatch.setattr(FileImages, "read", lambda self, rows: (time.sleep(0.05), slow(self, rows))[1])
    turn = multiprocessing.get_context("fork").Value("i", 0)
    assert at_once(_prepare_or_watch, pictures, turn) == [True] * PROCESSES


def _index_again(pictures):
    for _ in range(5):
        index = scan_folder(pictures)
        save_index(index, index_file(pictures))
        found = load_index(index_file(pictures), pictures)
        if found is None or len(found) != 60 or found.classes != index.classes:
            return "an index that is not whole"
    return "whole"


def test_an_index_that_all_write_again_and_again_is_always_whole(pictures):
    assert at_once(_index_again, pictures) == ["whole"] * PROCESSES
    assert len(list((cache_dir() / "index").iterdir())) == 1


def _compile(values):
    keep_compiled_code()
    folder = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    assert folder == cache_dir() / "compiled"
    return torch.compile(lambda x: (2 * x + 1).sin())(values).numpy()


@pytest.mark.slow
def test_ten_processes_compile_the_same_code(data_folder, monkeypatch):
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")
    values = torch.linspace(0, 1, 64)
    for found in at_once(_compile, values, seconds=600):
        assert found == pytest.approx((2 * values + 1).sin().numpy())
    objects = list((data_folder / "compiled").rglob("*.so"))
    assert len(objects) == len({path.name for path in objects}) >= 1
