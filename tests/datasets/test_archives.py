"""Archives made by the standard library, good ones and such as reach outside their folder."""

import gzip
import io
import stat
import tarfile
import zipfile

import pytest

from refusals import refused
from sla.datasets.archives import gunzip, new_folder, unpack_into
from sla.errors import InputError


def unpack(archive, target, **limits):
    with new_folder(target) as folder:
        unpack_into(archive, folder, **limits)


def tar(path, *members, mode="w"):
    with tarfile.open(path, mode) as file:
        for name, content, fields in members:
            info = tarfile.TarInfo(name)
            info.size = len(content or b"")
            for key, value in fields.items():
                setattr(info, key, value)
            file.addfile(info, io.BytesIO(content or b""))
    return path


def everything(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize(
    ("name", "mode"), [("a.tar", "w"), ("a.tgz", "w:gz"), ("a.tar.bz2", "w:bz2"), ("a.txz", "w:xz")]
)
def test_tar_of_every_kind(tmp_path, name, mode):
    archive = tar(
        tmp_path / name,
        ("d", None, {"type": tarfile.DIRTYPE}),
        ("d/x", b"1" * 9999, {}),
        ("y", b"", {}),
        mode=mode,
    )
    unpack(archive, tmp_path / "out")
    assert everything(tmp_path / "out") == {"d/x": b"1" * 9999, "y": b""}


def test_zip(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as file:
        file.mkdir("empty")
        file.writestr("d/x", b"1" * 9999)
    unpack(tmp_path / "a.zip", tmp_path / "deep" / "out")
    assert everything(tmp_path / "deep" / "out") == {"d/x": b"1" * 9999}
    assert (tmp_path / "deep" / "out" / "empty").is_dir()


BAD_TAR = {
    "dots": ("../evil", b"x", {}, "'..'"),
    "dots inside": ("a/../../evil", b"x", {}, "'..'"),
    "absolute": ("/tmp/evil", b"x", {}, "absolute path"),
    "drive": ("C:/evil", b"x", {}, "absolute path"),
    "backslashes": ("..\\evil", b"x", {}, "'..'"),
    "symbolic link": ("link", None, {"type": tarfile.SYMTYPE, "linkname": "/etc"}, "is a link"),
    "inner link": ("link", None, {"type": tarfile.SYMTYPE, "linkname": "fine"}, "is a link"),
    "hard link": ("link", None, {"type": tarfile.LNKTYPE, "linkname": "/etc/passwd"}, "is a link"),
    "device": ("zero", None, {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 5}, "is a device"),
    "pipe": ("pipe", None, {"type": tarfile.FIFOTYPE}, "is a device"),
    "file as folder": ("fine/evil", b"x", {}, "cannot be written"),
    "long name": ("n" * 300, b"x", {}, "cannot be written"),
}


@pytest.mark.parametrize("case", BAD_TAR)
def test_a_tar_that_reaches_outside_leaves_nothing(tmp_path, case):
    name, content, fields, reason = BAD_TAR[case]
    home = tmp_path / "home"
    home.mkdir()
    archive = tar(tmp_path / "bad.tar", ("fine", b"ok", {}), (name, content, fields), ("link/evil", b"x", {}))
    message = refused("bad.tar", unpack, archive, home / "out")
    assert repr(name) in message
    assert reason in message
    assert "\n" not in message
    assert list(home.iterdir()) == []
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bad.tar", "home"]


@pytest.mark.parametrize("name", ["../evil", "/tmp/evil", "a/../../evil", "C:\\evil"])
def test_a_zip_that_reaches_outside_leaves_nothing(tmp_path, name):
    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as file:
        file.writestr("fine", b"ok")
        file.writestr(zipfile.ZipInfo(name), b"x")
    refused(r"bad\.zip: member", unpack, tmp_path / "bad.zip", tmp_path / "home" / "out")
    assert list((tmp_path / "home").iterdir()) == []
    assert not (tmp_path / "evil").exists()


def test_a_link_in_a_zip_is_refused(tmp_path):
    info = zipfile.ZipInfo("link")
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as file:
        file.writestr(info, "/etc")
    refused("'link' is a link", unpack, tmp_path / "bad.zip", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_zip_by_lzma_is_refused(tmp_path):
    with zipfile.ZipFile(
        tmp_path / "big.zip", "w", zipfile.ZIP_LZMA
    ) as file:  # its dictionary may be gigabytes
        file.writestr("a", b"x" * 100)
    refused("'a' is compressed by LZMA", unpack, tmp_path / "big.zip", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_bytes_and_files_are_bounded(tmp_path):
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("zeros", bytes(5_000_000))
    assert (tmp_path / "bomb.zip").stat().st_size < 10_000
    with pytest.raises(InputError, match="over the 1,000,000 bytes allowed"):
        unpack(tmp_path / "bomb.zip", tmp_path / "out", max_bytes=1_000_000)
    many = tar(tmp_path / "many.tar", *((f"{i}", b"", {}) for i in range(11)))
    refused("one more than the 10 files allowed", unpack, many, tmp_path / "out", max_files=10)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("mode", ["w:gz", "w:xz", "w:bz2"])
def test_truncated_archives(tmp_path, mode):
    noise = bytes((i * i * 31 + i) % 251 for i in range(60_000))
    whole = tar(tmp_path / "a", ("x", noise, {}), ("y", noise, {}), mode=mode).read_bytes()
    for share in (0.3, 0.9):
        (tmp_path / "cut").write_bytes(whole[: int(len(whole) * share)])
        refused("cut: truncated, damaged", unpack, tmp_path / "cut", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_damage_is_found_by_the_archives_own_checksum(tmp_path):
    data = bytearray(tar(tmp_path / "a.tgz", ("x", b"1" * 1000, {}), mode="w:gz").read_bytes())
    data[-6] ^= 1  # in gzip's CRC, after all the content
    (tmp_path / "a.tgz").write_bytes(data)
    refused(r"a\.tgz: ", unpack, tmp_path / "a.tgz", tmp_path / "out")


def test_a_damaged_header_does_not_pass_for_the_end(tmp_path):
    data = bytearray(tar(tmp_path / "a.tar", ("x", b"1" * 100, {}), ("y", b"2" * 30_000, {})).read_bytes())
    data[1024 + 10] ^= 1  # in the second member's header
    (tmp_path / "a.tar").write_bytes(data)
    refused("a damaged member", unpack, tmp_path / "a.tar", tmp_path / "out")


def test_what_is_no_archive_and_what_is_in_the_way(tmp_path):
    (tmp_path / "page.tar.gz").write_text("<html>404</html>" * 100)
    with pytest.raises(InputError, match=r"page\.tar\.gz: truncated, damaged, or no archive"):
        unpack(tmp_path / "page.tar.gz", tmp_path / "out")
    good = tar(tmp_path / "a.tar", ("x", b"new", {}))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "x").write_text("old")
    refused("already exists", unpack, good, tmp_path / "mine")
    assert (tmp_path / "mine" / "x").read_text() == "old"


def test_gunzip(tmp_path):
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"hello" * 1000))
    gunzip(tmp_path / "a.gz", tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == b"hello" * 1000
    refused("over the 100 bytes allowed", gunzip, tmp_path / "a.gz", tmp_path / "b", max_bytes=100)
    (tmp_path / "cut.gz").write_bytes((tmp_path / "a.gz").read_bytes()[:-9])
    refused(r"cut\.gz: truncated", gunzip, tmp_path / "cut.gz", tmp_path / "c")
