"""`sla train`, `sla evaluate` and `sla predict` as they are typed."""

import csv
import io
import json
import re
import shutil
import subprocess
import sys
import warnings
from dataclasses import replace

import pytest
import torch
from PIL import Image

from commands import sla, sla_json
from made_data import digit_files
from refusals import refused
from sla.cli.predict import UNLIKE, print_answers
from sla.cli.recipe import with_recipe
from sla.datasets.load import load
from sla.report.run import write_run_page
from sla.tasks.classifier.run import Run
from sla.tasks.classifier.split import same_classes

SMALL = ("--backbone", "convnet4", "--set", "model.options={width: 8}", "--set", "run.compile=false")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "digits"
    sla("train", "digits", "--out", out, "--iterations", 12, "--method", "sla+sd", *SMALL)
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
    told = sla(
        "train",
        "digits",
        "--out",
        tmp_path / "run",
        "--iterations",
        3,
        "--method",
        "sla",
        "--verbose",
        *SMALL,
    )
    assert "  convnet4, from scratch, at 8 pixels" in told  # no reason: it was asked for
    assert "144 of the training images are held out to choose the checkpoint" in told
    assert "aggregated *" in told
    assert "test images chose nothing" in told


def test_a_finished_run_has_its_page(run, tmp_path, messages):
    page = (run / "report.html").read_text(encoding="utf-8")
    top1 = json.loads((run / "result.json").read_text())["accuracies"]["last"]["test"]["distilled"]["top1"]
    assert f"{top1:.2f}%" in page
    assert page.count("<h2>") == 12
    told = sla("train", "digits", "--out", tmp_path / "run", "--iterations", 2, "--no-report", *SMALL)
    assert "page" not in told
    assert not (tmp_path / "run" / "report.html").exists()
    write_run_page(Run(run), tmp_path / "page.html", progress=messages)
    assert "evaluating images" not in messages.passes  # the scores that the run kept are read


def test_a_page_that_cannot_be_drawn_does_not_lose_the_run(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise ZeroDivisionError("no ink\nand no paper")

    monkeypatch.setattr("sla.report.run.run_page", fail)
    told = sla("train", "digits", "--out", tmp_path / "run", "--iterations", 2, "--verbose", *SMALL)
    assert "no report was written: no ink\n" in told
    assert "and no paper" not in told
    assert "aggregated *" in told
    assert (tmp_path / "run" / "result.json").is_file()
    assert not (tmp_path / "run" / "report.html").exists()


def test_a_finished_run_resumed_keeps_its_result_and_page(run):
    (run / "report.html").unlink()
    before = (run / "result.json").read_bytes()
    told = sla("train", "--resume", "--out", run)
    assert "resuming at step 12 of 12" in told
    assert (run / "result.json").read_bytes() == before
    assert (run / "report.html").is_file()


@pytest.mark.parametrize("command", ["train", "pretrain"])
def test_a_dry_run_refuses_a_folder_with_a_run_as_the_command_does(command, run, stopped):
    words = (command, "digits", "--out", run)
    said = stopped(2, *words)
    assert f"{run}: exists already; continue it with --resume" in said
    assert stopped(2, *words, "--dry-run") == said


def test_evaluate_and_report_skip_broken_pictures_on_request(run, tmp_path, monkeypatch, stopped):
    monkeypatch.setattr("warnings.showwarning", None)  # put back after the test
    warnings.simplefilter("always")  # pytest puts the filters back after each test
    test = load("digits").test
    digit_files(test, range(30), tmp_path / "some")
    file = next((tmp_path / "some").rglob("29.png"))
    file.write_bytes(b"no picture")
    for words in (["evaluate", run], ["report", run, "--out", tmp_path / "page.html"]):
        words.append(tmp_path / "some")
        said = stopped(2, *words)
        assert f"{file.name}: not an image" in said
        assert "(`--on-bad-image skip`) skips such files" in said
        assert "sla train" not in said
        told = stopped(0, *words, "--on-bad-image", "skip")
        assert f"{file.name}: not an image" in told
        assert "29 images" in told


def test_imbalance_says_what_it_found_and_chose(tmp_path):
    few = ("--set", "data.long_tail=20", "--set", "data.long_tail_max=100", "--iterations", 2, *SMALL)
    told = sla("train", "digits", "--out", tmp_path / "run", "--imbalance", "auto", *few)
    assert "classes have 5 to 100 training images, at least 10 times as many: imbalance " in told
    told = sla("train", "digits", "--out", tmp_path / "plain", *few)
    assert "rare ones may be learnt badly; --imbalance auto" in told


def test_compare_trains_the_other_method_on_the_same_images_and_resumes_what_was_begun(tmp_path):
    words = ("train", "digits", "--iterations", 2, "--compare", "baseline", *SMALL)
    told = sla(*words, "--out", tmp_path / "run")
    assert "baseline, last, test" in told
    assert "sla, last, test" in told
    results = [json.loads((tmp_path / n / "result.json").read_text()) for n in ("run", "run-baseline")]
    assert results[0]["images"] == results[1]["images"]
    assert results[0]["seed"] == results[1]["seed"]
    shutil.rmtree(tmp_path / "run-baseline")
    told = sla(*words, "--out", tmp_path / "run", "--resume")
    assert "baseline, last, test" in told
    refused("run-baseline: exists already", sla, *words, "--out", tmp_path / "run")
    shutil.rmtree(tmp_path / "run")
    refused("run-baseline: exists already", sla, *words, "--out", tmp_path / "run")


def test_a_resumed_run_is_called_by_its_own_method(tmp_path):
    sla("train", "digits", "--out", tmp_path / "run", "--iterations", 2, "--method", "mt", *SMALL)
    assert "mt, last, test" in sla("train", "--resume", "--out", tmp_path / "run", "--verbose")


def test_evaluate_shows_every_kind_side_by_side(run):
    told = sla("evaluate", run)
    assert "360 test images, last checkpoint" in told
    assert re.search(r"single\t[\d.]+\t[\d.]+ to [\d.]+\t", told)
    assert "ECE: how far confidence and accuracy are apart, on average; NLL: " in told
    found = sla_json("evaluate", run, "--checkpoint", "best")
    assert set(found["inference"]) == {"single", "aggregated", "distilled"}
    for scores in found["inference"].values():
        assert set(scores) == {"top1", "top5", "balanced", "ece", "nll", "seconds_per_image"}
        assert 0 <= scores["top1"] <= scores["top5"] <= 100


def test_predict_prints_tables_json_and_csv(run, pictures):
    lines = [json.loads(line) for line in sla("predict", run, pictures, "--json", "--top", 2).splitlines()]
    assert len(lines) == 6
    assert all(len(line["classes"]) == 2 for line in lines)
    rows = list(csv.reader(io.StringIO(sla("predict", run, pictures, "--csv"))))
    assert rows[0] == ["file", "class", *map(str, range(10)), "unlike"]
    assert [row[0] for row in rows[1:]] == [line["file"] for line in lines]
    assert [row[1] for row in rows[1:]] == [line["class"] for line in lines]
    for row in rows[1:]:
        assert sum(map(float, row[2:-1])) == pytest.approx(1, abs=1e-4)
        assert row[-1] in ("yes", "no")
    table = sla("predict", run, pictures / "[red]x & <b>.png", "--inference", "single")
    assert "[red]x & <b>.png" in table.replace("\n", "")


@pytest.mark.parametrize("least", [0.0, 0.9])
def test_a_narrow_terminal_has_as_many_classes_as_fit(least, capsys, monkeypatch):
    classes = ["008.Rhinoceros_Auklet", "犬" * 9, "b"]
    names = [f"{'photos/' * 3}{number}.jpg" for number in range(2)]
    shares = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6]])

    def lines():
        print_answers(names, shares, classes, 3, "table", least, [True, False])
        return re.sub(r"\x1b\[\d+m", "", capsys.readouterr().out).splitlines()  # without bold

    plain = lines()
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    name, answer, first, second, third, note = 26, len("unsure") if least else -2, 27, 24, 27, len(UNLIKE)
    all_three = name + answer + first + second + third + note + 5 * 2  # two spaces between columns
    two = all_three - third - 2
    one = two - second - 2
    short = one - note + len("unlike")
    for width, count in ((all_three, 3), (all_three - 1, 2), (two, 2), (two - 1, 1), (one, 1), (one - 1, 1)):
        monkeypatch.setenv("COLUMNS", str(width))
        found = [line.split() for line in lines()]
        answers = ["answer"] if least else []
        assert found[0] == ["file", *answers, *["1.", "2.", "3."][:count], "note"]
        assert [words[0] for words in found[1:]] == names  # a line for each picture, its name in one piece
        assert found[1][-1] == ("unlike" if width < one else "pictures")
    monkeypatch.setenv("COLUMNS", str(short))
    assert len(lines()) == 3
    monkeypatch.setenv("COLUMNS", "30")  # not even one fits
    assert sum("%" in line for line in lines()) == 2
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False)
    assert lines() == plain
    assert plain[1].count("%") == 3


def test_predict_does_not_read_the_catalogue(finished_run, pictures):
    code = (
        "import sys\n"
        "from sla.tasks.classifier.run import Run\n"
        "print(len(Run(sys.argv[1]).predict([sys.argv[2]]).labels))\n"
        "sys.exit('sla.datasets.catalogue' in sys.modules)"
    )
    command = [sys.executable, "-c", code, str(finished_run.folder), str(pictures / "deep" / "1.png")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["train"], "no data given"),
        (["train", "nowhere"], "'nowhere' is neither a folder nor the name of a dataset"),
        (["train", "digitz"], "did you mean 'digits'?"),
        (["train", "digits", "--method", "slaa"], "--method: unknown method"),
        (["train", "digits", "--views", "rot5"], "did you mean 'rot4'"),
        (["train", "digits", "--backbone", "resnet33"], "did you mean 'resnet34'"),
        (["train", "digits", "--augment", "flop"], "did you mean 'flip'"),
        (["train", "digits", "--set", "run.sede=1"], "did you mean 'run.seed'"),
        (["train", "digits", "--set", "run.seed"], "key=value"),
        (["train", "digits", "--config", "absent.yaml"], "absent.yaml: no such file"),
        (["train", "digits", "--epochs", "1", "--minutes", "1"], "the length is given more than once"),
        (["train", "--resume"], "--resume needs the run's folder"),
        (["train", "digits", "--set", "run.device=tpu9"], "tpu9"),
        (["train", "digits", "--imbalance", "ldam"], "--imbalance: "),
        (["train", "--recipe", "cifar11"], "did you mean 'cifar10'"),
        (["train", "--recipe", "cifar10:smal"], "did you mean 'small'"),
        (["train", "--recipe", "mnist"], "sla reproduce"),
        (["evaluate", "nowhere"], "not a run"),
        (["predict", "nowhere", "x.png"], "not a run"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(words, line, tmp_path, monkeypatch, stopped):
    monkeypatch.chdir(tmp_path)
    assert line in stopped(2, *words)


def test_wrong_pictures_are_named(run, pictures, stopped):
    for words, line in (
        (["predict", run, pictures / "notes.txt"], "notes.txt"),
        (["predict", run, pictures / "absent.png"], "absent.png"),
        (
            ["predict", run, f"{'x' * 300}.jpg"],
            "x.jpg: file name too long; `sla predict --on-bad-image skip`",
        ),
        (["predict", run, pictures, "out.csv", "--csv"], "out.csv: no such file or .* --csv > out.csv "),
        (["predict", run, pictures, "--json", "a.JSON"], "a.JSON: no such file or .* --json > a.JSON "),
        (["predict", run, "out.csv", "--json"], "out.csv: no such file or directory; `sla predict --on-bad"),
        (["predict", run, run / "checkpoint"], "no pictures in it"),
        (["predict", run, pictures, "--inference", "best"], "unknown inference 'best'"),
        (
            ["predict", run, pictures, "--inference", "foo"],
            "'foo'; one of: single, aggregated, distilled, anytime, flips",
        ),
        (["predict", run, pictures, "--json", "--csv"], "not both"),
        (["evaluate", run, "--checkpoint", "first"], "first"),
        (["evaluate", run, "--inference", "ensemble"], "an ensemble needs at least two runs"),
        (
            ["evaluate", run, "absent", "--inference", "ensemble"],
            "two runs; absent is none: no config.yaml",
        ),
        (["evaluate", "absent", run, "--inference", "ensemble"], "absent: not a run"),
        (["evaluate", run, "absent", run, "--inference", "ensemble"], "absent: not a run"),
    ):
        said = stopped(2, *words)
        assert line in said or re.search(line, said)


@pytest.fixture
def copied(run, tmp_path):
    """A run whose files a test may damage."""
    return shutil.copytree(run, tmp_path / "copied")


@pytest.mark.parametrize(
    "text",
    [
        '{"temper',
        "[]",
        '{"temperatures": null}',
        '{"temperatures": {"last": 1}}',
        '{"temperatures": {"last": {"single": 0}}}',
        '{"temperatures": {"last": {"single": NaN}}}',
        '{"temperatures": {"last": {"single": "1"}}}',
        "\xff",
        "[" * 100_000,
    ],
    ids=range(9),
)
def test_a_damaged_result_is_one_line_and_can_be_made_again(text, copied, pictures, stopped):
    result = copied / "result.json"
    result.write_text(text, encoding="latin-1")
    told = f"{result}: damaged; resuming the run (--resume --out {copied}) writes it again"
    for words in (["predict", copied, pictures], ["evaluate", copied]):
        assert told in stopped(2, *words)
    if text == "[]":
        sla("train", "--resume", "--out", copied)
        assert "temperatures" in json.loads(result.read_text())


def test_predict_skips_bad_pictures_on_request(run, pictures, tmp_path, monkeypatch, stopped):
    monkeypatch.setattr("warnings.showwarning", None)  # put back after the test
    warnings.simplefilter("default")  # pytest puts the filters back after each test
    folder = shutil.copytree(pictures, tmp_path / "some")
    whole = (folder / "deep" / "1.png").read_bytes()
    (folder / "deep" / "2.png").write_bytes(whole[: len(whole) // 2])
    said = stopped(2, "predict", run, folder)
    assert "2.png: " in said
    assert "`sla predict --on-bad-image skip` leaves such files out" in said
    *lines, note = stopped(0, "predict", run, folder, "--json", "--on-bad-image", "skip").splitlines()
    assert f"sla: note: skipped {folder / 'deep' / '2.png'}: " in note
    expected = sla("predict", run, pictures, "--json").replace(str(pictures), str(folder)).splitlines()
    found = [json.loads(line) for line in lines]
    wanted = [line for line in map(json.loads, expected) if not line["file"].endswith("2.png")]
    for one, other in zip(found, wanted, strict=True):
        assert (one["file"], one["class"]) == (other["file"], other["class"])
    monkeypatch.undo()
    warnings.simplefilter("ignore")
    words = ("predict", run, folder / "deep" / "2.png", "--on-bad-image", "skip")
    assert "none of the 1 images is readable" in stopped(2, *words)


def test_a_run_refuses_what_it_cannot_do(run, tmp_path):
    refused("unknown inference 'foo'", Run(run).export, tmp_path / "model.onnx", "foo")
    for device in ("tpu9", "meta:x", *(() if torch.cuda.is_available() else ("cuda",))):
        refused(f"no device '{device}' on this machine", Run, run, device=device)
    assert list(tmp_path.iterdir()) == []


def test_another_label_set_is_one_line():
    digits = load("digits").test
    other = replace(digits, classes=("a\nb", *digits.classes[1:]))
    refused(r"does not know 1 of these classes: a\\nb$", same_classes, other, digits.classes)


def test_a_recipe_is_overridden_by_file_options_and_set_in_this_order(tmp_path):
    file = tmp_path / "own.yaml"
    file.write_text("run: {epochs: 2, seed: 5, batch_size: 32}\naugment: flip\ndata:\n")
    words = ("--config", file, "--seed", 6, "--set", "optimizer.momentum=0.5", "--set", "augment='crop(1)'")
    sla("train", "--recipe", "cifar10:smoke", "--out", tmp_path / "run", *words)
    config = Run(tmp_path / "run").config
    assert (config.data.source, config.model.backbone) == ("digits", "convnet4")  # the recipe's
    assert (config.run.epochs, config.run.iterations, config.run.batch_size) == (2, 81, 32)  # the file's
    assert (config.run.seed, config.optimizer.momentum, config.augment) == (6, 0.5, "crop(1)")
    assert (config.method.name, config.method.views_per_step, config.stages) == ("sla", 4, ("train",))


@pytest.mark.parametrize(("edge", "warned"), [(96, True), (40, False)])
def test_a_recipe_for_pictures_of_another_size_says_what_happens_to_them(tmp_path, edge, warned):
    for name in "ab":
        (tmp_path / name).mkdir()
        Image.new("RGB", (edge, edge), name == "a" and "red").save(tmp_path / name / "1.png")
    given = {"data.source": str(tmp_path)}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tree = with_recipe("cifar100", {}, given)
        with_recipe("cifar100", {}, given | {"model.resolution": 96})
    assert tree["model"]["resolution"] == 32
    told = [str(one.message) for one in caught]
    assert len(told) == warned
    words = (
        f"recipe cifar100 is for pictures of 32 pixels: those of {tmp_path}, of about 96, are resized to that"
    )
    assert all(line.startswith(words) for line in told)


def test_the_fast_recipe_has_a_method_of_its_own_and_fits_other_small_pictures(tmp_path):
    own = with_recipe("fast", {}, {"data.source": "cifar10"})
    method = own["method"]
    assert (method["name"], method["views"], method["views_per_step"]) == ("baseline", "rot2", 1)
    assert with_recipe("fast", {}, {"method.name": "sla"})["method"]["views"] == "rot2"
    assert (own["model"]["resolution"], own["augment"]) == (32, "crop(2), flip")
    sla("train", "digits", "--recipe", "fast", "--iterations", 2, "--out", tmp_path / "run")
    config = Run(tmp_path / "run").config
    assert (config.method.name, config.model.backbone) == ("baseline", "airbench")
    assert (config.model.resolution, config.augment) == (8, "crop(1)")  # digits are not mirrored
    assert config.model.options == {"in_channels": 1}
    assert config.optimizer.schedule == "onecycle"


def test_a_recipe_with_other_images_and_another_backbone(tmp_path):
    sizes = ("--set", "model.resolution=8", "--set", "data.stored_size=8", "--augment", "flip")
    words = ("--recipe", "cifar100_wrn", "--backbone", "convnet4", "--iterations", 2, *sizes)
    sla("train", "digits", "--out", tmp_path / "run", *words)
    config = Run(tmp_path / "run").config
    assert (config.data.source, config.data.hold_out) == ("digits", 0.1)
    assert len(config.model.mean) == len(config.model.std) == 1
    assert config.model.options == {"in_channels": 1}
    assert (config.optimizer.weight_decay, config.optimizer.clip) == (2e-4, 5.0)
