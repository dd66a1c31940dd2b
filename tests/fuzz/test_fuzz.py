"""A few hundred damaged and hostile files for every reader, of which `make fuzz` reads 100,000."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from fuzzing import guard
from fuzzing.guard import Reader, make_input, run
from fuzzing.readers import READERS

from sla.errors import InputError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits and /proc are those of Linux")


@pytest.mark.parametrize("name", READERS)
def test_a_valid_result_or_one_line(name):
    found = run(READERS[name], seed=1, count=200, warm_up=100)
    assert found.failures == []
    assert found.valid + found.refused == 200
    assert found.valid > 0  # the changes do not end at the first bytes of every file
    assert found.refused > 0


def test_inputs_follow_from_the_seed():
    reader = READERS["zip"]
    assert make_input(reader, 1, 5) == make_input(reader, 1, 5)
    assert len({make_input(reader, seed, index) for seed in (1, 2) for index in range(20)}) > 30


def grows(_path):
    held = bytearray(1)
    while True:
        held += bytes(1 << 24)


def claims(_path):
    try:
        bytearray(1 << 40)
    except MemoryError:
        raise InputError("too large") from None


def imports(_path):
    sys.modules.pop("tabnanny", None)
    __import__("tabnanny")


def hangs(_path):
    while True:
        pass


def refuses(message):
    def read(_path):
        raise InputError(message)

    return read


BAD = {
    "another exception": (lambda path: {}[path], "KeyError"),
    "two lines": (refuses("one\ntwo"), "not one printable line"),
    "a control character": (refuses("red \x1b[31m"), "not one printable line"),
    "no end": (hangs, "TimeLimitError"),
    "memory": (grows, "MemoryError"),
    "a claimed size": (claims, "a size is not bounded"),
    "a crash": (lambda _: os.kill(os.getpid(), signal.SIGSEGV), "ended by signal 11"),
    "an import": (imports, "import ('tabnanny',)"),
    "code": (lambda _: exec("1"), "exec"),
    "a shell": (lambda _: os.system("true"), "os.system"),
    "a process": (lambda _: subprocess.run(["true"]), "subprocess.Popen"),
    "a file outside": (lambda path: Path(path.parent.parent, "x").write_bytes(b""), "open"),
    "a folder outside": (lambda path: Path(path.parent.parent, "y").mkdir(), "os.mkdir"),
    "a moved file": (lambda path: path.rename(path.parent.parent / "z"), "os.rename"),
}


@pytest.mark.parametrize("case", BAD)
def test_whatever_else_a_reader_does_is_seen(case, monkeypatch):
    if case == "no end":  # the others may take their time on a slow machine
        monkeypatch.setattr(guard, "SECONDS", 0.3)
    read, words = BAD[case]
    found = run(Reader("bad", lambda rng: rng.randbytes(3), lambda _: read, memory=1 << 28), 0, 2, warm_up=0)
    assert (found.valid, found.refused, found.other) == (0, 0, 2)
    assert all(words in line for line in found.failures)
    assert [line.partition(":")[0] for line in found.failures] == ["0", "1"]


def test_a_good_reader_may_write_into_its_own_folder():
    def read(path):
        (path.parent / "inside").write_bytes(b"x")
        if path.read_bytes()[0] % 2:
            raise InputError("odd")

    found = run(Reader("good", lambda rng: rng.randbytes(3), lambda _: read), 0, 50, warm_up=0)
    assert found.failures == []
    assert found.valid > 10
    assert found.valid + found.refused == 50
