"""Uploads over a real connection: slow ones and ones that end early are no trouble for others."""

import socket
import time
import urllib.error
import urllib.request
from contextlib import ExitStack
from urllib.parse import urlsplit

import pytest

from sla.serve import app as application
from sla.serve.app import create_app
from sla.serve.limits import DECODERS


def begin(address, body, length, kind="image/png"):
    """A connection that has sent the head of an upload and this much of its body."""
    place = urlsplit(address)
    found = socket.create_connection((place.hostname, place.port), timeout=30)
    head = f"POST /api/predict HTTP/1.1\r\nHost: {place.netloc}\r\nContent-Type: {kind}\r\n"
    found.sendall(f"{head}Content-Length: {length}\r\n\r\n".encode() + body)
    return found


def post(address, data):
    """Status and Retry-After of one picture."""
    request = urllib.request.Request(f"{address}/api/predict", data, {"Content-Type": "image/png"})
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, None
    except urllib.error.HTTPError as error:
        return error.code, error.headers["Retry-After"]


def test_uploads_that_stand_still_block_nobody(run, serve, digit, monkeypatch):
    monkeypatch.setattr(application, "MOST_REQUESTS", 1)
    with serve(create_app(run, nearest=0)) as address, ExitStack() as idle:
        for _ in range(DECODERS + 1):
            idle.enter_context(begin(address, b"x", 1000))
        start = time.monotonic()
        assert post(address, digit(0)) == (200, None)
        assert time.monotonic() - start < 15


def test_all_uploads_together_are_bounded(run, serve, digit, monkeypatch):
    monkeypatch.setattr(application, "HELD_BYTES", 1 << 20)
    app, held = create_app(run, nearest=0), (1 << 20) - 10
    with serve(app) as address:
        with begin(address, bytes(held), 1 << 20):
            wait_for(lambda: app.middleware_stack.app.held == held)
            assert post(address, digit(0)) == (503, "1")
        wait_for(lambda: post(address, digit(0)) == (200, None))
        for _ in range(3):  # what was answered is held no longer
            assert post(address, bytes(held)) == (400, None)
        assert post(address, digit(0)) == (200, None)


def wait_for(condition):
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.parametrize("kind", ["image/png", "multipart/form-data; boundary=x"])
def test_a_client_that_leaves_prints_nothing(run, serve, capfd, kind):
    part = b'--x\r\nContent-Disposition: form-data; name="a"; filename="a"\r\n'
    with serve(create_app(run, nearest=0)) as address:
        begin(address, part, 1000, kind).close()
        assert post(address, b"")[0] == 400  # by now the first is read
    assert capfd.readouterr().err == ""
