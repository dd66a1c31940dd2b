"""Running the missing jobs of a table, one by one or in parallel; each is recorded as it finishes."""

import contextlib
import multiprocessing
import os
import shlex
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor
from concurrent.futures import wait as wait_for
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from typing import Protocol

from sla.disk import reason
from sla.errors import InputError, SLAError, shown
from sla.progress import Progress
from sla.reproduce.costs import cost_of
from sla.reproduce.jobs import Job
from sla.reproduce.records import TABLE, Record, add_records, read_records
from sla.reproduce.work import read_finished, run_job
from sla.runs.loop import using_threads
from sla.runs.signals import StoppedError, interrupted_by_signals

STOPPED = "stopped; the same command resumes it"
POLL = 0.5  # seconds between two checks of the workers
GRACE = 5.0  # seconds that a worker has to stop with a checkpoint
REPORT = 1.0  # seconds between two reports of a worker
Found = Record | str | None  # of a job: its record, why it failed, or None where another process runs it


class _Display(Protocol):  # `cli.reproduce.RunnerDisplay` says what each shows
    def begin(self, costs: Mapping[str, float], done: int) -> None: ...
    def advance(self, job: Job, share: float) -> None: ...
    def end(self, job: Job, record: Record | None, reason: str) -> None: ...


class _JobProgress(Progress):
    """The finished share of one job: by its training steps, or by its passes where it trains nothing."""

    def __init__(self, job: Job, report: Callable[[float], None]) -> None:
        self.job, self.report = job, report

    def step(self, done: int, total: int, metrics: dict[str, float]) -> None:
        self.report(done / max(total, 1))

    def advance(self, what: str, done: int, total: int | None) -> None:
        # Passes that read images, and all passes of a training run, are not counted.
        if self.job.members and what.startswith("evaluating") and total:
            self.report(done / total)


def run_all(
    jobs: Sequence[Job], out: Path, display: _Display, workers: int = 1, threads: int | None = None
) -> int:
    """Run every job that has no record yet, in this order; returns how many failed, each with its reason.

    Jobs that finished in this folder without being recorded are recorded first. Jobs that another process is
    running come last: once it has finished them, their records are used. Rounding depends on `threads`, those
    of one run: by default its share of the cores; a row has those it was run with.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{shown(out)}: cannot be written: {reason(error)}") from None
    recorded = read_records(out / TABLE)
    finished = [done for job in jobs if job.key not in recorded and (done := read_finished(job, out))]
    add_records(out / TABLE, finished)
    known = set(recorded) | {record.key for record in finished}
    missing = [job for job in jobs if job.key not in known]
    display.begin(costs_to_come(missing, out), len(jobs) - len(missing))
    run = partial(_run_in_pool, workers=workers) if workers > 1 else _run_in_turn
    run = partial(run, out=out, display=display, threads=threads)
    try:
        with interrupted_by_signals():
            return _run_through(run, missing, display)
    except (StoppedError, KeyboardInterrupt):
        raise StoppedError(STOPPED) from None


def costs_to_come(jobs: Sequence[Job], out: Path) -> dict[str, float]:
    """FLOP of each job by its key; the first that needs a member that is not in this folder trains it too."""
    costs: dict[str, float] = {}
    counted = {job.key for job in jobs}
    for job in jobs:
        new = [one for one in job.members if one.key not in counted and read_finished(one, out) is None]
        counted |= {one.key for one in new}
        costs[job.key] = sum(cost_of(one).flop for one in (job, *new))
    return costs


def _run_through(
    run: Callable[..., Iterator[tuple[Job, Found]]], jobs: Sequence[Job], display: _Display
) -> int:
    """Run these, then wait for those that another process runs; returns how many failed."""
    failed = 0
    for wait in (False, True):
        elsewhere = []
        with contextlib.closing(run(jobs, wait=wait)) as results:  # type: ignore[type-var]
            for job, found in results:
                if found is None:
                    elsewhere.append(job)
                elif isinstance(found, str):
                    failed += 1
                    display.end(job, None, found)
                else:
                    display.end(job, found, "")
        jobs = elsewhere
    return failed


def _run_in_turn(
    jobs: Sequence[Job], out: Path, display: _Display, wait: bool, threads: int | None
) -> Iterator[tuple[Job, Found]]:
    for job in jobs:
        with using_threads(threads):
            found = attempt(job, out, wait, _JobProgress(job, partial(display.advance, job)))
        yield job, found


def attempt(job: Job, out: Path, wait: bool, progress: Progress) -> Found:
    """Run a job; one of many, so its failure is only reported."""
    try:
        return run_job(job, out, progress, wait)
    except BlockingIOError:
        return None
    except StoppedError:
        raise
    except SLAError as error:
        return str(error)
    except (RuntimeError, OSError, MemoryError) as error:
        return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


def _run_in_pool(
    jobs: Sequence[Job], out: Path, display: _Display, wait: bool, workers: int, threads: int | None
) -> Iterator[tuple[Job, Found]]:
    """Run jobs in processes of their own, `workers` at a time."""
    if not jobs:
        return
    context = multiprocessing.get_context("spawn")
    threads = threads or max((os.cpu_count() or 1) // workers, 1)
    reports = context.SimpleQueue()
    ending, ours = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(
        workers, mp_context=context, initializer=_begin_worker, initargs=(ending, reports)
    )
    waiting, running = list(jobs), dict[Future[Found], Job]()
    by_key = {job.key: job for job in jobs}
    try:
        while waiting or running:
            while len(running) < workers and (job := _next(waiting, running.values(), out)):
                waiting.remove(job)
                running[pool.submit(_run_in_worker, job, out, wait, threads)] = job
            done, _ = wait_for(running, timeout=POLL, return_when=FIRST_COMPLETED)
            while not reports.empty():
                key, share = reports.get()
                display.advance(by_key[key], share)
            for future in done:
                yield running.pop(future), future.result()
    except BaseException as error:  # also when whoever reads this is stopped
        ours.close()
        if isinstance(error, KeyboardInterrupt):
            raise StoppedError(STOPPED) from None
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        ours.close()


def _next(waiting: Iterable[Job], running: Iterable[Job], out: Path) -> Job | None:
    """The first job that need not wait for one that is running: it would keep its worker idle.

    Members that are recorded but not in this folder are run again by the first job that needs them.
    """
    busy = {one.key for job in running for one in (job, *job.members) if not read_finished(one, out)}
    return next((job for job in waiting if busy.isdisjoint(member.key for member in job.members)), None)


class _Worker:
    """What a worker process was given when it began."""

    reports: "SimpleQueue[tuple[str, float]]"


def _begin_worker(ending: Connection, reports: "SimpleQueue[tuple[str, float]]") -> None:
    """In a worker: stop, with a checkpoint, when the process that started it says so or is gone."""
    _Worker.reports = reports

    def follow() -> None:
        with contextlib.suppress(OSError):
            ending.poll(None)  # until the other end is closed, by whom or whatever
        end = time.monotonic() + GRACE
        while time.monotonic() < end:
            os.kill(os.getpid(), signal.SIGTERM)  # again, should another job have begun
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def _run_in_worker(job: Job, out: Path, wait: bool, threads: int) -> Found:
    """In a worker: run the job and report its progress about once a second."""
    import torch

    torch.set_num_threads(threads)
    last_report = 0.0

    def report(share: float) -> None:
        nonlocal last_report
        if time.monotonic() - last_report > REPORT or share == 1:
            last_report = time.monotonic()
            _Worker.reports.put((job.key, share))

    return attempt(job, out, wait, _JobProgress(job, report))


def commands(
    name: str, scale: str, jobs: Iterable[Job], out: Path, seeds: int, threads: int | None = None
) -> list[str]:
    """One command per job, for the scheduler of a cluster; they may run in any order."""
    words = ["sla", "reproduce", name, "--scale", scale, "--seeds", str(seeds), "--out", str(out)]
    words += ["--threads", str(threads)] if threads else []
    return [shlex.join([*words, "--only", job.key]) for job in jobs]
