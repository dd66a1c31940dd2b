"""A run with a quick and a trained model: its page and its last lines say which of them a number is of."""

import json
import re
import shutil

import pytest
from PIL import Image

import sla
from commands import sla as command
from sla.compare.comparison import compare
from sla.report.run import end_of, write_run_page
from sla.stats import share
from sla.tasks.classifier.run import Run

NAMES = {
    "features": "the quick model",
    "last": "the trained model",
    "averaged": "the average of both models",
}


@pytest.fixture(scope="module")
def run(tmp_path_factory, tiny_settings, finished_run):
    settings = {
        "data__per_class": 20,
        "model__weights": str(finished_run.folder),
        "stages": "features, train",
        "method__name": "sla+sd",
        "optimizer__name": "adamw",
        "optimizer__learning_rate": 0.001,
        "optimizer__backbone_factor": 0.3,
    }
    return sla.fit("digits", tmp_path_factory.mktemp("two") / "run", **tiny_settings, **settings)


@pytest.fixture
def failed(run, tmp_path):
    """A copy of the run, whose calibrations all failed."""
    folder = tmp_path / "failed"
    shutil.copytree(run.folder, folder)
    result = json.loads((folder / "result.json").read_text())
    for found in result["temperatures"].values():
        found |= dict.fromkeys(found, 20.0)
    (folder / "result.json").write_text(json.dumps(result))
    return folder


def right(run, checkpoint):
    """On the 360 test images, by the headline inference."""
    inference = run.result["chosen"]["inferences"][checkpoint]
    return round(3.6 * run.result["accuracies"][checkpoint]["test"][inference]["top1"])


@pytest.mark.parametrize(
    ("checkpoint", "chosen", "others"),
    [
        ("features", "features", ["last"]),
        ("last", "features", ["features"]),
        ("features", "averaged", ["averaged"]),
        ("averaged", "averaged", ["features"]),
        ("last", "averaged", ["features", "averaged"]),
    ],
)
def test_the_page_says_which_model_a_number_is_of(run, checkpoint, chosen, others, parse, tmp_path):
    folder = shutil.copytree(run.folder, tmp_path / "run")
    result = json.loads((folder / "result.json").read_text())
    result["chosen"] |= {"checkpoint": chosen, "inference": result["chosen"]["inferences"][chosen]}
    (folder / "result.json").write_text(json.dumps(result))
    opened, path = Run(folder, checkpoint), tmp_path / "page.html"
    told = write_run_page(opened, path)
    page = parse(path.read_text())
    name, hits = NAMES[checkpoint], right(run, checkpoint)
    default = {chosen: ", which answers by default"}
    answers, compared = default.get(checkpoint, ""), []
    for other in others:
        accuracy = share(right(run, other), 360)
        numbers = f"{accuracy.mean:.0f}% ({accuracy.low:.0f} to {accuracy.high:.0f})"
        compared.append(f"{NAMES[other]}{default.get(other, '')} is right on {right(run, other)}: {numbers}")
    assert f"Right on {hits} of 360 pictures it had not seen" in page.words
    assert f"That is {name}{answers}; {'; '.join(compared)}." in page.words
    assert told.startswith(f"{name.capitalize()} (")
    named = "" if answers else f" --checkpoint {checkpoint}"  # the command uses the model of this page
    assert f"<code>sla predict {folder} PICTURES{named}</code>" in page.source
    rows = {row[0]: row for row in page.tables["Quick and trained model"][1:]}
    found = {name: int(row[2]) for name, row in rows.items()}
    tested = {"features", "last", "averaged"} - {checkpoint}
    assert found == {f"{name} *": hits} | {NAMES[other]: right(run, other) for other in tested}
    assert [row[0].removesuffix(" *") for row in rows.values() if row[5]] == [NAMES[chosen]]
    assert f"test images, with {name}." in page.words
    assert "ECE: how far confidence and accuracy are apart" in page.words
    assert f"inference of {name}, on the test images" in page.words
    headings = {"Training of the trained model", "Cost of both models"}
    assert headings <= set(re.findall("<h2>(.*?)</h2>", page.source))
    cost = {row[0] for row in page.tables["Cost of the run"]}
    assert {"training time, with the quick model", "of that the quick model"} <= cost


def test_the_page_says_by_which_rule_a_model_answers(run, parse, tmp_path):
    """The run took fewer than 40 steps; as if it had taken 40 of them, the average is used."""
    folder = shutil.copytree(run.folder, tmp_path / "run")
    for steps, rule in (
        (12, "After fewer than 40 steps of training (12) the quick model"),
        (40, "The average of"),
    ):
        result = json.loads((folder / "result.json").read_text())
        result["cost"]["iterations"] = steps
        (folder / "result.json").write_text(json.dumps(result))
        write_run_page(Run(folder), tmp_path / "page.html")
        assert rule in parse((tmp_path / "page.html").read_text()).words


def test_runs_that_all_answer_with_their_quick_model_are_said_to(run, tmp_path):
    other = shutil.copytree(run.folder, tmp_path / "other")
    found = compare([str(run.folder), str(other)])
    assert found.entries[0].name.endswith(", the quick model, single")
    assert "every run answers with its quick model" in found.notes[-1]
    found = compare([str(run.folder), str(other)], checkpoint="last")
    assert ", the trained model, " in found.entries[0].name
    assert not any("quick model" in note for note in found.notes)


def test_the_commands_of_the_page_are_whole(run, parse, tmp_path):
    write_run_page(run, tmp_path / "page.html")
    source = (tmp_path / "page.html").read_text()
    assert f"Next: <code>sla predict {run.folder} PICTURES</code>" in source
    assert "`" not in parse(source).words.partition("Full configuration")[0]


def test_a_quick_model_alone_has_no_curves(finished_run, tiny_settings, parse, tmp_path):
    settings = {"data__per_class": 5, "model__weights": str(finished_run.folder), "method__name": "features"}
    run = sla.fit("digits", tmp_path / "run", **tiny_settings, **settings)
    write_run_page(run, tmp_path / "page.html")
    page, found = parse((tmp_path / "page.html").read_text()), run.result["cross_validation"]
    assert "No curves: the classifier is fitted at once. The quick model: frozen features" in page.words
    assert f"right on {found['right']} of {found['images']} training images." in page.words
    assert "as augmented, during training" not in page.words
    assert "test images, with the quick model." in page.words


def test_what_an_answer_costs_is_of_the_model_that_gives_it(run):
    cost = run.result["cost"]
    copies = cost["features_flop"] / cost["features_inference_flop"] / run.result["images"]["train"]
    assert copies in (1, 2)  # with mirror images


def test_the_page_of_one_model_does_not_speak_of_two(finished_run, parse, tmp_path):
    write_run_page(finished_run, tmp_path / "page.html")
    page = parse((tmp_path / "page.html").read_text())
    assert "quick" not in page.words
    assert "<h2>Training</h2>" in page.source


def test_evaluate_names_the_model(run):
    told = command("evaluate", run.folder, "--checkpoint", "features")
    assert "360 test images, features checkpoint (the quick model)" in told


def test_a_failed_calibration_is_said_wherever_probabilities_are(failed, parse, tmp_path):
    opened = Run(failed)
    end = " ".join(end_of(opened))
    assert "Its confidence is unreliable" in end
    assert "90% confident" not in end
    write_run_page(opened, tmp_path / "page.html")
    assert (
        "Calibration failed: the temperature ended at its limit"
        in parse((tmp_path / "page.html").read_text()).words
    )
    assert "calibration of single failed" in command("evaluate", failed, "--inference", "single")
    picture = tmp_path / "digit.png"
    Image.new("L", (8, 8), 128).save(picture)
    assert "sla: note: calibration failed" in command("predict", failed, picture)


def test_the_quick_models_failed_calibration_is_said_once(
    finished_run, tiny_settings, tmp_path, monkeypatch, messages
):
    monkeypatch.setattr("sla.tasks.classifier.features.cautious_temperature", lambda *_: 20.0)
    settings = {"data__per_class": 5, "model__weights": str(finished_run.folder), "method__name": "features"}
    run = sla.fit("digits", tmp_path / "run", progress=messages, **tiny_settings, **settings)
    failed = [line for line in messages.lines if "calibration" in line]
    assert failed == [
        "last: calibration of single failed (temperature at its limit), so its probabilities are unreliable"
    ]
    assert run.uncalibrated == ["single"]
