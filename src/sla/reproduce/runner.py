"""Running what is missing: one job after the other, or several at a time, each recorded at once."""

import multiprocessing
import os
import queue
import shlex
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any, Protocol

from sla.disk import exclusive
from sla.errors import SLAError, shown
from sla.reproduce.jobs import Job
from sla.reproduce.records import Record, add_records, read_records
from sla.reproduce.work import Watch, folder_of, read_finished, run_job
from sla.training.session import StoppedError

TABLE = "runs.csv"
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

    What was finished in this folder but not recorded is recorded first.
    """
    table = out / TABLE
    out.mkdir(parents=True, exist_ok=True)
    recorded = read_records(table)
    finished = [found for job in jobs if job.key not in recorded and (found := read_finished(job, out))]
    add_records(table, finished)
    known = set(recorded) | {record.key for record in finished}
    missing = [job for job in jobs if job.key not in known]
    display.begin(missing, len(jobs) - len(missing))
    if workers > 1:
        # Jobs that look at others' runs come last: theirs are then there.
        waves = [[job for job in missing if bool(job.members) is late] for late in (False, True)]
        return sum(_run_wave(wave, out, workers, display) for wave in waves if wave)
    return sum(not _run_here(job, out, display) for job in missing)


def _run_here(job: Job, out: Path, display: Display) -> bool:
    try:
        record, reason = attempt(job, out, lambda done, total: display.advance(job, done / max(total, 1)))
    except StoppedError:
        raise StoppedError(STOPPED) from None
    display.end(job, record, reason)
    return record is not None


def attempt(job: Job, out: Path, watch: Watch | None = None) -> tuple[Record | None, str]:
    """One job, held by this process alone: its record, which is then in the table, or why it failed."""
    folder = folder_of(job, out)
    try:
        with exclusive(folder.with_name(f".{job.key}.lock"), wait=False):
            record = run_job(job, out, watch)
    except BlockingIOError:
        return None, f"{shown(folder)}: another process is at it"
    except StoppedError:
        raise
    except SLAError as error:
        return None, str(error)
    except (RuntimeError, OSError, MemoryError) as error:  # one job of many: the others go on
        return None, f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    add_records(out / TABLE, [record])
    return record, ""


def _run_wave(jobs: Sequence[Job], out: Path, workers: int, display: Display) -> int:
    """Jobs in processes of their own, as many at a time as asked for."""
    context = multiprocessing.get_context("spawn")
    threads = max((os.cpu_count() or 1) // workers, 1)
    failed = 0
    with context.Manager() as manager, ProcessPoolExecutor(workers, mp_context=context) as pool:
        news = manager.Queue()
        futures = {pool.submit(_run_there, job, out, threads, news): job for job in jobs}
        waiting: set[Future[tuple[Record | None, str]]] = set(futures)
        by_key = {job.key: job for job in jobs}
        try:
            while waiting:
                done, waiting = wait(waiting, timeout=POLL, return_when=FIRST_COMPLETED)
                for key, share in _drain(news):
                    display.advance(by_key[key], share)
                for future in done:
                    record, reason = future.result()
                    failed += record is None
                    display.end(futures[future], record, reason)
        except (KeyboardInterrupt, StoppedError):
            pool.shutdown(wait=True, cancel_futures=True)
            raise StoppedError(STOPPED) from None
    return failed


def _run_there(job: Job, out: Path, threads: int, news: Any) -> tuple[Record | None, str]:
    """In a worker: the job, telling how far it is about once a second."""
    import torch

    torch.set_num_threads(threads)
    told = [0.0]

    def watch(done: int, total: int) -> None:
        now = time.monotonic()
        if now - told[0] > 1 or done == total:
            told[0] = now
            news.put((job.key, done / max(total, 1)))

    return attempt(job, out, watch)


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
