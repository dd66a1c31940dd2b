"""Training with images without labels: which images, what a step sees of them, cost, resuming, refusals."""

import copy
import json
import math
import os
import socket
import subprocess
import sys
import warnings
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from torch.testing import assert_close

import sla
from made_data import digit_files
from sla.cli.several import planned_cost
from sla.datasets.load import load
from sla.errors import InputError, SLAWarning
from sla.images.content import dataset_keys
from sla.methods import StepContext
from sla.methods.unlabelled import rising_trust
from sla.runs.checkpoint import WEIGHTS, find_checkpoint
from sla.runs.distributed import Group
from sla.runs.images_record import read_record
from sla.runs.signals import StoppedError
from sla.sampling.draws import seed_of
from sla.session import train
from sla.tasks.classifier.distil import Distiller, configure_student
from sla.tasks.classifier.passes import distil_cost
from sla.tasks.classifier.plan import make_plan
from sla.tasks.classifier.task import plan_run
from sla.tasks.classifier.trainer import Trainer
from sla.tasks.classifier.unlabelled import find_taught
from sla.tasks.registry import make_config

CONSISTENT = {"method__name": "sla", "method__consistency_weight": 1.0, "method__confidence": 0.105}


def weights_file(folder):
    return find_checkpoint(folder / "checkpoint", "last") / WEIGHTS


def of_digits(tiny, **more):
    """A few labelled digits, and as many others without labels."""
    few = {"run__iterations": 6, "run__evaluations": 1, "run__batch_size": 16, "data__per_class": 5}
    return tiny | few | {"data__unlabelled": "digits", "data__unlabelled_count": 60} | more


def plan_of(settings):
    tree = {"data": {"source": "digits"}}
    for key, value in settings.items():
        part, _, name = key.partition("__")
        if name:
            tree.setdefault(part, {})[name] = value
        else:
            tree[part] = value
    return make_plan(make_config(tree))


@pytest.fixture(scope="module")
def semi_run(tmp_path_factory, tiny_settings):
    """Joint labels, view and consistency, six steps."""
    settings = of_digits(tiny_settings, **CONSISTENT)
    return sla.fit("digits", tmp_path_factory.mktemp("semi") / "run", **settings)


def test_the_rest_of_a_dataset_is_drawn_by_the_seed(tiny_settings):
    plans = [
        plan_of(of_digits(tiny_settings, run__seed=seed, data__unlabelled_count=count))
        for seed, count in ((0, 60), (0, 100), (1, 60), (0, None))
    ]
    keys = [set(dataset_keys(plan.unlabelled).tolist()) for plan in plans]
    assert [len(plan.unlabelled) for plan in plans[:3]] == [60, 100, 60]
    assert keys[0] < keys[1] < keys[3]
    assert keys[2] != keys[0]
    first = plans[0]
    for part in (first.train, first.val, first.test):
        assert not keys[3] & set(dataset_keys(part).tolist())
    copies = len(first.pool) - len(set(dataset_keys(first.pool).tolist()))
    assert len(plans[3].unlabelled) + copies >= len(first.pool) - len(first.train) - len(first.val)
    assert first.config.run.unlabelled_batch_size == 16
    assert "60 images of digits without labels, 16 per step" in first.reasons


def test_images_of_a_folder_are_known_by_content(tmp_path, tiny_settings):
    data = load("digits").train
    folder = digit_files(data, range(60), tmp_path / "photos")
    settings = of_digits(tiny_settings, data__per_class=None, data__unlabelled_count=None)
    settings |= {"data__source": str(folder), "data__hold_out": 0.2}
    del settings["data__unlabelled"]
    plan = plan_of(settings)
    flat = tmp_path / "flat"
    digit_files(data, range(60, 90), flat, "{place}.png")
    for name, part in (("held-out", plan.val), ("labelled", plan.train)):
        os.link(part.name(0), flat / f"{name}.png")
    with pytest.warns(SLAWarning, match="1 of 32 images are held-out or test images: left out"):
        plan = plan_of(settings | {"data__unlabelled": str(flat)})
    assert sorted(plan.unlabelled.name(i).rpartition("/")[2] for i in range(30)) == sorted(
        f"{place}.png" for place in range(60, 90)
    )


def planned_with_unlabelled(settings):
    """The plan, and its unlabelled images, of training or of a student."""
    plan = plan_of(settings)
    return plan, plan.unlabelled or find_taught(plan)


@pytest.mark.parametrize("key", ["data__unlabelled", "distil__unlabelled"])
def test_grey_files_go_with_a_run_of_grey_images(tmp_path, tiny_settings, key):
    """Files are read in colour: they become the pixels that the run has, so its own images are found."""
    digits = load("digits")
    flat = digit_files(digits.train, range(30), tmp_path / "flat", "{place}.png")
    digit_files(digits.test, range(2), flat, "test{place}.png")
    settings = of_digits(tiny_settings, data__unlabelled=None, data__unlabelled_count=None)
    settings |= {"data__hold_out": 0.3, key: str(flat)}
    with pytest.warns(SLAWarning, match="held-out or test images: left out"):
        plan, found = planned_with_unlabelled(settings)
    own = {*dataset_keys(plan.val).tolist(), *dataset_keys(plan.test).tolist()}
    own |= set() if key == "distil__unlabelled" else {*dataset_keys(plan.train).tolist()}
    left = [i for i in range(30) if int(dataset_keys(digits.train.subset([i]))[0]) not in own]
    assert found.images.shape == plan.train.images.shape == (1, 8, 8)
    pixels = {found.name(i).rpartition("/")[2]: found.read([i]).images[0] for i in range(len(found))}
    assert sorted(pixels) == sorted(f"{place}.png" for place in left)
    for place in left:
        assert torch.equal(pixels[f"{place}.png"], digits.train.read([place]).images[0])


def test_what_a_step_sees(semi_run, tmp_path):
    """All views of weak images answer, with batch statistics that are not kept; strong ones are learnt."""
    loop = Trainer(plan_run(semi_run.config), tmp_path / "new", Group())
    loop.prepare(frozen=False)
    batch = next(iter(loop.batches(loop.train, 0)))
    more = batch.unlabelled
    assert more.draws.seed == seed_of(0, "unlabelled") != batch.draws.seed
    seen = loop.see_unlabelled(batch)
    strong = loop.strong_pipeline(more.images, more.draws, more.aspect)
    assert torch.equal(seen.images, strong)
    assert loop.config.strong_augment == "randaugment, crop(1), cutout(4)"
    weak_draws = type(more.draws)(seed_of(more.draws.seed, "weak"), 0, 16, 0, 16)
    weak = loop.train_pipeline(more.images, weak_draws, more.aspect)
    running = {name: value.clone() for name, value in loop.model.named_buffers()}
    twin = copy.deepcopy(loop.model).train()  # it has no dropout
    turned = torch.stack([torch.rot90(weak, view, (2, 3)) for view in range(4)], 1).flatten(0, 1)
    with torch.no_grad():
        logits = twin.heads["joint"](twin.features(turned.contiguous(memory_format=torch.channels_last)))
    parts = [logits[view::4, view::4] for view in range(4)]
    assert seen.answers.numpy() == pytest.approx(torch.stack(parts).mean(0).numpy(), abs=1e-5)
    assert all(torch.equal(value, running[name]) for name, value in loop.model.named_buffers())
    norms = [module for module in loop.model.modules() if isinstance(module, torch.nn.BatchNorm2d)]
    assert norms
    assert all(norm.training and norm.track_running_stats for norm in norms)


def test_trust_in_answers_rises_over_the_first_half(semi_run, tmp_path):
    assert [rising_trust(step, 8) for step in range(0, 9, 2)] == pytest.approx(
        [math.exp(-5), math.exp(-1.25), 1.0, 1.0, 1.0]
    )
    assert rising_trust(0, 0) == pytest.approx(math.exp(-5))
    loop = Trainer(plan_run(semi_run.config), tmp_path / "new", Group())
    loop.prepare(frozen=False)
    batch = next(iter(loop.batches(loop.train, 0)))
    later = replace(batch, step=loop.steps // 2)
    full = loop.see_unlabelled(later)
    images = loop.train_pipeline(batch.images, batch.draws, batch.aspect)
    total, none, half = (
        loop.model(images, batch.targets, StepContext(unlabelled=full._replace(trust=trust)))["loss"].item()
        for trust in (full.trust, 0.0, torch.tensor(0.5))
    )
    assert float(full.trust) == 1.0
    assert total > none
    assert half == pytest.approx((total + none) / 2, rel=1e-4)


def test_answers_do_not_follow_running_statistics(semi_run, tmp_path):
    """Running statistics that lag behind the weights do not make answers confident; fixed ones are used."""
    loop = Trainer(plan_run(semi_run.config), tmp_path / "new", Group())
    loop.prepare(frozen=False)
    batch = next(iter(loop.batches(loop.train, 0)))
    before = loop.see_unlabelled(batch).answers
    norms = [module for module in loop.model.modules() if isinstance(module, torch.nn.BatchNorm2d)]
    for norm in norms:
        norm.running_var.mul_(1e-4)
    assert torch.equal(loop.see_unlabelled(batch).answers, before)
    for norm in norms:
        norm.training = False  # optimizer.fixed_norms
    assert loop.see_unlabelled(batch).answers.abs().max() > 10 * before.abs().max()


def test_cost_counts_every_pass(semi_run, tmp_path):
    cost, one = semi_run.result["cost"], semi_run.result["cost"]["inference_flop"]["single"]
    assert cost["training_flop"] == one * 6 * 16 * (3 * 4 + 3 * 4 + 4)
    assert cost["images_seen"] == 6 * 16 * 8
    assert planned_cost(make_plan(semi_run.config)) == {"run.flop": cost["training_flop"]}
    assert semi_run.result["images"]["unlabelled"] == 60
    columns = (semi_run.folder / "metrics.csv").read_text().splitlines()[0].split(",")
    assert {"unlabelled_view", "unlabelled_consistency", "unlabelled_confident"} <= set(columns)
    tree = {"method": {"name": "sla", "consistency_weight": 1.0}, "stages": "train, distil"}
    tree |= {"run": {"batch_size": 10, "unlabelled_batch_size": 20}, "data": {"unlabelled": "digits"}}
    share, _ = distil_cost(make_config(tree), 1000)
    assert share == pytest.approx(0.25 * (3 + 4) / (12 + 2 * (12 + 4)))


def test_stopped_it_resumes_to_the_same_bytes(semi_run, tiny_settings, tmp_path, stop_at):
    settings = of_digits(tiny_settings, **CONSISTENT)
    with pytest.raises(StoppedError):
        sla.fit("digits", tmp_path / "run", progress=stop_at(2), **settings)
    sla.fit("digits", tmp_path / "run", resume=True, **settings)
    ours, theirs = (weights_file(run).read_bytes() for run in (tmp_path / "run", semi_run.folder))
    assert ours == theirs
    assert (tmp_path / "run" / "metrics.csv").read_text() == (semi_run.folder / "metrics.csv").read_text()


def test_with_other_unlabelled_images_it_does_not_resume(tiny_settings, tmp_path, stop_at):
    flat = digit_files(load("digits").test, range(20), tmp_path / "flat", "{place}.png")
    folder = digit_files(load("digits").train, range(60), tmp_path / "photos")
    settings = of_digits(tiny_settings, data__per_class=None, data__unlabelled_count=None)
    settings |= {"data__unlabelled": str(flat), "data__hold_out": 0.0}
    with pytest.raises(StoppedError):
        sla.fit(folder, tmp_path / "run", progress=stop_at(2), **settings)
    os.replace(flat / "0.png", tmp_path / "gone.png")
    with pytest.raises(InputError, match="the data has changed since the run began: 1 is gone"):
        sla.fit(folder, tmp_path / "run", resume=True, **settings)
    digit_files(load("digits").test, range(20, 22), flat, "{place}.png")
    with pytest.raises(InputError, match="1 is gone, 2 are new"):
        sla.fit(folder, tmp_path / "run", resume=True, **settings)


def test_they_are_trained_on_so_no_evaluation_has_them(tiny_settings, tmp_path):
    flat = digit_files(load("digits").test, range(20), tmp_path / "flat", "{place}.png")
    folder = digit_files(load("digits").train, range(60), tmp_path / "photos")
    settings = of_digits(tiny_settings, data__per_class=None, data__unlabelled_count=None)
    settings |= {"data__unlabelled": str(flat), "run__iterations": 1, "data__hold_out": 0.0}
    run = sla.fit(folder, tmp_path / "run", **settings)
    other = digit_files(load("digits").test, range(25), tmp_path / "other")
    with pytest.warns(SLAWarning, match="20 of the 25 images were trained on and are left out"):
        assert len(run.evaluate(other).targets) == 5


def test_parts_of_a_batch_add_up(tiny_settings, tmp_path):
    settings = of_digits(tiny_settings, **CONSISTENT, run__unlabelled_batch_size=10)
    settings |= {"model__options": {"width": 8, "norm": False}, "run__iterations": 2}
    runs = [
        sla.fit("digits", tmp_path / str(parts), **settings, optimizer__accumulate=parts) for parts in (1, 3)
    ]
    whole, parts = (load_file(weights_file(run.folder)) for run in runs)
    for name, value in whole.items():
        assert_close(parts[name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_two_processes_train_as_one(tiny_settings, tmp_path):
    """Without batch norm, whose statistics are each process's own."""
    config = {"data": {"source": "digits", "workers": 0, "per_class": 5}}
    config["data"] |= {"unlabelled": "digits", "unlabelled_count": 60}
    config["model"] = {"backbone": "convnet4", "options": {"width": 8, "norm": False}}
    config["method"] = {"name": "sla", "consistency_weight": 1.0, "confidence": 0.105}
    config["run"] = {"iterations": 4, "batch_size": 16, "evaluations": 1, "compile": False}
    (tmp_path / "config.yaml").write_text(json.dumps(config))
    for count in (1, 2):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        words = ["-m", "sla", "train", "--config", str(tmp_path / "config.yaml"), "--no-report"]
        about = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        started = [
            subprocess.Popen(
                [sys.executable, *words, "--out", str(tmp_path / str(count))],
                env=os.environ | about | {"RANK": str(rank)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(count)
        ]
        said = [process.communicate(timeout=300)[0] for process in started]
        assert [process.returncode for process in started] == [0] * count, said
    one, two = (load_file(weights_file(tmp_path / str(count))) for count in (1, 2))
    for name, value in one.items():
        assert_close(two[name], value, rtol=1e-4, atol=1e-5)


def test_a_student_learns_from_the_images_of_its_teacher(semi_run, tmp_path):
    loop = Distiller(plan_run(configure_student(semi_run.folder, {})), tmp_path / "new", Group())
    assert len(loop.train) == 50 + 60
    assert loop.unlabelled is None
    ours = dataset_keys(loop.train.subset(range(50, 110)))
    assert sorted(ours) == sorted(read_record(semi_run.folder).keys["unlabelled"])
    assert loop.cost()["teacher_flop"] == semi_run.result["cost"]["training_flop"]


@pytest.mark.parametrize("in_one_run", [False, True])
def test_what_a_student_learns_from_is_left_out_of_its_evaluations(in_one_run, tiny_settings, tmp_path):
    flat = digit_files(load("digits").test, range(20), tmp_path / "flat", "{place}.png")
    folder = digit_files(load("digits").train, range(60), tmp_path / "photos")
    settings = of_digits(tiny_settings, data__per_class=None, data__unlabelled_count=None)
    settings |= {"data__unlabelled": None, "run__iterations": 1, "data__hold_out": 0.0, "method__name": "sla"}
    more = {"stages": "train, distil", "distil__unlabelled": str(flat)} if in_one_run else {}
    run = sla.fit(folder, tmp_path / "run", **settings, **more)
    if not in_one_run:
        run = train(configure_student(run.folder, {"distil.unlabelled": str(flat)}), tmp_path / "student")
    other = digit_files(load("digits").test, range(25), tmp_path / "other")
    with pytest.warns(SLAWarning, match="20 of the 25 images were trained on and are left out"):
        assert len(run.evaluate(other).targets) == 5


def test_a_student_finds_its_images_before_its_teacher_trains(tiny_settings):
    settings = of_digits(tiny_settings, stages="train, distil", distil__unlabelled="no-folder")
    with pytest.raises(InputError, match="no-folder: there is no such folder or dataset"):
        plan_run(plan_of(settings).config)


def test_a_student_of_a_teacher_that_left_them_out_has_none(tiny_settings, tmp_path):
    settings = of_digits(tiny_settings, method__name="da", run__iterations=1)
    with pytest.warns(SLAWarning, match="da learns nothing"):
        run = sla.fit("digits", tmp_path / "run", **settings)
    plan = plan_run(configure_student(run.folder, {}))
    assert (plan.unlabelled, len(plan.train)) == (None, 50)


def test_objects_without_labels(tiny_settings, tmp_path, stop_at):
    data = load("digits").train
    images = data.read(range(120)).images[:, 0].numpy()
    settings = of_digits(tiny_settings, data__per_class=None, data__unlabelled_count=None)
    del settings["data__unlabelled"]
    given = {"unlabelled": images[60:], "data__hold_out": 0.2, **settings}
    with pytest.raises(StoppedError):
        sla.fit(images[:60], data.targets[:60], tmp_path / "run", progress=stop_at(2), **given)
    run = sla.fit(images[:60], data.targets[:60], tmp_path / "run", resume=True, **given)
    whole = sla.fit(torch.from_numpy(images[:60]), data.targets[:60], tmp_path / "other", **given)
    assert run.result["images"]["unlabelled"] == len({image.tobytes() for image in images[60:]})
    assert load_file(weights_file(run.folder)).keys() == load_file(weights_file(whole.folder)).keys()
    with pytest.raises(InputError, match="unlabelled is for images that are objects"):
        sla.fit("digits", tmp_path / "third", unlabelled=images, **settings)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"data__unlabelled_count": 5000}, "data.unlabelled_count: 5,000 of 1,2"),
        ({"data__unlabelled": "no-folder"}, "no-folder: there is no such folder or dataset"),
        ({"data__per_class": None}, "no image is left that is not labelled, held out or a test image"),
        ({"method__confidence": 1.5}, "method.confidence"),
        (
            {"data__unlabelled": ""},
            "data.unlabelled: an empty text: the name of a folder or a dataset is needed",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(settings, words, tiny_settings):
    with pytest.raises(InputError) as caught:
        plan_of(of_digits(tiny_settings, **settings))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_method_that_cannot_use_them_leaves_them_out(tiny_settings):
    with pytest.warns(SLAWarning, match="baseline learns nothing from images without labels"):
        plan = plan_of(of_digits(tiny_settings, method__name="baseline"))
    assert plan.unlabelled is None
    assert len(plan_of(of_digits(tiny_settings, method__views="auto")).unlabelled) == 60


def test_without_unlabelled_images_their_options_are_pointed_out(tiny_settings):
    settings = of_digits(tiny_settings, method__confidence=0.5, data__unlabelled=None)
    with pytest.warns(SLAWarning) as caught:
        plan_of(settings)
    said = " ".join(str(one.message) for one in caught)
    assert "data.unlabelled_count has no effect" in said
    assert "method.confidence has no effect without unlabelled images" in said
    with warnings.catch_warnings():
        warnings.simplefilter("error", SLAWarning)
        plan_of(of_digits(tiny_settings, method__confidence=0.5))


def test_the_command(tmp_path, stopped):
    words = ["train", "digits", "--unlabelled", "digits", "--out", tmp_path / "run", "--iterations", "2"]
    for one in ("data.per_class=5", "model.backbone=convnet4", "run.compile=false", "run.batch_size=8"):
        words += ["--set", one]
    said = stopped(0, *words, "--no-report", "--method", "sla")
    assert "images of digits without labels, 8 per step" in said
    config = train(sla.open_run(tmp_path / "run").config, tmp_path / "again").config
    assert config.data.unlabelled == "digits"
