"""A run knows its images by content, whether it is finished, and whether its files are what it wrote."""

import json
import os
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import sla
from refusals import refused
from sla.cli import main
from sla.errors import InputError, SLAError, SLAWarning
from sla.runs.checkpoint import find_checkpoint
from sla.runs.images_record import read_record
from sla.runs.signals import StoppedError
from sla.tasks.classifier.run import Run

SETTINGS = {
    "model__backbone": "convnet4",
    "model__options": {"width": 4},
    "method__name": "sla",
    "augment": "none",
    "run__iterations": 30,
    "run__batch_size": 18,
    "run__evaluations": 2,
    "run__compile": False,
    "data__workers": 0,
    "data__hold_out": 0.4,
}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SLA_DATA", str(tmp_path / "cache"))


def write_noise(folder: Path, count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        Image.fromarray(rng.integers(0, 256, (8, 8, 3), np.uint8)).save(folder / f"{number:03}.png")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Two classes of 30 noise images, 40% held out, and a finished run on them."""
    folder = tmp_path_factory.mktemp("identity")
    for seed, name in enumerate("ab"):
        write_noise(folder / "photos" / name, 30, seed)
    sla.fit(folder / "photos", folder / "run", **SETTINGS)
    return folder


@pytest.fixture
def place(trained, tmp_path):
    """A copy of photos and run; the run's data are the copied photos."""
    shutil.copytree(trained / "photos", tmp_path / "photos")
    shutil.copytree(trained / "run", tmp_path / "run")
    config = tmp_path / "run" / "config.yaml"
    config.write_text(config.read_text().replace(str(trained / "photos"), str(tmp_path / "photos")))
    return tmp_path


def accuracies(run, *data):
    outputs = run.evaluate(*data)
    return len(outputs.targets), {k: round(s["top1"], 6) for k, s in outputs.scores().items()}


def cli(capsys, *words):
    """Exit code, standard output and the lines of standard error."""
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        with pytest.raises(SystemExit) as end:
            main([*map(str, words)])
    out, err = capsys.readouterr()
    return end.value.code or 0, out, err.splitlines()


def flip_bit(path, at=-10, bit=6):
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(data)


def last(folder):
    return find_checkpoint(folder / "checkpoint", "last")


def unfinished(folder, stop_at, step=13, **more):
    with pytest.raises(StoppedError):
        sla.fit(folder / "photos", folder / "half", progress=stop_at(step), **SETTINGS, **more)
    return folder / "half"


# 1. Which images


def test_renamed_files_stay_held_out(trained, place):
    expected = accuracies(Run(trained / "run"))
    assert expected[0] == 24
    for name in "ab":
        (place / "photos" / name / "003.png").rename(place / "photos" / name / "zzz.png")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert accuracies(Run(place / "run")) == expected


def test_the_record_says_every_image_once_and_by_split(trained):
    record = read_record(trained / "run")
    assert record.by == "pixels"
    assert {name: len(keys) for name, keys in record.keys.items()} == {"train": 36, "val": 24}
    assert len(np.unique(np.concatenate(list(record.keys.values())))) == 60
    assert (trained / "run" / "images.safetensors").stat().st_size < 2000


def test_gone_and_new_images_are_said_with_their_counts(place, capsys):
    held = Run(place / "run").find_images().dataset
    os.remove(held.name(0))
    write_noise(place / "photos" / "c", 3, 7)
    for file in (place / "photos" / "c").iterdir():
        file.rename(place / "photos" / "a" / f"new-{file.name}")
    (place / "photos" / "c").rmdir()
    code, out, err = cli(capsys, "evaluate", place / "run")
    assert code == 0
    assert out.startswith("23 held-out images")
    (line,) = [line for line in err if "held-out" in line]
    assert "1 of its 24 held-out images is gone" in line
    assert "3 images are new" in line


def test_when_no_held_out_image_is_left_it_is_refused(place, capsys):
    held = Run(place / "run").find_images().dataset
    for number in range(len(held)):
        os.remove(held.name(number))
    code, _, err = cli(capsys, "evaluate", place / "run")
    assert (code, len(err)) == (2, 1)
    assert "none of its 24 held-out images" in err[0]


@pytest.mark.parametrize("how", ["dots", "link", "moved", "itself"])
def test_training_images_are_known_wherever_they_lie(trained, place, how):
    data = place / "photos"
    if how == "dots":
        data = f"{place}/photos/../photos"
    elif how == "link":
        os.symlink(data, place / "link")
        data = place / "link"
    elif how == "moved":
        data = data.rename(place / "elsewhere")
    with pytest.warns(SLAWarning, match="36 of the 60 images were trained on and are left out"):
        assert accuracies(Run(place / "run"), data) == accuracies(Run(trained / "run"))


def test_files_of_grey_training_images_are_known(tmp_path):
    """Files are read in colour; the run had the same pictures with one channel."""
    rng = np.random.default_rng(3)
    images, labels = rng.integers(0, 256, (60, 8, 8), np.uint8), np.arange(60) % 2
    grey = SETTINGS | {"model__options": {"width": 4, "in_channels": 1}, "run__iterations": 2}
    run = sla.fit(images, labels, str(tmp_path / "run"), **grey)
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        path = tmp_path / "files" / str(label) / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    with pytest.warns(SLAWarning, match="36 of the 60 images were trained on and are left out"):
        assert len(run.dataset(str(tmp_path / "files"))) == 24


def test_training_images_alone_are_refused(place, capsys):
    run = Run(place / "run")
    held = {held.name(i) for held in [run.find_images().dataset] for i in range(len(held))}
    for name in held:
        os.remove(name)
    (place / "photos").rename(place / "seen")
    code, _, err = cli(capsys, "evaluate", place / "run", place / "seen")
    assert (code, len(err)) == (2, 1)
    assert "all 36 images were trained on" in err[0]


def test_a_training_image_that_moved_to_test_does_not_count(tmp_path):
    for split, seed in (("train", 0), ("test", 5)):
        for number, name in enumerate("ab"):
            write_noise(tmp_path / "photos" / split / name, 12, seed + number)
    run = sla.fit(tmp_path / "photos", tmp_path / "run", **SETTINGS)
    whole, trained_on = accuracies(run), run.splits.train.name(0)
    os.rename(trained_on, tmp_path / "photos" / "test" / "a" / "moved.png")
    with pytest.warns(SLAWarning, match="1 of the 25 images was trained on and is left out"):
        assert accuracies(Run(tmp_path / "run")) == whole


def test_test_images_that_are_gone_are_said_and_the_held_out_ones_are_called_so(tmp_path):
    for split, seed in (("train", 0), ("test", 5)):
        for number, name in enumerate("ab"):
            write_noise(tmp_path / "photos" / split / name, 12, seed + number)
    run = sla.fit(tmp_path / "photos", tmp_path / "run", **SETTINGS)
    shutil.rmtree(tmp_path / "photos" / "test")
    with pytest.warns(
        SLAWarning, match="its 24 test images are gone; the held-out images are used, by which"
    ):
        images = Run(tmp_path / "run").images()
    assert (len(images.dataset), images.what) == (run.result["images"]["val"], "held-out images")


def test_compare_uses_what_each_run_trained_on(place, capsys):
    sla.fit(place / "photos", place / "other", **SETTINGS, run__seed=1, data__hold_out_seed=1)
    first, second = Run(place / "run"), Run(place / "other")
    both = {
        frozenset(held.name(i) for i in range(len(held)))
        for held in (r.find_images().dataset for r in (first, second))
    }
    common = len(frozenset.intersection(*both))
    copied = place / "copied"
    shutil.copytree(place / "photos", copied)
    words = ("--json", "--out", place / "c.html")
    code, out, _ = cli(capsys, "compare", first.folder, second.folder, "--data", copied, *words)
    assert (code, json.loads(out)["images"]) == (0, common)
    os.rename(place / "photos" / "a" / "000.png", place / "photos" / "a" / "zzz.png")
    code, out, _ = cli(capsys, "compare", first.folder, second.folder, *words)
    assert (code, json.loads(out)["images"]) == (0, common)


def test_a_run_from_before_the_record_is_checked_by_its_counts(trained, place):
    (place / "run" / "images.safetensors").unlink()
    with pytest.warns(SLAWarning, match="written before runs recorded their images"):
        assert accuracies(Run(place / "run")) == accuracies(Run(trained / "run"))
    os.remove(place / "photos" / "a" / "000.png")
    refused("have changed since", Run(place / "run").evaluate)


def test_images_that_stay_on_disk_are_known_by_their_files(trained, place, monkeypatch):
    import sla.images.storage as storage
    from sla.images.content import dataset_keys, key_kind

    monkeypatch.setattr("sla.datasets.load.MEMORY_LIMIT", 0)
    monkeypatch.setattr(
        sla.datasets.load.load, "__kwdefaults__", {**sla.datasets.load.load.__kwdefaults__, "memory_limit": 0}
    )
    assert storage.MEMORY_LIMIT
    run = sla.fit(place / "photos", place / "disk", **SETTINGS)
    assert key_kind(run.splits.train) == read_record(place / "disk").by == "file"
    expected = accuracies(run)
    os.rename(place / "photos" / "a" / "000.png", place / "photos" / "a" / "zzz.png")
    assert accuracies(Run(place / "disk")) == expected
    in_memory = Run(trained / "run").find_images().dataset
    assert len(np.unique(dataset_keys(in_memory, by="file"))) == 24


# 2. Resume


def test_resume_refuses_other_images_under_the_same_counts(place, stop_at):
    folder = unfinished(place, stop_at)
    (place / "photos" / "a").rename(place / "photos" / "c")
    (place / "photos" / "b").rename(place / "photos" / "a")
    (place / "photos" / "c").rename(place / "photos" / "b")
    refused("60 have another class", sla.fit, place / "photos", folder, resume=True, **SETTINGS)


def test_resume_refuses_more_images_and_evaluate_says_so(place, stop_at):
    folder = unfinished(place, stop_at)
    rng = np.random.default_rng(9)
    Image.fromarray(rng.integers(0, 256, (8, 8, 3), np.uint8)).save(place / "photos" / "a" / "new.png")
    with pytest.raises(InputError, match=r"the data has changed since .*: 1 is new"):
        sla.fit(place / "photos", folder, resume=True, **SETTINGS)
    with pytest.warns(SLAWarning) as caught:
        assert len(Run(folder).evaluate().targets) == 24
    assert [note for note in caught if "1 image is new" in str(note.message)]


def test_resume_finds_renamed_images_and_gives_the_same_bytes(trained, place, stop_at):
    folder = unfinished(place, stop_at)
    for name in "ab":
        (place / "photos" / name / "003.png").rename(place / "photos" / name / "zzz.png")
    sla.fit(place / "photos", folder, resume=True, **SETTINGS)
    pair = [(last(run) / "weights.safetensors").read_bytes() for run in (folder, trained / "run")]
    assert pair[0] == pair[1]
    assert (folder / "metrics.csv").read_bytes() == (trained / "run" / "metrics.csv").read_bytes()


# 3. Unfinished


def test_an_unfinished_run_is_marked(place, stop_at, capsys):
    folder = unfinished(place, stop_at)
    picture = place / "photos" / "a" / "000.png"
    for words in (
        ("predict", folder, picture),
        ("evaluate", folder),
        ("report", folder, "--out", place / "page.html"),
        ("export", folder, place / "model.onnx"),
    ):
        code, _, err = cli(capsys, *words)
        assert code == 0
        (line,) = [line for line in err if "unfinished" in line]
        assert line.startswith(f"sla: note: {folder}: unfinished, step 13 of 30: its scores are not final")
    code, _, err = cli(capsys, "predict", place / "run", picture)
    assert code == 0
    assert not any("unfinished" in line for line in err)


def test_compare_says_unfinished_and_does_not_group_it(place, stop_at, capsys):
    folder = unfinished(place, stop_at, run__seed=1)
    words = ("compare", place / "run", folder, "--json", "--out", place / "c.html")
    code, out, _ = cli(capsys, *words)
    found = json.loads(out)
    assert code == 0
    assert found["seed_groups"] == []
    assert [note for note in found["notes"] if "unfinished, step 13 of 30" in note and str(folder) in note]


# 4. Kills


def test_a_kill_during_the_first_write_leaves_the_folder_free(place):
    folder = place / "killed"
    folder.mkdir()
    (folder / ".config.yaml.0123456789ab").write_text("da")
    sla.fit(place / "photos", folder, **SETTINGS)
    assert [path.name for path in folder.iterdir() if path.name.startswith(".")] == [".lock"]


def test_what_killed_writes_left_goes_when_a_run_is_resumed(place, stop_at):
    folder = unfinished(place, stop_at)
    left = [folder / ".metrics.csv.0123456789ab", last(folder) / ".scores-val.safetensors.0123456789ab"]
    for path in left:
        path.write_text("cut")
    (folder / ".mine").write_text("kept")
    sla.fit(place / "photos", folder, resume=True, **SETTINGS)
    assert not any(path.exists() for path in left)
    assert (folder / ".mine").exists()


@pytest.mark.parametrize(
    ("damage", "missing"),
    [("cut", "1 of 13"), ("emptied", "13 of 13"), ("gone", "13 of 13"), ("other columns", "13 of 13")],
)
def test_rows_that_are_missing_are_said(trained, place, stop_at, damage, missing):
    folder = unfinished(place, stop_at)
    table = folder / "metrics.csv"
    text = table.read_text()
    if damage == "cut":
        table.write_text(text[: -len(text.splitlines()[-1]) // 2])
    elif damage == "gone":
        table.unlink()
    else:
        table.write_text("" if damage == "emptied" else text.replace("loss", "lost"))
    with pytest.warns(SLAWarning, match=rf"metrics.csv: {missing} rows up to step 13 are missing"):
        sla.fit(place / "photos", folder, resume=True, **SETTINGS)
    whole = (trained / "run" / "metrics.csv").read_text().splitlines()
    lost = int(missing.split()[0])
    assert table.read_text().splitlines() == [whole[0], *whole[1 : 14 - lost], *whole[14:]]


# 5. Damage


@pytest.mark.parametrize("name", ["weights.safetensors", "state.safetensors"])
def test_a_flipped_bit_is_named(place, capsys, name):
    path = last(place / "run") / name
    flip_bit(path)
    (place / "run" / "result.json").unlink()
    with pytest.raises(InputError, match=f"{name}: damaged") as error:
        sla.fit(place / "photos", place / "run", resume=True, **SETTINGS)
    assert "\n" not in str(error.value)
    if name.startswith("weights"):
        code, out, err = cli(capsys, "predict", place / "run", place / "photos" / "a" / "000.png")
        assert (code, out, len(err)) == (2, "", 1)
        assert "--checkpoint best" in err[0]
        assert cli(capsys, "evaluate", place / "run", "--checkpoint", "best")[0] == 0
        with pytest.raises(InputError, match=r"weights\.safetensors: damaged"):
            sla.fit(place / "photos", place / "tuned", **SETTINGS, model__weights=str(place / "run"))


def test_a_checkpoint_without_checksums_still_opens(trained, place):
    for path in place.glob("run/checkpoint/*/checksums.json"):
        path.unlink()
    assert accuracies(Run(place / "run")) == accuracies(Run(trained / "run"))


def test_damaged_scores_are_not_used(place):
    run = Run(place / "run")
    held = run.find_images().dataset
    expected = run.evaluate(held).logits["single"]
    flip_bit(last(place / "run") / "scores-val.safetensors", at=-3)
    assert np.allclose(run.outputs(held).logits["single"], expected)


def test_scores_that_are_not_finite_are_an_error(place, capsys):
    run = Run(place / "run")
    next(run.model.parameters()).data.fill_(float("nan"))
    picture = place / "photos" / "a" / "000.png"
    for ask in (
        lambda: run.predict([picture]),
        lambda: run.evaluate(),
        lambda: run.export(place / "model.onnx"),
    ):
        with pytest.raises(SLAError, match="NaN or infinite"):
            ask()


def test_a_damaged_record_is_named(place):
    flip_bit(place / "run" / "images.safetensors", at=-3)
    refused(r"images.safetensors: damaged", Run(place / "run").evaluate)


def test_few_shot_runs_are_checked_and_marked_too(tmp_path, stop_at):
    settings = {
        "task": "fewshot",
        "model__backbone": "convnet4",
        "model__options": {"width": 4},
        "episodes__way": 2,
        "episodes__shot": 1,
        "episodes__query": 2,
        "episodes__test_query": 2,
        "episodes__val_episodes": 5,
        "episodes__test_episodes": 5,
        "run__iterations": 4,
        "data__workers": 0,
    }
    with pytest.raises(StoppedError):
        sla.fit("digits", tmp_path / "few", progress=stop_at(2), **settings)
    assert read_record(tmp_path / "few").by == "pixels"
    with pytest.warns(SLAWarning, match="unfinished, step 2 of 4"):
        sla.open_run(tmp_path / "few").evaluate()
    flip_bit(last(tmp_path / "few") / "weights.safetensors")
    refused(r"weights\.safetensors: damaged", sla.open_run, tmp_path / "few")
