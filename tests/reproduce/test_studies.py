"""Studies of our own: multiples of a recipe's steps, seeds of pilots, plans of runs, numbers of a record."""

import pytest
import torch

import sla
from refusals import refused
from sla import session
from sla.datasets.load import load
from sla.recipes.load import config_settings
from sla.reproduce import runner
from sla.reproduce.costs import Rate, cost_of
from sla.reproduce.jobs import cells_of, jobs_of
from sla.reproduce.plan import line_jobs, plan_status, read_plan
from sla.reproduce.records import Record
from sla.reproduce.work import run_job
from sla.tasks.classifier import record
from sla.tasks.classifier.record import record_run, some_training_images, training_accuracy
from sla.tasks.registry import make_config, with_values

RATE = Rate(1e10, "")


def jobs(name, *rows, **options):
    return {(cell.row, cell.column): cell.job for cell in cells_of(name, "small", 1, rows, **options)}


def test_times_multiplies_the_steps_so_that_costs_are_equal():
    found = jobs("views", "baseline-4", "k1-4", "k2-4", "k4-4", columns=["cifar10"])
    steps = {row: job.settings["run.iterations"] for (row, _), job in found.items()}
    base = jobs("table1", "baseline", columns=["cifar10"])["baseline", "cifar10"].settings["run.iterations"]
    assert steps == {"baseline-4": 4 * base, "k1-4": 4 * base, "k2-4": 2 * base, "k4-4": base}


def test_a_study_shares_the_runs_of_the_tables():
    for column in ("cifar10", "cifar100"):
        views = jobs("views", "baseline-1", "k4-4", columns=[column])
        table = jobs("table1", "baseline", "sla-si", columns=[column])
        assert views["baseline-1", column].key == table["baseline", column].key
        assert views["k4-4", column].key == table["sla-si", column].key


def test_seeds_of_pilots_are_in_no_table():
    assert [cell.seed for cell in cells_of("pilots", "small", 2, ["sla"], ["cifar10"])] == [1000, 1001]


@pytest.mark.parametrize("method", [sla.Baseline(), sla.SLA(), sla.DataAugmentation()])
def test_training_accuracy_counts_the_labels_that_are_learnt(method):
    data = load("digits").train.subset(range(40))
    torch.manual_seed(0)
    model = sla.create("convnet4", 10, method, in_channels=1, width=4)
    found = training_accuracy(model, data, lambda images, draws, aspect: images.float() / 255)
    right = 0
    for image, label in zip(torch.as_tensor(data.read(range(40)).images), data.targets, strict=True):
        for view in range(len(method.views)):
            turned = torch.rot90(image.float() / 255, view, (1, 2))
            head = model.heads["joint" if isinstance(method, sla.SLA) else "plain"]
            wanted = label * len(method.views) + view if isinstance(method, sla.SLA) else label
            right += int(head(model.eval().features(turned[None])).argmax() == wanted)
    assert found == pytest.approx(100 * right / (40 * len(method.views)))


def test_a_plan_counts_a_run_once_and_says_what_is_left(tmp_path):
    path = tmp_path / "plan.yaml"
    lines = ["{experiment: table1, columns: [cifar10], seeds: 1}"]
    lines += ["{experiment: views, rows: [k4-4, k1-1], columns: [cifar10], seeds: 1, budget: views}"]
    path.write_text("".join(f"- {line}\n" for line in lines))
    first, second = plan_status(read_plan(path), "small", {}, RATE, tmp_path)
    assert (len(first.jobs), len(second.jobs)) == (4, 1)
    job = second.jobs[0]
    done = Record(key=job.key, kind="train", scale="small", label="", seed=0, settings={}, seconds=3600)
    done = done.model_copy(update={"machine": "x86_64, 2 threads"})
    assert second.left > 0 == second.done
    _, second = plan_status(read_plan(path), "small", {job.key: done}, RATE, tmp_path)
    assert (second.done, second.spent, second.left) == (1, 2.0, 0)
    measured = done.model_copy(update={"core_seconds": 900.0})
    assert plan_status(read_plan(path), "small", {job.key: measured}, RATE, tmp_path)[1].spent == 0.25


def test_a_plan_counts_members_that_are_recorded_but_not_in_the_folder(tmp_path):
    """Figure 3's curves need the weights of runs that Table 1 has recorded: the first of them trains it."""
    path = tmp_path / "plan.yaml"
    path.write_text(
        "- {experiment: table1, columns: [cifar100], rows: [da], seeds: 1}\n"
        "- {experiment: figure3, rows: [da-train, da-test], seeds: 1}\n"
        "- {experiment: table8, columns: [cifar100], rows: [baseline, ten-crop], seeds: 1}\n"
    )
    ((trained,), _, (baseline, _)) = line_jobs(read_plan(path), "small")
    fresh = plan_status(read_plan(path), "small", {}, RATE, tmp_path)
    assert [one.left for one in fresh][1] == 0  # what the first line trains
    flop = cost_of(trained).flop
    assert fresh[0].left == pytest.approx(flop / RATE.flop_per_second / 3600)
    done = Record(key=trained.key, kind="train", scale="small", label="", seed=0, settings={}, seconds=60)
    found = plan_status(read_plan(path), "small", {trained.key: done}, RATE, tmp_path)
    assert [one.left for one in found] == [0, fresh[0].left, fresh[2].left]
    assert fresh[2].left == pytest.approx(cost_of(baseline).flop / RATE.flop_per_second / 3600)


def test_a_plan_runs_in_the_order_of_its_lines_and_failures_end_with_1(stopped, tmp_path, monkeypatch):
    path, ran = tmp_path / "plan.yaml", []
    path.write_text("- {experiment: table8, seeds: 1}\n- {experiment: table1, seeds: 1}\n")

    def run_all(jobs, *_):
        ran.extend(jobs)
        return 1

    monkeypatch.setattr(runner, "run_all", run_all)
    said = stopped(1, "reproduce", "plan", path, "--run", "--scale", "smoke", "--out", tmp_path)
    table8, table1 = (jobs_of(cells_of(name, "smoke", 1)) for name in ("table8", "table1"))
    assert [job.key for job in ran] == list(dict.fromkeys(job.key for job in (*table8, *table1)))
    assert "1 failed, see the reasons above" in said


@pytest.mark.parametrize("text", ["{}", "- {experiment: table1, seed: 3}", "- [", "3"])
def test_what_is_no_plan_is_refused(text, tmp_path):
    (tmp_path / "plan.yaml").write_text(text)
    refused("not a plan of runs", read_plan, tmp_path / "plan.yaml")


def test_a_student_is_trained_on_the_run_of_its_teacher(tmp_path):
    (cell,) = cells_of("student-pilots", "smoke", 1, ["cached"])
    made = run_job(cell.job, tmp_path)
    (teacher,) = cell.job.members
    taught = run_job(teacher, tmp_path)  # there already
    assert set(made.scores["last"]) >= {"distilled", "aggregated"}
    assert made.scores["last"]["aggregated"] == taught.scores["last"]["aggregated"]
    assert made.training_flop - taught.training_flop == cost_of(cell.job).flop > 0
    assert taught.training_flop == cost_of(teacher).flop
    assert 0 < made.core_seconds < 60


def test_a_record_is_made_from_the_images_that_the_run_has_in_memory(tmp_path, monkeypatch):
    (cell,) = cells_of("table1", "smoke", 1, ["sla-si"], ["cifar10"])
    config = make_config(with_values({"task": "classifier"}, config_settings(cell.job.settings)))
    run = session.train(config, tmp_path / "run")
    expected = record_run(sla.Run(tmp_path / "run"))
    monkeypatch.setattr(record, "make_plan", None)
    assert record_run(run) == expected


def test_training_accuracy_is_of_at_most_so_many_images(monkeypatch):
    data = load("digits").train
    assert some_training_images(data) is data
    monkeypatch.setattr(record, "TRAIN_IMAGES", 105)
    assert some_training_images(data).counts().tolist() == [10] * 10
