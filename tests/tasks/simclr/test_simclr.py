"""Pre-training without labels: its steps, scores and resume, what it says and what it refuses."""

import csv
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import sla
from commands import sla as sla_command
from refusals import refused
from sla.datasets.load import load
from sla.errors import SLAError
from sla.images.store import Splits
from sla.runs.checkpoint import find_checkpoint
from sla.runs.distributed import Group
from sla.runs.folder import read_result
from sla.runs.signals import StoppedError
from sla.sampling.protocols import limited
from sla.session import train
from sla.tasks.registry import make_config
from sla.tasks.simclr.model import projection_head
from sla.tasks.simclr.plan import make_plan
from sla.tasks.simclr.scores import NEIGHBOURS, SHARPNESS, neighbour_votes, score_between, score_within
from sla.tasks.simclr.trainer import SimCLRTrainer

DIGITS = load("digits")
SMALL = limited(DIGITS.train, 24)
SPLITS = Splits("digits", SMALL, limited(DIGITS.test, 5))


def settings(**more):
    tree = {
        "task": "simclr",
        "data": {"source": "digits", "workers": 0},
        "model": {"backbone": "convnet4", "options": {"width": 8}},
        "run": {"iterations": 8, "batch_size": 32, "evaluations": 2, "device": "cpu"},
    }
    for key, value in more.items():
        part, _, name = key.partition("__")
        tree.setdefault(part, {})[name] = value
    return make_config(tree)


def weights(run):
    return (find_checkpoint(run.folder / "checkpoint", "last") / "weights.safetensors").read_bytes()


def rows_of(folder):
    """Those of metrics.csv, and the ones among them that have scores."""
    with open(folder / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    return rows, [row for row in rows if row["val_knn"]]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return train(settings(), tmp_path_factory.mktemp("simclr") / "run", splits=SPLITS)


@pytest.fixture
def trainer(tmp_path):
    loop = SimCLRTrainer(make_plan(settings(), SPLITS), tmp_path, Group())
    loop.prepare(frozen=False)
    return loop


def test_rows_have_the_loss_and_both_scores_while_it_runs(whole):
    rows, scored = rows_of(whole.folder)
    assert [row["step"] for row in rows] == [str(step) for step in range(1, 9)]
    assert [row["step"] for row in scored] == ["4", "8"]
    assert all(0 < float(row["val_linear"]) <= 100 for row in scored)
    assert float(rows[0]["loss"]) == pytest.approx(np.log(63), abs=0.3)  # as good as guessing
    assert whole.score_table().rows[0][:2] == ("last, held out", "nearest neighbours")
    stored = whole.result["accuracies"]["last"]["val"]
    assert stored["knn"]["top1"] == pytest.approx(float(scored[-1]["val_knn"]), rel=1e-4)


def test_features_get_better(tmp_path):
    """Of ten digits, within seconds and without any label; guessing is right on a tenth."""
    splits = Splits("digits", limited(DIGITS.train, 60), SPLITS.val, SPLITS.val)
    run = train(settings(run__iterations=60, model__options={"width": 16}), tmp_path / "run", splits=splits)
    rows, scored = rows_of(run.folder)
    first, last = (float(row["val_knn"]) for row in scored)
    assert last > max(first, 40)
    assert float(rows[-1]["loss"]) < float(rows[0]["loss"]) - 0.1
    assert all(scores["top1"] > 60 for scores in run.result["accuracies"]["last"]["test"].values())


def test_it_resumes_to_the_same_bytes(whole, tmp_path, stop_at):
    with pytest.raises(StoppedError):
        train(settings(), tmp_path / "on", splits=SPLITS, progress=stop_at(5))
    on = train(settings(), tmp_path / "on", splits=SPLITS, resume=True)
    assert weights(on) == weights(whole)
    assert (on.folder / "metrics.csv").read_bytes() == (whole.folder / "metrics.csv").read_bytes()
    assert on.result["accuracies"] == whole.result["accuracies"]


def test_labels_change_nothing_that_is_learnt(whole, tmp_path):
    mixed = np.random.default_rng(0).permutation(SMALL.targets)
    other = train(settings(), tmp_path / "mixed", splits=replace(SPLITS, train=replace(SMALL, targets=mixed)))
    assert weights(other) == weights(whole)


def test_two_views_of_an_image_are_its_own_and_differ(trainer):
    """Each row is the same picture with other draws; a process makes the views of its own part."""
    batch = next(iter(trainer.batches(trainer.train, 0)))
    views = trainer.two_views(batch)
    assert views.shape == (64, 1, 8, 8)
    assert not any(torch.equal(views[row], views[row + 1]) for row in range(0, 64, 2))
    half = trainer.batches(trainer.train, 0)
    half.share = range(16, 32)
    assert torch.equal(trainer.two_views(next(iter(half))), views[32:])
    # Without random operations both views are the picture itself.
    plain = make_plan(settings().model_copy(update={"augment": "none"}), SPLITS)
    same = SimCLRTrainer(plain, trainer.folder, Group()).two_views(batch)
    for view in range(2):
        torch.testing.assert_close(same[view::2], (batch.images / 255 - 0.5) / 0.5)


def test_a_step_is_nt_xent_of_the_projected_features(trainer):
    views = trainer.two_views(next(iter(trainer.batches(trainer.train, 0))))
    model = trainer.model.eval()
    losses = model(views)
    embeddings = model.head(model.features(views))
    assert losses["loss"].item() == pytest.approx(sla.nt_xent_loss(embeddings, 0.5).item(), rel=1e-6)
    assert losses["target"][:4].tolist() == [1, 0, 3, 2]


def test_projection_heads_have_two_or_three_layers():
    heads = [projection_head(10, layers, 7, 4) for layers in (2, 3)]
    linear = [[part for part in head if isinstance(part, torch.nn.Linear)] for head in heads]
    widths = [[(part.in_features, part.out_features) for part in parts] for parts in linear]
    assert widths == [[(10, 7), (7, 4)], [(10, 7), (7, 7), (7, 4)]]
    refused("method.layers", settings, method__layers=4)


# How features are judged


def votes_by_hand(known, targets, asked, classes, itself):
    found = torch.zeros(len(asked), classes)
    for number, row in enumerate(asked):
        others = [place for place in range(len(known)) if not itself or place != number]
        similar = sorted(((float(row @ known[place]), int(targets[place])) for place in others), reverse=True)
        for cosine, label in similar[:NEIGHBOURS]:
            found[number, label] += np.exp(cosine / SHARPNESS)
    return found


def unit_rows(count, width=6):
    return F.normalize(torch.randn(count, width, generator=torch.Generator().manual_seed(count)), dim=1)


@pytest.mark.parametrize("itself", [False, True])
def test_neighbours_vote_as_in_a_loop(itself):
    known, targets = unit_rows(40), torch.arange(40) % 3
    asked = known if itself else unit_rows(9)
    votes = neighbour_votes(known, targets, asked, 3, itself=itself)
    torch.testing.assert_close(votes, votes_by_hand(known, targets, asked, 3, itself), rtol=1e-4, atol=1e-3)


def test_separable_features_score_full_and_random_ones_do_not():
    targets, noise = torch.arange(60) % 3, unit_rows(60, 8)
    clear, full = F.normalize(torch.eye(3, 8)[targets] + 0.1 * noise, dim=1), {"knn": 100.0, "linear": 100.0}
    assert score_within(clear, targets, 3) == full
    assert all(value < 70 for value in score_within(noise, targets, 3).values())
    assert score_between(clear[:30], targets[:30], clear[30:], targets[30:], 3) == full
    assert "linear" not in score_within(clear[:3], targets[:3], 3)  # nothing to cross-validate


# What it says, and what it refuses


def test_time_and_memory_are_said_before_it_starts(tmp_path, messages):
    config = settings(run__iterations=None, run__minutes=0.01)
    run = train(config, tmp_path / "run", splits=SPLITS, progress=messages)
    said = "\n".join(messages.lines)
    assert "240 images to train on, without labels" in said
    (line,) = [line for line in messages.lines if "GB of memory" in line]
    assert line.startswith("about ")
    assert f"{run.config.run.iterations:,} steps fit into 0.01 minutes" in said
    assert run.result["cost"]["iterations"] == run.config.run.iterations


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"run__batch_size": 1}, "run.batch_size"),
        ({"optimizer__accumulate": 2}, "optimizer.accumulate"),
        ({"method__temperature": 0.0}, "method.temperature"),
        ({"run__batch_size": 500}, "500 of 240 images: an image would be its own negative"),
        ({"data__images": 241}, "data.images: 241 of 240 images"),
    ],
)
def test_what_cannot_be_is_refused(more, words, tmp_path):
    refused(words, lambda: train(settings(**more), tmp_path / "run", splits=SPLITS))
    assert not (tmp_path / "run").exists()


def test_one_image_is_refused(tmp_path):
    config, one = settings(run__batch_size=None, data__hold_out=0), Splits("one", SMALL.subset([0]))
    refused("one image is not enough", train, config, tmp_path / "run", splits=one)


def test_features_that_diverged_are_one_line(trainer):
    """The loss can be finite where the weights are already so large that features are not."""
    with torch.no_grad():
        next(trainer.model.backbone.parameters()).fill_(torch.inf)
    with pytest.raises(SLAError, match="NaN or infinite: the weights are damaged, or training diverged"):
        trainer.evaluate()


def test_some_of_the_images_are_chosen_by_the_seed():
    plans = [make_plan(settings(data__images=50, run__seed=seed), SPLITS) for seed in (0, 0, 1)]
    rows = [plan.train.rows.tolist() for plan in plans]
    assert len(rows[0]) == 50
    assert rows[0] == rows[1] != rows[2]


def test_held_out_images_are_not_trained_on_and_their_labels_are_those_of_a_classifier():
    """The same hold-out as a classifier's run with the same seed: nothing that it is judged on was seen."""
    plan = make_plan(settings(data__hold_out=0.25), Splits("digits", SMALL))
    classifier = make_config({"data": {"source": "digits", "hold_out": 0.25}})
    from sla.tasks.classifier.plan import make_plan as plan_classifier

    other = plan_classifier(classifier, Splits("digits", SMALL))
    assert plan.val.rows.tolist() == other.val.rows.tolist()
    assert not set(plan.train.rows) & set(plan.val.rows)


@pytest.mark.slow
def test_two_processes_train_and_score_together(tmp_path):
    """Batch norm sees the images of its own process, so the first losses are alike, not equal."""
    words = ["--iterations", "6", "--batch-size", "32", "--backbone", "resnet8", "--set", "data.workers=0"]
    words = ["pretrain", "digits", *words, "--out"]
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    command = [*launch, "-m", "sla", *words, str(tmp_path / "two")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("run:") == 1
    assert "in each process" in done.stdout
    assert read_result(tmp_path / "two")["cost"]["processes"] == 2
    sla_command(*words, tmp_path / "one")
    one, two = (float(rows_of(tmp_path / name)[0][0]["loss"]) for name in ("one", "two"))
    assert one == pytest.approx(two, abs=0.3)
