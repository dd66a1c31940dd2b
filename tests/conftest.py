import os
from pathlib import Path

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


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of packed real datasets beside the repository, or where SLA_SHARED_DATA says."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("SLA_SHARED_DATA", beside))
    if not folder.is_dir():
        pytest.skip(f"the packed real datasets are not in {folder} (SLA_SHARED_DATA)")
    return folder
