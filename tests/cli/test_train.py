"""`sla train`, `sla evaluate` and `sla predict` as they are typed."""

import csv
import io
import json

import pytest
from PIL import Image
from typer.testing import CliRunner

from sla.cli import app, main
from sla.data.datasets import load
from sla.errors import InputError

SMALL = ("--backbone", "convnet4", "--set", "model.options={width: 8}", "--set", "run.compile=false")


def sla(*words):
    done = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "digits"
    sla("train", "digits", "--out", out, "--iterations", 12, *SMALL)
    return out


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    test = load("digits").test
    for place in range(6):
        path = folder / "deep" / f"{place}.png" if place else folder / "[red]x & <b>.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(test.read([place]).images[0, 0].numpy()).save(path)
    (folder / "notes.txt").write_text("not a picture")
    return folder


def test_train_says_what_it_chose_and_how_well_it_went(tmp_path):
    told = sla("train", "digits", "--out", tmp_path / "run", "--iterations", 3, "--method", "sla", *SMALL)
    assert "pictures of 8 pixels: convnet4, from scratch" in told
    assert "144 of the training images are held out to choose on" in told
    assert "aggregated *" in told
    assert "test images chose nothing" in told


def test_compare_trains_the_other_method_on_the_same_images(tmp_path):
    told = sla(
        "train", "digits", "--out", tmp_path / "run", "--iterations", 3, "--compare", "baseline", *SMALL
    )
    assert "baseline, last, test" in told
    assert "sla+sd, last, test" in told
    results = [json.loads((tmp_path / n / "result.json").read_text()) for n in ("run", "run-baseline")]
    assert results[0]["images"] == results[1]["images"]
    assert results[0]["seed"] == results[1]["seed"]


def test_compare_resumes_what_was_begun_and_starts_the_rest(tmp_path):
    import shutil

    words = ("train", "digits", "--iterations", 2, "--compare", "baseline", *SMALL)
    sla(*words, "--out", tmp_path / "run")
    shutil.rmtree(tmp_path / "run-baseline")
    told = sla(*words, "--out", tmp_path / "run", "--resume")
    assert "baseline, last, test" in told
    with pytest.raises(InputError, match="run-baseline: there already"):
        sla(*words, "--out", tmp_path / "run")
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(InputError, match="run-baseline: there already"):
        sla(*words, "--out", tmp_path / "run")


def test_a_resumed_run_is_called_by_its_own_method(tmp_path):
    sla("train", "digits", "--out", tmp_path / "run", "--iterations", 2, "--method", "mt", *SMALL)
    assert "mt, last, test" in sla("train", "--resume", "--out", tmp_path / "run")


def test_evaluate_shows_every_kind_side_by_side(run):
    told = sla("evaluate", run)
    assert "360 images, last checkpoint" in told
    found = json.loads(sla("evaluate", run, "--json", "--which", "best"))
    assert set(found["inference"]) == {"single", "aggregated", "distilled"}
    for scores in found["inference"].values():
        assert set(scores) == {"top1", "top5", "ece", "nll", "seconds_per_image"}
        assert 0 <= scores["top1"] <= scores["top5"] <= 100


def test_predict_prints_tables_json_and_csv(run, pictures):
    lines = [json.loads(line) for line in sla("predict", run, pictures, "--json", "--top", 2).splitlines()]
    assert len(lines) == 6
    assert all(len(line["classes"]) == 2 for line in lines)
    rows = list(csv.reader(io.StringIO(sla("predict", run, pictures, "--csv"))))
    assert rows[0] == ["file", "class", *map(str, range(10))]
    assert [row[0] for row in rows[1:]] == [line["file"] for line in lines]
    assert [row[1] for row in rows[1:]] == [line["class"] for line in lines]
    for row in rows[1:]:
        assert sum(map(float, row[2:])) == pytest.approx(1, abs=1e-4)
    table = sla("predict", run, pictures / "[red]x & <b>.png", "--how", "single")
    assert "[red]x & <b>.png" in table.replace("\n", "")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["train"], "no data given"),
        (["train", "nowhere"], "'nowhere' is no folder here and no dataset's name"),
        (["train", "digitz"], "did you mean 'digits'?"),
        (["train", "digits", "--method", "slaa"], "method.name"),
        (["train", "digits", "--views", "rot5"], "did you mean 'rot4'"),
        (["train", "digits", "--backbone", "resnet33"], "resnet"),
        (["train", "digits", "--augment", "flop"], "did you mean 'flip'"),
        (["train", "digits", "--set", "run.sede=1"], "did you mean 'run.seed'"),
        (["train", "digits", "--set", "run.seed"], "key=value"),
        (["train", "digits", "--config", "absent.yaml"], "absent.yaml: no such file"),
        (["train", "digits", "--epochs", "1", "--minutes", "1"], "say how long once"),
        (["train", "--resume"], "--resume needs the run's folder"),
        (["train", "digits", "--set", "run.device=tpu9"], "tpu9"),
        (["evaluate", "nowhere"], "not a run"),
        (["predict", "nowhere", "x.png"], "not a run"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(words, line, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        main(words)
    said = capsys.readouterr().err.strip()
    assert stopped.value.code == 2
    assert line in said
    assert "\n" not in said


def test_wrong_pictures_are_named(run, pictures, capsys):
    for words, line in (
        (["predict", str(run), str(pictures / "notes.txt")], "notes.txt"),
        (["predict", str(run), str(pictures / "absent.png")], "absent.png"),
        (["predict", str(run), str(run / "checkpoint")], "no pictures in it"),
        (["predict", str(run), str(pictures), "--how", "best"], "unknown kind of inference 'best'"),
        (["predict", str(run), str(pictures), "--json", "--csv"], "not both"),
        (["evaluate", str(run), "--which", "first"], "first"),
    ):
        with pytest.raises(SystemExit) as stopped:
            main(words)
        said = capsys.readouterr().err.strip()
        assert stopped.value.code == 2
        assert line in said
        assert "\n" not in said
