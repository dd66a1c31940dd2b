"""The examples, each run as a reader would, on real images, in an empty folder."""

import importlib.util
import io
import os
import re
import runpy
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

import sla
from sla.datasets.load import load

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
STAND_INS = Path(__file__).parent / "support" / "stand_ins"


@pytest.fixture
def said(tmp_path, monkeypatch, capsys):
    """Runs an example; what it printed."""
    monkeypatch.chdir(tmp_path)

    def run(name):
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return run


def percentages(text):
    return [float(number) for number in re.findall(r"([\d.]+)%", text)]


def test_examples_are_short():
    lengths = {path.name: len(path.read_text().splitlines()) for path in EXAMPLES.glob("*.py")}
    assert lengths.pop("serve_onnx.py") < 180  # it repeats the preprocessing without sla
    assert max(lengths.values()) <= 60
    tested = {*re.findall(r"\w+\.py", Path(__file__).read_text()), "own_loop.py"}  # with the documents
    assert set(lengths) <= tested


def test_own_method(said):
    text = said("own_method.py")
    assert min(percentages(text)) > 15  # chance is 10
    assert "opened again: pull 0.2" in text
    rows = Path("runs/steady/metrics.csv").read_text()
    assert "distance" in rows.splitlines()[0]


def test_own_view(said):
    text = said("own_view.py")
    assert len(percentages(text)) == 2
    assert "unchanged 0" in text or "negative" in text


def test_hugging_face(said, monkeypatch):
    if is_absent := importlib.util.find_spec("datasets") is None:
        monkeypatch.syspath_prepend(str(STAND_INS))
    text = said("hugging_face.py")
    assert percentages(text)[0] > 15
    assert "[" in text.splitlines()[1]
    if is_absent:
        del sys.modules["datasets"]


@pytest.mark.slow
def test_timm_model(said):
    from sla.backbones.torchvision_import import import_torchvision

    try:
        import_torchvision()
    except sla.MissingExtraError:
        pytest.skip("torchvision is not installed")
    pytest.importorskip("timm")
    text = said("timm_model.py")
    assert "as a module: 512 features, 10 classes" in text


def test_lightning_module(said):
    if importlib.util.find_spec("lightning") is None:
        pytest.skip("Lightning is not installed")
    text = said("lightning_module.py")
    assert [line.partition(":")[0] for line in text.splitlines() if "%" in line] == [
        "single",
        "aggregated",
        "distilled",
    ]


@pytest.mark.slow
def test_ddp_loop(tmp_path):
    """Two processes as torchrun starts them, without its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = [
        subprocess.Popen(
            [sys.executable, str(EXAMPLES / "ddp_loop.py")],
            cwd=tmp_path,
            env=os.environ
            | {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    ended = [process.communicate() for process in started]
    assert [process.returncode for process in started] == [0, 0], ended
    assert ended[0][0].startswith("2 processes: ")
    assert percentages(ended[0][0])[0] > 20  # chance is 10
    assert ended[1][0] == ""


def test_serve(finished_run, tmp_path, monkeypatch):
    testclient = pytest.importorskip("starlette.testclient")
    monkeypatch.setenv("SLA_DATA", str(tmp_path))
    served = runpy.run_path(str(EXAMPLES / "serve.py"))
    image = Image.fromarray(load("digits").test.read([0]).images[0, 0].numpy())
    file = io.BytesIO()
    image.save(file, "png")
    with testclient.TestClient(served["make_app"](finished_run.folder), "http://127.0.0.1") as client:
        assert client.get("/").text == "a program of your own"
        found = client.post("/pictures/api/predict?min_confidence=0", content=file.getvalue()).json()
        assert found["class"] == sla.Run(finished_run.folder).predict([image]).names[0]
        assert client.post("/pictures/api/predict", content=b"no picture").status_code == 400
        assert 'href="static/style.css"' in client.get("/pictures/").text
        assert client.get("/pictures/static/style.css").status_code == 200
