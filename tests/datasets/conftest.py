import pytest


@pytest.fixture(autouse=True)
def data_folder(tmp_path_factory, monkeypatch):
    """An empty data folder for each test."""
    folder = tmp_path_factory.mktemp("sla")
    monkeypatch.setenv("SLA_DATA", str(folder))
    return folder
