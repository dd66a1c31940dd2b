import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from refusals import refused
from sla.augment.ops import ColorJitter, Flip, Normalize, Pipeline, RandomResizedCrop
from sla.errors import InputError, MissingExtraError, SLAError
from sla.images.store import ArrayImages, Dataset, Pixels
from sla.sampling.loader import EvalLoader, TrainLoader, resident


class Files:
    """A store that is not in memory: a picture is made from its row; some rows have something happen."""

    in_memory = False
    shape = (3, 8, 10)

    def __init__(self, n, events=None):
        self.n, self.events = n, events or {}

    def __len__(self):
        return self.n

    def name(self, row):
        return f"file{row}"

    def read(self, rows):
        for row in rows:
            if int(row) in self.events:
                self.events[int(row)]()
        images = [np.random.default_rng(int(row)).integers(0, 256, self.shape, np.uint8) for row in rows]
        aspect = [1 + int(row) / 100 for row in rows]
        return Pixels(torch.from_numpy(np.stack(images)), torch.tensor(aspect))


class Blank(Files):
    shape = (3, 64, 64)

    def read(self, rows):
        return Pixels(torch.ones(len(rows), *self.shape, dtype=torch.uint8), torch.ones(len(rows)))


def refuse():
    raise InputError("birds/17.jpg: cut short")


def lack_a_package():
    raise MissingExtraError("this format", "report")


def lose_the_disk():
    raise OSError(5, "Input/output error", "birds/17.jpg")


def make_dataset(n=23, in_memory=True, events=None):
    store = Files(n + 3, events)
    rows = np.arange(n)[::-1] + 3
    if in_memory:
        store = ArrayImages(*[(p := store.read(range(n + 3))).images, "image", p.aspect])
    return Dataset(store, np.arange(n) % 4, ("a", "b", "c", "d"), rows)


def content(batch):
    return batch.step, batch.images, batch.aspect, batch.targets, batch.indices


def assert_same(batches, others):
    batches, others = list(batches), list(others)
    assert len(batches) == len(others) > 0
    for one, other in zip(batches, others, strict=True):
        assert one.step == other.step
        assert one.draws == other.draws
        for a, b in zip(content(one)[1:], content(other)[1:], strict=True):
            assert a.dtype == b.dtype
            assert torch.equal(a, b)


def test_batches_hold_the_images_and_labels_of_their_indices():
    dataset = make_dataset()
    for batch in TrainLoader(dataset, 6, seed=0, steps=9):
        assert batch.images.dtype == torch.uint8
        assert batch.images.shape == (6, 3, 8, 10)
        for i, index in enumerate(batch.indices.tolist()):
            row = int(dataset.rows[index])
            expected = np.random.default_rng(row).integers(0, 256, (3, 8, 10), np.uint8)
            assert np.array_equal(batch.images[i].numpy(), expected)
            assert batch.aspect[i] == torch.tensor(1 + row / 100)
            assert batch.targets[i] == dataset.targets[index]


@pytest.mark.parametrize(("n", "batch_size"), [(23, 6), (6, 6), (5, 16), (1, 4)])
def test_the_stream_is_one_permutation_after_another_in_full_batches(n, batch_size):
    steps = -(-6 * n // batch_size)
    batches = list(TrainLoader(make_dataset(n), batch_size, seed=1, steps=steps))
    assert [batch.step for batch in batches] == list(range(steps))
    assert {len(batch.indices) for batch in batches} == {batch_size}
    stream = torch.cat([batch.indices for batch in batches]).tolist()
    epochs = [stream[i : i + n] for i in range(0, len(stream) - n + 1, n)]
    assert len(epochs) >= 6
    assert all(sorted(epoch) == list(range(n)) for epoch in epochs)
    if n > 4:
        assert len({tuple(epoch) for epoch in epochs}) == len(epochs)


def test_random_sampling_draws_every_batch_afresh():
    batches = list(TrainLoader(make_dataset(10), 8, seed=1, steps=500, sampling="random"))
    indices = torch.stack([batch.indices for batch in batches])
    counts = torch.bincount(indices.flatten(), minlength=10)
    assert (counts - 400).abs().max() < 100  # evenly
    assert all(len(set(row.tolist())) == 8 for row in indices)  # none repeats within a batch
    large = next(iter(TrainLoader(make_dataset(3), 8, seed=1, steps=1, sampling="random")))
    assert set(large.indices.tolist()) <= {0, 1, 2}  # where there are too few, they must
    assert len({tuple(row.tolist()) for row in indices}) == 500


@pytest.mark.parametrize("sampling", ["epochs", "random"])
def test_a_stop_in_the_middle_changes_nothing(sampling):
    options = {"seed": 5, "steps": 12, "sampling": sampling}
    whole = list(TrainLoader(make_dataset(), 7, **options))
    for step in (0, 3, 4, 11):
        assert_same(TrainLoader(make_dataset(), 7, start_step=step, **options), whole[step:])
    assert len(TrainLoader(make_dataset(), 7, start_step=4, **options)) == 8
    assert list(TrainLoader(make_dataset(), 7, start_step=12, **options)) == []


def augmented(batch):
    ops = (RandomResizedCrop(12), Flip(), ColorJitter(0.4, 0.4, 0.4, 0.1), Normalize((0.5,) * 3, (0.2,) * 3))
    return Pipeline(ops)(batch.images, batch.draws, batch.aspect)


@pytest.mark.parametrize("sampling", ["epochs", "random"])
@pytest.mark.parametrize("world_size", [2, 4])
def test_ranks_joined_are_one_process(sampling, world_size):
    options = {"seed": 2, "steps": 5, "sampling": sampling}
    alone = list(TrainLoader(make_dataset(), 8, **options))
    ranks = [
        list(TrainLoader(make_dataset(), 8, rank=rank, world_size=world_size, **options))
        for rank in range(world_size)
    ]
    for step, batch in enumerate(alone):
        parts = [rank[step] for rank in ranks]
        for name in ("images", "aspect", "targets", "indices"):
            assert torch.equal(torch.cat([getattr(part, name) for part in parts]), getattr(batch, name))
        assert torch.equal(torch.cat([augmented(part) for part in parts]), augmented(batch))


def test_workers_change_nothing():
    torch.manual_seed(0)
    state = torch.get_rng_state()
    dataset = make_dataset(in_memory=False)
    options = {"seed": 3, "steps": 9}
    alone = list(TrainLoader(dataset, 6, **options))
    assert_same(TrainLoader(make_dataset(), 6, **options), alone)
    for workers in (1, 2):
        assert_same(TrainLoader(dataset, 6, workers=workers, **options), alone)
    assert_same(EvalLoader(dataset, 5, workers=2), EvalLoader(dataset, 5))
    assert torch.equal(torch.get_rng_state(), state)  # dropout sees no difference either
    assert multiprocessing.active_children() == []


def test_evaluation_is_in_order_once_and_shared_without_repeats():
    dataset = make_dataset(23)
    sizes = [len(batch.indices) for batch in EvalLoader(dataset, 5)]
    assert sizes == [5, 5, 5, 5, 3]
    for world_size in (1, 2, 3, 30):
        loaders = [EvalLoader(dataset, 4, rank=r, world_size=world_size) for r in range(world_size)]
        batches = [list(loader) for loader in loaders]
        assert [len(loader) for loader in loaders] == [len(part) for part in batches]
        joined = [batch for part in batches for batch in part]
        assert torch.cat([batch.indices for batch in joined]).tolist() == list(range(23))
        targets = torch.cat([batch.targets for batch in joined])
        assert targets.tolist() == dataset.targets.tolist()


def test_draws_of_evaluation_follow_from_the_place_in_the_dataset():
    def images(size, seed=0):
        return torch.cat([augmented(batch) for batch in EvalLoader(make_dataset(), size, seed=seed)])

    assert torch.equal(images(23), images(7))
    assert torch.equal(images(23), images(1))
    assert not torch.equal(images(23), images(7, seed=1))


def test_a_resident_dataset_is_the_same_dataset():
    dataset = make_dataset(in_memory=False)
    kept = resident(dataset, "cpu")
    assert kept.images.in_memory
    assert len(kept.images) == len(dataset) < len(dataset.images)
    assert [kept.name(i) for i in (0, 22)] == ["file25", "file3"]
    assert_same(TrainLoader(kept, 6, seed=0, steps=4), TrainLoader(dataset, 6, seed=0, steps=4))


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_while_reading_is_its_own_line(workers):
    events = {7: refuse}
    with pytest.raises(InputError) as caught:
        list(EvalLoader(make_dataset(in_memory=False, events=events), 4, workers=workers))
    assert str(caught.value) == "birds/17.jpg: cut short"
    assert multiprocessing.active_children() == []


def test_other_errors_of_workers_are_one_line_too():
    with pytest.raises(
        InputError, match=r"^this format needs an optional package: \S.* install -c \S+ .*\[\w+\]'?$"
    ):
        list(EvalLoader(make_dataset(in_memory=False, events={7: lack_a_package}), 4, workers=1))
    with pytest.raises(SLAError, match=r"^\[Errno 5\] Input/output error: 'birds/17.jpg'$"):
        list(EvalLoader(make_dataset(in_memory=False, events={7: lose_the_disk}), 4, workers=1))
    with pytest.raises(SLAError, match=r"^a worker process that reads images was killed.*$"):
        list(EvalLoader(make_dataset(in_memory=False, events={7: lambda: os._exit(9)}), 4, workers=2))
    with pytest.raises(ZeroDivisionError):  # a defect keeps its frames
        list(EvalLoader(make_dataset(in_memory=False, events={7: lambda: 1 / 0}), 4, workers=1))
    assert multiprocessing.active_children() == []


def test_leaving_a_loop_ends_its_workers():
    dataset = make_dataset(in_memory=False)
    for _ in TrainLoader(dataset, 6, seed=0, steps=1000, workers=2):
        assert len(multiprocessing.active_children()) == 2
        break
    assert multiprocessing.active_children() == []

    def fail():
        for _ in TrainLoader(dataset, 6, seed=0, steps=1000, workers=2):
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert multiprocessing.active_children() == []


SCRIPT = """
    import sys
    sys.path[:0] = [{folder!r}, {folder!r} + "/../support"]
    import multiprocessing, signal
    from sla.sampling.loader import TrainLoader
    from test_loader import make_dataset
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job's children inherit it ignored
    try:
        for batch in TrainLoader(make_dataset(in_memory=False), 6, seed=0, steps=10**9, workers=2):
            if batch.step == 3:
                print(*[child.pid for child in multiprocessing.active_children()], flush=True)
    except KeyboardInterrupt:
        print("stopped, workers left:", len(multiprocessing.active_children()), flush=True)
"""


def start_loop():
    """A process of its own group that reads with two workers, and the workers' ids."""
    script = textwrap.dedent(SCRIPT.format(folder=str(Path(__file__).parent)))
    pipes = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
    command = [sys.executable, "-c", script]
    process = subprocess.Popen(command, text=True, start_new_session=True, **pipes)
    return process, [int(word) for word in process.stdout.readline().split()]


@pytest.mark.skipif(sys.platform == "win32", reason="process groups are POSIX")
def test_ctrl_c_ends_the_workers_without_a_word_from_them():
    process, workers = start_loop()
    assert len(workers) == 2
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to every process
    out, err = process.communicate(timeout=60)
    assert out == "stopped, workers left: 0\n"
    assert err == ""
    assert process.returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks at processes in /proc")
def test_workers_of_a_killed_process_end_by_themselves():
    process, workers = start_loop()
    process.kill()
    process.communicate(timeout=60)
    for _ in range(300):
        if not any(Path(f"/proc/{worker}").exists() for worker in workers):
            return
        time.sleep(0.1)
    pytest.fail("a worker outlived its process by half a minute")


def test_memory_and_handles_stay_flat():
    if not Path("/proc/self/statm").exists():
        pytest.skip("reads /proc")

    def state():
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE"), len(os.listdir("/proc/self/fd"))

    seen = {}
    dataset = Dataset(Blank(23), np.zeros(23), ("a",))
    for batch in TrainLoader(dataset, 16, seed=0, steps=260, workers=1):
        if batch.step in (60, 259):
            seen[batch.step] = state()
    assert seen[259][0] - seen[60][0] < 10e6  # 200 batches of 200 kB would be 39 MB
    assert seen[259][1] - seen[60][1] < 10


def test_settings_that_cannot_be_are_refused():
    dataset = make_dataset()
    with pytest.raises(InputError, match="batch size 10 cannot be shared equally by 4 processes"):
        TrainLoader(dataset, 10, seed=0, steps=1, world_size=4)
    with pytest.raises(InputError, match="rank 2 is not one of 2 processes"):
        TrainLoader(dataset, 10, seed=0, steps=1, rank=2, world_size=2)
    refused("cannot start at step 5 of 4", TrainLoader, dataset, 10, seed=0, steps=4, start_step=5)
    with pytest.raises(InputError, match="unknown sampling 'epoch', did you mean 'epochs'"):
        TrainLoader(dataset, 10, seed=0, steps=4, sampling="epoch")
    refused("batch size must be at least 1, not 0", EvalLoader, dataset, 0)
    refused("number of workers cannot be -1", EvalLoader, dataset, 1, workers=-1)
    refused("the dataset has no images", EvalLoader, dataset.subset([]), 4)


def test_files_are_decoded_ahead_in_order_and_an_error_is_raised_in_its_place(tmp_path):
    """Without workers, by threads: the same batches as reading one image after the other."""
    from PIL import Image

    from sla.images.decode import BadImageError
    from sla.images.files import FileImages

    draw = np.random.default_rng(0)
    for number in range(37):
        Image.fromarray(draw.integers(0, 256, (5, 4, 3), np.uint8)).save(tmp_path / f"{number:02d}.png")
    paths = [str(path) for path in sorted(tmp_path.iterdir())]
    dataset = Dataset(FileImages(paths, (4, 4)), np.arange(37), tuple(map(str, range(37))))
    batches = list(EvalLoader(dataset, 10))
    whole = dataset.read(np.arange(37))
    assert [len(batch.images) for batch in batches] == [10, 10, 10, 7]
    assert torch.equal(torch.cat([batch.images for batch in batches]), whole.images)
    assert torch.equal(torch.cat([batch.aspect for batch in batches]), whole.aspect)
    (tmp_path / "25.png").write_bytes(b"no picture")
    loaded = iter(EvalLoader(dataset, 10))
    assert [len(next(loaded).images) for _ in range(2)] == [10, 10]
    with pytest.raises(BadImageError, match=r"25\.png"):
        next(loaded)


def test_evaluation_reads_the_next_batches_while_one_is_used():
    """Without workers, in other threads, two batches ahead and no more."""
    readers, arrived = {}, threading.Semaphore(0)

    class Watched(Files):
        def read(self, rows):
            readers.update(dict.fromkeys(map(int, rows), threading.get_ident()))
            arrived.release()
            return super().read(rows)

    batches = iter(EvalLoader(Dataset(Watched(32), np.zeros(32), ("a",)), 4))
    assert next(batches).indices.tolist() == [0, 1, 2, 3]
    assert all(arrived.acquire(timeout=60) for _ in range(3))  # without asking for another batch
    assert sorted(readers) == list(range(12))
    assert threading.get_ident() not in readers.values()
    assert sum(len(batch.indices) for batch in batches) == 28
