"""Batches of a dataset on the device: an endless seeded stream to train on, one pass in order to evaluate."""

import contextlib
import signal
import sys
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing import AuthenticationError
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from sla.errors import InputError, SLAError, nearest
from sla.images.files import MAX_THREADS, available_cores
from sla.images.store import ArrayImages, Dataset, Pixels
from sla.sampling.draws import Draws, generator, seed_of
from sla.sampling.episodes import Episodes

SAMPLINGS = ("epochs", "random")
AHEAD, PART = 2, 8  # batches decoded ahead by threads, and images that a thread takes at a time


@dataclass(frozen=True)
class Batch:
    """One process's part of a step's images, and the draws that belong to it."""

    images: Tensor  # uint8 (b, C, H, W), on the device
    aspect: Tensor  # float32 (b,), on the device: width / height of the originals
    targets: Tensor  # int64 (b,), on the device
    indices: Tensor  # int64 (b,), on the CPU: places in the dataset
    step: int
    draws: Draws
    unlabelled: "Batch | None" = None  # the step's images without labels, where there are any


class _Request(NamedTuple):
    """What to read for one batch; the draws say where its images are in the global batch."""

    step: int
    indices: np.ndarray  # int64 (b,)
    draws: Draws


class _Failure(NamedTuple):
    """An error in a worker: sent as its message, because a raised exception would carry its frames."""

    message: str
    wrong_input: bool


class _Loader(ABC):
    """Reads what a subclass requests, here or in worker processes."""

    ahead = False  # without workers, by threads

    def __init__(self, dataset: Dataset, workers: int, device: torch.device | str) -> None:
        self.dataset, self.workers, self.device = dataset, workers, torch.device(device)

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches; worker processes live until the iteration ends."""
        return _batches(self.dataset, self._requests(), self.workers, self.device, self.ahead)

    @abstractmethod
    def _requests(self) -> Iterator["_Request"]: ...


class TrainLoader(_Loader):
    """Batches `start_step` to `steps` of an endless stream, the same for every number of workers and ranks.

    sampling "epochs": the stream is one seeded permutation of the dataset after another, and batch s is its
    positions s*B to (s+1)*B, so a batch is always full and may reach into the next epoch. "random": every
    batch is a fresh sample without repetition. `batch_size` is that of all ranks together; each takes its
    own contiguous share.
    """

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int,
        *,
        seed: int,
        steps: int,
        start_step: int = 0,
        rank: int = 0,
        world_size: int = 1,
        workers: int = 0,
        device: torch.device | str = "cpu",
        sampling: str = "epochs",
    ) -> None:
        _check(dataset, batch_size, rank, world_size, workers)
        if batch_size % world_size:
            raise InputError(f"batch size {batch_size} cannot be shared equally by {world_size} processes")
        if not 0 <= start_step <= steps:
            raise InputError(f"cannot start at step {start_step} of {steps}")
        if sampling not in SAMPLINGS:
            raise InputError(f"unknown sampling {sampling!r}{nearest(sampling, SAMPLINGS)}")
        self.batch_size, self.seed, self.sampling = batch_size, seed, sampling
        self.steps = range(start_step, steps)
        self.share = range(batch_size * rank // world_size, batch_size * (rank + 1) // world_size)
        super().__init__(dataset, workers, device)

    def __len__(self) -> int:
        return len(self.steps)

    def _requests(self) -> Iterator[_Request]:
        batches = epoch_batches if self.sampling == "epochs" else random_batches
        start, stop = self.share.start, self.share.stop
        orders = batches(len(self.dataset), self.batch_size, self.seed, self.steps)
        for step, indices in zip(self.steps, orders, strict=True):
            draws = Draws(self.seed, step, self.batch_size, start, stop)
            yield _Request(step, indices[start:stop], draws)


class EvalLoader(_Loader):
    """The whole dataset once, in order; the last batch may be short.

    Without workers, image files are decoded by threads, ahead of their use. Rank r of W reads the r-th of W
    contiguous shares: joined in the order of ranks they are the dataset, without repetition. Draws depend on
    an image's place in the dataset, not on the batch size.
    """

    ahead = True

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int,
        *,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        workers: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        _check(dataset, batch_size, rank, world_size, workers)
        self.batch_size, self.seed = batch_size, seed
        self.share = range(len(dataset) * rank // world_size, len(dataset) * (rank + 1) // world_size)
        super().__init__(dataset, workers, device)

    def __len__(self) -> int:
        return -(-len(self.share) // self.batch_size)

    def _requests(self) -> Iterator[_Request]:
        for step in range(len(self)):
            places = self.share[step * self.batch_size : (step + 1) * self.batch_size]
            draws = Draws(self.seed, 0, len(self.dataset), places.start, places.stop)
            yield _Request(step, np.arange(places.start, places.stop), draws)


class EpisodeLoader(_Loader):
    """Batches `start_step` to `steps` of `count` episodes each, endless and seeded like the episodes.

    A batch has the support images of all its episodes, then their queries: count*way*shot + count*way*query.
    """

    def __init__(
        self,
        dataset: Dataset,
        episodes: Episodes,
        count: int,
        *,
        steps: int,
        start_step: int = 0,
        workers: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        self.episodes, self.count = episodes, count
        self.steps = range(start_step, steps)
        super().__init__(dataset, workers, device)

    def __len__(self) -> int:
        return len(self.steps)

    def _requests(self) -> Iterator[_Request]:
        for step in self.steps:
            batch = self.episodes.batch(step * self.count, self.count)
            places = np.concatenate([batch.support.ravel(), batch.query.ravel()])
            yield _Request(step, places, Draws(self.episodes.seed, step, len(places)))


def epoch_batches(n: int, batch_size: int, seed: int, steps: Iterable[int]) -> Iterator[np.ndarray]:
    """For each step its batch_size places in the endless stream of permutations of n."""
    epoch, order = -1, np.empty(0, np.int64)
    for step in steps:
        position, end, parts = step * batch_size, (step + 1) * batch_size, []
        while position < end:
            if position // n != epoch:
                epoch = position // n
                order = torch.randperm(n, generator=generator(seed, "order", epoch)).numpy()
            parts.append(order[position % n :][: end - position])
            position += len(parts[-1])
        yield np.concatenate(parts)


def random_batches(n: int, batch_size: int, seed: int, steps: Iterable[int]) -> Iterator[np.ndarray]:
    """For each step batch_size places of n, drawn afresh; none repeats within a batch, where n allows it."""
    for step in steps:
        draw = np.random.default_rng(seed_of(seed, "sample", step))
        yield draw.choice(n, batch_size, replace=batch_size > n)


def resident(dataset: Dataset, device: torch.device | str) -> Dataset:
    """The same dataset with only its own images of the store, in the memory of the device."""
    images, aspect = dataset.read(np.arange(len(dataset)))
    names = [dataset.name(index) for index in range(len(dataset))]
    store = ArrayImages(images.to(device), aspect=aspect.to(device), names=names)
    return Dataset(store, dataset.targets, dataset.classes)


def _check(dataset: Dataset, batch_size: int, rank: int, world_size: int, workers: int) -> None:
    if not len(dataset):
        raise InputError("the dataset has no images")
    if batch_size < 1:
        raise InputError(f"batch size must be at least 1, not {batch_size}")
    if not 0 <= rank < world_size:
        raise InputError(f"rank {rank} is not one of {world_size} processes, counted from 0")
    if workers < 0:
        raise InputError(f"the number of workers cannot be {workers}")


def _batches(
    dataset: Dataset, requests: Iterable[_Request], workers: int, device: torch.device, ahead: bool
) -> Iterator[Batch]:
    if ahead and not workers and not dataset.images.in_memory:
        found = _read_ahead(dataset, requests)
    else:
        found = _read(dataset, requests, workers, pin=device.type == "cuda")
    for (step, indices, draws), pixels in found:
        targets = torch.from_numpy(dataset.targets[indices])
        images, aspect, targets = (part.to(device, non_blocking=True) for part in (*pixels, targets))
        yield Batch(images, aspect, targets, torch.from_numpy(indices), step, draws)


def _read(
    dataset: Dataset, requests: Iterable[_Request], workers: int, pin: bool
) -> Iterator[tuple[_Request, Pixels]]:
    """The pixels of each request, in order; images in memory need no worker."""
    if dataset.images.in_memory or not workers:
        for request in requests:
            yield request, dataset.read(request.indices)
        return
    loader: DataLoader = DataLoader(
        _Reader(dataset),  # type: ignore[arg-type]  # it reads by request, not by number
        batch_size=None,
        sampler=requests,
        num_workers=workers,
        collate_fn=_unchanged,
        pin_memory=pin,
        worker_init_fn=_begin_worker,
        generator=torch.Generator(),  # else it would draw from the global one: dropout would differ
    )
    iterator = iter(loader)
    try:
        for answer in iterator:
            if isinstance(answer, _Failure):
                raise (InputError if answer.wrong_input else SLAError)(answer.message)
            yield answer
    except (RuntimeError, ConnectionError, EOFError) as error:
        # A worker that dies while sending images breaks the connection before torch notices.
        if isinstance(error, RuntimeError) and "DataLoader worker (pid" not in str(error):
            raise
        reason = "perhaps memory ran out: fewer workers or smaller batches need less"
        raise SLAError(f"a worker process that reads images was killed; {reason}") from None
    finally:
        _end_workers(iterator)  # now, not at garbage collection


def _read_ahead(dataset: Dataset, requests: Iterable[_Request]) -> Iterator[tuple[_Request, Pixels]]:
    """The same in threads: while a batch is used, the next ones are decoded, a few images at a time."""
    pool = ThreadPoolExecutor(min(available_cores(), MAX_THREADS))
    pending = deque[tuple[_Request, list[Future[Pixels]]]]()

    def finished() -> tuple[_Request, Pixels]:
        request, parts = pending.popleft()
        found = [part.result() for part in parts]
        return request, Pixels(*(torch.cat(values) for values in zip(*found, strict=True)))

    try:
        for request in requests:
            places = range(0, len(request.indices), PART)
            parts = [pool.submit(dataset.read, request.indices[start : start + PART]) for start in places]
            pending.append((request, parts))
            if len(pending) > AHEAD:
                yield finished()
        while pending:
            yield finished()
    finally:
        pool.shutdown(cancel_futures=True)


def _end_workers(iterator: Any) -> None:
    # torch's signal handler may report here once more that a worker was killed.
    with contextlib.suppress(RuntimeError):
        iterator._shutdown_workers()
    for worker in iterator._workers:
        worker.join(timeout=5)


class _Reader:
    """What a worker does: read one request."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset

    def __getitem__(self, request: _Request) -> tuple[_Request, Pixels] | _Failure:
        try:
            return request, self.dataset.read(request.indices)
        except (SLAError, OSError) as error:
            return _Failure(str(error), isinstance(error, InputError))


def _unchanged(answer: object) -> object:
    return answer


def _begin_worker(worker: int) -> None:
    # Ctrl-C reaches every process of the terminal: the main one ends its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.excepthook = _report_defects


def _report_defects(kind: type[BaseException], error: BaseException, frames: TracebackType | None) -> None:
    # The thread that sends images complains when the main process exits while it sends.
    if not issubclass(kind, (OSError, EOFError, AuthenticationError)):
        sys.__excepthook__(kind, error, frames)
