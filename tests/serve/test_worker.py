"""The thread that has the model: batches, background work, errors and the end."""

import threading
import time
from concurrent.futures import CancelledError, ThreadPoolExecutor

import pytest
import torch

from sla.images.store import Pixels
from sla.serve.service import EMBEDDED, Service
from sla.serve.worker import BATCH, Worker


class Doubling:
    """A model whose answer to a picture is twice its one pixel; it waits for `go`."""

    def __init__(self):
        self.batches, self.go = [], threading.Event()
        self.go.set()

    def answer(self, pixels):
        self.go.wait(10)
        values = pixels.images.flatten().tolist()
        self.batches.append(values)
        if 13 in values:
            raise ValueError("thirteen")
        return [2 * value for value in values]


def picture(value):
    return Pixels(torch.full((1, 1, 1, 1), value), torch.ones(1))


@pytest.fixture
def model():
    return Doubling()


@pytest.fixture
def worker(model):
    found = Worker(model)
    found.start()
    yield found
    model.go.set()
    found.stop()


def test_everyone_gets_their_own_answer(worker, model):
    model.go.clear()
    waiting = [worker.submit(picture(value)) for value in range(50) if value != 13]
    model.go.set()
    assert [future.result(10) for future in waiting] == [2 * value for value in range(50) if value != 13]
    assert max(map(len, model.batches)) == BATCH


def test_an_error_reaches_those_who_wait_and_work_goes_on(worker, model):
    with pytest.raises(ValueError, match="thirteen"):
        worker.submit(picture(13)).result(10)
    assert worker.submit(picture(4)).result(10) == 8


def test_pictures_go_before_other_work(worker, model):
    order = []
    model.go.clear()
    first = worker.submit(picture(1))
    others = [worker.in_background(lambda n=n: order.append(n)) for n in range(3)]
    second = worker.submit(picture(2))
    second.add_done_callback(lambda _: order.append("picture"))
    model.go.set()
    for future in (first, second, *others):
        future.result(10)
    assert order == ["picture", 0, 1, 2]


def test_a_picture_that_nobody_waits_for_is_not_computed(worker, model):
    model.go.clear()
    first = worker.submit(picture(1))
    while not first.running():
        pass
    gone, last = worker.submit(picture(2)), worker.submit(picture(3))
    assert gone.cancel()
    model.go.set()
    assert last.result(10) == 6
    assert [2] not in model.batches
    assert all(2 not in batch for batch in model.batches)


def test_the_end_cancels_what_waits(model):
    worker = Worker(model)  # never started
    waiting = [worker.submit(picture(1)), worker.in_background(lambda: 1)]
    worker.start()
    worker.stop()
    for future in waiting:
        if not future.done() or future.cancelled():
            with pytest.raises(CancelledError):
                future.result(1)
    assert worker.in_background(lambda: 1).cancelled()


def test_the_end_does_not_wait_for_all_training_pictures():
    """Of 32 pictures to embed, those that are in the model are finished, and no others begun."""

    class Slow:
        begun, go = [], threading.Event()

        def features(self, pixels):
            self.begun.append(len(pixels.images))
            self.go.wait(10)
            return torch.zeros(len(pixels.images), 2)

    service = Service.__new__(Service)
    service.predictor = Slow()
    service.worker = Worker(service.predictor)
    service.worker.start()
    with ThreadPoolExecutor(2) as threads:
        embedding = threads.submit(service._embed, Pixels(torch.zeros(32, 1, 1, 1), torch.ones(32)))
        while not Slow.begun:
            time.sleep(0.01)
        ending = threads.submit(service.worker.stop)
        while not service.worker._stopped:
            time.sleep(0.01)
        Slow.go.set()
        ending.result(10)
        with pytest.raises(CancelledError):
            embedding.result(10)
    assert Slow.begun == [EMBEDDED]
    assert EMBEDDED < 32
