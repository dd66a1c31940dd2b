"""Whole runs on the digits: the same bytes twice, after a kill and a resume, and over two processes."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
import torch.distributed as dist
import yaml
from safetensors.torch import load_file

import sla
from made_data import digit_files, picture
from refusals import fails, refused
from sla.datasets.load import load
from sla.disk import exclusive
from sla.errors import InputError, SLAError, SLAWarning
from sla.images.files import FileImages
from sla.images.store import Dataset
from sla.runs import loop
from sla.runs.checkpoint import find_checkpoint
from sla.runs.config import read_config
from sla.runs.signals import StoppedError
from sla.session import preview, train
from sla.tasks.classifier import trainer
from sla.tasks.classifier.run import Run
from sla.tasks.classifier.time_shares import AMPLE
from sla.tasks.registry import make_config, with_values

TINY = {
    "data": {"source": "digits", "workers": 0},
    "model": {"backbone": "convnet4", "options": {"width": 8}},
    "method": {"name": "sla+sd"},
    "optimizer": {"ema": 0.9, "learning_rate": 0.05},
    "run": {"iterations": 24, "batch_size": 32, "evaluations": 3, "compile": False},
}


def tree(**parts):
    """TINY with parts of it replaced."""
    return {key: {**value, **parts.get(key, {})} for key, value in TINY.items()} | {
        key: value for key, value in parts.items() if key not in TINY
    }


def weights_of(folder, kind="last"):
    return (find_checkpoint(folder / "checkpoint", kind) / "weights.safetensors").read_bytes()


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "digits"
    return train(make_config(TINY), folder)


def test_a_run_is_a_folder_that_says_everything(finished):
    names = {path.name for path in finished.folder.iterdir()}
    assert {"config.yaml", "metrics.csv", "checkpoint", "result.json"} <= names
    result = json.loads((finished.folder / "result.json").read_text())
    assert set(result["accuracies"]["last"]["test"]) == {"single", "aggregated", "distilled"}
    assert result["headline"] == "distilled"
    assert result["seed"] == 0
    assert result["images"]["train"] + result["images"]["val"] == len(load("digits").train)
    cost = result["cost"]
    assert cost["images_seen"] == 24 * 32 * 4
    one_look = cost["inference_flop"]["single"]
    assert cost["inference_flop"]["aggregated"] == 4 * one_look
    assert cost["training_flop"] == 3 * one_look * 24 * 32 * 4
    assert result["versions"]["torch"] == torch.__version__
    rows = (finished.folder / "metrics.csv").read_text().splitlines()
    assert rows[0].startswith("step,epoch,learning_rate,loss,joint,distillation,student,train,val_single")
    assert len(rows) == 25
    assert [row.split(",")[-1] != "" for row in rows[1:]].count(True) == 3


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(finished, tmp_path):
    """The same from Python by `fit`, and from the configuration that a run has written."""
    written = make_config(read_config(finished.folder / "config.yaml"))
    assert all(v is not None for v in (written.run.iterations, written.model.mean, written.augment))
    same = [sla.fit("digits", tmp_path / "fitted", config=TINY), train(written, tmp_path / "again")]
    other = train(make_config(tree(run={"seed": 1})), tmp_path / "other")
    for name in ("config.yaml", "metrics.csv"):
        first, *again, another = ((run.folder / name).read_bytes() for run in (finished, *same, other))
        assert first == again[0] == again[1] != another
    assert {weights_of(run.folder) for run in same} == {weights_of(finished.folder)}
    assert weights_of(other.folder) != weights_of(finished.folder)


def command(folder, parts):
    """A subprocess that trains; it reads its configuration from a file."""
    path = folder.with_suffix(".yaml")
    path.write_text(yaml.safe_dump(parts))
    return [sys.executable, "-m", "sla", "train", "--config", str(path), "--out", str(folder)]


def wait_for(condition, process, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, "the run ended before it could be stopped"
        assert time.monotonic() < end, "the run did not come so far"
        time.sleep(0.02)


def test_killed_in_the_middle_of_an_epoch_and_resumed_it_is_byte_for_byte_the_same(tmp_path):
    # 1,293 training images in batches of 32: two epochs are 81 steps; checkpoints fall inside them.
    parts = tree(run={"iterations": None, "epochs": 2, "checkpoint_every": 7})
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    train(make_config(parts), whole)
    process = subprocess.Popen(command(killed, parts), stdout=subprocess.DEVNULL)
    wait_for(lambda: _last_step(killed) >= 14, process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    stopped_at = _last_step(killed)
    assert 14 <= stopped_at < 81
    assert not (killed / "result.json").exists()
    train(make_config(parts), killed, resume=True)
    assert _last_step(killed) == 81
    for kind in ("last", "best"):
        assert weights_of(killed, kind) == weights_of(whole, kind)
    assert (killed / "metrics.csv").read_bytes() == (whole / "metrics.csv").read_bytes()
    accuracies = [json.loads((run / "result.json").read_text())["accuracies"] for run in (whole, killed)]
    assert accuracies[0] == accuracies[1]
    assert [path for path in (killed / "checkpoint").iterdir() if path.name.startswith(".")] == []


def _last_step(folder):
    found = find_checkpoint(folder / "checkpoint", "last")
    return int(found.name.split("-")[1]) if found else -1


def test_ctrl_c_finishes_the_step_and_says_how_to_continue(tmp_path):
    folder = tmp_path / "a run"
    parts = tree(run={"iterations": 5000, "checkpoint_every": 5})
    process = subprocess.Popen(
        command(folder, parts), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    wait_for(lambda: _last_step(folder) >= 5, process)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "to continue: sla train --resume --out" in errors
    assert "Traceback" not in errors
    assert f"stopped after step {_last_step(folder):,} of 5,000" in errors


def test_two_processes_train_as_one(tmp_path):
    """Without batch norm: the same losses and weights within 1e-5, order and augmentation included."""
    parts = tree(
        model={"backbone": "convnet4", "options": {"width": 8, "norm": False}},
        optimizer={"ema": None, "learning_rate": 0.05, "accumulate": 2},
        run={"iterations": 12, "evaluations": 2, "device": "cpu"},
    )
    one, two = tmp_path / "one", tmp_path / "two"
    train(make_config(parts), one)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "-m"]
    words = [*launch, *command(two, parts)[2:]]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("run:") == 1  # only one process speaks
    a, b = (load_file(find_checkpoint(f / "checkpoint", "last") / "weights.safetensors") for f in (one, two))
    for name, value in a.items():
        torch.testing.assert_close(b[name], value, rtol=0, atol=1e-5, msg=name)
    rows = [(f / "metrics.csv").read_text().splitlines()[1:] for f in (one, two)]
    for left, right in zip(*rows, strict=True):
        numbers = [[float(cell or -1) for cell in row.split(",")] for row in (left, right)]
        assert numbers[0] == pytest.approx(numbers[1], abs=1e-4)
    assert json.loads((two / "result.json").read_text())["cost"]["processes"] == 2


@pytest.mark.parametrize(
    ("end", "words"),
    [
        ("raise RuntimeError('process 1 fails')", "process 1 fails"),
        ("os.kill(os.getpid(), 9)", "sla: the connection to another process of the run was lost"),
    ],
)
def test_every_process_ends_when_one_fails(tmp_path, end, words):
    """Process 1 alone ends in its fourth step, and process 0, which waits for it, ends too and says why."""
    script = tmp_path / "one_fails.py"
    script.write_text(
        "import os, sys\n"
        "from sla.tasks.classifier import trainer\n"
        "learn = trainer.Trainer.learn\n"
        "def fails(self, batch):\n"
        f"    if os.environ['RANK'] == '1' and batch.step == 3: {end}\n"
        "    learn(self, batch)\n"
        "trainer.Trainer.learn = fails\n"
        "from sla.cli import main\n"
        "main(sys.argv[1:])\n"
    )
    parts = tree(run={"iterations": 100_000, "batch_size": 32, "evaluations": 1})
    launch = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node=2",
        str(script),
    ]
    launch += command(tmp_path / "two", parts)[3:]
    done = subprocess.run(launch, capture_output=True, text=True, timeout=120)
    assert done.returncode != 0
    assert words in done.stderr


def test_a_group_that_cannot_meet_says_so(tmp_path, monkeypatch):
    def unreachable(backend):
        raise dist.DistNetworkError("The client socket has timed out after 1800000ms\nframe #0: ...")

    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(dist, "init_process_group", unreachable)
    for call in (lambda: train(make_config(tree()), tmp_path / "run"), lambda: preview(make_config(tree()))):
        with pytest.raises(SLAError, match=r"^the connection to another process of the run was lost: .*$"):
            call()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("size", [1, 7, 360])
def test_batches_of_evaluation_change_no_prediction(finished, size):
    test = load("digits").test
    reference = finished.evaluate(test, batch_size=64)
    outputs = finished.evaluate(test, batch_size=size)
    for inference, logits in reference.logits.items():
        torch.testing.assert_close(outputs.logits[inference], logits, rtol=0, atol=1e-5)
    reverse = test.subset(list(reversed(range(len(test)))))
    for inference, logits in finished.evaluate(reverse).logits.items():
        torch.testing.assert_close(logits.flip(0), reference.logits[inference], rtol=0, atol=1e-5)


def test_the_scores_in_the_result_are_those_of_an_evaluation(finished):
    outputs = finished.evaluate()
    stored = finished.result["accuracies"]["last"]["test"]
    for inference, logits in outputs.logits.items():
        right = (logits.argmax(1) == outputs.targets).double().mean().item()
        assert stored[inference]["top1"] == pytest.approx(100 * right)
    assert set(finished.temperatures) == {"single", "aggregated", "anytime", "distilled"}
    found = outputs.scores(finished.temperatures)
    assert stored.keys() == found.keys()
    for inference, scores in found.items():  # evaluated by a copy whose logits differ by rounding
        assert stored[inference] == pytest.approx(scores, rel=1e-4)


@pytest.mark.parametrize("parts", [
    {"method": {"name": "sla", "views_per_step": 1}},
    {"method": {"name": "sla+sd", "views_per_step": 2}},
    {"method": {"name": "da"}, "optimizer": {"name": "adamw", "learning_rate": 0.001, "decay_norms": False}},
    {"method": {"name": "mt"}, "optimizer": {"schedule": "onecycle", "clip": 1.0, "fixed_norms": True}},
    {"optimizer": {"frozen": 0.5, "warmup": 0.2, "schedule": "multistep", "accumulate": 3}},
    {"run": {"snapshots": 2, "precision": "bfloat16", "channels_last": False}, "augment": "none"},
    {"data": {"source": "digits", "sampling": "random", "per_class": 20, "hold_out": 0.2}},
    {"model": {"backbone": "resnet12", "options": {"width": 0.0625, "ramp_steps": 5, "checkpointing": True}}},
], ids=["one view", "two views", "adamw", "onecycle", "frozen", "bf16", "limited", "dropblock"])  # fmt: skip
def test_every_way_to_train_runs_and_resumes(parts, tmp_path, stop_at):
    merged = {
        key: {**TINY.get(key, {}), **value} if isinstance(value, dict) else value
        for key, value in parts.items()
    }
    merged = {**TINY, **merged}
    merged["run"] = {**merged["run"], "iterations": 6, "evaluations": 2}
    whole = train(make_config(merged), tmp_path / "whole")
    assert whole.result["accuracies"]["last"]["step"] == 6

    with pytest.raises(StoppedError, match="stopped after step 4 of 6"):
        train(make_config(merged), tmp_path / "run", progress=stop_at(4))
    run = train(make_config(merged), tmp_path / "run", resume=True)
    assert weights_of(run.folder) == weights_of(whole.folder)
    assert (run.folder / "metrics.csv").read_bytes() == (whole.folder / "metrics.csv").read_bytes()
    if merged["model"].get("backbone") == "resnet12":
        assert run.model.backbone.blocks[2].drop.steps == 6  # one a step, whatever went forward
    if "snapshots" in merged["run"]:
        assert sorted(p.name for p in (run.folder / "snapshots").iterdir()) == [
            "00000003.safetensors",
            "00000006.safetensors",
        ]


def test_a_frozen_backbone_does_not_move(tmp_path):
    parts = tree(
        optimizer={"frozen": 0.8, "ema": None, "learning_rate": 0.1}, run={"iterations": 5, "snapshots": 5}
    )
    run = train(make_config(parts), tmp_path / "run")
    first, fourth, last = (load_file(run.folder / "snapshots" / f"0000000{n}.safetensors") for n in (1, 4, 5))
    backbone = [name for name in first if name.startswith("backbone.") and "num_batches" not in name]
    assert all(torch.equal(first[name], fourth[name]) for name in backbone)
    assert any(not torch.equal(fourth[name], last[name]) for name in backbone)
    assert not torch.equal(first["heads.joint.weight"], fourth["heads.joint.weight"])


@pytest.mark.parametrize("fixed", [True, False])
def test_batch_norm_keeps_its_statistics_where_they_are_fixed(fixed, tmp_path):
    """Also after an evaluation in the middle; the weights of the same layers learn."""
    parts = tree(
        optimizer={"fixed_norms": fixed, "ema": None}, run={"iterations": 4, "snapshots": 4, "evaluations": 2}
    )
    run = train(make_config(parts), tmp_path / "run")
    first, last = (load_file(run.folder / "snapshots" / f"0000000{n}.safetensors") for n in (1, 4))
    statistics = [name for name in first if name.endswith(("running_mean", "running_var"))]
    assert statistics
    assert all(torch.equal(first[name], last[name]) is fixed for name in statistics)
    assert not any(
        torch.equal(
            first[name.replace("running_mean", "weight")], last[name.replace("running_mean", "weight")]
        )
        for name in statistics
        if name.endswith("running_mean")
    )


def test_a_loss_that_turns_nan_stops_and_keeps_the_last_good_checkpoint(tmp_path):
    parts = tree(
        optimizer={"learning_rate": 1e30, "ema": None}, run={"iterations": 50, "checkpoint_every": 1}
    )
    with pytest.raises(SLAError, match=r"at step \d+") as error:
        train(make_config(parts), tmp_path / "run")
    assert "learning rate" in str(error.value)
    assert "\n" not in str(error.value)
    found = find_checkpoint(tmp_path / "run" / "checkpoint", "last")
    assert found.name in str(error.value)
    assert all(v.isfinite().all() for v in load_file(found / "weights.safetensors").values())


def test_folders_that_cannot_be_used_are_refused(finished, tmp_path, monkeypatch):
    refused("exists already; continue it with --resume", train, make_config(TINY), finished.folder)
    refused("no run to resume", train, make_config(TINY), tmp_path / "nothing", resume=True)
    refused("cannot be written", train, make_config(TINY), Path("/proc/nowhere/run"))
    (tmp_path / "busy").mkdir()
    with exclusive(tmp_path / "busy" / ".lock"), pytest.raises(InputError, match="in use by another process"):
        train(make_config(TINY), tmp_path / "busy")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 10, 0))
    refused(r"keeping checkpoints needs .* MB are free", train, make_config(TINY), tmp_path / "full")


def test_a_full_disk_leaves_the_last_good_checkpoint(tmp_path, monkeypatch):
    real, calls = loop.save_checkpoint, []

    def fails_the_third_time(*arguments):
        calls.append(1)
        if len(calls) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*arguments)

    parts = tree(
        run={"iterations": 8, "checkpoint_every": 2, "evaluations": 1},
        data={"hold_out": 0, "source": "digits"},
    )
    monkeypatch.setattr(loop, "save_checkpoint", fails_the_third_time)
    with pytest.raises(SLAError, match="the disk is full"):
        train(make_config(parts), tmp_path / "run")
    assert _last_step(tmp_path / "run") == 4
    run = train(make_config(parts), tmp_path / "run", resume=True)
    assert run.result["accuracies"]["last"]["step"] == 8


@pytest.mark.skipif(not hasattr(signal, "SIGXFSZ"), reason="no limits of file sizes here")
@pytest.mark.parametrize("most", [0, 1000, 10_000, 20_000])
def test_a_limit_of_file_sizes_is_one_line_and_loses_nothing(tmp_path, most):
    """Bytes: of the lock, of the record of images, of weights, of the state beside them."""
    import resource

    parts = tree(run={"iterations": 2, "evaluations": 1}, data={"hold_out": 0, "source": "digits"})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        said = fails(SLAError, "file too large", train, make_config(parts), tmp_path / "run")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert str(tmp_path / "run") in said
    assert train(make_config(parts), tmp_path / "run").result["accuracies"]["last"]["step"] == 2


def test_a_length_or_batch_beyond_all_reason_is_refused(tmp_path):
    for run, words in (
        ({"iterations": None, "flop": 1e300}, "iterations: 99,999,999 is the most"),
        ({"batch_size": 20_000}, r"run.batch_size: 20,000 of 1,2\d\d training images: each .* 1\d times"),
    ):
        refused(words, preview, make_config(tree(run=run)))


def test_memory_that_is_not_there_is_one_line(tmp_path, monkeypatch):
    for error in (MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried ...")):
        monkeypatch.setattr(loop.Loop, "update", Mock(side_effect=error))
        fails(SLAError, "out of memory: a smaller run.batch_size", train, make_config(TINY), tmp_path / "run")


def test_pictures_of_one_pixel_are_refused_for_what_they_are(tmp_path):
    for name in "ab":
        for number in range(10):
            picture(tmp_path / name / f"{number}.png", 20 * number, size=1)
    parts = tree(data={"source": str(tmp_path)}, model={"backbone": None, "options": {}})
    refused("pictures of 1 x 1 pixels have no shapes to learn", preview, make_config(parts))


@pytest.mark.parametrize("evaluation", [1, 3])
@pytest.mark.parametrize("presses", [1, 2])
def test_ctrl_c_in_a_validation_loses_no_step(finished, tmp_path, monkeypatch, evaluation, presses):
    """The first validation, with no checkpoint before it, and the last, with no step after it."""
    real, calls = trainer.accuracies, []

    def pressed(*arguments):
        calls.append(1)
        for _ in range(presses if len(calls) == evaluation else 0):
            os.kill(os.getpid(), signal.SIGINT)
        return real(*arguments)

    monkeypatch.setattr(trainer, "accuracies", pressed)
    fails(
        StoppedError, f"stopped after step {8 * evaluation} of 24", train, make_config(TINY), tmp_path / "run"
    )
    metrics = finished.folder / "metrics.csv"
    assert (tmp_path / "run" / "metrics.csv").read_text().count("\n") == 8 * evaluation  # a row per step
    run = train(make_config(TINY), tmp_path / "run", resume=True)
    assert len(calls) == 4  # the one that was left is done again
    assert (run.folder / "metrics.csv").read_bytes() == metrics.read_bytes()
    for kind in ("last", "best"):
        assert weights_of(run.folder, kind) == weights_of(finished.folder, kind)
    result = (run.folder / "result.json").read_bytes()
    train(make_config(TINY), tmp_path / "run", resume=True)
    assert (run.folder / "result.json").read_bytes() == result


def test_resuming_with_another_configuration_names_the_keys(finished):
    other = make_config(tree(optimizer={"learning_rate": 0.2, "ema": 0.9}, method={"name": "sla"}))
    with pytest.raises(InputError) as error:
        train(other, finished.folder, resume=True)
    assert "method.name: 'sla' is not 'sla+sd'; optimizer.learning_rate: 0.2 is not 0.05" in str(error.value)


def test_data_with_another_label_set_is_refused(finished, tmp_path):
    for name in ("3", "cat"):
        picture(tmp_path / "data" / name / "a.png", 0)
    refused(r"does not know 1 of these classes: cat", finished.evaluate, tmp_path / "data")


def test_weights_of_another_architecture_are_told_apart(finished, tmp_path):
    wider = tree(model={"backbone": "convnet4", "options": {"width": 16}, "weights": str(finished.folder)})
    with pytest.raises(InputError, match=r"of another architecture: .* of .* tensors fit; 0 are missing"):
        train(make_config(wider), tmp_path / "a")
    deeper = tree(model={"backbone": "resnet8", "options": {}, "weights": str(finished.folder)})
    refused(r"0 of .* tensors fit", train, make_config(deeper), tmp_path / "b")
    torch.save({"x": open}, tmp_path / "evil.pth")
    for name in ("evil.pth", "absent.pth"):
        bad = tree(model={"backbone": "convnet4", "weights": str(tmp_path / name)})
        refused(name, train, make_config(bad), tmp_path / "c")


def test_weights_of_a_run_start_another(finished, tmp_path):
    parts = tree(model={"options": {"width": 8}, "backbone": "convnet4", "weights": str(finished.folder)})
    parts["optimizer"] = {"frozen": 0.99, "learning_rate": 0.05}
    run = train(
        make_config({**parts, "run": {**parts["run"], "iterations": 2, "snapshots": 2}}), tmp_path / "run"
    )
    first = load_file(run.folder / "snapshots" / "00000001.safetensors")
    assert torch.equal(first["backbone.blocks.0.0.weight"], finished.model.backbone.blocks[0][0].weight)


def test_a_file_without_a_run_is_no_run(tmp_path):
    refused("not a run", Run, tmp_path)
    refused("no data given", train, make_config({}), tmp_path / "x")
    with pytest.raises(InputError, match="needs 2 views of each image, the plain one among them"):
        train(make_config(tree(method={"views_per_step": 1})), tmp_path / "y")


def test_minutes_fix_the_number_of_iterations(tmp_path, messages):
    parts = tree(run={"iterations": None, "minutes": 0.02, "evaluations": 1})
    run = train(make_config(parts), tmp_path / "run", progress=messages)
    fixed = run.config.run.iterations
    assert 1 <= run.result["cost"]["iterations"] <= fixed
    said = f"about {fixed // AMPLE:,} iterations fit into 0.02 minutes; the schedule follows the clock"
    assert said in messages.lines


def test_flop_fix_the_number_of_iterations(finished, tmp_path, messages):
    cost = finished.result["cost"]
    parts = tree(run={"iterations": None, "flop": cost["training_flop"] / 4, "evaluations": 1})
    run = train(make_config(parts), tmp_path / "run", progress=messages)
    assert run.config.run.iterations == cost["iterations"] / 4
    assert run.result["cost"]["training_flop"] == cost["training_flop"] / 4
    assert f"6 iterations are {cost['training_flop'] / 4:.3g} FLOP" in messages.lines
    baseline = {**parts, "method": {"name": "baseline"}}
    other = preview(make_config(baseline))
    assert other.config.run.iterations == 24  # four views less in each step


def test_files_are_predicted_in_their_order_with_probabilities(finished, tmp_path):
    test = load("digits").test
    digit_files(test, range(12), tmp_path, "{place:02}.png")
    files = sorted(tmp_path.iterdir())[::-1]
    labels, probabilities = finished.predict(files, "aggregated", batch_size=5)
    logits = finished.evaluate(test.subset(range(11, -1, -1))).logits["aggregated"]
    expected = (logits / finished.temperatures["aggregated"]).softmax(1)
    torch.testing.assert_close(probabilities, expected, atol=1e-4, rtol=0)
    assert labels.tolist() == expected.argmax(1).tolist()
    assert finished.predict([]).labels.shape == (0,)


def test_fit_takes_images_in_memory_and_any_key(tmp_path):
    more = {"run__iterations": 3, "method__name": "baseline"}
    run = sla.fit(load("digits"), tmp_path / "in_memory", config=TINY, **more)
    assert run.result["accuracies"]["last"]["step"] == 3
    assert run.model.method.inferences == ("single",)
    refused(r"did you mean 'run__epochs'", sla.fit, "digits", tmp_path / "x", run__epoch=3)


def test_the_same_step_is_evaluated_once(tmp_path, messages):
    """One evaluation at the end: the best checkpoint is the last one."""
    run = train(
        make_config(tree(run={"iterations": 2, "evaluations": 1})), tmp_path / "run", progress=messages
    )
    assert {what for what in messages.passes if "checkpoint" in what} == {
        "last checkpoint on val",
        "last checkpoint on test",
    }
    assert run.result["accuracies"]["best"] == run.result["accuracies"]["last"]
    assert run.result["temperatures"]["best"] == run.result["temperatures"]["last"]


def test_tensorboard_has_the_rows(tmp_path, stop_at):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    parts = tree(run={"iterations": 4, "evaluations": 1, "tensorboard": True})
    for step in (1, 2):
        with pytest.raises(StoppedError):
            train(make_config(parts), tmp_path / "run", resume=step > 1, progress=stop_at(step))
    run = train(make_config(parts), tmp_path / "run", resume=True)
    assert len(list((run.folder / "tensorboard").iterdir())) == 1  # however often it was resumed
    events = EventAccumulator(str(run.folder / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("loss")] == [1, 2, 3, 4]
    assert [event.step for event in events.Scalars("val_aggregated")] == [4]


@pytest.mark.slow
def test_a_compiled_run_learns_the_same(tmp_path):
    """At first to many digits; later rounding decides which pixel a max-pool takes, and the paths part."""
    run = train(make_config(tree(run={"compile": True, "iterations": 3})), tmp_path / "compiled")
    eager = train(make_config(tree(run={"iterations": 3})), tmp_path / "eager")
    rows = [(r.folder / "metrics.csv").read_text().splitlines()[1:] for r in (run, eager)]
    for left, right in zip(*rows, strict=True):
        numbers = [[float(cell or -1) for cell in row.split(",")[:7]] for row in (left, right)]
        assert numbers[0] == pytest.approx(numbers[1], rel=1e-3)


def test_workers_of_evaluation_change_no_prediction(finished, tmp_path):
    """Pictures decoded in this process, or in two others."""
    test = load("digits").test.subset(range(40))
    digit_files(test, range(40), tmp_path, "{place}.png")
    images = FileImages([str(tmp_path / f"{place}.png") for place in range(40)], (8, 8))
    dataset = Dataset(images, test.targets, test.classes)
    here, there = (finished.evaluate(dataset, workers=workers, batch_size=7) for workers in (0, 2))
    for inference, logits in here.logits.items():
        assert torch.equal(there.logits[inference], logits)
        torch.testing.assert_close(logits, finished.evaluate(test).logits[inference], atol=1e-4, rtol=0)


def test_a_budget_given_now_comes_before_the_file(finished, tmp_path):
    tree_of_run = read_config(finished.folder / "config.yaml")
    config = make_config(with_values(tree_of_run, {"run.iterations": 2}))
    assert (config.run.iterations, config.run.epochs) == (2, None)
    config = make_config(with_values(tree_of_run, {"run.epochs": 0.1}))
    assert config.run.iterations is None
    run = train(config, tmp_path / "run")
    assert run.config.run.iterations == 5  # a tenth of 1,293 images in batches of 32
    refused("the length is given more than once", with_values, {}, {"run.epochs": 1, "run.minutes": 1})
    refused("run must be a branch", with_values, {"run": [1]}, {"run.seed": 1})
    assert with_values({"run": None}, {"run.seed": 1}) == {"run": {"seed": 1}}


def test_resuming_on_other_data_is_refused(tmp_path, stop_at):
    splits = load("digits")
    with pytest.raises(StoppedError):
        sla.fit(splits, tmp_path / "run", config=TINY, progress=stop_at(1))
    fewer = replace(splits, train=splits.train.subset(range(1000)))
    renamed = replace(splits.train, classes=tuple("abcdefghij"))
    for other in (fewer, replace(splits, train=renamed, test=None)):
        refused("the data has changed", sla.fit, other, tmp_path / "run", config=TINY, resume=True)
    assert sla.fit(splits, tmp_path / "run", config=TINY, resume=True).result["seed"] == 0


def test_float16_resumes_with_its_scale(tmp_path, stop_at):
    """The gradient scale changes over a run: without it a resumed run would take other steps."""
    parts = tree(run={"iterations": 6, "evaluations": 1, "precision": "float16"})
    whole = train(make_config(parts), tmp_path / "whole")

    with pytest.raises(StoppedError):
        train(make_config(parts), tmp_path / "run", progress=stop_at(3))
    state = find_checkpoint(tmp_path / "run" / "checkpoint", "last") / "state.safetensors"
    assert load_file(state)["scaler.scale"] > 0
    run = train(make_config(parts), tmp_path / "run", resume=True)
    assert weights_of(run.folder) == weights_of(whole.folder)


def test_a_failed_start_leaves_its_place_free_and_killed_checkpoints_go(tmp_path):
    bad = tree(method={"views": "rgb3"})  # digits have one channel: it fails in the first step
    refused("3 channels", train, make_config(bad), tmp_path / "run")
    checkpoints = tmp_path / "run" / "checkpoint"
    unwritten, half_removed = checkpoints / ".last-00000002.dead", checkpoints / "last-00000001"
    run = train(make_config(tree(run={"iterations": 2})), tmp_path / "run")
    kept = {path.name for path in checkpoints.iterdir()}
    for left in (unwritten, half_removed):
        left.mkdir()
    train(make_config(tree(run={"iterations": 2})), tmp_path / "run", resume=True)
    assert {path.name for path in checkpoints.iterdir()} == kept
    assert run.config.method.views == "rot4"


def test_val_and_test_classes_may_stand_in_another_order(tmp_path):
    splits = load("digits")
    backwards = splits.test.classes[::-1]
    test = replace(splits.test, classes=backwards, targets=9 - splits.test.targets)
    a = sla.fit(splits, tmp_path / "a", config=TINY, run__iterations=8)
    b = sla.fit(replace(splits, test=test), tmp_path / "b", config=TINY, run__iterations=8)
    assert a.result["accuracies"]["last"]["test"] == b.result["accuracies"]["last"]["test"]


def test_a_damaged_table_of_metrics_is_named(finished, tmp_path):
    path = shutil.copytree(finished.folder, tmp_path / "run") / "metrics.csv"
    path.write_bytes(b"\xff\x00" + path.read_bytes()[:100])
    refused("metrics.csv", train, make_config(TINY), tmp_path / "run", resume=True)


def test_training_leaves_the_callers_random_state_alone(tmp_path):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    train(make_config(tree(run={"iterations": 1})), tmp_path / "run")
    assert torch.equal(torch.rand(3), expected)


def test_a_run_knows_its_folder_of_images_from_anywhere(tmp_path, monkeypatch):
    for number in range(40):
        file = tmp_path / "data" / "ab"[number % 2] / f"{number}.png"
        picture(file, (number * 5, 0, 255 * (number % 2)), 16)
    monkeypatch.chdir(tmp_path)
    parts = tree(data={"source": "data"}, run={"iterations": 2, "batch_size": 4})
    run = train(make_config(parts), tmp_path / "run")
    assert run.config.data.source == str(tmp_path / "data")
    (tmp_path / "elsewhere").mkdir()
    again = train(make_config(parts), tmp_path / "run", resume=True)
    monkeypatch.chdir(tmp_path / "elsewhere")
    with pytest.warns(SLAWarning, match="36 of the 40 images were trained on and are left out"):
        assert len(again.evaluate(again.config.data.source).targets) == 4
    assert len(again.evaluate().targets) == 4  # those held out


@pytest.fixture(scope="module")
def stopped_run(tmp_path_factory, stop_at):
    """A run that was stopped after two of four steps, with an average of its weights."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    parts = tree(run={"iterations": 4, "evaluations": 1}, data={"per_class": 8})
    with pytest.raises(StoppedError):
        train(make_config(parts), folder, progress=stop_at(2))
    return folder


def edited_state(run, folder, change):
    """A copy of the run whose state `change(position, tensors)` has changed, checksum and all."""
    from safetensors import safe_open
    from safetensors.torch import save_file

    shutil.copytree(run, folder)
    found = find_checkpoint(folder / "checkpoint", "last")
    with safe_open(found / "state.safetensors", "pt") as file:
        position = json.loads(file.metadata()["position"])
    tensors = load_file(found / "state.safetensors")
    change(position, tensors)
    save_file(tensors, found / "state.safetensors", {"position": json.dumps(position)})
    (found / "checksums.json").unlink()
    return folder


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda position, _: position.update(step="2"), "not the state of a run"),
        (lambda position, _: position.update(step=3), "not the state of a run"),
        (lambda position, _: position.update(skipped=3), "not the state of a run"),
        (lambda position, _: position.update(seconds=1e999), "not the state of a run"),
        (lambda position, _: position.update(pace=[]), "not the state of a run"),
        (lambda position, _: position.update(other=1), "not the state of a run"),
        (lambda position, _: position.pop("images"), "the data has changed"),
        (lambda _, tensors: tensors.pop("ema.backbone.blocks.0.0.bias"), "not the state of this run: 'ema"),
        (
            lambda _, tensors: tensors.update({"model.backbone.blocks.0.0.bias": torch.zeros(2)}),
            r"state.safetensors: not the state of this run: Error\(s\) in loading state_dict",
        ),
        (
            lambda _, tensors: tensors.update({"optimizer.0.momentum_buffer": torch.zeros(2)}),
            "optimizer.0.momentum_buffer has another shape than its weights",
        ),
        (
            lambda _, tensors: tensors.update({"optimizer.9999.momentum_buffer": torch.zeros(2)}),
            "not the state of this run: list index out of range",
        ),
        (lambda _, tensors: tensors.update({"sum.loss": torch.zeros(2)}), "sums since the last row"),
    ],
)
def test_an_edited_state_is_refused_in_one_line(stopped_run, tmp_path, change, words):
    folder = edited_state(stopped_run, tmp_path / "run", change)
    refused(words, train, make_config(read_config(folder / "config.yaml")), folder, resume=True)
