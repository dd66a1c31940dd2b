"""What tests do with a mutant: for benchmarks/mutation.py.

Which tests run which lines is measured once. A mutant's tests are then run in a forked process, the fastest
first, until one fails. Functions are changed in a process that has imported and collected everything; what
takes effect at import (constants, defaults, decorators) in one that has imported all but this package.
"""

import ast
import gc
import hashlib
import importlib
import json
import math
import multiprocessing
import os
import pickle
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any

import pytest
from mutants import Key, Mutant, Source, changed_functions, lines_of, roots
from tables import REPOSITORY

OPTIONS = ("-q", "-s", "-m", "not slow and not network", "-p", "no:cacheprovider", "-p", "no:xdist")
LONGEST = 3.0  # CPU seconds of a test that is run
MOST = 3.0  # CPU seconds of all tests that are run for a mutant
SPARE = 8.0  # CPU seconds that they may take beyond three times that
MEMORY = 8 << 30  # bytes of a process with a mutant
OUTCOMES = "mutation.jsonl"  # what became of each mutant, in the order of trying
FORK = multiprocessing.get_context("fork")
KILLED, TIMED_OUT, SURVIVED = "killed", "timed out", "survived"


@dataclass
class Tests:
    """What was measured of the tests: CPU seconds and lines (path, number) of each, by name."""

    seconds: dict[str, float] = field(default_factory=dict)
    lines: dict[str, set[tuple[str, int]]] = field(default_factory=dict)
    at_import: set[tuple[str, int]] = field(default_factory=set)
    imported: list[str] = field(default_factory=list)  # modules from elsewhere
    digests: dict[str, str] = field(default_factory=dict)  # of the files of tests

    def without_changed(self, digests: dict[str, str]) -> "Tests":
        """Only the tests of files that are as they were."""
        kept = Tests(digests=digests)
        for name, seconds in self.seconds.items():
            path = name.partition("::")[0]
            if digests.get(path) == self.digests.get(path):
                kept.seconds[name], kept.lines[name] = seconds, self.lines[name]
        return kept

    def fast(self) -> list[str]:
        """Those that are run at all, the fastest first."""
        return sorted((name for name in self.seconds if self.seconds[name] <= LONGEST), key=self.seconds.get)

    def of(self, path: str, *ranges: range) -> list[str]:
        """Tests that run one of these lines, those of the first range first, of `MOST` seconds together."""
        chosen: list[str] = []
        for lines in ranges:
            places = {(path, line) for line in lines}
            chosen += [name for name in self.fast() if name not in chosen and self.lines[name] & places]
        total, kept = 0.0, []
        for name in chosen:
            total += self.seconds[name]
            if total <= MOST:
                kept.append(name)
        return kept


class Plugin:
    """Has `loop(session)` run in place of the collected tests."""

    def __init__(self, loop: Callable[[pytest.Session], None]) -> None:
        self.loop = loop

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self) -> None:
        """A failure counts; the smallest example of it would take long to find."""
        with suppress(ImportError):
            from hypothesis import Phase, settings

            settings.register_profile("mutation", settings(phases=(Phase.explicit, Phase.generate)))
            settings.load_profile("mutation")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.loop(session)
        return True


def in_child(work: Callable[[], Any], seconds: float | None = None) -> Any:
    """What `work` returns in a forked process; "timed out" after so many CPU seconds, None if it died."""
    reader, writer = FORK.Pipe(duplex=False)

    def run() -> None:
        if seconds is not None:
            os.setsid()  # with what it starts, it is ended as a group
            silent = os.open(os.devnull, os.O_WRONLY)
            os.dup2(silent, 1), os.dup2(silent, 2)
            resource.setrlimit(resource.RLIMIT_CPU, (int(seconds) + 1, int(seconds) + 2))
            resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
        writer.send(work())

    process = FORK.Process(target=run)
    process.start()
    writer.close()
    try:
        # Waiting takes no CPU time: something that waits for ever is ended by the clock.
        return reader.recv() if reader.poll(seconds and 60 + 20 * seconds) else TIMED_OUT
    except EOFError:
        process.join()
        return TIMED_OUT if process.exitcode in (-signal.SIGXCPU, -signal.SIGKILL) else None
    finally:
        if seconds is not None and process.pid:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        process.join()
        reader.close()


def run_tests(session: pytest.Session, names: Iterable[str]) -> str:
    """Run these tests up to the first that fails; its name, "" if none does."""
    items = {item.nodeid: item for item in session.items}
    chosen = [items[name] for name in names]
    for item, following in zip(chosen, [*chosen[1:], None], strict=True):
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.testsfailed:
            return item.nodeid
    return ""


class Tracer:
    """Collects the lines that run in some files."""

    def __init__(self, paths: set[str]) -> None:
        self.paths, self.lines = paths, set[tuple[str, int]]()

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        path = frame.f_code.co_filename
        if path not in self.paths:
            return None
        self.lines.add((path, frame.f_lineno))
        return self

    def start(self) -> None:
        threading.settrace(self)
        sys.settrace(self)


def measure(session: pytest.Session, paths: set[str], known: Tests) -> Tests:
    """Add to what is known the tests that pass and are fast enough, and the lines they run."""
    for item in session.items:
        fixtures = getattr(item, "fixturenames", ())
        trains = any(name.endswith("_run") or name == "tiny_settings" for name in fixtures)
        if trains or item.nodeid in known.seconds:
            continue
        tracer, failed, before = Tracer(paths), session.testsfailed, time.process_time()
        tracer.start()
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        sys.settrace(None)
        seconds = time.process_time() - before
        passed = failed == session.testsfailed
        known.seconds[item.nodeid] = seconds if passed else math.inf
        known.lines[item.nodeid] = tracer.lines
    return known


def _is_foreign(module: Any) -> bool:
    """Whether a module is from neither this repository nor the working folder."""
    path = getattr(module, "__file__", None)
    if path is None or getattr(module, "__spec__", None) is None:
        return False
    near = Path(path).is_relative_to(REPOSITORY) or Path(path).is_relative_to(Path.cwd())
    return not near or "site-packages" in path


@dataclass
class Campaign:
    """Mutants and what became of them: killed, timed out or survived."""

    sources: list[Source]
    files: list[str]  # of tests
    folder: Path  # of what is kept for another run
    outcomes: dict[Key, str] = field(default_factory=dict)

    def run(self, mutants: Iterable[Mutant]) -> None:
        """Try these mutants."""
        self.folder.mkdir(exist_ok=True)
        by_name = {source.module: source for source in self.sources}
        warm, cold = [], []
        for mutant in mutants:
            swaps = changed_functions(by_name[mutant.module], mutant)
            if swaps is None:
                cold.append(mutant)
            else:
                warm.append((mutant, swaps))
        print(f"{len(warm)} mutants of functions, {len(cold)} that need an import", flush=True)
        tests, found = in_child(lambda: self._run_warm(warm, by_name))
        self.outcomes.update(found)
        for mutant, _ in warm:  # what a function did at import was done without the mutant
            places = {(str(by_name[mutant.module].path), line) for line in mutant.lines}
            if places & tests.at_import and self.outcomes[mutant.key] == SURVIVED:
                cold.append(mutant)
        for name in tests.imported:
            with suppress(Exception):
                importlib.import_module(name)
        for mutant in cold:
            self.outcomes[mutant.key] = self._run_cold(mutant, by_name[mutant.module], tests)

    def _run_cold(self, mutant: Mutant, source: Source, tests: Tests) -> str:
        """With all tests of the file that mirrors the module, then with others that run what is around it.

        No line of a test's own shows that it depends on a constant or a field.
        """
        mirror = f"test_{source.module.partition('/')[0]}.py::"
        first = [name for name in tests.fast() if mirror in name]
        around = tests.of(str(source.path), mutant.lines, *_around(source, mutant))
        others = [name for name in around if name not in first]
        outcome = SURVIVED
        for part in (first, others):
            if outcome == SURVIVED:
                work = lambda: self._import_and_run(source, mutant, part)  # noqa: B023, E731
                outcome = self._try(mutant, work, part, tests, [])
        return outcome

    def _run_warm(self, mutants: list, by_name: dict[str, Source]) -> tuple[Tests, dict[Key, str]]:
        at_import, found, kept = Tracer({str(source.path) for source in self.sources}), {}, Tests()

        def loop(session: pytest.Session) -> None:
            nonlocal kept
            sys.settrace(None)
            kept = self._measured(session, at_import)
            functions: dict[tuple[str, str, int], list[FunctionType]] = {}
            for each in gc.get_objects():
                if type(each) is FunctionType:
                    code = each.__code__
                    key = (code.co_filename, code.co_qualname, code.co_firstlineno)
                    functions.setdefault(key, []).append(each)
            gc.freeze()  # a forked process then copies fewer pages
            killers: dict[str, list[str]] = {}
            for mutant, swaps in mutants:
                path = str(by_name[mutant.module].path)
                recent = killers.setdefault(mutant.module + mutant.scope, [])
                names = kept.of(path, mutant.lines)
                names.sort(key=lambda name: name not in recent[-3:])

                def work(path: str = path, names: list[str] = names, swaps: list = swaps) -> str:
                    for key, code in swaps:
                        for function in functions[path, *key]:
                            function.__code__ = code
                    return run_tests(session, names)

                found[mutant.key] = self._try(mutant, work, names, kept, recent)

        at_import.start()
        pytest.main([*OPTIONS, *self.files], plugins=[Plugin(loop)])
        return kept, found

    def _measured(self, session: pytest.Session, at_import: Tracer) -> Tests:
        """What is known of the tests; those in changed files are measured again."""
        cache, digests = self.folder / "mutation-tests.pickle", {}
        texts = [source.path.read_bytes() for source in self.sources]
        for name in dict.fromkeys(name.partition("::")[0] for name in self.files):
            digests[name] = hashlib.sha256(b"".join([Path(name).read_bytes(), *texts])).hexdigest()
        known = pickle.loads(cache.read_bytes()) if cache.exists() else Tests()
        known = known.without_changed(digests)
        known = in_child(lambda: measure(session, at_import.paths, known))
        functions = {
            (str(source.path), line)
            for source in self.sources
            for code in roots(source.compile()).values()
            for line in lines_of(code)
        }
        known.at_import = at_import.lines & functions
        known.imported = [name for name, module in sys.modules.items() if _is_foreign(module)]
        cache.write_bytes(pickle.dumps(known))
        fast = [seconds for seconds in known.seconds.values() if seconds <= LONGEST]
        print(f"\n{len(fast)} tests, {sum(fast):.0f} CPU seconds", flush=True)
        return known

    def _import_and_run(self, source: Source, mutant: Mutant, names: list[str]) -> str:
        """Import everything with the mutant in its place; the name of a test that fails."""
        code, get_code = source.compile(mutant), SourceFileLoader.get_code
        path, failed = str(source.path), ["import"]
        SourceFileLoader.get_code = lambda self, name: code if self.path == path else get_code(self, name)  # type: ignore[method-assign,assignment]

        def loop(session: pytest.Session) -> None:
            failed[0] = run_tests(session, names)

        pytest.main(
            [*OPTIONS, *dict.fromkeys(name.partition("::")[0] for name in names)], plugins=[Plugin(loop)]
        )
        return failed[0]

    def _try(
        self, mutant: Mutant, work: Callable[[], str], names: list[str], tests: Tests, killers: list[str]
    ) -> str:
        limit = SPARE + 3 * sum(tests.seconds[name] for name in names)
        killer = in_child(work, limit) if names else ""
        outcome = TIMED_OUT if killer == TIMED_OUT else SURVIVED if killer == "" else KILLED
        if outcome == KILLED:
            killers.append(killer)
        else:
            print(f"{outcome}: {' | '.join(mutant.key)} | {len(names)} tests", flush=True)
        with open(self.folder / OUTCOMES, "a", encoding="utf-8") as file:
            print(json.dumps([*mutant.key, outcome]), file=file)
        return outcome


def _around(source: Source, mutant: Mutant) -> list[range]:
    """The lines of the function around a mutant, of its class, and of the module."""
    found = [range(1, len(source.rows) + 1)]
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            lines = range(node.lineno - len(node.decorator_list), (node.end_lineno or 0) + 1)
            if mutant.lines[0] in lines:
                found.append(lines)
    return sorted(found, key=len)
