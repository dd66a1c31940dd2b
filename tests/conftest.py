import gc
import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings

from sla.progress import Progress

settings.register_profile("sla", max_examples=25, deadline=None, derandomize=True)
settings.load_profile("sla")

# Small tensors: threads cost more than they bring, and one thread sums in one order. Children inherit it.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["SLA_ALLOCATOR"] = "default"  # a test of the command line leaves its process as it was
os.environ.setdefault("GOMP_SPINCOUNT", "20000")  # as in every command: also before torch is imported
os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # onnxruntime reports to its maker unless told before its import


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    import torch

    torch.set_num_threads(1)


class Messages(Progress):
    """Keeps the messages, and the names of passes, in their order."""

    def __init__(self):
        self.lines, self.passes = [], []

    def message(self, text):
        self.lines.append(text)

    def advance(self, what, done, total):
        self.passes.append(what)


class OnAdvance(Progress):
    """Calls a function with what every `advance` gets: what, done, total."""

    def __init__(self, call):
        self.advance = call


class StopAt(Progress):
    """Asks to stop after a step, as Ctrl-C would."""

    def __init__(self, step):
        self.at = step

    def step(self, done, total, metrics):
        if done == self.at:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture
def messages():
    return Messages()


@pytest.fixture
def data_folder(tmp_path_factory, monkeypatch):
    """An empty data folder for this test."""
    folder = tmp_path_factory.mktemp("sla")
    monkeypatch.setenv("SLA_DATA", str(folder))
    return folder


@pytest.fixture
def stopped(capsys):
    """Runs `sla` with these words to its exit code; what it said, on one line where it refused."""
    gc.collect()  # what earlier tests left open is noted now, not among what the command says
    capsys.readouterr()

    def run(code, *words):
        from sla.cli import main

        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
        told = capsys.readouterr()
        assert ended.value.code == code, told.out + told.err
        assert code != 2 or "\n" not in told.err.strip()
        return told.err.strip() if code == 2 else told.out + told.err

    return run


@pytest.fixture(scope="session")
def on_advance():
    return OnAdvance


@pytest.fixture(scope="session")
def stop_at():
    return StopAt


# A run of a few seconds that has everything: held-out and test images, curves, a temperature.
TINY = {
    "model__backbone": "convnet4",
    "model__options": {"width": 8},
    "run__iterations": 12,
    "run__batch_size": 32,
    "run__evaluations": 3,
    "run__compile": False,
    "data__workers": 0,
}


@pytest.fixture(scope="session")
def tiny_settings():
    """Settings for `sla.fit` that train in about a second."""
    return dict(TINY)


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory):
    """A finished run of sla+sd on the digits; copy its folder before changing anything in it."""
    import sla

    folder = tmp_path_factory.mktemp("finished") / "digits"
    return sla.fit("digits", folder, method__name="sla+sd", **TINY)


@pytest.fixture(scope="session")
def baseline_run(tmp_path_factory):
    """The same with the baseline."""
    import sla

    folder = tmp_path_factory.mktemp("baseline") / "digits"
    return sla.fit("digits", folder, method__name="baseline", **TINY)


@pytest.fixture(scope="session")
def shared_data():
    """The folder of packed real datasets beside the repository, or where SLA_SHARED_DATA says."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("SLA_SHARED_DATA", beside))
    if not folder.is_dir():
        pytest.skip(f"the packed real datasets are not in {folder} (SLA_SHARED_DATA)")
    return folder
