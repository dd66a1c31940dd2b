"""Minutes are a deadline, by a clock made up for it: kept, recorded, and repeated without a clock."""

import csv
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest
import yaml

import sla
from refusals import refused
from sla.datasets.load import load
from sla.progress import Progress
from sla.runs import deadline as module
from sla.runs.checkpoint import Position, find_checkpoint, read_position
from sla.runs.config import read_config
from sla.runs.deadline import (
    GRAIN,
    NOTHING,
    Deadline,
    Following,
    Pace,
    parse_record,
    read_pace,
    used_seconds,
)
from sla.runs.distributed import Group
from sla.runs.marks import landing, passed
from sla.runs.signals import StoppedError
from sla.session import train
from sla.tasks.classifier.distil import configure_student
from sla.tasks.classifier.evaluation import infer
from sla.tasks.classifier.plan import make_plan
from sla.tasks.classifier.time_shares import AMPLE, evaluation_steps, following, steps_in
from sla.tasks.classifier.trainer import Trainer
from sla.tasks.registry import make_config, with_values

MEASURED = 0.5  # seconds of a step, when the run begins
TREE = {
    "data": {"source": "digits", "workers": 0},
    "model": {"backbone": "convnet4", "options": {"width": 4}},
    "method": {"name": "sla", "views": "rot2"},
    "optimizer": {"schedule": "cosine", "ema": 0.9},
    "run": {"minutes": 0.5, "batch_size": 16, "evaluations": 3, "compile": False},
}
PASSES = 3 * 16 * 2  # of a step


class Clock:
    """A clock that only steps and tests move; `costs(taken)` are the seconds of a step."""

    def __init__(self):
        self.now, self.taken, self.costs, self.fails_at = 1000.0, 0, lambda taken: MEASURED, None
        self.schedule, self.followed = [], []

    def __call__(self):
        return self.now

    def test(self, images):
        """As long as forward passes of these images in two views take."""
        self.now += self.costs(self.taken) * 2 * images / PASSES


class StopAfter(Progress):
    """Asks to stop after so many steps."""

    def __init__(self, steps):
        self.left = steps

    def step(self, done, total, metrics):
        self.left -= 1
        if not self.left:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture
def clock(monkeypatch):
    clock, learn, evaluate, follow = Clock(), Trainer.learn, Trainer.evaluate, sla.follow_step

    def slowly(trainer, batch):
        assert clock.followed[-1] == (batch.step, trainer.steps)  # what the modules were told before it
        if clock.taken == clock.fails_at:
            raise ZeroDivisionError  # as abrupt as a kill
        clock.now += clock.costs(clock.taken)
        clock.taken += 1
        clock.schedule.append(batch.step)
        learn(trainer, batch)

    def and_evaluate(trainer):
        clock.test(len(trainer.plan.val))
        return evaluate(trainer)

    def and_test(model, dataset, *arguments, **options):
        clock.test(len(dataset))
        return infer(model, dataset, *arguments, **options)

    def told(model, step, steps):
        clock.followed.append((step, steps))
        follow(model, step, steps)

    monkeypatch.setattr(module, "clock", clock)
    monkeypatch.setattr(Trainer, "learn", slowly)
    monkeypatch.setattr(Trainer, "evaluate", and_evaluate)
    monkeypatch.setattr("sla.tasks.classifier.judge.infer", and_test)
    monkeypatch.setattr("sla.runs.loop.follow_step", told)
    monkeypatch.setattr("sla.tasks.classifier.prepare.measure_seconds", lambda *_: MEASURED)
    return clock


@pytest.fixture(scope="module")
def splits():
    """Few digits: what is tested costs little time, made up and real."""
    whole = load("digits")
    train, val = whole.train.subset(range(0, 240)), whole.train.subset(range(300, 330))
    return replace(whole, train=train, val=val, test=whole.test.subset(range(40)))


def weights_of(folder, stage=""):
    return (find_checkpoint(folder / stage / "checkpoint", "last") / "weights.safetensors").read_bytes()


def last_position(folder, stage=""):
    return read_position(find_checkpoint(folder / stage / "checkpoint", "last"))


def rows_of(folder):
    return list(csv.DictReader((folder / "metrics.csv").open()))


def assert_repeated(folder, out, clock, splits, stages=("",)):
    """The written configuration gives the same bytes, with a clock that would change all if it were asked."""
    clock.taken, clock.costs = 0, lambda taken: 1000.0
    again = train(make_config(read_config(folder / "config.yaml")), out, splits=splits)
    for stage in stages:
        assert weights_of(out, stage) == weights_of(folder, stage)
        assert (out / stage / "metrics.csv").read_bytes() == (folder / stage / "metrics.csv").read_bytes()
    assert (out / "config.yaml").read_bytes() == (folder / "config.yaml").read_bytes()
    return again


@pytest.mark.parametrize("faster", [1, 2, 5])  # 5: it was timed on a busy machine, which is quiet now
def test_the_time_is_used_also_where_steps_are_faster_than_measured(
    clock, splits, tmp_path, messages, faster
):
    clock.costs = lambda taken: MEASURED / faster
    run = train(make_config(TREE), tmp_path / "run", splits=splits, progress=messages)
    fit = int(run.config.run.iterations / AMPLE)
    assert f"about {fit} iterations fit into 0.5 minutes; the schedule follows the clock" in messages.lines
    assert 45 < fit < 60  # half a minute, less what is tested at the end
    assert 25 < clock.now - 1000 <= 30
    in_all = int(0.95 * 30 / MEASURED)  # with what is no training, counted in steps; without the page
    assert abs(run.result["cost"]["iterations"] - (faster * in_all - (in_all - fit))) < 6
    jumps = [after - before for before, after in pairwise(clock.schedule)]
    assert max(jumps) <= 2 * AMPLE / faster + run.config.run.iterations / GRAIN


def test_slowed_half_way_it_ends_in_time_with_its_whole_schedule(clock, splits, tmp_path, messages):
    clock.costs = lambda taken: MEASURED if taken < 20 else 4 * MEASURED
    shown: list[tuple[int, int]] = []
    messages.step = lambda done, total, row: shown.append((done, total))
    run = train(make_config(TREE), tmp_path / "run", splits=splits, progress=messages)
    steps, taken = run.config.run.iterations, len(clock.schedule)
    assert [done for done, _ in shown] == list(range(1, taken + 1))  # not the steps that were skipped
    assert shown[-1] == (taken, taken)
    assert all(done <= total < steps for done, total in shown[10:])
    assert f"{taken} steps taken in the given time" in messages.lines
    assert 25 < clock.now - 1000 <= 30 + 4 * MEASURED
    assert 20 < taken < steps
    cost, position = run.result["cost"], last_position(run.folder)
    assert (position.step, position.taken) == (steps, taken)
    assert (cost["iterations"], cost["images_seen"]) == (taken, taken * 16 * 2)
    rows = rows_of(run.folder)
    rates = [float(row["learning_rate"]) for row in rows]
    assert rates[-1] < 0.3 * max(rates)
    assert sum(row["val_aggregated"] != "" for row in rows) == 3
    assert float(rows[-1]["epoch"]) == pytest.approx(taken * 16 / 240, rel=1e-3)
    assert run.unfinished == ""
    again = assert_repeated(run.folder, tmp_path / "again", clock, splits)
    assert again.result["accuracies"] == run.result["accuracies"]
    assert (again.folder / "pace.csv").read_bytes() == (run.folder / "pace.csv").read_bytes()
    # Resumed at its end it does nothing more, and says nothing of rows that were skipped.
    clock.fails_at = clock.taken
    assert train(run.config, run.folder, resume=True, splits=splits).result == run.result


def test_stopped_and_resumed_it_goes_by_what_is_left(clock, splits, tmp_path):
    clock.costs = lambda taken: 2 * MEASURED
    with pytest.raises(StoppedError):
        train(make_config(TREE), tmp_path / "run", splits=splits, progress=StopAfter(9))
    used = clock.now - 1000
    assert used_seconds(tmp_path / "run") == pytest.approx(used)
    clock.now += 1e6  # nobody's time passes while nothing runs
    resumed_at = clock.now
    run = train(make_config(TREE), tmp_path / "run", resume=True, splits=splits)
    assert 26 < used + clock.now - resumed_at <= 31
    assert_repeated(run.folder, tmp_path / "again", clock, splits)


def test_what_was_done_after_the_last_checkpoint_is_done_alike(clock, splits, tmp_path):
    tree = with_values(TREE, {"run.checkpoint_every": 5, "run.evaluations": 1})
    clock.costs, clock.fails_at = lambda taken: 3 * MEASURED, 13
    with pytest.raises(ZeroDivisionError):
        train(make_config(tree), tmp_path / "run", splits=splits)
    folder, before = tmp_path / "run", clock.schedule
    position, rows, lines = last_position(folder), rows_of(folder), read_pace(folder / "pace.csv")
    assert position.taken < 13 == max(lines)
    shutil.copytree(folder, tmp_path / "without")
    clock.schedule, clock.costs, clock.fails_at = [], lambda taken: MEASURED, None
    run = train(make_config(tree), folder, resume=True, splits=splits)
    since = before[position.taken :]
    assert clock.schedule[: len(since)] == since  # although the machine is faster now
    assert rows_of(folder)[: len(rows)] == rows
    assert max(read_pace(folder / "pace.csv").items()) == (
        position.taken + len(clock.schedule),
        run.config.run.iterations,
    )
    assert_repeated(folder, tmp_path / "again", clock, splits)
    (tmp_path / "without" / "pace.csv").unlink()  # the checkpoint has all up to its own step
    clock.costs = lambda taken: MEASURED
    run = train(make_config(tree), tmp_path / "without", resume=True, splits=splits)
    assert run.config.run.pace["train"].startswith(position.pace)


def test_the_stages_of_a_run_share_the_deadline(clock, splits, tmp_path):
    tree = with_values(TREE, {"stages": "train, distil", "distil.share": 1.0})
    clock.costs = lambda taken: 2 * MEASURED
    run = train(make_config(tree), tmp_path / "run", splits=splits)
    assert 24 < clock.now - 1000 <= 31
    assert set(run.config.run.pace) == {"train", "distil"}
    assert all(run.config.run.pace.values())
    teacher, student = last_position(run.folder), last_position(run.folder, "distil")
    assert teacher.taken >= 8
    assert student.taken >= 6  # it was not left without time
    assert_repeated(run.folder, tmp_path / "again", clock, splits, ("", "distil"))
    other = configure_student(run.folder, {}).run
    assert (other.iterations, other.pace, other.minutes) == (teacher.taken, None, None)


def test_a_deadline_that_is_over_takes_one_step_and_another_budget_forgets_it(clock, splits, tmp_path):
    clock.costs = lambda taken: 100.0
    run = train(make_config(TREE), tmp_path / "run", splits=splits)
    assert len(clock.schedule) == 1
    assert run.config.run.pace == {"train": f"1:{run.config.run.iterations}"}
    assert run.is_finished
    tree = read_config(run.folder / "config.yaml")
    longer = make_config(with_values(tree, {"run.minutes": 1.0})).run
    assert (longer.iterations, longer.pace) == (None, None)
    tree["run"]["pace"] = {"train": "1:x"}
    wrong = make_config(tree), tmp_path / "wrong"
    refused("run.pace: not a record of skipped steps: '1:x'", train, *wrong, splits=splits)


def test_a_run_from_before_keeps_its_iterations_whatever_the_clock_says(clock, splits, tmp_path):
    clock.costs = lambda taken: 100.0
    tree = {**TREE, "run": {**TREE["run"], "iterations": 3}}
    train(make_config(tree), tmp_path / "run", splits=splits)
    assert clock.schedule == [0, 1, 2]
    assert not (tmp_path / "run" / "pace.csv").exists()


@pytest.fixture
def simulate(monkeypatch, tmp_path):
    """The loop's bookkeeping alone: how long it took, and (when, the schedule's place) before each step."""
    monkeypatch.setattr(module, "PAGE_SECONDS", 0.0)
    return partial(run_alone, monkeypatch, tmp_path)


def run_alone(monkeypatch, tmp_path, steps, seconds, costs, evaluation=0.0, besides=NOTHING):
    now, position, places = [0.0], Position(), []
    monkeypatch.setattr(module, "clock", lambda: now[0])
    (tmp_path / "pace.csv").unlink(missing_ok=True)
    marks = {steps // 3, 2 * steps // 3, steps}
    pace = Pace(steps, Deadline(seconds), besides)
    pace.start(position, tmp_path)
    while position.step < steps:
        step = position.step
        places.append((now[0], step))
        now[0] += costs(len(places) - 1)
        position.step += 1
        pace.follow(position, sum(mark > step for mark in marks), Group())
        if passed(marks, step, position.step):
            now[0] += evaluation
            pace.end_evaluation(position)
    return now[0], places


@pytest.mark.parametrize("steps", [30, 1000])
@pytest.mark.parametrize(
    ("costs", "evaluation"),
    [
        (lambda taken: 0.1, 0.0),  # faster than measured
        (lambda taken: 1.0 if taken < 200 else 5.0, 0.0),
        (lambda taken: 3.0, 0.0),
        (lambda taken: 1.0 + taken % 5, 0.02),
        (lambda taken: 1.0 + 0.1 * taken, 0.0),  # ever slower
        (lambda taken: 1.0, 0.05),
    ],
    ids=["fast", "half-way", "always", "now and then", "ever slower", "evaluating"],
)
def test_the_end_is_in_time_whatever_the_steps_take(simulate, steps, costs, evaluation):
    unit = 100 / steps  # so that the steps take 100 s at the measured speed
    took, places = simulate(steps, 100.0, lambda k: unit * costs(k), evaluation * 100)
    longest = unit * max(costs(k) for k in range(len(places))) + evaluation * 100
    assert took <= 100 + 0.01 * 100 + longest
    assert took > 90 or len(places) == steps  # all the time is used, or all steps are done
    jumps = [after - before for (_, before), (_, after) in pairwise(places)]
    assert len([jump for jump in jumps if jump > 1]) <= 100  # the record stays short
    if steps == 1000:
        assert places[-1][1] > 970  # the schedule is not cut off at its end
    if evaluation == 0 and costs(0) == costs(500):  # evenly slow: the schedule advances evenly
        assert all(abs(step - steps * now / took) < 0.05 * steps + 4 for now, step in places)


def test_a_long_first_step_and_long_evaluations_do_not_end_the_schedule_early(simulate):
    """Their time is taken from all steps that are left: none of the schedule is lost at once."""
    took, places = simulate(100, 100.0, lambda k: 40.0 if not k else 1.0, 5.0)
    steps = [step for _, step in places]
    assert steps[1] == 1  # 40 of 100 s are over, but nothing of the schedule
    assert max(after - before for before, after in pairwise(steps)) <= 4
    assert took <= 106


def test_time_is_kept_for_what_follows_at_the_speed_of_the_steps(simulate):
    """Steps of 2 s instead of 1 s: testing, of 10 steps' worth, will take 20 s."""
    took, _ = simulate(80, 100.0, lambda k: 2.0, 0.0, Following(end=10.0))
    assert 78 <= took <= 82
    took, _ = simulate(80, 100.0, lambda k: 2.0, 2.0, Following(10.0, evaluation=1.0))
    assert 78 <= took <= 84
    took, _ = simulate(80, 100.0, lambda k: 2.0, 0.0, Following(later=80.0))
    assert 48 <= took <= 52  # half of it is for another stage
    took, _ = simulate(80, 100.0, lambda k: 2.0, 0.0, Following(end=1000.0))
    assert 48 <= took <= 53  # but half of it is for training


def test_what_follows_is_counted_in_passes(splits):
    tree = with_values(TREE, {"run.iterations": 100, "stages": "train, distil", "distil.teacher_views": 1})
    plan = make_plan(make_config(tree), splits)
    found = following(plan, "train")
    tested = 1.25 * (2 * 2 * (30 + 40) + 2 * 30)  # both checkpoints in two views; recognising the views
    assert found.end == pytest.approx(tested / PASSES)
    assert found.evaluation == pytest.approx(2 * 30 / PASSES)
    student = 25 * 16 * (3 + 1) + AMPLE * 3 * 30  # its steps with their teacher, its evaluations
    assert found.later == pytest.approx(student / PASSES)
    after_quick = replace(plan, config=plan.config.model_copy(update={"stages": ("features", "train")}))
    more = 1.25 * (2 + 1) * (30 + 40)  # the average in two views, the quick model in one pass
    assert following(after_quick, "train").end == pytest.approx((tested + more) / PASSES)
    alone = following(plan, "distil")
    assert alone.end == pytest.approx((tested + 1.25 * 2 * (30 + 40)) / (16 * (3 + 1)))
    assert following(plan, "train", processes=2).end == pytest.approx(2 * tested / PASSES)
    unlabelled = {
        "data.unlabelled": "digits",
        "method.consistency_weight": 1.0,
        "run.unlabelled_batch_size": 8,
    }
    more = make_config(with_values(TREE, {"run.iterations": 100, **unlabelled}))
    step = PASSES + 8 * (3 * 2 + 2)  # and the answers of those images
    assert following(replace(plan, config=more), "train").evaluation == pytest.approx(2 * 30 / step)
    plain = make_plan(make_config(with_values(TREE, {"run.iterations": 100})), splits)
    fit = 60 / 0.5 - tested / PASSES - 3 * 2 * 30 / PASSES
    assert evaluation_steps(plain) == pytest.approx((tested + 3 * 2 * 30) / PASSES)
    assert steps_in(plain, 60.0, 0.5) == int(fit)
    assert steps_in(plain, 0.1, 0.5) == 1
    often = make_plan(make_config(with_values(TREE, {"run.iterations": 5, "run.evaluations": 10**8})), splits)
    assert evaluation_steps(often) == pytest.approx((tested + 5 * 2 * 30) / PASSES)  # one after each step


def test_every_process_moves_as_the_leading_one_says():
    class Second(Group):
        def share_number(self, value):
            assert value == 0  # it has no say
            return 4

    position, pace = Position(step=6, skipped=1), Pace(100, Deadline(1e-9))
    pace.start(Position(), None)
    assert pace.follow(position, 0, Second(rank=1, world_size=2))
    assert (position.step, position.skipped, position.pace) == (10, 5, "5:10")


def test_marks_are_passed_and_landed_on():
    assert passed({5, 10}, 4, 5)
    assert passed({5, 10}, 6, 12)
    assert not passed({5, 10}, 5, 9)
    record, done, landed = parse_record("3:6 5:12"), 0, set()
    for taken in range(1, 10):  # one step after the other, as the loop takes them
        before, done = done, record.get(taken, done + 1)
        landed |= {done for mark in (2, 4, 6, 8, 12, 14) if before < mark <= done}
    assert landing({2, 4, 6, 8, 12, 14}, record) == landed


def test_a_record_cut_short_is_read_up_to_there(tmp_path):
    path = tmp_path / "pace.csv"
    assert read_pace(path) == {}
    path.write_text("taken,step\n3,5\n7,12\n9,1")
    assert read_pace(path) == {3: 5, 7: 12}
    path.write_bytes(b"taken,step\n3,5\n\xff\xff\n9,14\n")
    assert read_pace(path) == {3: 5}


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_killed_with_a_real_clock_it_can_be_resumed_and_repeated(tmp_path, processes):
    changes = {"run.minutes": 0.4, "run.checkpoint_every": 5, "model.options": {"norm": False}}
    file, folder = tmp_path / "own.yaml", tmp_path / "run"
    file.write_text(yaml.safe_dump(with_values(TREE, changes)))
    start = [sys.executable, "-m", "sla", "train"]
    if processes > 1:
        start = [sys.executable, "-m", "torch.distributed.run", f"--nproc_per_node={processes}"]
        start += ["--master_port=29517", "-m", "sla", "train"]
    words = [*start, "--config", str(file), "--out", str(folder)]
    if processes == 1:
        killed, end = subprocess.Popen(words), time.monotonic() + 120
        while len(read_pace(folder / "pace.csv")) < 9:
            assert killed.poll() is None, "it ended too soon"
            assert time.monotonic() < end
            time.sleep(0.02)
        killed.kill()
        killed.wait()
        words.append("--resume")
    subprocess.run(words, check=True)
    again = [*start, "--config", str(folder / "config.yaml"), "--out", str(tmp_path / "again")]
    subprocess.run(again, check=True)
    assert read_config(folder / "config.yaml")["run"]["pace"] is not None
    assert weights_of(tmp_path / "again") == weights_of(folder)
    assert (tmp_path / "again" / "metrics.csv").read_bytes() == (folder / "metrics.csv").read_bytes()
