import pytest
from hypothesis import settings

settings.register_profile("sla", max_examples=25, deadline=None, derandomize=True)
settings.load_profile("sla")


@pytest.fixture(autouse=True)
def _one_thread():
    """Two cores, small tensors: threads cost more than they bring, and one thread is reproducible."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
