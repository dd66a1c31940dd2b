"""Distillation after training: the loss, first weights, what is learnt from, costs, minutes, resuming."""

import json
import shutil
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

import sla
from made_images import as_picture
from refusals import refused
from sla.errors import InputError, SLAWarning
from sla.methods import Distilled, StepContext
from sla.runs.checkpoint import WEIGHTS, find_checkpoint
from sla.runs.deadline import Deadline
from sla.runs.distributed import Group
from sla.runs.signals import StoppedError
from sla.sampling.draws import Draws
from sla.sampling.loader import Batch
from sla.session import train
from sla.tasks.classifier.distil import Distiller, configure_student
from sla.tasks.classifier.passes import distil_cost
from sla.tasks.classifier.plan import make_plan
from sla.tasks.classifier.prepare import prepare
from sla.tasks.classifier.task import plan_run
from sla.tasks.classifier.time_shares import AMPLE
from sla.tasks.registry import make_config


def weights_of(folder):
    return (find_checkpoint(folder / "checkpoint", "last") / WEIGHTS).read_bytes()


def two_stages(tiny, **more):
    return tiny | {"method__name": "sla", "stages": "train, distil", "distil__share": 0.5} | more


@pytest.fixture(scope="module")
def two_stage_run(tmp_path_factory, tiny_settings):
    """SLA on the digits, 12 steps, then 6 of its student."""
    return sla.fit("digits", tmp_path_factory.mktemp("two") / "run", **two_stages(tiny_settings))


@pytest.mark.parametrize(("temperature", "share"), [(1.0, 0.0), (2.0, 0.3)])
def test_the_loss_is_a_sum_over_images_and_classes(temperature, share):
    draw = torch.Generator().manual_seed(0)
    features, teacher = torch.randn(5, 4, generator=draw), torch.randn(5, 3, generator=draw)
    target = torch.tensor([0, 1, 2, 0, 1])
    method = Distilled(temperature=temperature, label_share=share)
    heads = method.build_heads(4, 3)
    found = method.losses(heads, features, target, StepContext(teacher=teacher))
    logits = heads["plain"](features).detach()
    kl = ce = 0.0
    for i in range(5):
        p, q = (np.exp(x[i].double().numpy() / temperature) for x in (teacher, logits))
        p, q = p / p.sum(), q / q.sum()
        kl += temperature**2 * sum(p[c] * (np.log(p[c]) - np.log(q[c])) for c in range(3)) / 5
        plain = np.exp(logits[i].double().numpy())
        ce -= np.log(plain[target[i]] / plain.sum()) / 5
    assert found["loss"].item() == pytest.approx((1 - share) * kl + share * ce, rel=1e-5)
    assert (found["distillation"].item(), found["student"].item()) == pytest.approx((kl, ce), rel=1e-5)
    with pytest.raises(InputError, match="sla distill RUN"):
        method.losses(heads, features, target)


def distiller(run, tmp_path, **distil):
    config = configure_student(run.folder, {f"distil.{key}": value for key, value in distil.items()})
    return Distiller(plan_run(config), tmp_path / "new", Group())


def batch_of(loop, count=6):
    indices = torch.arange(count)
    images, aspect = loop.train.read(indices.numpy())
    targets = torch.from_numpy(loop.train.targets[:count])
    return Batch(images, aspect, targets, indices, 0, Draws(0, 0, count))


def test_the_student_begins_as_single_inference_of_its_teacher(finished_run, tmp_path):
    loop = distiller(finished_run, tmp_path)
    images = loop.train_pipeline(batch_of(loop).images, Draws(0, 0, 6), torch.ones(6))
    with torch.no_grad():
        ours, theirs = loop.model.eval().logits(images), finished_run.model.logits(images, "single")
    assert ours.numpy() == pytest.approx(theirs.numpy(), abs=1e-5)  # in another memory layout


@pytest.mark.parametrize("count", [None, 2])
def test_the_teacher_answers_on_the_augmented_images(finished_run, tmp_path, count):
    loop = distiller(finished_run, tmp_path, teacher_views=count)
    batch, teacher = batch_of(loop), finished_run.model
    images = loop.train_pipeline(batch.images, batch.draws, batch.aspect)
    target, answers = loop.teach(images, batch.targets, batch)
    order = batch.draws.uniform("views", 4).argsort(1)[:, :count].tolist() if count else [range(4)] * 6
    with torch.no_grad():
        for i, image in enumerate(images):
            parts = []
            for j in order[i]:
                turned = torch.rot90(image[None], j, (2, 3))
                features = teacher.features(turned.contiguous(memory_format=torch.channels_last))
                parts.append(teacher.heads["joint"](features)[0, j::4])
            assert answers[i].numpy() == pytest.approx(torch.stack(parts).mean(0).numpy(), abs=1e-4)
    assert torch.equal(target, batch.targets)


def test_a_teacher_without_views_teaches_its_only_answer(baseline_run, tmp_path):
    loop = distiller(baseline_run, tmp_path)
    batch = batch_of(loop)
    images = loop.eval_pipeline(batch.images, batch.draws, batch.aspect)
    _, answers = loop.teach(images, batch.targets, batch)
    with torch.no_grad():
        expected = baseline_run.model.heads["plain"](baseline_run.model.features(images))
    assert answers.numpy() == pytest.approx(expected.numpy(), abs=1e-5)
    cost = loop.cost()
    assert cost["answers_flop"] * 3 == cost["student_flop"]  # a forward pass, and a forward and backward one
    cached = distiller(baseline_run, tmp_path, cached=True)
    _, answers = cached.teach(images, batch.targets, batch)
    assert answers.numpy() == pytest.approx(expected.numpy(), abs=0.02)  # kept in 16 bits


def test_cached_answers_are_of_the_plain_images(finished_run, tmp_path):
    loop = distiller(finished_run, tmp_path, cached=True)
    batch = batch_of(loop)
    images = loop.eval_pipeline(batch.images, batch.draws, batch.aspect)
    _, answers = loop.teach(images, batch.targets, batch)
    with torch.no_grad():
        expected = finished_run.model.logits(images, "aggregated")
    assert answers.numpy() == pytest.approx(expected.numpy(), abs=0.02)  # kept in 16 bits


def test_a_student_of_mixed_images_learns_what_its_teacher_says_of_them(finished_run, tmp_path):
    """One step: the loss is the KL of the teacher's aggregated answer on the very images that are mixed."""
    loop = distiller(finished_run, tmp_path, mix="cutmix(1.0, 1.0)", share=0.5)
    batch, seen = batch_of(loop), {}
    loop.prepare(frozen=False)
    loop.model.register_forward_pre_hook(lambda _, given: seen.update(images=given[0], context=given[2]))
    plain = loop.train_pipeline(batch.images, batch.draws, batch.aspect)
    loop.learn(batch)
    assert not torch.equal(seen["images"], plain)
    with torch.no_grad():
        expected = finished_run.model.logits(seen["images"].contiguous(), "aggregated")
    assert seen["context"].teacher.numpy() == pytest.approx(expected.numpy(), abs=1e-4)
    refused("distil.mix: mixed images need", distiller, finished_run, tmp_path, mix="mixup(1.0)", cached=True)


def test_a_run_of_two_stages_has_one_answer_and_three_rows(two_stage_run):
    run, teacher = two_stage_run, two_stage_run.teacher
    assert run.model.method == Distilled()
    assert run.model.method.inferences == ("distilled",)
    scores = run.result["accuracies"]["last"]["test"]
    assert list(scores) == ["single", "aggregated", "distilled"]
    dataset = run.dataset()
    again = run.evaluate(dataset).scores(run.temperatures)
    assert again["distilled"] == pytest.approx(scores["distilled"])
    assert run.result["headline"] == "distilled"
    hits = 0
    for batch in torch.from_numpy(np.arange(len(dataset))).split(100):
        images, aspect = dataset.read(batch.numpy())
        with torch.no_grad():
            logits = teacher.logits(run.pipeline(images, Draws(0, 0, len(batch)), aspect), "aggregated")
        hits += int((logits.argmax(1) == torch.from_numpy(dataset.targets[batch.numpy()])).sum())
    assert scores["aggregated"]["top1"] == pytest.approx(100 * hits / len(dataset))


def test_its_cost_is_that_of_teacher_answers_and_student(two_stage_run, tmp_path):
    cost = two_stage_run.result["cost"]
    one = cost["inference_flop"]["distilled"]
    assert cost["inference_flop"]["aggregated"] == 4 * one
    assert cost["training_flop"] == one * 32 * (12 * 3 * 4 + 6 * 4 + 6 * 3)
    assert cost["seconds"] > cost["teacher_seconds"] > 0
    loop = distiller(two_stage_run, tmp_path, teacher_views=1, share=0.5)
    assert loop.cost()["answers_flop"] == one * 32 * 6
    loop = distiller(two_stage_run, tmp_path, cached=True)
    assert loop.cost()["answers_flop"] == one * len(loop.train) * 4


@pytest.mark.parametrize("step", [5, 14])
def test_stopped_in_either_stage_it_resumes_to_the_same_bytes(
    two_stage_run, tiny_settings, tmp_path, stop_at, step
):
    class StopInAll(stop_at):
        def __init__(self):
            super().__init__(None)
            self.count = 0

        def step(self, done, total, metrics):
            self.count, self.at = self.count + 1, done if self.count + 1 == step else None
            super().step(done, total, metrics)

    settings = two_stages(tiny_settings)
    with pytest.raises(StoppedError):
        sla.fit("digits", tmp_path / "run", progress=StopInAll(), **settings)
    half = sla.open_run(tmp_path / "run")
    assert ("distilled" in half.model.method.inferences) == (step > 12)
    sla.fit("digits", tmp_path / "run", resume=True, **settings)
    for part in (".", "distil"):
        assert weights_of(tmp_path / "run" / part) == weights_of(two_stage_run.folder / part)
    ours, theirs = (
        json.loads((run / "result.json").read_text()) for run in (tmp_path / "run", two_stage_run.folder)
    )
    assert ours["accuracies"] == theirs["accuracies"]


def test_distilling_a_finished_run_is_its_stage_distil(two_stage_run, tmp_path, stopped):
    words = ("distill", two_stage_run.folder, "--out", tmp_path / "new", "--share", "0.5", "--no-report")
    said = stopped(0, *words)
    run = sla.open_run(tmp_path / "new")
    assert run.config.method.name == "distilled"
    ours, theirs = run.model.state_dict(), two_stage_run.model.state_dict()
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())
    names = ["teacher, test"] * 2 + ["student, last, test"] + ["teacher, val"] * 2 + ["student, last, val"]
    names += ["student, best, test", "student, best, val"]
    assert [row[0] for row in run.score_table().rows] == names
    assert [row[0] for row in two_stage_run.score_table().rows] == [f"sla, {name}" for name in names]
    assert "student, last, test\tdistilled *" in said
    single = two_stage_run.result["accuracies"]["last"]["test"]["single"]["top1"]
    assert f"teacher, test\tsingle\t{single:.2f}" in said
    for name in ("training_flop", "teacher_flop", "answers_flop", "student_flop"):
        assert run.result["cost"][name] == two_stage_run.result["cost"][name]


def test_what_cannot_be_distilled_is_refused(baseline_run, finished_run, tmp_path, tiny_settings, stopped):
    student = train(configure_student(finished_run.folder, {}), tmp_path / "s")
    said = stopped(2, "distill", student.folder, "--out", tmp_path / "a")
    assert "itself a student: a student needs a teacher trained by another method" in said
    assert not (tmp_path / "a").exists()
    copy = tmp_path / "copy"
    shutil.copytree(finished_run.folder, copy)
    (copy / "result.json").unlink()
    assert "unfinished" in stopped(2, "distill", copy, "--out", tmp_path / "a")
    with pytest.raises(InputError, match=r"sla\+sd trains a student of its own; leave out the stage"):
        sla.fit("digits", tmp_path / "b", **tiny_settings, method__name="sla+sd", stages="train, distil")
    with pytest.raises(InputError, match="before it 'features', after it 'distil', not 'distil, train'"):
        make_config({"stages": "distil, train"})
    config = configure_student(finished_run.folder, {"distil.teacher_views": 5})
    with pytest.raises(InputError, match="5 of 4 views"):
        train(config, tmp_path / "c")
    config = configure_student(baseline_run.folder, {"distil.teacher_views": 2})
    with pytest.raises(InputError, match="2 of 1 views"):
        train(config, tmp_path / "c")


def test_another_teacher_than_at_the_start_is_refused(finished_run, two_stage_run, tmp_path, stop_at):
    teacher = tmp_path / "teacher"
    shutil.copytree(finished_run.folder, teacher)
    config = configure_student(teacher, {"distil.share": 0.5})
    with pytest.raises(StoppedError):
        train(config, tmp_path / "new", progress=stop_at(2))
    shutil.rmtree(teacher)
    shutil.copytree(two_stage_run.folder, teacher)
    with pytest.raises(InputError, match="not those that the run began with"):
        train(config, tmp_path / "new", resume=True)


@pytest.fixture
def photographs(tmp_path):
    """Two classes of 24 colour pictures, and a flat folder: 10 new ones and one of the first."""
    draw = np.random.default_rng(0)
    for name, shade in (("dark", 60), ("light", 190)):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(24):
            pixels = (shade + draw.integers(-50, 50, (16, 16, 3))).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{i}.png")
    (tmp_path / "flat").mkdir()
    for i in range(10):
        pixels = draw.integers(0, 255, (16, 16, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(tmp_path / "flat" / f"{i}.png")
    return tmp_path


def test_unlabelled_images_have_the_teachers_class(photographs, tiny_settings, stop_at):
    settings = tiny_settings | {"run__batch_size": 8, "method__name": "da", "run__iterations": 2}
    run = sla.fit(photographs / "photos", photographs / "run", **settings)
    held_out = as_picture(run.splits.val.read([0]).images[0])
    held_out.save(photographs / "flat" / "val.png")
    given = {"distil.unlabelled": str(photographs / "flat")}
    config = configure_student(run.folder, given | {"distil.cached": True, "distil.share": 2}, "wrn10_1")
    assert (config.run.iterations, config.optimizer.learning_rate) == (4, run.config.optimizer.learning_rate)
    with pytest.warns(SLAWarning, match="1 of 11 images are held-out"), pytest.raises(StoppedError):
        train(config, photographs / "new", progress=stop_at(2))
    with pytest.warns(SLAWarning, match="held-out"):
        whole = train(config, photographs / "whole")
    with pytest.warns(SLAWarning, match="held-out"):
        train(config, photographs / "new", resume=True)
    assert whole.model.spec["backbone"] == "wrn10_1"
    assert weights_of(photographs / "new") == weights_of(photographs / "whole")

    with pytest.warns(SLAWarning, match="held-out"):
        loop = distiller(run, photographs, unlabelled=str(photographs / "flat"))
    count = len(run.splits.train)
    assert len(loop.train) == count + 10
    indices = torch.arange(count - 3, count + 10)
    images, aspect = loop.train.read(indices.numpy())
    batch = Batch(images, aspect, torch.from_numpy(loop.train.targets[indices]), indices, 0, Draws(0, 0, 13))
    target, answers = loop.teach(loop.train_pipeline(images, batch.draws, aspect), batch.targets, batch)
    assert target[:3].tolist() == run.splits.train.targets[-3:].tolist()
    assert torch.equal(target[3:], answers[3:].argmax(1))

    Image.fromarray(np.zeros((16, 16, 3), np.uint8)).save(photographs / "flat" / "0.png")
    with (
        pytest.warns(SLAWarning, match="held-out"),
        pytest.raises(InputError, match="not those that the run"),
    ):
        train(config, photographs / "new", resume=True)


@pytest.mark.parametrize("command", ["distill", "grow"])
def test_an_invalid_value_is_reported_by_its_option(finished_run, tmp_path, stopped, command):
    """The configuration of the first run is valid: what is wrong was typed."""
    words = [command, finished_run.folder, *(["digits"] if command == "grow" else []), "--out", tmp_path]
    for typed, said in (
        (["--set", "optimizer.clip=-3"], "--set optimizer.clip: Input should be greater than 0, not -3"),
        (["--learning-rate", "-1"], "--learning-rate: Input should be greater than 0, not -1.0"),
        (["--set", "optimizer.milestones=[0.5, x]"], "--set optimizer.milestones: Input should be a valid"),
        (["--set", "distil.checkpoint=lest"], "--set distil.checkpoint: Input should be 'last', 'best' or"),
    ):
        line = stopped(2, *words, *typed)
        assert line.startswith(f"sla: {said}"), line


def test_unreadable_images_are_skipped_where_that_is_asked_for(photographs, tiny_settings, stopped):
    settings = tiny_settings | {"run__batch_size": 8, "method__name": "da", "run__iterations": 2}
    run = sla.fit(photographs / "photos", photographs / "run", **settings)
    (photographs / "flat" / "3.png").write_bytes(b"no picture")
    distil = ("distill", run.folder, "--unlabelled", photographs / "flat", "--no-report")
    assert "3.png" in stopped(2, *distil, "--out", photographs / "refused")
    with warnings.catch_warnings():
        warnings.simplefilter("always", SLAWarning)
        said = stopped(0, *distil, "--out", photographs / "student", "--on-bad-image", "skip")
    assert "skipped 1 of 10 images" in said
    assert sla.open_run(photographs / "student").config.data.on_bad_image == "skip"


def test_a_student_has_the_images_of_its_teacher(photographs, tiny_settings):
    settings = tiny_settings | {"run__batch_size": 8, "method__name": "da", "run__iterations": 2}
    run = sla.fit(photographs / "photos", photographs / "run", **settings)
    moved = photographs / "moved"
    (photographs / "photos").rename(moved)
    given = {"data.source": str(moved), "data.workers": 1, "data.cache": True, "run.seed": 5}
    plan = plan_run(configure_student(run.folder, given))
    for ours, theirs in ((plan.train, run.splits.train), (plan.val, run.splits.val)):
        every = range(len(theirs))
        assert torch.equal(ours.read(every).images, theirs.read(every).images)
    with pytest.raises(InputError, match=r"data\.hold_out: cannot differ from"):
        plan_run(configure_student(run.folder, given | {"data.hold_out": 0.3}))
    Image.fromarray(np.zeros((16, 16, 3), np.uint8)).save(moved / "dark" / "new.png")
    with pytest.raises(InputError, match="1 is new"):
        plan_run(configure_student(run.folder, given))
    (run.folder / "images.safetensors").unlink()
    with pytest.warns(SLAWarning, match="may train on images that its teacher held out"):
        plan_run(configure_student(run.folder, given))


def test_options_of_either_stage_have_an_effect(tiny_settings, tmp_path):
    tree = {"data": {"source": "digits"}, "method": {"name": "sla", "label_share": 0.5}}
    with warnings.catch_warnings():
        warnings.simplefilter("error", SLAWarning)
        make_plan(make_config(tree | {"stages": "train, distil"}))
    with pytest.warns(SLAWarning, match=r"method\.label_share has no effect"):
        make_plan(make_config(tree))
    settings = tiny_settings | {"run__iterations": 1, "method__beta": 0.5}
    run = sla.fit("digits", tmp_path / "run", **settings, run__compile_reason="as timed")
    config = configure_student(run.folder, {})
    assert config.run.compile_reason is None
    with warnings.catch_warnings():
        warnings.simplefilter("error", SLAWarning)
        plan_run(config)
    with pytest.warns(SLAWarning, match=r"method\.beta has no effect"):
        plan_run(configure_student(run.folder, {"method.beta": 0.3}))


@pytest.mark.parametrize(
    ("distil", "share", "once"),
    [
        ({}, 0.25 * (3 + 4) / 12, 0),  # a step of the first: 4 views forward and backward
        ({"share": 0.5, "teacher_views": 1}, 0.5 * (3 + 1) / 12, 0),
        ({"cached": True}, 0.25 * 3 / 12, 1000 * 4 / 10 / 12),
    ],
)
def test_minutes_are_for_both_stages(distil, share, once):
    tree = {"method": {"name": "sla"}, "run": {"batch_size": 10}, "distil": distil}
    assert distil_cost(make_config(tree), 1000) == (0, 0)
    both = make_config(tree | {"stages": "train, distil"})
    assert distil_cost(both, 1000) == pytest.approx((share, once))


def test_iterations_of_both_stages_fit_into_the_minutes(monkeypatch, messages):
    monkeypatch.setattr("sla.tasks.classifier.prepare.measure_seconds", lambda *_: 0.5)
    tree = {"data": {"source": "digits"}, "method": {"name": "sla"}, "stages": "train, distil"}
    tree |= {"run": {"minutes": 2, "compile": False}, "distil": {"share": 3 / 7}}  # of 7/12 of the cost
    monkeypatch.setattr("sla.runs.deadline.clock", lambda: 0.0)
    monkeypatch.setattr("sla.runs.deadline.PAGE_SECONDS", 0.0)
    plan = make_plan(make_config(tree))
    tested = 1.25 * (2 * (len(plan.val) + len(plan.test)) + len(plan.val))
    passes = 4 * (tested + 20 * len(plan.val))  # beside those of steps
    besides = passes / (3 * 4 * plan.config.run.batch_size)
    plan = prepare(replace(plan, deadline=Deadline(120)), Group(), messages, starts=False)
    steps = int((240 - besides) / 1.25)  # 240 steps fit; 1 + 3/7 * 7/12 = 1.25
    assert plan.config.run.iterations == AMPLE * steps
    told = f"about {steps} iterations and {round(steps * 3 / 7)} of the student fit into 2 minutes; "
    assert any(line.startswith(told) for line in messages.lines)
