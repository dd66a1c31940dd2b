"""A folder or CSV of any shape becomes splits, or one clear line; its index is reused while it is valid."""

import os
import zipfile
from collections import Counter

import numpy as np
import pytest
from PIL import Image

from refusals import fails, refused
from sla.datasets import index as index_module
from sla.datasets import scan as scan_module
from sla.datasets.folder import choose_size, load_folder, read_csv, scan_folder
from sla.datasets.scan import images_in, index_file, open_index
from sla.errors import SLAWarning
from sla.images.decode import BadImageError
from sla.images.files import FileImages
from sla.images.paths import Paths
from sla.images.store import ArrayImages


def make(root, *names, size=(4, 4)):
    """Pictures under these names; the red of a picture is the number of its place."""
    for i, name in enumerate(names):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", size, (i, 0, 0)).save(path)
    return root


def age(root):
    """Let all folders have changed a minute ago."""
    for folder, _, _ in os.walk(root):
        info = os.stat(folder)
        os.utime(folder, ns=(info.st_atime_ns, info.st_mtime_ns - 60_000_000_000))


def count_scans(monkeypatch):
    scanned: list[str] = []
    real = os.scandir
    monkeypatch.setattr(scan_module.os, "scandir", lambda path: (scanned.append(str(path)), real(path))[1])
    return scanned


# layouts


def test_class_folders(tmp_path):
    make(
        tmp_path,
        "dog/b.png",
        "cat/a.JPG",
        "dog/a.webp",
        "cat/deep/er/x.png",
        "dog/Z.gif",
        "10/a.bmp",
        "9/a.ppm",
    )
    (tmp_path / "dog" / "notes.txt").write_text("hello")
    (tmp_path / "dog" / ".hidden.png").write_text("hello")
    (tmp_path / ".git").mkdir()
    make(tmp_path, "__MACOSX/dog/._a.png", "__MACOSX/dog/b.png", "cat/@eaDir/c.png")
    (tmp_path / "dog" / "Thumbs.db").write_text("hello")
    (tmp_path / "desktop.ini").write_text("hello")
    (tmp_path / "readme.md").write_text("hello")
    found = scan_folder(tmp_path)
    assert found.classes == ("10", "9", "cat", "dog")
    names = [found.paths.relative(i) for i in range(len(found.paths))]
    assert " ".join(names) == "10/a.bmp 9/a.ppm cat/a.JPG cat/deep/er/x.png dog/Z.gif dog/a.webp dog/b.png"
    assert [found.classes[t] for t in found.targets] == [name.split("/")[0] for name in names]
    assert found.ignored == 8
    assert [str(path.relative_to(tmp_path)) for path in images_in(tmp_path)] == sorted(names)
    splits = load_folder(tmp_path)
    assert splits.name == tmp_path.name
    assert splits.val is splits.test is None
    assert isinstance(splits.train.images, ArrayImages)
    assert splits.train.targets.dtype == np.int64
    assert splits.train.name(6) == str(tmp_path / "dog" / "b.png")
    assert splits.train.read([6, 3]).images[:, 0, 0, 0].tolist() == [0, 3]


@pytest.mark.parametrize("val", ["val", "valid", "validation", "VAL"])
def test_split_folders(tmp_path, val):
    make(tmp_path, "train/a/1.png", "train/b/2.png", f"{val}/b/3.png", "test/a/4.png", "test/a/5.png")
    (tmp_path / "labels").mkdir()  # what else lies there does not matter
    splits = load_folder(tmp_path)
    assert splits.train.classes == splits.val.classes == splits.test.classes == ("a", "b")
    assert [d.targets.tolist() for d in (splits.train, splits.val, splits.test)] == [[0, 1], [1], [0, 0]]
    assert splits.val.read([0]).images[0, 0, 0, 0] == 2
    assert splits.test.read([1, 0]).images[:, 0, 0, 0].tolist() == [4, 3]


@pytest.mark.parametrize("reused", ["in memory", "saved"])
def test_class_folders_beside_train_are_noted(tmp_path, data_folder, monkeypatch, reused):
    """Once by every command, also where the index is an earlier one; other folders are not ours to judge."""
    make(tmp_path, "train/a/1.png", "train/b/2.png", "train/c/3.png", "test/a/4.png")
    make(tmp_path, "a/5.png", "b/6.png", "extra/7.png")
    age(tmp_path)
    with pytest.warns(SLAWarning, match=r"beside train/ are ignored; .* belongs in train/: a, b$"):
        assert len(open_index(tmp_path)) == 4
    if reused == "in memory":
        assert len(open_index(tmp_path)) == 4  # a warning would fail
    else:
        monkeypatch.setattr(scan_module, "_recent", {})
        scanned = count_scans(monkeypatch)
        with pytest.warns(SLAWarning, match="beside train/"):
            open_index(tmp_path)
        assert not scanned


def test_train_and_test_may_be_classes_of_their_own(tmp_path):
    make(tmp_path, "bus/1.png", "train/2.png", "test/3.png")
    assert scan_folder(tmp_path).classes == ("bus", "test", "train")


def test_csv(tmp_path):
    make(tmp_path, "data/one, two.png", "data/a\nb.png", "other/c.png", "data/ö.png")
    text = '\ufeffLabel, Split ,extra,FileName\ncat,train,,"one, two.png"\ndog,Train,,"a\nb.png"\n'
    text += f"\ndog,validation,,../other/c.png\ncat,test,,{tmp_path / 'data' / 'ö.png'}\n"
    (tmp_path / "data" / "list.csv").write_text(text, encoding="utf-8")
    splits = load_folder(tmp_path / "data" / "list.csv")
    assert splits.name == "list"
    assert splits.train.classes == ("cat", "dog")
    assert splits.train.read([0, 1]).images[:, 0, 0, 0].tolist() == [0, 1]
    assert splits.val.read([0]).images[0, 0, 0, 0] == 2
    assert splits.test.name(0) == str(tmp_path / "data" / "ö.png")
    assert splits.test.targets.tolist() == [0]


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_csv_delimiters(tmp_path, delimiter):
    make(tmp_path, "a.png", "b.png")
    rows = [["image", "class"], ["a.png", "y"], ["b.png", "x"]]
    (tmp_path / "list.csv").write_text("\n".join(delimiter.join(row) for row in rows))
    found = read_csv(tmp_path / "list.csv")
    assert (found.classes, found.targets.tolist()) == (("x", "y"), [1, 0])


def test_links_are_followed_and_loops_end(tmp_path):
    make(tmp_path / "real", "x/1.png", "x/2.png")
    data = make(tmp_path / "data", "a/1.png", "b/in/1.png")
    (data / "c").symlink_to(tmp_path / "real" / "x")
    (data / "a" / "linked.png").symlink_to(tmp_path / "real" / "x" / "1.png")
    (data / "a" / "broken.png").symlink_to("nowhere.png")
    (data / "a" / "up").symlink_to(data)
    (data / "b" / "in" / "again").symlink_to(data / "b")
    (data / "b" / "self").symlink_to(".")
    found = scan_folder(data)
    assert found.classes == ("a", "b", "c")
    assert Counter(found.targets.tolist()) == {0: 2, 1: 1, 2: 2}  # what leads back up adds nothing


def test_links_to_nowhere_are_ignored(tmp_path):
    data = make(tmp_path / "data", "a/1.png", "b/2.png")
    links = {
        "a/self": "self",
        "b/self.png": "self.png",
        "loop": "loop",
        "b/far": "x" * 300,
        "a/in": "1.png/x",
    }
    for name, target in links.items():
        (data / name).symlink_to(target)
    found = scan_folder(data)
    assert found.classes == ("a", "b")
    assert (len(found), found.ignored) == (2, len(links))


def test_real_birds(shared_data, tmp_path):
    wanted = ("001.", "037.", "200.")
    with zipfile.ZipFile(shared_data / "cub200_2011_s96.zip") as archive:
        names = [name for name in archive.namelist() if name.endswith(".webp")]
        members = [name for name in names if name.split("/")[1].startswith(wanted)]
        archive.extractall(tmp_path, members)
    splits = load_folder(tmp_path)
    classes = ("001.Black_footed_Albatross", "037.Acadian_Flycatcher", "200.Common_Yellowthroat")
    assert splits.train.classes == classes
    for part, data in (("train", splits.train), ("test", splits.test)):
        expected = Counter(n.split("/")[1] for n in members if n.startswith(part))
        assert dict(zip(classes, data.counts().tolist(), strict=True)) == expected
    assert splits.train.counts().tolist() == [30, 30, 30]
    assert splits.train.images.shape == (3, 96, 96)  # their shorter side
    pixels, aspect = splits.train.read([0, 40])
    with Image.open(splits.train.name(40)) as image:
        assert aspect[1] == pytest.approx(image.width / image.height)
        plain = np.asarray(image.convert("RGB").resize((96, 96), Image.Resampling.BICUBIC)).astype(int)
    assert np.abs(pixels[1].permute(1, 2, 0).numpy() - plain).mean() < 1


# stored size and store


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([(28, 28)] * 3, 28),
        ([(84, 84)] * 3, 84),
        ([(1, 1)] * 2, 1),
        ([(900, 900)] * 2, 256),
        ([(20, 10)] * 3, 32),
        ([(100, 80), (120, 70), (60, 90)], 70),
        ([(4000, 3000), (3000, 4000)], 256),
    ],
)
def test_the_size_fits_the_pictures(tmp_path, sizes, expected):
    for i, size in enumerate(sizes):
        make(tmp_path, f"{i}.png", size=size)
    (tmp_path / "zz.png").write_text("bad ones do not count")
    names = [*(f"{i}.png" for i in range(len(sizes))), "zz.png"]
    assert choose_size(Paths.of(names, tmp_path)) == (expected, expected)
    fails(BadImageError, r"zz\.png", choose_size, Paths.of(["zz.png"], tmp_path))


def test_in_memory_lazy_and_cached_give_the_same_bytes(tmp_path):
    rng = np.random.default_rng(0)
    for name in ("a/1.jpg", "a/2.jpg", "b/1.jpg", "b/2.png"):
        (tmp_path / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        noise = rng.integers(0, 256, (50, 70, 3), dtype=np.uint8)
        Image.fromarray(noise).save(tmp_path / "data" / name)
    cache = tmp_path / "cache"
    kinds = {
        "memory": load_folder(tmp_path / "data", size=(20, 24)),
        "lazy": load_folder(tmp_path / "data", size=(20, 24), memory_limit=0),
        "cached": load_folder(tmp_path / "data", size=(20, 24), memory_limit=0, cache=cache),
        "memory from the cache": load_folder(tmp_path / "data", size=(20, 24), cache=cache),
    }
    assert [k.train.images.in_memory for k in kinds.values()] == [True, False, False, True]
    assert isinstance(kinds["lazy"].train.images, FileImages)
    expected = kinds["lazy"].train.read(range(4))
    assert expected.images.float().std() > 10
    for splits in kinds.values():
        got = splits.train.read(range(4))
        assert (got.images == expected.images).all()
        assert (got.aspect == expected.aspect).all()
        assert [splits.train.name(i) for i in range(4)] == [kinds["lazy"].train.name(i) for i in range(4)]
    limit = 4 * 3 * 20 * 24
    assert load_folder(tmp_path / "data", size=(20, 24), memory_limit=limit).train.images.in_memory
    assert not load_folder(tmp_path / "data", size=(20, 24), memory_limit=limit - 1).train.images.in_memory


# the index


@pytest.fixture(params=["in memory", "saved"])
def index_reuse(request, monkeypatch):
    """Twice: indices held in memory by this process, and only those on disk, as after a new start."""
    if request.param == "saved":
        monkeypatch.setattr(scan_module, "RECENT", 0)
        monkeypatch.setattr(scan_module, "_recent", {})


@pytest.mark.usefixtures("index_reuse")
def test_an_unchanged_folder_is_not_scanned_again(tmp_path, data_folder, monkeypatch):
    make(tmp_path, "train/a/1.png", "train/b/in/2.png", "val/a/3.png")
    age(tmp_path)
    before = sorted(str(p) for p in tmp_path.rglob("*"))
    scanned = count_scans(monkeypatch)
    first = open_index(tmp_path)
    assert len(scanned) == len(set(scanned)) == 7  # every folder once
    second = open_index(tmp_path)
    assert len(scanned) == 7
    assert list(second.paths) == list(first.paths)
    assert (second.targets.tolist(), second.splits.tolist()) == ([0, 1, 0], [0, 0, 1])
    assert (second.classes, second.ignored) == (("a", "b"), 0)
    assert sorted(str(p) for p in tmp_path.rglob("*")) == before  # nothing is written into the data
    assert index_file(tmp_path).parent == data_folder / "index"


@pytest.mark.usefixtures("index_reuse")
@pytest.mark.parametrize("change", ["add", "remove", "rename", "new class", "replace by other"])
def test_any_change_in_a_nested_folder_is_seen(tmp_path, change):
    make(tmp_path, "a/in/er/1.png", "a/in/er/2.png", "b/3.png")
    age(tmp_path)
    inner = tmp_path / "a" / "in" / "er"
    assert len(open_index(tmp_path)) == 3
    do, expected = {
        "add": (lambda: make(inner, "new.png"), {"a/in/er/2.png", "a/in/er/new.png"}),
        "remove": ((inner / "2.png").unlink, set()),
        "rename": (lambda: (inner / "2.png").rename(inner / "0.png"), {"a/in/er/0.png"}),
        "new class": (lambda: make(tmp_path, "c/1.png"), {"a/in/er/2.png", "c/1.png"}),
        "replace by other": (lambda: (inner / "2.png").rename(inner / "2.txt"), set()),
    }[change]
    do()
    found = open_index(tmp_path)
    assert list(found.paths) == list(scan_folder(tmp_path).paths)
    assert {found.paths.relative(i) for i in range(len(found))} == {"a/in/er/1.png", "b/3.png"} | expected


@pytest.mark.usefixtures("index_reuse")
def test_a_folder_that_has_just_changed_is_not_trusted(tmp_path, monkeypatch):
    make(tmp_path, "a/1.png", "b/2.png")
    scanned = count_scans(monkeypatch)
    open_index(tmp_path)
    stamp = os.stat(tmp_path / "b").st_mtime_ns
    make(tmp_path, "b/3.png")
    os.utime(tmp_path / "b", ns=(stamp, stamp))  # as if it came within one tick of the clock
    assert len(open_index(tmp_path)) == 3
    assert len(scanned) == 6


@pytest.mark.usefixtures("index_reuse")
def test_a_changed_csv_is_read_again(tmp_path):
    make(tmp_path, "a.png", "b.png", "c.png")
    table = tmp_path / "list.csv"
    table.write_text("path,label\na.png,x\nb.png,y\n")
    os.utime(table, ns=(10**18, 10**18))
    assert open_index(table).classes == ("x", "y")
    assert open_index(table).classes == ("x", "y")
    table.write_text("path,label\na.png,x\nc.png,z\n")
    assert open_index(table).classes == ("x", "z")


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04 not really", b"\x80\x04."])
def test_a_damaged_index_is_rebuilt(tmp_path, monkeypatch, damage):
    make(tmp_path, "a/1.png", "b/2.png")
    age(tmp_path)
    open_index(tmp_path)
    index_file(tmp_path).write_bytes(damage)
    monkeypatch.setattr(scan_module, "_recent", {})  # as after a new start
    assert len(open_index(tmp_path)) == 2
    assert index_module.load_index(index_file(tmp_path), tmp_path) is not None


def test_an_index_that_cannot_be_saved_is_a_warning(tmp_path, monkeypatch):
    make(tmp_path, "a/1.png", "b/2.png")
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("SLA_DATA", str(tmp_path / "file"))
    with pytest.warns(SLAWarning, match="the index cannot be saved"):
        assert len(open_index(tmp_path)) == 2


# bad images


def make_some_bad(root):
    make(root, *(f"{c}/{i}.jpg" for c in "ab" for i in range(8)), size=(40, 40))
    (root / "a" / "1.jpg").write_text("hello")
    cut = (root / "b" / "2.jpg").read_bytes()
    (root / "b" / "2.jpg").write_bytes(cut[: len(cut) // 2])
    return root


def test_skip_leaves_bad_images_out_and_says_so(tmp_path, monkeypatch, on_advance):
    make_some_bad(tmp_path)
    with pytest.warns(SLAWarning) as caught:
        splits = load_folder(tmp_path, on_bad_image="skip")
    [message] = [str(w.message) for w in caught]
    assert message.startswith("skipped 2 of 16 images: ")
    assert f"{tmp_path}/a/1.jpg: not an image" in message
    assert f"{tmp_path}/b/2.jpg: a damaged image (Truncated" in message
    names = [splits.train.name(i) for i in range(len(splits.train))]
    assert names == [
        f"{tmp_path}/{c}/{i}.jpg" for c in "ab" for i in range(8) if c + str(i) not in ("a1", "b2")
    ]
    assert splits.train.targets.tolist() == [0] * 7 + [1] * 7

    decoded: list[int] = []
    with pytest.warns(SLAWarning, match="skipped 2 of 16"):  # the others are known to be readable
        load_folder(
            tmp_path,
            on_bad_image="skip",
            memory_limit=0,
            progress=on_advance(lambda _, d, n: decoded.append(n)),
        )
    assert decoded == [2]
    Image.new("RGB", (40, 40)).save(tmp_path / "a" / "1.jpg")  # repaired
    (tmp_path / "a" / "5.jpg").write_text("corrupt now, in place")
    with pytest.warns(SLAWarning, match=r"skipped 2 of 16 images: [^;]*a/5\.jpg[^;]*; [^;]*b/2\.jpg[^;]*$"):
        load_folder(tmp_path, on_bad_image="skip")


@pytest.mark.parametrize("below", ["", "deeper"])
def test_skipping_works_where_the_cache_cannot_be_written(tmp_path, monkeypatch, below):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("SLA_DATA", str(tmp_path / "file" / below))
    with pytest.warns(SLAWarning) as caught:
        splits = load_folder(make_some_bad(tmp_path / "photos"), on_bad_image="skip")
    words = [str(one.message) for one in caught]
    assert any("the list of readable images cannot be written: " in line for line in words)
    assert any("skipped " in line for line in words)
    assert len(splits.train) > 0


def test_skip_names_five_and_counts_the_rest(tmp_path):
    make(tmp_path, *(f"{c}/{i}.png" for c in "ab" for i in range(9)))
    for i in range(8):
        (tmp_path / "a" / f"{i}.png").write_bytes(b"")
    with pytest.warns(SLAWarning, match=r"skipped 8 of 18 images: .*a/4\.png: an empty file; and 3 more$"):
        load_folder(tmp_path, on_bad_image="skip")
    (tmp_path / "a" / "8.png").write_bytes(b"")
    with pytest.warns(SLAWarning, match="skipped 9"):
        refused("class 'a' has no readable image", load_folder, tmp_path, on_bad_image="skip")


def test_an_interrupted_check_resumes(tmp_path, on_advance):
    make(tmp_path, *(f"{c}/{i}.png" for c in "ab" for i in range(300)), size=(2, 2))

    def interrupt(what, done, total):
        assert total == 600
        if done >= 256:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load_folder(tmp_path, on_bad_image="skip", memory_limit=0, progress=on_advance(interrupt))
    totals: list[int] = []
    load_folder(
        tmp_path, on_bad_image="skip", memory_limit=0, progress=on_advance(lambda _, d, n: totals.append(n))
    )
    assert set(totals) == {600 - 224}  # the part during which it was stopped is decoded again


# clear refusals


def refusal(path):
    return refused(str(path), load_folder, path)


def test_refused_folders(tmp_path):
    assert "no such folder or CSV" in refusal(tmp_path / "absent")
    (tmp_path / "file.txt").write_text("x")
    assert "neither a folder nor a .csv" in refusal(tmp_path / "file.txt")
    (tmp_path / "empty").mkdir()
    assert "no images; expected <class>/*.jpg" in refusal(tmp_path / "empty")
    assert "images but no class folders" in refusal(make(tmp_path / "loose", "1.png", "2.png"))
    one = make(tmp_path / "one", "cat/1.png")
    assert "only one class, 'cat'; a classifier needs at least two" in refusal(one)
    hollow = make(tmp_path / "hollow", "a/1.png", "b/1.png")
    (hollow / "c" / "deep").mkdir(parents=True)
    (hollow / "c" / "deep" / "x.heic").write_text("x")
    assert "class folder 'c' has no images" in refusal(hollow)


def test_refused_splits(tmp_path):
    root = make(tmp_path / "x", "train/a/1.png", "train/b/1.png", "val/a/1.png", "val/q/1.png", "val/r/1.png")
    assert "val has classes missing from train: q, r" in refusal(root)
    assert "images but no class folders" in refusal(make(tmp_path / "flat", "train/1.png", "test/2.png"))
    assert "no train folder" in refusal(make(tmp_path / "no", "val/a/1.png", "test/a/2.png"))
    both = make(tmp_path / "both", "train/a/1.png", "train/b/1.png", "val/a/1.png", "valid/a/1.png")
    assert "two folders for one split: train, val, valid" in refusal(both)
    hollow = make(tmp_path / "hollow", "train/a/1.png", "train/b/1.png")
    (hollow / "test").mkdir()
    assert f"{hollow}/test: no images" in refusal(hollow)


def test_an_unreadable_folder_is_named(tmp_path, monkeypatch):
    make(tmp_path, "a/1.png", "b/2.png")
    real = os.scandir

    def guarded(path):
        if path.endswith("/b"):
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(scan_module.os, "scandir", guarded)
    assert f"{tmp_path}/b: the folder cannot be read: Permission denied" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name,label\na.png,x\n", "no column path or file or filename or image; the header is: name, label"),
        ("path,kind\na.png,x\n", "no column label or class or target; the header is: path, kind"),
        ("path,label,Label\na.png,x,y\n", "more than one column label.*the header is: path, label, label"),
        ("path,label,split,split\na.png,x,train,test\n", "more than one column split"),
        ("path,label\n", "no images listed"),
        ("path,label\na.png,x\nabsent.png,y\n", "line 3: no such file: .*absent.png"),
        ("path,label\na.png,x\n\nb.png, \n", "line 4: b.png has an empty label"),
        ("path,label\na.png,x\nb.png\n", "line 3: 1 fields, but the header has 2"),
        (
            "path,label,split\na.png,x,train\nb.png,y,tarin\n",
            "line 3: unknown split 'tarin', did you mean 'train'",
        ),
        ("path,label,split\na.png,x,test\nb.png,y,test\n", "no images to train on"),
        (
            "path,label,split\na.png,x,train\nb.png,y,train\nc.png,z,val\n",
            "val has classes missing from train: z",
        ),
        (
            "path,label\na.png,x\nb.png,y\n./b.png,z\n",
            r"line 4: ./b.png has two labels: 'y' in line 3 and 'z' here",
        ),
        ("path,label\na.png,x\nb.png,x\n", "only one class"),
        (b"path,label\na.png,caf\xe9\n", "not UTF-8 text"),
        (b'path,label\n"a.png,x\n' + b"y" * 200_000, "line .*: not a CSV row"),
    ],
)
def test_refused_csv(tmp_path, text, message):
    make(tmp_path, "a.png", "b.png", "c.png")
    table = tmp_path / "list.csv"
    table.write_bytes(text if isinstance(text, bytes) else text.encode())
    message = refused(message, load_folder, table)
    assert str(table) in message
