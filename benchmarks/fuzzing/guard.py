"""One reader over many inputs in a process of its own: time, memory, and what it touches are watched.

A violation is anything but a valid result or the package's own error of one line: another exception, a crash,
more CPU time or memory than allowed, a module imported, code compiled or run, a process or a connection
started, a file written outside the reader's own folder.
"""

import codecs
import contextlib
import gc
import mmap
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import numpy as np

from sla.errors import SLAError

SECONDS = 5.0  # of CPU time for one input
STALLED = 120.0  # seconds without a finished input, after which the process is killed
FILE_BYTES = 256 << 20  # of one written file
RUNS_CODE = ("exec", "compile", "import", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork")
RUNS_CODE += ("subprocess.Popen", "socket.connect", "socket.getaddrinfo", "urllib.Request", "ctypes.dlopen")
RUNS_CODE += ("marshal.loads", "pickle.find_class", "code.__new__", "os.putenv")
CHANGES = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.symlink", "os.link", "os.chmod", "os.chown")
CHANGES += ("os.truncate", "os.utime", "shutil.rmtree", "shutil.move", "os.mkfifo", "os.mknod")
ENCODINGS = ("utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be")  # of JSON
ENCODINGS += ("unicode_escape", "raw_unicode_escape", "latin1", "cp437", "ascii")
INDEX, VALID, REFUSED, OTHER, SLOWEST, SLOWEST_INDEX, MEMORY, CPU = range(8)  # places in shared memory


@dataclass(frozen=True)
class Reader:
    """How the inputs of a reader are made, and how one is read.

    `make(rng)` gives the bytes of an input. `open(folder)` gives the function that reads the file with them,
    and checks what it got; below `folder` it may write.
    """

    name: str
    make: Callable[[Random], bytes]
    open: Callable[[Path], Callable[[Path], object]]
    file: str = "input"
    memory: int = 1 << 30  # bytes beyond what the process has at its start
    parses_literals: bool = False  # numpy parses its headers, which counts as compiling, and runs nothing
    claims: bool = False  # a library allocates what a file claims to have, fills none of it, and refuses
    seconds: float | None = None  # of CPU time for one input, if not SECONDS
    own_process: bool = False  # the package reads it in a process of its own, whose end is a refusal


@dataclass
class Outcome:
    """How many inputs were valid, refused and neither, and what the slowest and the largest took."""

    inputs: int
    valid: int = 0
    refused: int = 0
    other: int = 0
    slowest_ms: float = 0.0
    slowest_index: int = -1
    memory_mib: float = 0.0
    seconds: float = 0.0
    failures: list[str] = field(default_factory=list)


class TimeLimitError(BaseException):
    """An input took too long; not an Exception, so that no reader catches it."""


class _Watch:
    def __init__(self, folder: Path, parses_literals: bool) -> None:
        self.inside, self.on, self.seen = f"{folder}{os.sep}", False, list[str]()
        self.runs_code = set(RUNS_CODE) - ({"compile"} if parses_literals else set())

    def __call__(self, event: str, arguments: tuple) -> None:
        if not self.on:
            return
        self.on = False  # what follows here is our own
        if event in self.runs_code:
            self.seen.append(f"{event} {str(arguments[:1])[:100]}")
        elif event in CHANGES or (event == "open" and _writes(arguments)):
            paths = arguments[:2] if event in ("os.rename", "os.link", "os.symlink") else arguments[:1]
            self.seen += [f"{event} {path!r}" for path in paths if not self._is_inside(path)]
        self.on = True

    def _is_inside(self, path: object) -> bool:
        if not isinstance(path, str | bytes | os.PathLike):
            return True  # an open file: its opening was watched
        return f"{os.path.abspath(os.fsdecode(path))}{os.sep}".startswith(self.inside)


def _writes(arguments: tuple) -> bool:
    _, mode, flags = arguments
    return bool(set(mode or "") & set("wax+")) or bool((flags or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))


@contextlib.contextmanager
def work_folder() -> Iterator[Path]:
    """A folder in memory where there is one: small files come and go."""
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="fuzz-", dir=memory if memory.is_dir() else None)).resolve()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def make_input(reader: Reader, seed: int, index: int) -> bytes:
    """Input number `index`: the same for the same seed."""
    return reader.make(Random(f"{seed} {reader.name} {index}"))


def run(reader: Reader, seed: int, count: int, warm_up: int = 200) -> Outcome:
    """Read `count` inputs; a process that dies is replaced, and goes on with the next input.

    Modules that are imported only when something is refused are loaded first, by `warm_up` other inputs.
    """
    shared = mmap.mmap(-1, 64)
    counts = np.frombuffer(shared, np.int64)
    outcome = Outcome(count)
    with work_folder() as top, tempfile.TemporaryFile("w+") as said:
        first = 0
        while first < count:
            counts[INDEX] = -1
            sys.stdout.flush()
            child = os.fork()
            if child == 0:
                _child(
                    reader,
                    seed,
                    first,
                    count,
                    warm_up if first == 0 else min(warm_up, 50),
                    top,
                    counts,
                    said.fileno(),
                )
            status = _wait(child, counts)
            stopped = int(counts[INDEX])
            if status == 0:
                break
            if os.waitstatus_to_exitcode(status) > 0 or stopped < 0:
                said.seek(0)
                raise RuntimeError(f"the process of {reader.name} failed at {stopped}:\n{said.read()}")
            if reader.own_process and os.WTERMSIG(status) != signal.SIGKILL:
                counts[REFUSED] += 1
            else:
                counts[OTHER] += 1
                outcome.failures.append(f"{stopped}: ended by signal {os.WTERMSIG(status)}")
            first = stopped + 1
        said.seek(0)
        outcome.failures += said.read().splitlines()
    outcome.valid, outcome.refused, outcome.other = map(int, counts[VALID : OTHER + 1])
    outcome.slowest_ms, outcome.slowest_index = counts[SLOWEST] / 1000, int(counts[SLOWEST_INDEX])
    outcome.memory_mib, outcome.seconds = counts[MEMORY] / 1024, counts[CPU] / 1e6
    return outcome


def _wait(child: int, counts: np.ndarray) -> int:
    last, since, pause = -1, time.monotonic(), 0.005
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status
        if counts[INDEX] != last:
            last, since = int(counts[INDEX]), time.monotonic()
        if time.monotonic() - since > STALLED:
            os.kill(child, signal.SIGKILL)
        time.sleep(pause)
        pause = min(pause * 1.2, 0.5)


def _child(
    reader: Reader, seed: int, first: int, count: int, warm_up: int, top: Path, counts: np.ndarray, said: int
) -> None:
    """Everything in the forked process, which ends here."""
    try:
        gc.freeze()  # what the parent left is not collected here, where it would look like a reader's doing
        folder = top / f"from-{first}"
        folder.mkdir()
        os.chdir(folder)
        warnings.simplefilter("ignore")
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # libtiff writes what it thinks of a file
        for name in ENCODINGS:
            codecs.lookup(name)
        read, path = reader.open(folder), folder / reader.file
        for number in range(0 if reader.own_process else warm_up):
            path.write_bytes(reader.make(Random(f"warm-up {reader.name} {number}")))
            with contextlib.suppress(Exception):
                read(path)
        watch = _Watch(folder, reader.parses_literals)
        sys.addaudithook(watch)
        _limit(reader.memory)
        start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        clock = time.process_time()
        for index in range(first, count):
            counts[INDEX] = index
            path.write_bytes(make_input(reader, seed, index))
            begun = time.process_time()
            problem = _read_one(read, path, watch, counts, reader)
            took = int((time.process_time() - begun) * 1e6)
            counts[CPU] += int((time.process_time() - clock) * 1e6)
            clock = time.process_time()
            if took > counts[SLOWEST]:
                counts[SLOWEST], counts[SLOWEST_INDEX] = took, index
            if problem:
                counts[OTHER] += 1
                os.write(said, f"{index}: {problem}\n".encode())
        counts[MEMORY] = max(counts[MEMORY], resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - start)
        os._exit(0)
    except BaseException:
        os.write(said, traceback.format_exc().encode())
        os._exit(70)


def _limit(memory: int) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * mmap.PAGESIZE + memory, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPROF, _stop)


def _stop(*_: object) -> None:
    raise TimeLimitError("more than the seconds allowed")


def _read_one(
    read: Callable[[Path], object], path: Path, watch: _Watch, counts: np.ndarray, reader: Reader
) -> str:
    """What was wrong with how an input was read; empty if it is valid, or refused as it must be."""
    problem = ""
    signal.setitimer(signal.ITIMER_PROF, reader.seconds or SECONDS)
    watch.on = True
    try:
        read(path)
    except SLAError as error:
        watch.on = False
        problem = _wrong_refusal(error, reader.claims)
        counts[REFUSED] += not problem and not watch.seen
    except BaseException as error:
        watch.on = False
        problem = _place(error)
    else:
        watch.on = False
        counts[VALID] += not watch.seen
    finally:
        watch.on = False
        signal.setitimer(signal.ITIMER_PROF, 0)
    if watch.seen:
        problem = f"it did: {'; '.join(watch.seen[:3])} {problem}"
        watch.seen.clear()
    return problem


def _wrong_refusal(error: SLAError, claims: bool) -> str:
    message = str(error)
    if not message or not message.isprintable():
        return f"not one printable line: {message[-200:]!r}"
    cause: BaseException | None = None if claims else error
    while cause is not None:
        if isinstance(cause, MemoryError) or "allocate memory" in str(cause):
            return f"a size is not bounded: {message[:200]!r}"
        cause = cause.__cause__ or cause.__context__
    return ""


def _place(error: BaseException) -> str:
    frames = [one for one in traceback.extract_tb(error.__traceback__) if "sla" in Path(one.filename).parts]
    where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "outside the package"
    return f"{type(error).__name__} at {where}: {str(error)[:100]!r}"
