"""Memory that a process keeps: fewer page faults, the same bytes, one switch, nothing where it cannot be."""

import ctypes
import os
import subprocess
import sys

import pytest

import sla
from refusals import refused
from sla import allocator
from sla.cli import main

glibc = pytest.mark.skipif(allocator._glibc() is None, reason="the C library is not glibc")
# Eight steps of a small network; prints whether memory is kept, the page faults of all steps but the first
# two, and the last weights.
STEPS = """
import hashlib, resource, sys, torch
import sla
kept = sla.keep_memory() if sys.argv[1] == "call" else None
torch.manual_seed(0)
model = sla.create("convnet4", 5, width=16)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
images, targets = torch.randn(32, 3, 32, 32), torch.arange(32) % 5
for step in range(8):
    if step == 2:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    optimizer.zero_grad()
    model.losses(images, targets)["loss"].backward()
    optimizer.step()
faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
weights = b"".join(value.detach().numpy().tobytes() for value in model.parameters())
print(kept, faults, hashlib.sha256(weights).hexdigest())
"""


def without_settings():
    ours = (allocator.SWITCH, allocator.TUNABLES, *(name for _, name, _ in allocator.SETTINGS))
    return {name: value for name, value in os.environ.items() if name not in ours}


def take_steps(word, **variables):
    words, environment = [sys.executable, "-c", STEPS, word], without_settings() | variables
    said = subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout
    kept, faults, weights = said.split()
    return kept, int(faults), weights


@pytest.fixture(scope="module")
def switched_off():
    return take_steps("call", SLA_ALLOCATOR="default")


@glibc
def test_page_faults_fall_and_weights_stay_the_same(switched_off):
    kept, few, weights = take_steps("call")
    off, many, same = switched_off
    assert (kept, off) == ("True", "False")
    assert weights == same
    assert many > 1000
    assert few < many / 10


@glibc
def test_child_processes_inherit_it(switched_off):
    """What they read when they start: workers, `--jobs`, and whatever else a command begins."""
    script = "import sla, sys, subprocess; sla.keep_memory(); subprocess.run(sys.argv[1:], check=True)"
    words = [sys.executable, "-c", script, sys.executable, "-c", STEPS, "inherit"]
    said = subprocess.run(words, env=without_settings(), capture_output=True, text=True, check=True).stdout
    assert int(said.split()[1]) < switched_off[1] / 10


@glibc
def test_a_variable_that_is_set_stays(monkeypatch):
    monkeypatch.setenv("SLA_ALLOCATOR", "keep")
    for name in (allocator.TUNABLES, *(name for _, name, _ in allocator.SETTINGS)):
        monkeypatch.setenv(name, "17")
    called = []

    class Libc:
        mallopt = malloc = called.append

    monkeypatch.setattr(allocator, "_glibc", Libc)
    assert sla.keep_memory()
    assert not called
    assert os.environ["MALLOC_TOP_PAD_"] == "17"


def test_the_command_line_keeps_memory_and_an_import_does_not(monkeypatch):
    calls = []
    monkeypatch.setattr("sla.cli.keep_memory", lambda: calls.append(1))
    with pytest.raises(SystemExit):
        main(["--version"])
    assert calls == [1]
    script = "import os, sla, sla.cli; print('MALLOC_TOP_PAD_' in os.environ)"
    words = [sys.executable, "-c", script]
    said = subprocess.run(words, env=without_settings(), capture_output=True, text=True, check=True).stdout
    assert said.strip() == "False"


def test_a_wrong_switch_is_refused(monkeypatch):
    monkeypatch.setenv("SLA_ALLOCATOR", "defualt")
    refused("SLA_ALLOCATOR is keep or default, not 'defualt'", sla.keep_memory)


@pytest.mark.parametrize("kind", ["no file", "another libc", "another system"])
def test_nothing_happens_without_glibc(kind, monkeypatch):
    def load(name):
        if kind == "no file":
            raise OSError(name)
        return object()

    monkeypatch.setenv("SLA_ALLOCATOR", "keep")
    if kind == "another system":
        monkeypatch.setattr(allocator.sys, "platform", "darwin")
    else:
        monkeypatch.setattr(ctypes, "CDLL", load)
    before = dict(os.environ)
    assert not sla.keep_memory()
    assert dict(os.environ) == before


@glibc
def test_limited_addresses_are_no_error():
    """A limit below half of the machine's memory: huge pages are left out, the rest is set."""
    script = (
        "import resource, sla; resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30));"
        "print(sla.keep_memory(), len(bytes(1 << 25)))"
    )
    words = [sys.executable, "-c", script]
    said = subprocess.run(words, env=without_settings(), capture_output=True, text=True, check=True).stdout
    assert said.split() == ["True", str(1 << 25)]
