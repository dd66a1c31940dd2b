"""`sla serve`: it says where it is, answers, ends at Ctrl-C, and refuses in one line."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest
import yaml


@pytest.fixture
def started(finished_run, tmp_path):
    """A server of its own process; the process and its address."""
    process = subprocess.Popen(
        [sys.executable, "-m", "sla", "serve", str(finished_run.folder), "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"SLA_DATA": str(tmp_path)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # background jobs ignore it
    )
    line = process.stdout.readline()
    assert "(Ctrl-C ends it)" in line, process.communicate()
    yield process, line.split(": ")[1].split()[0]
    process.kill()
    process.wait()


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_it_answers_until_it_is_stopped(started, number):
    process, address = started
    assert address.startswith("http://127.0.0.1:")
    with urllib.request.urlopen(f"{address}/api/health", timeout=30) as response:
        assert json.load(response) == {"status": "ok"}
        assert response.headers.get("server") is None
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert out == ""
    assert "Traceback" not in err
    assert err.splitlines()[-1] == "sla: stopped"


def test_what_it_refuses(finished_run, stopped, tmp_path, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = stopped(2, "serve", finished_run.folder, "--port", port)
    assert f"cannot listen on 127.0.0.1 port {port}: address already in use; --port 0 takes" in said
    assert "not a run" in stopped(2, "serve", tmp_path)
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"task": "fewshot"}))
    assert "a run of task fewshot; this needs one of task classifier" in stopped(2, "serve", tmp_path)
    assert "unknown inference 'sngle'" in stopped(2, "serve", finished_run.folder, "--inference", "sngle")
    for name in ("starlette", "starlette.applications", "sla.serve.app"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "sla.serve.app")
    said = stopped(2, "serve", finished_run.folder)
    assert "sla serve needs an optional package: " in said
    assert "[serve]'" in said
