import os

import pytest
from hypothesis import settings

settings.register_profile("sla", max_examples=25, deadline=None, derandomize=True)
settings.load_profile("sla")

# Small tensors: threads cost more than they bring, and one thread sums in one order. Children inherit it.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # onnxruntime reports to its maker unless told before its import


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    import torch

    torch.set_num_threads(1)
