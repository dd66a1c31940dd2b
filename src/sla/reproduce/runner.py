"""Running what is missing: one job after the other, or several at a time, each recorded at once."""

import multiprocessing
import os
import queue
import shlex
import signal
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor
from concurrent.futures import wait as wait_for
from functools import partial
from multiprocessing.managers import SyncManager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from sla.disk import reason
from sla.errors import InputError, SLAError, shown
from sla.reproduce.jobs import Job
from sla.reproduce.records import TABLE, Record, add_records, read_records
from sla.reproduce.work import Watch, read_finished, run_job
from sla.runs.signals import StoppedError

STOPPED = "stopped; the same command goes on where it was"
POLL = 0.5  # seconds between two looks at the workers


class Display(Protocol):
    """What a runner tells while it works; a command shows it."""

    def begin(self, jobs: Sequence[Job], done: int) -> None:
        """These jobs are missing; so many are there."""

    def advance(self, job: Job, share: float) -> None:
        """How far a job is, from 0 to 1."""

    def end(self, job: Job, record: Record | None, reason: str) -> None:
        """A job is finished, or why it failed."""


def run_all(jobs: Sequence[Job], out: Path, display: Display, workers: int = 1) -> int:
    """Do every job that has no record yet; returns how many failed, each told with its reason.

    What was finished in this folder but not recorded is recorded first. Jobs that another process is at come
    last: when it has finished them, their records are taken over.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{shown(out)}: cannot be written: {reason(error)}") from None
    recorded = read_records(out / TABLE)
    finished = [found for job in jobs if job.key not in recorded and (found := read_finished(job, out))]
    add_records(out / TABLE, finished)
    known = set(recorded) | {record.key for record in finished}
    missing = [job for job in jobs if job.key not in known]
    display.begin(missing, len(jobs) - len(missing))
    # Jobs that look at others' runs come after those.
    waves = [[job for job in missing if bool(job.members) is late] for late in (False, True)]
    run = partial(_run_wave, workers=workers) if workers > 1 else _run_in_turn
    try:
        failed = 0
        for wave in waves:
            busy = run(wave, out, display, wait=False)
            failed += len(run(busy.elsewhere, out, display, wait=True).failed) + len(busy.failed)
    except StoppedError:
        raise StoppedError(STOPPED) from None
    return failed


class Outcome(NamedTuple):
    """The jobs that failed, and those that another process was at."""

    failed: list[Job]
    elsewhere: list[Job]


def _run_in_turn(jobs: Sequence[Job], out: Path, display: Display, wait: bool) -> Outcome:
    outcome = Outcome([], [])
    for job in jobs:
        _note(job, attempt(job, out, wait, partial(_tell, display, job)), outcome, display)
    return outcome


def _tell(display: Display, job: Job, done: int, total: int) -> None:
    display.advance(job, done / max(total, 1))


def _note(job: Job, found: Record | str | None, outcome: Outcome, display: Display) -> None:
    """Put a job where it belongs: done, failed for a reason, or (None) in another process's hands."""
    if found is None:
        outcome.elsewhere.append(job)
        return
    if isinstance(found, str):
        outcome.failed.append(job)
        display.end(job, None, found)
    else:
        display.end(job, found, "")


def attempt(job: Job, out: Path, wait: bool, watch: Watch | None = None) -> Record | str | None:
    """One job: its record, or why it failed, or None where another process is at it."""
    try:
        return run_job(job, out, watch, wait)
    except BlockingIOError:
        return None
    except StoppedError:
        raise
    except SLAError as error:
        return str(error)
    except (RuntimeError, OSError, MemoryError) as error:  # one job of many: the others go on
        return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


def _run_wave(jobs: Sequence[Job], out: Path, display: Display, wait: bool, workers: int) -> Outcome:
    """Jobs in processes of their own, as many at a time as asked for."""
    outcome = Outcome([], [])
    if not jobs:
        return outcome
    context = multiprocessing.get_context("spawn")
    threads = max((os.cpu_count() or 1) // workers, 1)
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_follow, initargs=(os.getpid(),))
    manager = SyncManager(ctx=context)
    manager.start(_follow_to_the_end, (os.getpid(),))
    with manager, pool:
        news = manager.Queue()
        futures = {pool.submit(_run_there, job, out, wait, threads, news): job for job in jobs}
        waiting: set[Future[Record | str | None]] = set(futures)
        by_key = {job.key: job for job in jobs}
        try:
            while waiting:
                done, waiting = wait_for(waiting, timeout=POLL, return_when=FIRST_COMPLETED)
                for key, share in _drain(news):
                    display.advance(by_key[key], share)
                for future in done:
                    _note(futures[future], future.result(), outcome, display)
        except (KeyboardInterrupt, StoppedError):
            pool.shutdown(wait=True, cancel_futures=True)
            raise StoppedError(STOPPED) from None
    return outcome


def _follow(parent: int) -> None:
    """In a worker: end, with a checkpoint, when the process that started it is gone."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(2)
        while True:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(2)

    if hasattr(os, "getppid"):
        threading.Thread(target=watch, daemon=True).start()


def _follow_to_the_end(parent: int) -> None:
    """In the process that carries news: as `_follow`, and take the socket's folder along."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    _follow(parent)


def _run_there(job: Job, out: Path, wait: bool, threads: int, news: Any) -> Record | str | None:
    """In a worker: the job, telling how far it is about once a second."""
    import torch

    torch.set_num_threads(threads)
    told = [0.0]

    def watch(done: int, total: int) -> None:
        now = time.monotonic()
        if now - told[0] > 1 or done == total:
            told[0] = now
            news.put((job.key, done / max(total, 1)))

    return attempt(job, out, wait, watch)


def _drain(news: Any) -> Iterable[tuple[str, float]]:
    while True:
        try:
            yield news.get_nowait()
        except queue.Empty:
            return


def commands(name: str, scale: str, jobs: Iterable[Job], out: Path, seeds: int) -> list[str]:
    """One command for each job that stands alone: for a cluster's launcher, in any order."""
    words = ["sla", "reproduce", name, "--scale", scale, "--seeds", str(seeds), "--out", str(out)]
    return [shlex.join([*words, "--only", job.key]) for job in jobs]
