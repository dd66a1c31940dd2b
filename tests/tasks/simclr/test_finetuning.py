"""Pre-training on a folder of pictures, and the runs that start from its weights."""

import json
import warnings

import pytest
import torch

import sla
from commands import sla as sla_command
from made_data import digit_files
from refusals import refused
from sla.datasets.load import load
from sla.errors import SLAWarning
from sla.model_file import read_model_file
from sla.runs.checkpoint import find_checkpoint
from sla.runs.signals import StoppedError
from sla.runs.weights import find_origin
from sla.sampling.protocols import limited
from sla.session import train
from sla.tasks.registry import make_config
from sla.tasks.simclr.run import SimCLRRun

DIGITS = load("digits")
TUNED = {"run__iterations": 2, "run__compile": False, "run__batch_size": 16, "data__workers": 0}
TUNED |= {"data__hold_out": 0.2}  # every class can spare that


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A flat folder of pictures, and a small one with a folder for each class; two pictures are in both."""
    folder = tmp_path_factory.mktemp("digits")
    few = limited(DIGITS.train.subset(range(100, len(DIGITS.train))), 6)
    digit_files(few, range(60), folder / "labelled")
    digit_files(DIGITS.train, range(78), folder / "flat", "{place}.png")
    digit_files(few, range(2), folder / "flat", "again-{place}.png")
    return folder


@pytest.fixture(scope="module")
def pretrained(folders, tmp_path_factory):
    """The run's folder, and what was printed; its network is not the one that `sla train` would choose."""
    out = tmp_path_factory.mktemp("pretrained") / "run"
    words = ("--backbone", "resnet8", "--iterations", 3, "--batch-size", 16, "--set", "run.evaluations=1")
    words += ("--labelled", folders / "labelled", "--set", "data.workers=0")
    with pytest.warns(SLAWarning, match="2 of 80 images are in .*labelled too: they are not trained on"):
        said = sla_command("pretrain", folders / "flat", "--out", out, *words)
    return out, said


def test_a_flat_folder_is_enough(pretrained):
    out, said = pretrained
    assert "78 images to train on, without labels" in said
    assert "60 labelled images" in said
    assert "GB of memory" in said
    assert f"next: sla train LABELLED_IMAGES --weights {out}" in said
    run = sla.open_run(out)
    assert isinstance(run, SimCLRRun)
    assert run.result["images"] == {"train": 78, "val": 60}
    features = run.features(DIGITS.test.subset(range(5)))
    torch.testing.assert_close(features.norm(dim=1), torch.ones(5))


def test_without_labels_there_are_no_scores(folders, tmp_path):
    words = ("--backbone", "resnet8", "--iterations", 1, "--batch-size", 8, "--set", "data.workers=0")
    said = sla_command("pretrain", folders / "flat", "--out", tmp_path / "run", *words)
    assert "no labelled images, so no scores: --labelled FOLDER names some" in said
    assert sla.open_run(tmp_path / "run").result["accuracies"] == {"last": {"step": 1}}


def test_a_csv_with_one_label_is_pictures_without_labels(folders, tmp_path):
    names = sorted(path.name for path in (folders / "flat").iterdir())
    lines = ["path,label", *(f"{folders / 'flat' / name},all" for name in names)]
    (tmp_path / "list.csv").write_text("\n".join(lines))
    said = sla_command("pretrain", tmp_path / "list.csv", "--dry-run", "--backbone", "resnet8")
    assert "no labelled images, so no scores" in said
    assert "80 images to train on, without labels" in said


@pytest.mark.parametrize("method", ["baseline", "sla+sd"])
def test_training_starts_from_its_backbone_and_leaves_the_head_behind(method, pretrained, folders, tmp_path):
    out, _ = pretrained
    frozen = {"optimizer__frozen": 0.9, "model__weights": str(out)}  # only the heads of the new run move
    tuned = sla.fit(folders / "labelled", tmp_path / "tuned", method=method, **frozen, **TUNED)
    path = find_checkpoint(out / "checkpoint", "last") / "weights.safetensors"
    model, seen = tuned.config.model, find_origin(str(out)).seen
    assert (model.backbone, model.mean, model.std) == ("resnet8", seen.mean, seen.std)
    given = read_model_file(path, "")[1]
    given = {n.removeprefix("backbone."): v for n, v in given.items() if n.startswith("backbone.")}
    own = tuned.model.backbone.state_dict()
    assert own.keys() == given.keys()
    assert all(torch.equal(own[name], given[name]) for name in own)


def test_the_plan_names_the_run_that_it_starts_from(pretrained, folders, tmp_path):
    words = ("train", folders / "labelled", "--weights", pretrained[0], "--dry-run")
    with pytest.warns(SLAWarning, match="left without a held-out image when 10%"):
        said = sla_command(*words)
    assert f"resnet8, from the weights of {pretrained[0]}, at 8 pixels" in said
    steps = next(line.split()[0] for line in said.splitlines() if "iterations of" in line)
    assert int(steps.replace(",", "")) >= 2000  # as long as from scratch: docs/training.md


def test_pictures_that_it_saw_are_pointed_out_and_are_not_unseen(folders, tmp_path):
    """Held-out pictures of the labelled folder that are in the flat one too, and others by their name."""
    tree = {"task": "simclr", "data": {"source": str(folders / "labelled"), "hold_out": 0, "workers": 0}}
    tree |= {"model": {"backbone": "resnet8"}, "run": {"iterations": 1, "batch_size": 8}}
    before = train(make_config(tree), tmp_path / "before")
    with pytest.warns(SLAWarning, match="this run starts from, trained on 1. of the 1. held-out"):
        tuned = sla.fit(folders / "labelled", tmp_path / "tuned", model__weights=str(before.folder), **TUNED)
    assert tuned.record.trained_on(before.record.keys["train"]).all()


def test_weights_that_do_not_fit_are_one_line(pretrained, folders, tmp_path):
    given = {"model__weights": str(pretrained[0])} | TUNED
    words = "weights of another architecture (resnet8, not resnet20)"
    line = refused(words, sla.fit, folders / "labelled", tmp_path / "x", backbone="resnet20", **given)
    assert str(pretrained[0]) in line
    words = r"weights trained with model.mean \(0.5, 0.5, 0.5\).*here they are \(0.1"
    with pytest.warns(SLAWarning, match=words):
        sla.fit(folders / "labelled", tmp_path / "mean", model__mean=(0.1,) * 3, **given)
    larger = {"model__resolution": 16, "augment": "resized(0.5)"}
    with pytest.warns(SLAWarning, match="weights trained at 8 pixels; here pictures are seen at 16"):
        sla.fit(folders / "labelled", tmp_path / "size", **given, **larger)


def test_grey_pictures_are_shown_to_weights_of_three_channels(pretrained, tmp_path):
    """`digits` by its name has one channel, the pictures of the folder have three."""
    tuned = sla.fit("digits", tmp_path / "grey", model__weights=str(pretrained[0]), **TUNED)
    assert len(tuned.config.model.mean) == 3
    assert "in_channels" not in tuned.config.model.options


def test_more_pre_training_starts_from_it_too(pretrained, folders, tmp_path):
    tree = {"task": "simclr", "data": {"source": str(folders / "flat"), "workers": 0}}
    tree |= {"model": {"weights": str(pretrained[0])}, "run": {"iterations": 1, "batch_size": 8}}
    again = train(make_config(tree), tmp_path / "again")
    assert again.config.model.backbone == "resnet8"
    assert again.config.optimizer.learning_rate == pytest.approx(0.1 * 8 / 512)


def test_what_a_file_says_of_its_weights(finished_run, tmp_path):
    """Of a classifier's run and of a saved model; of bare weights nothing is known."""
    model = finished_run.config.model
    origin = find_origin(str(finished_run.folder))
    assert (origin.backbone, origin.options) == ("convnet4", model.options)
    assert (origin.seen.mean, origin.seen.resolution) == (model.mean, model.resolution)
    torch.save(finished_run.model.backbone.state_dict(), tmp_path / "bare.pt")
    for source in (str(tmp_path / "bare.pt"), str(tmp_path), "none", "no-such-file.safetensors"):
        assert find_origin(source) is None


def test_commands_for_classifiers_name_the_task(pretrained, stopped):
    assert "a run of task simclr; this needs one of task classifier" in stopped(2, "evaluate", pretrained[0])
    assert "--resume needs the run's folder" in stopped(2, "pretrain", "digits", "--resume")
    assert "photo: neither a folder, a CSV nor the name of a dataset" in stopped(2, "pretrain", "photo")


def test_labels_that_judge_must_be_labels(folders, stopped, tmp_path):
    words = ("pretrain", folders / "labelled", "--out", tmp_path / "run", "--labelled")
    assert "no labels: data.labelled needs a folder per class" in stopped(2, *words, folders / "flat")
    assert "none is left to train on" in stopped(2, *words, folders / "labelled")


def test_a_stopped_run_on_folders_resumes_with_their_images(folders, tmp_path, stop_at):
    """Those that are left out of training, for they are labelled too, are still left out."""
    data = {"source": str(folders / "flat"), "labelled": str(folders / "labelled"), "images": 40}
    tree = {"task": "simclr", "data": data, "model": {"backbone": "convnet4", "options": {"width": 8}}}
    config = make_config(tree | {"run": {"iterations": 4, "batch_size": 8, "evaluations": 1}})
    warnings.filterwarnings("ignore", "2 of 80 images are in", SLAWarning)
    with pytest.raises(StoppedError, match="stopped after step 2 of 4; to continue: sla train --resume"):
        train(config, tmp_path / "run", progress=stop_at(2))
    sla_command("train", "--resume", "--out", tmp_path / "run")
    once = train(config, tmp_path / "once")
    on = sla.open_run(tmp_path / "run")
    assert on.record.count("train") == 40
    for name, value in once.model.state_dict().items():
        assert torch.equal(on.model.state_dict()[name], value), name


def test_images_from_python(tmp_path):
    """Labels are asked for by `sla.fit`; one for all means none."""
    images = DIGITS.train.read(range(40)).images
    small = {"model__backbone": "convnet4", "model__options": {"width": 8}, "run__iterations": 2}
    run = sla.fit(images, [0] * 40, tmp_path / "run", task="simclr", run__batch_size=8, **small)
    assert run.result["images"] == {"train": 40}
    assert run.config.optimizer.learning_rate == 8 / 512
    adam = {"optimizer__name": "adamw", "run__batch_size": 8}
    run = sla.fit(images, [0] * 40, tmp_path / "adamw", task="simclr", **adam, **small)
    assert run.config.optimizer.learning_rate == pytest.approx(8 / 512_000)


def test_a_dry_run_writes_nothing(folders, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = sla_command("pretrain", folders / "flat", "--dry-run", "--backbone", "resnet8", "--batch-size", 8)
    assert "of training" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_person_with_many_pictures_and_few_labels(tmp_path, monkeypatch):
    """Three commands: pre-train on a flat folder, train on a small labelled one, classify new pictures."""
    monkeypatch.chdir(tmp_path)
    digit_files(DIGITS.train, range(1200), tmp_path / "flat", "{place}.png")
    few = limited(DIGITS.train.subset(range(1200, len(DIGITS.train))), 10)
    digit_files(few, range(len(few)), tmp_path / "few")
    digit_files(DIGITS.test, range(40), tmp_path / "new", "{place}-{label}.png")
    words = ("--backbone", "resnet8", "--iterations", 120, "--batch-size", 64)
    sla_command("pretrain", "flat", "--labelled", "few", *words)
    sla_command("train", "few", "--weights", "runs/flat-pretrained", "--iterations", 1000, "--no-report")
    said = sla_command("predict", "runs/few", "new", "--json")
    answers = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    right = [answer["file"].rpartition("-")[2][0] == answer["class"] for answer in answers]
    assert len(right) == 40
    assert sum(right) > 24  # guessing gives 4
