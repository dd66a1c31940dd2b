"""A run behind HTTP, as an application and as a server, and files that are no pictures."""

import contextlib
import io
import shutil
import threading
import urllib.request

import pytest
import uvicorn
from PIL import Image
from starlette.testclient import TestClient

import sla
from made_images import as_picture, png
from sla.datasets.load import load
from sla.serve.app import create_app
from sla.serve.server import address_of, bind


@pytest.fixture(scope="session")
def served_folder(tmp_path_factory):
    """The cache folder of all runs that are served here."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("SLA_DATA", str(folder))
        yield folder


@pytest.fixture(scope="session")
def copied(finished_run, tmp_path_factory):
    """A function for a copy of the run, to be written to."""

    def copy(name="digits", source=None):
        folder = tmp_path_factory.mktemp("served") / name
        shutil.copytree((source or finished_run).folder, folder)
        return sla.Run(folder)

    return copy


@contextlib.contextmanager
def asking(app):
    """A client of the application, its threads running and the nearest pictures ready."""
    with TestClient(app, base_url="http://127.0.0.1:8000") as client:
        if app.state.service.nearest is not None:
            app.state.service.nearest.wait()
        yield client


@pytest.fixture(scope="session")
def ask():
    return asking


@pytest.fixture(scope="module")
def run(copied, served_folder):
    return copied()


@pytest.fixture(scope="module")
def client(run):
    with asking(create_app(run)) as found:
        yield found


@pytest.fixture(scope="session")
def digit():
    """A function for the bytes of a test picture as a PNG file."""
    images = load("digits").test

    def make(place=0, kind="PNG", **options):
        file = io.BytesIO()
        as_picture(images.read([place]).images[0]).save(file, kind, **options)
        return file.getvalue()

    return make


def truncated_jpeg():
    file = io.BytesIO()
    Image.effect_noise((200, 200), 80).save(file, "JPEG")
    return file.getvalue()[:3000]


JUNK = {
    "truncated.jpg": (truncated_jpeg(), "a damaged image"),
    "archive.zip": (b"PK\x03\x04" + bytes(200), "not an image"),
    "empty.png": (b"", "an empty file"),
    "bomb.png": (png(30_000, 30_000), "claims 900,000,000 pixels, more than the 178,956,970 allowed"),
    "header.png": (png(2**31 - 1, 2**31 - 1), "pixels, more than the"),
    "picture.svg": (
        b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>",
        "not an image",
    ),
    "text.jpg": (b"not a picture at all", "not an image"),
}


@pytest.fixture(scope="session")
def junk():
    """Files that are no pictures by name: their bytes, and what is said about them."""
    return JUNK


@contextlib.contextmanager
def serving(app):
    """The application behind a real server, in a thread; its address."""
    listening = bind("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(app, http="h11", log_level="warning", lifespan="on"))
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    address = address_of(listening)
    try:
        urllib.request.urlopen(f"{address}/api/health", timeout=30).close()
        yield address
    finally:
        server.should_exit = True
        thread.join()
        listening.close()


@pytest.fixture(scope="session")
def serve():
    return serving
