"""The one thread that uses the model: waiting pictures in batches, and other work while none waits."""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar

import torch

from sla.errors import SLAError
from sla.images.store import Pixels
from sla.serve.predictor import Answer, Predictor

T = TypeVar("T")
MOST_WAITING = 256  # pictures; a further one is refused
BATCH = 16  # pictures that go through the model together


class BusyError(SLAError):
    """Too many pictures wait already."""


class _Waiting(NamedTuple):
    pixels: Pixels  # of one picture
    future: "Future[Answer]"


class _Other(NamedTuple):
    work: Callable[[], list[Any]]
    future: "Future[Any]"


class Worker:
    """Answers pictures in the order in which they came; `start` before, `stop` after."""

    def __init__(self, predictor: Predictor) -> None:
        self.predictor = predictor
        self._pictures = deque[_Waiting]()
        self._others = deque[_Other]()
        self._changed, self._stopped = threading.Condition(), False
        self._thread = threading.Thread(target=self._work, name="model", daemon=True)

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def stop(self) -> None:
        """End after the batch in work; what still waits is cancelled."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()

    def submit(self, pixels: Pixels) -> "Future[Answer]":
        """The answer to one picture, as soon as there is one."""
        with self._changed:
            if len(self._pictures) >= MOST_WAITING:
                raise BusyError(f"{MOST_WAITING} pictures wait already: try again in a second")
            self._pictures.append(_Waiting(pixels, Future()))
            self._changed.notify()
            return self._pictures[-1].future

    def in_background(self, work: Callable[[], T]) -> "Future[T]":
        """The result of work that is done while no picture waits."""
        future: Future[T] = Future()
        with self._changed:
            if self._stopped:
                future.cancel()
            else:
                self._others.append(_Other(lambda: [work()], future))
                self._changed.notify()
        return future

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._pictures or self._others or self._stopped)
                if self._stopped:
                    break
                batch = [self._pictures.popleft() for _ in range(min(BATCH, len(self._pictures)))]
                other = None if batch else self._others.popleft()
            # One whose client has gone is not computed.
            batch = [one for one in batch if one.future.set_running_or_notify_cancel()]
            if batch:
                self._answer(batch)
            elif other is not None and other.future.set_running_or_notify_cancel():
                _fulfil([other.future], other.work)
        for future in (*(one.future for one in self._pictures), *(other.future for other in self._others)):
            future.cancel()

    def _answer(self, batch: list[_Waiting]) -> None:
        pixels = Pixels(
            torch.cat([one.pixels.images for one in batch]), torch.cat([one.pixels.aspect for one in batch])
        )
        _fulfil([one.future for one in batch], lambda: self.predictor.answer(pixels))


def _fulfil(futures: "list[Future[Any]]", work: Callable[[], list[Any]]) -> None:
    try:
        results = work()
    except Exception as error:  # whoever waits gets it; the thread must live on
        for future in futures:
            future.set_exception(error)
    else:
        for future, result in zip(futures, results, strict=True):
            future.set_result(result)
