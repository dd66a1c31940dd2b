import pytest


@pytest.fixture(autouse=True)
def _own_data_folder(data_folder):
    """Every test has a data folder of its own."""
