"""Adding classes to a run: which images, first weights, what is kept, accuracies by group, cost, resuming."""

import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

import sla
from made_data import digit_files
from refusals import refused
from sla.datasets.load import load
from sla.errors import InputError, SLAWarning
from sla.images.content import dataset_keys
from sla.images.joined import JoinedImages, Joiner
from sla.images.store import ArrayImages, Dataset, Splits
from sla.recipes.load import recipe_settings
from sla.reproduce.costs import cost_of
from sla.reproduce.jobs import Job
from sla.reproduce.work import run_job
from sla.runs.checkpoint import WEIGHTS, find_checkpoint
from sla.runs.config import read_config
from sla.runs.distributed import Group
from sla.runs.images_record import read_record
from sla.runs.signals import StoppedError
from sla.session import train
from sla.tasks.classifier.distil import configure_student
from sla.tasks.classifier.grow import Grower, configure_growth
from sla.tasks.classifier.growth_images import herd
from sla.tasks.classifier.plan import make_plan
from sla.tasks.classifier.split import join_splits, select_classes
from sla.tasks.classifier.task import plan_run
from sla.tasks.registry import make_config


def weights_of(folder):
    return (find_checkpoint(folder / "checkpoint", "last") / WEIGHTS).read_bytes()


def few(tiny, **more):
    small = {"run__iterations": 6, "run__batch_size": 16, "run__evaluations": 1, "data__per_class": 8}
    return tiny | small | more


@pytest.fixture(scope="module")
def first_run(tmp_path_factory, tiny_settings):
    """Digits 0 to 4, with joint labels and a student."""
    folder = tmp_path_factory.mktemp("first") / "run"
    return sla.fit("digits", folder, **few(tiny_settings, data__classes="0-4", method__name="sla+sd"))


@pytest.fixture(scope="module")
def grown_run(first_run, tmp_path_factory):
    """With 5 and 6, three kept images of each old class."""
    config = configure_growth(first_run.folder, "digits", {"data.classes": "5, 6", "grow.keep": 3})
    return train(config, tmp_path_factory.mktemp("grown") / "run")


@pytest.mark.parametrize(
    ("chosen", "names"), [("1-3", "123"), ("3, 1", "31"), ("2", "2"), ([0, "4"], "04"), ("8-9, 0", "890")]
)
def test_classes_are_chosen_by_name_number_or_range(chosen, names):
    config = make_config({"data": {"source": "digits", "classes": chosen}})
    splits = load("digits")
    found = select_classes(splits, config.data.classes)
    assert found.train.classes == found.test.classes == tuple(names)
    for ours, theirs in ((found.train, splits.train), (found.test, splits.test)):
        for number, name in enumerate(names):
            places, wanted = (
                np.flatnonzero(ours.targets == number),
                np.flatnonzero(theirs.targets == int(name)),
            )
            assert (ours.rows[places] == theirs.rows[wanted]).all()
    refused("unknown class 'ten'", select_classes, splits, ("ten",))
    refused("class 10 is not one of 0 to 9", select_classes, splits, ("8-12",))
    refused("data.classes: 5-1: the first class comes after the last: 1-5", select_classes, splits, ("5-1",))
    refused("data.classes: no class is chosen; leave it out for all", select_classes, splits, ())


def test_one_class_is_refused_by_what_chose_it():
    config = make_config({"data": {"source": "digits", "classes": 3}})
    refused("data.classes: 3 chooses one class, '3'; a classifier needs at least two$", make_plan, config)


def test_a_class_called_like_a_range_is_that_class():
    images = ArrayImages(torch.zeros(3, 1, 2, 2, dtype=torch.uint8))
    splits = Splits("sizes", Dataset(images, np.arange(3), ("0-1", "1-2", "other")))
    assert select_classes(splits, ("1-2",)).train.classes == ("1-2",)
    assert select_classes(splits, ("1-2", 0)).train.classes == ("1-2", "0-1")


def test_joined_images_are_those_of_their_stores_in_any_order():
    stores = [torch.randint(0, 256, (n, 1, 2, 2), dtype=torch.uint8) for n in (3, 1, 4)]
    parts = [
        Dataset(ArrayImages(pixels, f"part{number}"), np.zeros(len(pixels), int), (f"class {number}",))
        for number, pixels in enumerate(stores)
    ]
    joiner = Joiner(parts, [f"class {number}" for number in range(3)])
    joined = joiner.join(parts)
    rows = torch.tensor([7, 0, 3, 2, 4, 2])
    assert torch.equal(joined.read(rows.numpy()).images, torch.cat(stores)[rows])
    assert [joined.name(row) for row in rows.tolist()][:3] == ["part2/3", "part0/0", "part1/0"]
    assert joined.targets.tolist() == [0, 0, 0, 1, 2, 2, 2, 2]
    again = joiner.join([joined.subset([7, 3]), parts[0].subset([1])])
    assert again.rows.tolist() == [7, 3, 1]
    assert Joiner([parts[0], parts[0].subset([1])], ("class 0",)).images is parts[0].images
    other = ArrayImages(torch.zeros(1, 1, 3, 3, dtype=torch.uint8))
    refused("images of different shapes", JoinedImages, (parts[0].images, other))


def test_test_images_are_of_all_parts_or_of_none():
    splits = load("digits")
    parts = [select_classes(splits, ("0-1",)), select_classes(splits, ("2",))]
    joined = join_splits(parts)
    assert joined.train.images is splits.train.images  # one source, read once
    assert len(joined.test) == sum(len(part.test) for part in parts)
    bare = Splits("new", parts[1].train)
    assert join_splits([parts[0], bare]).test is None
    refused("class '0' is in digits and digits", join_splits, [parts[0], parts[0]])


def test_herding_keeps_the_mean_of_what_is_chosen_near_the_mean():
    features = torch.randn(12, 3, generator=torch.Generator().manual_seed(0))
    unit = [[x / sum(y * y for y in row) ** 0.5 for x in row] for row in features.double().tolist()]
    mean = [sum(row[d] for row in unit) / 12 for d in range(3)]
    chosen = []
    for count in range(1, 6):

        def distance(new, count=count):
            some = [unit[place] for place in (*chosen, new)]
            return sum((mean[d] - sum(row[d] for row in some) / count) ** 2 for d in range(3))

        chosen.append(min((place for place in range(12) if place not in chosen), key=distance))
    assert herd(features, 5) == chosen
    assert sorted(herd(features, 20)) == list(range(12))


def test_its_images_are_the_new_ones_and_the_kept(first_run, grown_run):
    plan, record = plan_run(grown_run.config), read_record(first_run.folder)
    assert plan.train.classes == tuple("0123456")
    assert plan.train.counts().tolist() == [3] * 5 + [8] * 2
    kept = dataset_keys(plan.train.subset(np.flatnonzero(plan.train.targets < 5)))
    assert set(kept.tolist()) <= set(record.keys["train"].tolist())
    held = set(dataset_keys(plan.val).tolist())
    assert set(record.keys["val"].tolist()) < held
    assert not held & set(dataset_keys(plan.train).tolist())
    assert sorted(set(plan.test.targets.tolist())) == list(range(7))
    # As many passes over the images as before, at half the rate, logits adjusted by the images of each class.
    assert grown_run.config.run.epochs == pytest.approx(6 * 16 / 40)
    assert grown_run.config.run.iterations == -(-31 * 6 // 40)
    assert grown_run.config.optimizer.learning_rate == first_run.config.optimizer.learning_rate / 2
    assert grown_run.config.method.imbalance == "logit-adjust"


def grower(run, tmp_path, **given):
    keys = {f"grow.{key}": value for key, value in given.items()}
    config = configure_growth(run.folder, "digits", {"data.classes": "5-6", **keys})
    return Grower(plan_run(config), tmp_path / "new", Group())


def test_it_begins_as_the_old_model_with_new_rows(first_run, tmp_path):
    loop = grower(first_run, tmp_path, keep=2)
    images = loop.eval_pipeline(loop.train.read(range(6)).images, None, torch.ones(6))
    with torch.no_grad():
        for inference in ("single", "aggregated", "distilled"):
            old = first_run.model.logits(images, inference)
            ours = loop.model.eval().logits(images, inference)
            assert ours[:, :5].numpy() == pytest.approx(old.numpy(), abs=1e-5)
            assert ours.shape == (6, 7)
    again = grower(first_run, tmp_path, keep=2)
    assert torch.equal(loop.model.heads["joint"].weight, again.model.heads["joint"].weight)


def test_what_is_kept_is_what_the_old_model_answers_to_the_views_of_the_step(first_run, tmp_path):
    loop = grower(first_run, tmp_path, keep=2, weight=0.5, temperature=3.0)
    images = loop.eval_pipeline(loop.train.read(range(4)).images, None, torch.ones(4))
    views = torch.tensor([[0, 2], [0, 1], [0, 3], [0, 2]])
    found = loop.complete(sla.StepContext(views), images).before
    assert (found.weight, found.temperature) == (0.5, 3.0)
    model = first_run.model
    with torch.no_grad():
        for row, (image, view) in enumerate((i, v) for i in range(4) for v in views[i].tolist()):
            features = model.features(torch.rot90(images[image : image + 1], view, (2, 3)))
            for name in ("joint", "plain"):
                assert found.logits[name][row].numpy() == pytest.approx(
                    model.heads[name](features)[0].numpy(), abs=1e-4
                )
    context = sla.StepContext(views)
    assert grower(first_run, tmp_path, keep=2, weight=0.0).complete(context, images) is context


def test_classes_without_images_play_no_part_in_the_loss_of_the_new(first_run, tmp_path):
    """Logit adjustment by counts of zero: cross entropy among the labels of the new classes alone."""
    loop = grower(first_run, tmp_path, keep=0)
    assert loop.train.counts().tolist() == [0] * 5 + [8] * 2
    criterion = loop.model.method.criterion
    logits = torch.randn(6, 28, generator=torch.Generator().manual_seed(0), requires_grad=True)
    labels = torch.tensor([20, 21, 22, 23, 24, 27])
    found = criterion(logits, labels)
    expected = torch.nn.functional.cross_entropy(logits[:, 20:], labels - 20)
    assert found.item() == pytest.approx(expected.item(), rel=1e-6)
    found.backward()
    assert logits.grad[:, :20].abs().max() == 0
    plain = grower(first_run, tmp_path, keep=0, weight=0.0)
    assert plain.config.method.imbalance == "none"


def test_accuracies_are_of_old_new_and_all(grown_run, stopped):
    scores = grown_run.result["accuracies"]["last"]["test"]["aggregated"]
    outputs = sla.open_run(grown_run.folder).evaluate()
    right, old = outputs.logits["aggregated"].argmax(1) == outputs.targets, outputs.targets < 5
    assert scores["old"] == pytest.approx(100 * right[old].double().mean().item())
    assert scores["new"] == pytest.approx(100 * right[~old].double().mean().item())
    assert scores["top1"] == pytest.approx(100 * right.double().mean().item())
    table = grown_run.score_table()
    assert table.header[-2:] == ("old classes %", "new classes %")
    assert table.rows[1][-2:] == (f"{scores['old']:.2f}", f"{scores['new']:.2f}")
    assert grown_run.result["grown"]["old_classes"] == 5
    said = stopped(0, "evaluate", grown_run.folder)
    assert "old classes %" in said
    assert f"{scores['new']:.2f}" in said


def test_its_cost_has_all_that_came_before(first_run, grown_run):
    cost, before = grown_run.result["cost"], first_run.result["cost"]
    one, steps = cost["inference_flop"]["single"], grown_run.config.run.iterations
    own = one * steps * 16 * 4 * 3
    assert cost["before_flop"] == before["training_flop"]
    assert (cost["growth_flop"], cost["answers_flop"], cost["kept_flop"]) == (own, own / 3, 40 * one)
    assert cost["training_flop"] == before["training_flop"] + own + own / 3 + 40 * one
    assert cost["seconds"] > before["seconds"]


def test_of_a_run_with_minutes_the_steps_that_were_taken_count(first_run, tmp_path):
    folder = tmp_path / "timed"
    shutil.copytree(first_run.folder, folder)
    tree = read_config(folder / "config.yaml")
    tree["run"] |= {"minutes": 1.0, "iterations": 60, "pace": {"train": "2:30 4:58"}}  # 6 of 60 steps
    (folder / "config.yaml").write_text(yaml.safe_dump(tree))
    timed, plain = (configure_growth(one, "digits", {}).run for one in (folder, first_run.folder))
    assert plain.epochs == 6 * 16 / first_run.result["images"]["train"]
    assert (timed.epochs, timed.minutes, timed.pace) == (plain.epochs, None, None)


def test_it_grows_again_from_what_it_kept(grown_run, tmp_path):
    config = configure_growth(grown_run.folder, "digits", {"data.classes": "9, 7", "grow.keep": 2})
    assert [part.classes for part in config.data.earlier] == [("0-4",), ("5", "6")]
    assert config.optimizer.learning_rate == grown_run.config.optimizer.learning_rate
    run = train(config, tmp_path / "again")
    assert run.classes == list("012345697")
    assert run.splits.train.counts().tolist() == [2] * 7 + [8] * 2
    record = read_record(grown_run.folder)
    kept = run.splits.train.subset(np.flatnonzero(run.splits.train.targets < 7))
    assert set(dataset_keys(kept).tolist()) <= set(record.keys["train"].tolist())
    student = plan_run(configure_student(run.folder, {}))
    assert (student.config.is_grown, len(student.train)) == (False, len(run.splits.train))


def test_stopped_it_resumes_to_the_same_bytes(first_run, grown_run, tmp_path, stop_at):
    config = configure_growth(first_run.folder, "digits", {"data.classes": "5, 6", "grow.keep": 3})
    with pytest.raises(StoppedError):
        train(config, tmp_path / "run", progress=stop_at(2))
    train(config, tmp_path / "run", resume=True)
    assert weights_of(tmp_path / "run") == weights_of(grown_run.folder)


@pytest.fixture
def folders(tmp_path):
    """Class folders: two old digits, and one new."""
    data = load("digits").train
    places = [np.flatnonzero(data.targets == label)[:20] for label in range(3)]
    digit_files(data, np.concatenate(places[:2]), tmp_path / "old")
    digit_files(data, places[2], tmp_path / "new")
    return tmp_path


def test_one_more_class_from_a_folder(folders, tiny_settings, stopped):
    settings = few(tiny_settings, data__per_class=None, data__hold_out=0.2, method__name="sla")
    sla.fit(folders / "old", folders / "run", **settings)
    words = ("grow", folders / "run", folders / "new", "--no-report", "--set", "run.batch_size=8")
    said = stopped(0, *words, "--keep", "4")
    assert "1 new class beside 2" in said
    assert "Since it grew" in said
    run = sla.open_run(folders / "run-grown")
    assert run.classes == ["0", "1", "2"]
    assert run.result["images"] == {"train": 4 + 4 + 16, "val": 12, "test": 0}
    assert "exists" in stopped(2, *words)
    assert "Since it grew" in stopped(0, *words, "--keep", "4", "--resume", "--out", folders / "run-grown")
    on = ("grow", folders / "run", folders / "new", "--no-report", "--resume", "--out", folders / "run-grown")
    assert "Since it grew" in stopped(0, *on)  # no option needs to be given again
    assert "cannot resume with another configuration: grow.keep: 5 is not 4" in stopped(2, *on, "--keep", "5")
    assert "sla: --keep: Input should be greater" in stopped(
        2, *words, "--keep", "-1", "--out", folders / "other"
    )
    size = ("--set", "data.stored_size=16", "--out", folders / "other")
    assert "none of the images that it trained on is left in its data, at 16" in stopped(2, *words, *size)
    (folders / "new" / "2" / "bad.png").write_bytes(b"no picture")
    assert "bad.png" in stopped(2, *words, "--out", folders / "other")
    with warnings.catch_warnings():
        warnings.simplefilter("always", SLAWarning)
        said = stopped(0, *words, "--out", folders / "other", "--on-bad-image", "skip")
    assert "skipped 1 of 21 images" in said
    (folders / "new" / "2" / "bad.png").unlink()
    (folders / "new" / "1").mkdir()
    shutil.copy(next((folders / "old" / "1").iterdir()), folders / "new" / "1" / "a.png")
    said = stopped(2, *words, "--out", folders / "another")
    assert "has 1 already: it grows by new classes" in said


def test_what_earlier_runs_trained_on_is_left_out_of_evaluations(folders, tiny_settings, tmp_path):
    """Old images that are not kept are no unseen ones: the weights come from a run that trained on them."""
    settings = few(tiny_settings, data__per_class=None, data__hold_out=0.2, method__name="sla")
    sla.fit(folders / "old", folders / "run", **settings)
    config = configure_growth(folders / "run", str(folders / "new"), {"grow.keep": 1})
    grown = train(config, tmp_path / "grown")
    again = train(configure_student(grown.folder, {}), tmp_path / "student")
    for run in (grown, again):
        with pytest.warns(SLAWarning, match="32 of the 40 images were trained on and are left out"):
            assert len(sla.open_run(run.folder).evaluate(folders / "old").targets) == 8


def test_new_images_that_were_trained_on_without_labels_are_pointed_out(folders, tiny_settings, tmp_path):
    settings = few(tiny_settings, data__per_class=None, data__hold_out=0.2, method__name="sla")
    sla.fit(folders / "old", folders / "run", data__unlabelled=str(folders / "new"), **settings)
    config = configure_growth(folders / "run", str(folders / "new"), {})
    with pytest.warns(SLAWarning, match="trained on 4 of the 12 held-out images: accuracies on them may be"):
        train(config, tmp_path / "grown")


def test_without_the_old_images_only_new_classes_are_judged(folders, tiny_settings, tmp_path):
    settings = few(tiny_settings, data__per_class=None, data__hold_out=0.2, method__name="baseline")
    sla.fit(folders / "old", folders / "run", **settings)
    (folders / "old").rename(folders / "moved")
    kept = configure_growth(folders / "run", str(folders / "new"), {})
    refused("--keep 0 grows without images of the old classes", train, kept, tmp_path / "a")
    config = configure_growth(folders / "run", str(folders / "new"), {"grow.keep": 0})
    with pytest.warns(SLAWarning, match="old classes are neither held out nor tested"):
        run = train(config, tmp_path / "b")
    assert run.classes == ["0", "1", "2"]
    assert set(run.result["accuracies"]["last"]["val"]["single"]) >= {"new", "top1"}
    assert "old" not in run.result["accuracies"]["last"]["val"]["single"]
    with warnings.catch_warnings():
        warnings.simplefilter("error", SLAWarning)
        assert len(sla.open_run(tmp_path / "b").evaluate().targets) == 4


def test_what_cannot_grow_is_refused(first_run, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(first_run.folder, copy)
    (copy / "result.json").unlink()
    refused("unfinished", configure_growth, copy, "digits", {})
    config = configure_growth(first_run.folder, "digits", {"data.classes": "4-5"})
    refused("has 4 already", plan_run, config)
    given = {"data.classes": "5", "method.views": "rot2", "method.views_per_step": 2}
    plan = plan_run(configure_growth(first_run.folder, "digits", given))
    refused("its weights do not fit: a run grows with its own", Grower, plan, tmp_path / "a", Group())
    config = configure_growth(
        first_run.folder, "digits", {"data.classes": "5", "method.label_smoothing": 0.1, "grow.keep": 0}
    )
    refused("method.label_smoothing smooths towards classes without images", plan_run, config)
    with pytest.raises(InputError, match="are for data that is named"):
        sla.fit(load("digits"), tmp_path / "b", data__classes="0-3")


def test_a_study_that_grows_costs_what_its_runs_cost(tmp_path):
    settings = recipe_settings("cifar100_grow", "smoke") | {"data.classes": "0-3", "run.iterations": 3}
    member = Job("train", settings, 0, "smoke", "first")
    job = Job("grow", {"grow.keep": 2, "times": 2}, 0, "smoke", "grown", (member,))
    made, first = run_job(job, tmp_path), run_job(member, tmp_path)
    assert [point["classes"] for point in made.more["growth"]] == [5, 6]
    assert {"old_aggregated", "new_aggregated", "aggregated"} <= set(made.more["growth"][0])
    assert made.score("aggregated") == made.more["growth"][-1]["aggregated"]
    assert made.training_flop - first.training_flop == cost_of(job).flop > 0
    assert Path(tmp_path / "runs" / job.key / "2").is_dir()
