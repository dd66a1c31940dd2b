"""Commands of `sla` in forked processes, to be killed or refused something, and what is left of their runs.

A process that has imported everything forks one for each command: a trial takes about a second. Linux only.
"""

import contextlib
import csv
import faulthandler
import hashlib
import json
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LIMIT = 120.0  # seconds after which a process counts as hanging
EVENTS = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "shutil.rmtree")
# Of results and records: when, how long and by what they were made.
TIMES = re.compile(r"(.*_)?seconds|finished|command|commit|peak_memory_bytes|machine")
PAGE_TIMES = re.compile(
    r"[\d.e-]+ (?:seconds|minutes|hours|MB|GB)\b|commit [0-9a-f]+(?:-dirty)?|finished [\d:TZ-]+"
)
POSITION_TIMES = ("seconds", "clock")


@dataclass(frozen=True)
class Ended:
    """How a process ended: its exit code (negative: the signal), standard error, and CPU seconds."""

    code: int
    errors: str
    cpu: float

    @property
    def one_line(self) -> bool:
        """Whether it failed and said so in one line."""
        lines = [line for line in self.errors.splitlines() if not line.startswith("sla: note: ")]
        return self.code in (1, 2) and len(lines) == 1 and lines[0].startswith("sla: ")


class Started:
    """A process that runs a command of `sla`; `prepare` is called in it first."""

    def __init__(self, words: Sequence[str], prepare: Callable[[], object] = lambda: None) -> None:
        sys.stdout.flush()
        self.errors, write = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            _run(words, prepare, write)
        os.close(write)
        self.status: tuple[int, Any] | None = None

    def alive(self) -> bool:
        """Whether it still runs."""
        if self.status is None:
            pid, status, used = os.wait4(self.pid, os.WNOHANG)
            self.status = (status, used) if pid else None
        return self.status is None

    def kill_after(self, cpu: float, number: int = signal.SIGKILL) -> bool:
        """Send the signal once it has used so many CPU seconds; False where it ended before."""
        clock = (~self.pid << 3) | 2  # CLOCK_PROCESS_CPUTIME_ID of another process
        while self.alive() and time.clock_gettime(clock) < cpu:
            time.sleep(0.001)
        if self.alive():
            os.kill(self.pid, number)
        return self.status is None

    def wait(self, limit: float = LIMIT) -> Ended:
        """Until it ends."""
        end, late = time.monotonic() + limit, ""
        while self.alive():
            if time.monotonic() > end and not late:
                late = f"still running after {limit:.0f} seconds\n"
                os.kill(self.pid, signal.SIGABRT)  # it says where it was
            time.sleep(0.002)
        assert self.status is not None
        with open(self.errors, encoding="utf-8", errors="replace") as file:
            said = file.read()
        status, used = self.status
        return Ended(os.waitstatus_to_exitcode(status), late + said, used.ru_utime + used.ru_stime)


def _run(words: Sequence[str], prepare: Callable[[], object], errors: int) -> None:
    """In the new process: run the command and end."""
    code = 70  # of a traceback
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(errors, 2)
        faulthandler.enable(errors)
        import torch

        from sla.cli import main

        os.setsid()  # a group of processes with a stopped one in it is hung up when its session ends
        torch.set_num_threads(1)  # forked, torch makes its threads anew: here, where nothing else runs
        prepare()
        main(list(words))
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stderr.flush()
        os._exit(code)


def on_operation(folder: Path, call: Callable[[], object]) -> None:
    """From now on, `call` before every file operation of this process below the folder."""

    def hook(event: str, given: tuple[Any, ...]) -> None:
        if event in EVENTS and str(folder) in "\n".join(_paths(event, given)):
            call()

    sys.addaudithook(hook)


def _paths(event: str, given: tuple[Any, ...]) -> Iterator[str]:
    """The paths of an operation; names in an open folder (as `rmtree` has them) with that folder."""
    for path in given[:2]:
        if isinstance(path, str | bytes | os.PathLike):
            name, inside = os.fsdecode(path), event.startswith("os.") and given[-1]
            if isinstance(inside, int) and inside > 0 and not name.startswith("/"):
                with contextlib.suppress(OSError):
                    name = f"{os.readlink(f'/proc/self/fd/{inside}')}/{name}"
            yield name


def count_operations(folder: Path, counter: Path) -> None:
    """Write a byte into a file for every operation."""
    handle = os.open(counter, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    on_operation(folder, lambda: os.write(handle, b"."))


def die_at_operation(folder: Path, number: int) -> None:
    """Be killed right before the operation of this number, counted from 0."""
    left = [number]

    def count() -> None:
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        left[0] -= 1

    on_operation(folder, count)


def fingerprint(folder: Path) -> dict[str, str]:
    """What is in a run's folder, file by file, but for times."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.name.endswith(".lock"):
            try:
                content = _content(path, folder)
            except (ValueError, KeyError):  # damaged
                content = path.read_bytes()
            found[str(path.relative_to(folder))] = hashlib.sha256(content).hexdigest()
    return found


def _content(path: Path, folder: Path) -> bytes:
    from sla.runs.checkpoint import CHECKSUMS, STATE, WEIGHTS

    if path.name == STATE:
        return _state(path)
    if path.name == CHECKSUMS:
        return json.loads(path.read_text())[WEIGHTS].encode()
    if path.name in ("result.json", "record.json"):
        return _timeless(json.loads(path.read_text()), folder)
    if path.name == "runs.csv":
        with open(path, newline="", encoding="utf-8") as file:
            return _timeless(list(csv.DictReader(file)), folder)
    if path.suffix == ".html":
        return PAGE_TIMES.sub("", path.read_text().replace(str(folder), "")).encode()
    return path.read_bytes()


def _state(path: Path) -> bytes:
    from sla.model_file import read_model_file

    position, tensors = read_model_file(path, "the state of a run", "position")
    kept = {name: value for name, value in position.items() if name not in POSITION_TIMES}
    parts = [f"{name} {value.dtype} {value.numpy().tobytes()!r}" for name, value in sorted(tensors.items())]
    return json.dumps([kept, parts]).encode()


def _timeless(tree: Any, folder: Path) -> bytes:
    def without(part: Any) -> Any:
        if isinstance(part, dict):
            return {key: without(value) for key, value in part.items() if not TIMES.fullmatch(key)}
        return [without(one) for one in part] if isinstance(part, list) else part

    return json.dumps(without(tree), sort_keys=True).replace(str(folder), "").encode()


def differences(found: dict[str, str], expected: dict[str, str]) -> list[str]:
    """The files that are in one alone, or differ."""
    return sorted(name for name in found | expected if found.get(name) != expected.get(name))
