"""What is said before training: counts, balance, images in two splits, time; and nothing is left behind."""

import numpy as np
import pytest
from PIL import Image

from commands import sla
from refusals import refused
from sla.datasets.load import load
from sla.errors import InputError, SLAWarning
from sla.images import content
from sla.runs.images_record import make_record
from sla.session import preview
from sla.tasks.classifier import data_summary as findings
from sla.tasks.classifier.data_summary import describe_data
from sla.tasks.classifier.plan import Plan, make_plan
from sla.tasks.registry import make_config

SMALL = ("--backbone", "convnet4", "--set", "model.options={width: 8}", "--set", "run.compile=false")


@pytest.fixture
def photos(tmp_path):
    """30 of `common`, 2 of `rare`; two of the test images are also training images."""
    draws = np.random.default_rng(0)
    for split, name, count in (("train", "common", 30), ("train", "rare", 2), ("test", "common", 4)):
        for number in range(count):
            path = tmp_path / "photos" / split / name / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(draws.integers(0, 255, (8, 12, 3), np.uint8)).save(path)
    (tmp_path / "photos" / "test" / "rare").mkdir()
    for number, name in ((0, "common"), (1, "rare")):
        content = (tmp_path / "photos" / "train" / name / f"{number}.png").read_bytes()
        (tmp_path / "photos" / "test" / name / "copy.png").write_bytes(content)
    return tmp_path / "photos"


@pytest.mark.parametrize("limit", [1 << 30, 0], ids=["in memory", "as files"])
def test_what_is_in_the_data(photos, limit):
    splits = load(photos, size=8, memory_limit=limit)
    lines = list(describe_data(Plan(make_config({}), splits.train, None, splits.test, ())))
    assert lines[0] == "2 classes; images: 32 training, 6 test"
    assert lines[1] == "pictures of 8 x 12 pixels (of 32 sampled), stored at 8 x 8 pixels"
    assert lines[2].startswith("training images per class: 2 (rare) to 30 (common)")
    assert lines[3].startswith("2 test images are also training images: copy.png is 0.png;")
    assert len(lines) == 4


def test_a_part_that_was_compared_is_called_one(photos, monkeypatch):
    monkeypatch.setattr(findings, "OPENED", 3)
    splits = load(photos, size=8, memory_limit=0)
    lines = list(describe_data(Plan(make_config({}), splits.train, None, splits.test, ())))
    assert lines[3].endswith("(compared: 3 with 3 of them)")


def test_digits_have_no_image_twice_over_splits():
    splits = load("digits")
    lines = list(describe_data(Plan(make_config({}), splits.train, None, splits.test, ())))
    pixels = [
        {bytes(x.numpy()) for x in part.read(range(len(part))).images} for part in (splits.train, splits.test)
    ]
    assert len(pixels[0] & pixels[1]) == 0
    assert lines[1] == "stored at 8 x 8 pixels, grey"
    assert len(lines) == 3


def test_dry_run_says_it_all_and_leaves_nothing(photos, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = sorted(path for path in tmp_path.rglob("*"))
    told = sla("train", photos, "--dry-run", "--iterations", 4, "--set", "data.hold_out=0.5", *SMALL)
    assert "2 classes; images: 16 training, 16 held-out, 6 test" in told
    assert "4 iterations of 4 images" in told
    assert "seconds of training, not compiled" in told
    assert sorted(path for path in tmp_path.rglob("*")) == before
    more = ("--views", "auto", "--compare", "baseline", "--set", "run.batch_size=8")
    told = sla("train", "digits", "--dry-run", *more, *SMALL)
    assert "views: rot4, rot2 will be tried" in told
    assert told.count("10 classes; images") == 2
    assert sorted(path for path in tmp_path.rglob("*")) == before
    refused("not with --resume", sla, "train", "digits", "--dry-run", "--resume", "--out", "runs/digits")


@pytest.mark.parametrize("task", ["classifier", "fewshot"])
def test_a_misspelt_backbone_is_refused_before_anything_is_read_or_said(task, messages):
    for model in ({"backbone": "resnet33"}, {"backbone": "resnet8", "options": {"widht": 1}}):
        config = make_config({"task": task, "data": {"source": "digits"}, "model": model})
        refused("did you mean 'resnet34'|has no option 'widht'", preview, config, progress=messages)
    assert messages.lines == messages.passes == []


def test_an_option_that_the_method_lacks_is_noticed(recwarn):
    tree = {"data": {"source": "digits"}, "method": {"name": "baseline", "beta": 0.5}}
    with pytest.warns(SLAWarning, match=r"method\.beta has no effect: method baseline has no such option"):
        make_plan(make_config(tree))
    recwarn.clear()
    make_plan(make_config(tree | {"method": {"name": "sla+sd", "beta": 0.5}}))
    assert not recwarn.list


def test_views_command_prints_a_table(monkeypatch):
    from sla.tasks.classifier import view_probe as probe

    monkeypatch.setattr(probe, "STEPS", 80)
    lines = sla("views", "digits", "--candidates", "rot4,rgb3").splitlines()
    header = next(place for place, line in enumerate(lines) if line.startswith("views\tM"))
    cells = lines[header + 1].split("\t")
    assert cells[:3] == ["rot4", "4", "25.0"]
    assert cells[5] == "recognisable"
    assert lines[header + 2].startswith("rot4 is recognisable here, so SLA with it can help")
    refused("--minutes must be above 0", sla, "views", "digits", "--minutes", 0)


@pytest.mark.parametrize("each", [1, 2])
def test_views_of_few_images_are_looked_at_whatever_their_classes(each, tmp_path, monkeypatch):
    from sla.tasks.classifier import view_probe as probe

    monkeypatch.setattr(probe, "STEPS", 2)
    for number in range(4):
        for name in ("abcd"[number], "ab"[number % 2])[each - 1 : each]:
            path = tmp_path / name / f"{number}.png"
            path.parent.mkdir(exist_ok=True)
            Image.fromarray(np.full((8, 8), 60 * number, np.uint8)).save(path)
    said = sla("views", tmp_path, "--candidates", "rot4")
    assert "Measured on 1 held-out images" in said
    assert "too few images to say" in said
    (tmp_path / "a" / "broken.png").write_bytes(b"no picture")
    with pytest.raises(InputError, match=r"broken.png: .*`--on-bad-image skip`\) skips such files"):
        sla("views", tmp_path, "--candidates", "rot4")
    with pytest.warns(SLAWarning, match=r"skipped 1 of 5 images: .*broken.png"):
        again = sla("views", tmp_path, "--candidates", "rot4", "--on-bad-image", "skip")
    assert again.endswith(said.splitlines()[-1] + "\n")


def test_what_is_compared_and_recorded_is_hashed_once(monkeypatch):
    hashed = []
    compute = content._dataset_keys
    monkeypatch.setattr(
        content, "_dataset_keys", lambda *given: hashed.append(len(given[0])) or compute(*given)
    )
    splits = load("digits")
    plan = make_plan(make_config({"data": {"source": "digits"}}), splits)
    assert list(describe_data(plan))
    make_record(plan)
    assert sorted(hashed) == sorted(len(part) for part in (plan.train, plan.val, plan.test))
