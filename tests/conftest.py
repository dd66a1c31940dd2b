import os
import signal

import pytest
from hypothesis import settings

from sla.progress import Progress

settings.register_profile("sla", max_examples=25, deadline=None, derandomize=True)
settings.load_profile("sla")

# Small tensors: threads cost more than they bring, and one thread sums in one order. Children inherit it.
os.environ["OMP_NUM_THREADS"] = "1"
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


@pytest.fixture(scope="session")
def stop_at():
    return StopAt
