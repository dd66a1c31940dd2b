"""How long a table takes here: what the estimate rests on, and that a busy machine does not spoil it."""

from dataclasses import replace

import pytest
import torch

from sla.reproduce import costs, work
from sla.reproduce.costs import FLOOR, Rate, cost, cost_of, estimate_rate, flop_of, runs_of, seconds_of
from sla.reproduce.jobs import cells_of
from sla.reproduce.records import Record
from sla.reproduce.runner import commands
from sla.runs.config import read_config

HERE = "x86_64, 2 threads"


def record(seconds, flop=1e12, machine=HERE, **more):
    values = {"key": "k", "kind": "train", "scale": "small", "label": "", "seed": 0, "settings": {}}
    return Record(**values | {"seconds": seconds, "training_flop": flop, "machine": machine} | more)


def test_finished_runs_of_this_machine_say_more_than_probes(monkeypatch):
    monkeypatch.setattr(costs, "probe_rate", lambda: Rate(7.0, "probes"))
    mine = [record(seconds) for seconds in (50, 100, 2000)]
    found = estimate_rate(mine, HERE)
    assert found == Rate(5e9, "the median of the 3 latest runs on such a machine", threads=2)
    others = [record(100, machine="a GPU"), record(5), record(100, members=["m"]), record(100, flop=None)]
    assert estimate_rate(mine[:2] + others, HERE).basis == "probes"
    alone = [record(seconds, machine="x86_64, 1 thread") for seconds in (50, 100, 2000)]
    assert estimate_rate(alone, HERE) == found._replace(flop_per_second=1e10)
    latest = [record(25, finished=f"2030-01-{day:02}") for day in range(1, 21)]
    assert estimate_rate([*latest, *mine], HERE).flop_per_second == 2e10


@pytest.fixture
def small_networks(monkeypatch):
    """Every network takes a million operations: building them all, to count, takes a while."""
    monkeypatch.setattr(costs, "_forward", lambda *_: 10**6)


def test_a_finished_run_takes_what_it_took(small_networks):
    runs = runs_of("table1", "small", seeds=1)
    rate = Rate(1e10, "")
    expected = cost("table1", "small", seeds=1).flop / 1e10
    assert seconds_of(runs, rate, {}) == pytest.approx(expected)
    first = runs[0]
    done = {first.key: record(3.0)}
    two = rate._replace(threads=2)
    assert two.seconds(first) == rate.seconds(first) > 0  # its recipe sets one thread
    free = replace(first, settings={k: v for k, v in first.settings.items() if k != "run.threads"})
    assert two.seconds(free) == rate.seconds(free) / 2
    without = expected - flop_of(dict(first.settings)) / 1e10
    assert seconds_of(runs, rate, done) == pytest.approx(without + 3.0)


def test_views_per_step_are_counted(small_networks):
    (row,) = runs_of("table1", "small", seeds=1)[:1]
    base = dict(row.settings)
    ratio = {
        name: flop_of(base | {"method.name": name} | more) / flop_of(base)
        for name, more in [("lorot", {}), ("sla", {}), ("sla+memory", {"method.views_per_step": 2})]
    }
    assert ratio == pytest.approx({"lorot": 1, "sla": 4, "sla+memory": 2})


@pytest.mark.parametrize(
    ("row", "per_image"), [("afterwards", 3 + 4), ("two-views", 3 + 2), ("cached", 3), ("from-full", 3 + 4)]
)
def test_a_student_costs_its_training_and_its_teachers_answers(row, per_image, small_networks):
    (cell,) = cells_of("student-pilots", "small", 1, [row])
    (teacher,), given = cell.job.members, cell.job.settings
    steps = round(given["distil.share"] * teacher.settings["run.iterations"])
    once = 4 * 1000 if row == "cached" else 0
    assert cost_of(cell.job).flop == 10**6 * (64 * steps * per_image + once)
    assert cell.job in runs_of("student-pilots", "small", seeds=1)
    done = {cell.job.key: record(50.0), teacher.key: record(40.0)}  # its record has its teacher's seconds
    assert seconds_of([cell.job], Rate(1.0, ""), done) == 10.0


@pytest.mark.parametrize(("step", "busy"), [(0.05, False), (50.0, True)])
def test_the_rate_has_a_floor(monkeypatch, step, busy):
    """Steps that wait for each other's threads; short products that do not."""
    product, calls = 2 * costs.SIDE**3 / 1e11, []

    def seconds(work):
        calls.append(work)
        return step if len(calls) <= costs.WARM_UP + costs.PROBES else product

    monkeypatch.setattr(costs, "_seconds", seconds)
    monkeypatch.setattr(costs, "count_flops", lambda *_: 25 * 10**6)
    found = costs.probe_rate()
    if busy:
        assert found.flop_per_second == pytest.approx(FLOOR * 1e11)
        assert "the machine is busy" in found.basis
    else:
        assert found.flop_per_second > FLOOR * 1e11
        assert found.basis == "the median of 9 eager training steps of ResNet-8 now"


def test_matrix_rate_leaves_the_threads_as_they_were():
    before = torch.get_num_threads()
    assert costs.matrix_rate(1) > 1e8
    assert torch.get_num_threads() == before


def test_list_says_what_its_times_rest_on(small_networks, stopped, tmp_path, monkeypatch):
    monkeypatch.setattr(costs, "probe_rate", lambda: Rate(5e10, "probes of a test"))
    said = stopped(0, "reproduce", "list", "--seeds", 1, "--out", tmp_path)
    assert "Time at 50 GFLOP/s per thread: probes of a test." in said


def test_a_row_has_its_threads_and_is_never_compiled(tmp_path):
    """So that it can be run again to the same number: threads as asked for, and nothing timed."""
    job = runs_of("table1", "smoke", seeds=1)[0]
    made = work.run_job(job, tmp_path)
    config = read_config(work.folder_of(job, tmp_path) / "config.yaml")["run"]
    assert (config["compile"], config["compile_reason"]) == (False, None)
    assert config["threads"] == torch.get_num_threads() == 1
    assert made.machine.endswith(", 1 thread")
    assert work.machine_name(3).endswith(", 3 threads")
    (line,) = commands("table1", "smoke", [job], tmp_path, seeds=1, threads=3)
    assert line.endswith(f"--threads 3 --only {job.key}")


def test_threads_that_a_recipe_sets_are_not_overridden_in_silence(stopped, tmp_path):
    words = ("reproduce", "table1", "--columns", "cifar10", "--print-commands", "--out", tmp_path)
    assert "sets 1; leave out --threads" in stopped(2, *words, "--threads", 2)
    assert "--threads 1" in stopped(0, *words, "--threads", 1)
