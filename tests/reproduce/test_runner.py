"""Running a table: missing jobs are run, stopped ones resume, finished ones are not repeated."""

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from refusals import refused
from sla.recipes.load import recipe_settings
from sla.reproduce.costs import cost_of
from sla.reproduce.jobs import Job, cells_of, jobs_of
from sla.reproduce.names import EXPERIMENTS
from sla.reproduce.records import TABLE, read_records
from sla.reproduce.runner import GRACE, STOPPED, _next, commands, run_all
from sla.reproduce.work import folder_of

SMALL = 4e9  # FLOP of a run


class Recorder:
    """What the runner reported."""

    def __init__(self):
        self.missing, self.done, self.ended, self.failed = [], 0, [], {}

    def begin(self, costs, done):
        assert all(flop >= 0 for flop in costs.values())
        self.missing, self.done = list(costs), done

    def advance(self, job, share):
        assert 0 <= share <= 1

    def end(self, job, record, reason):
        self.ended.append(job.key)
        if record is None:
            self.failed[job.key] = reason


@pytest.fixture(scope="module")
def shared_out(tmp_path_factory):
    return tmp_path_factory.mktemp("reproduce")


@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_table_runs_at_smoke_scale(name, whole, shared_out):
    """Every row with a small network in its first column, or the whole table.

    In one folder: a run that an earlier table needed is not repeated for a later one.
    """
    cells, first = cells_of(name, "smoke", 1), {}
    if not whole:
        cells = [cell for cell in cells if first.setdefault(cell.row, cell.column) == cell.column]
        cells = [cell for cell in cells if cost_of(cell.job).flop < SMALL]
    jobs = jobs_of(cells)
    assert jobs
    before = set(read_records(shared_out / TABLE))
    recorder = Recorder()
    assert run_all(jobs, shared_out, recorder) == 0, recorder.failed
    assert set(recorder.missing) == {job.key for job in jobs} - before
    records = read_records(shared_out / TABLE)
    for cell in cells:
        record = records[cell.job.key]
        score = record.score(cell.score)
        assert score is not None, (cell.row, cell.column, cell.score)
        assert 0 <= score <= 100
        if cell.job.kind == "train":
            assert record.training_flop > 0
            assert record.settings == json.loads(json.dumps(cell.job.settings))
    again = Recorder()
    assert run_all(jobs, shared_out, again) == 0
    assert (again.missing, again.done) == ([], len(jobs))


def test_two_at_a_time_give_what_one_at_a_time_gives(shared_out, tmp_path):
    jobs = jobs_of(cells_of("table8", "smoke", 1))[:2]
    assert run_all(jobs, shared_out, Recorder()) == 0
    assert run_all(jobs, tmp_path, Recorder(), workers=2) == 0
    one, two = (read_records(folder / TABLE) for folder in (shared_out, tmp_path))
    assert all(two[job.key].scores == one[job.key].scores for job in jobs)


def test_a_job_waits_for_its_member_alone(shared_out, tmp_path):
    """While a run is trained, a worker takes the next job instead of waiting for it."""
    member, other = jobs_of(cells_of("table8", "smoke", 1))[:2]
    flips = Job("flips", {}, 0, "smoke", "", (member,))
    assert _next([flips, other], [member], tmp_path) == other
    assert _next([flips, other], [], tmp_path) == flips
    assert _next([flips], [member], tmp_path) is None
    # Of two that need the same member, the second waits while the first makes it, then it need not.
    second = Job("flips", {"again": True}, 0, "smoke", "", (member,))
    assert _next([second, other], [flips], tmp_path) == other
    assert run_all([member], shared_out, Recorder()) == 0
    assert _next([second, other], [flips], shared_out) == second


def test_a_job_that_fails_is_reported_and_the_others_run(tmp_path):
    settings = recipe_settings("cifar10", "smoke")
    good = Job("train", settings, 0, "smoke", "good")
    bad = Job("train", settings | {"data.source": str(tmp_path / "nothing")}, 0, "smoke", "bad")
    recorder = Recorder()
    assert run_all([bad, good], tmp_path / "out", recorder) == 1
    assert "nothing" in recorder.failed[bad.key]
    assert set(read_records(tmp_path / "out" / TABLE)) == {good.key}


def test_a_job_in_another_process_is_waited_for_and_taken_over(tmp_path):
    """Two starts in one folder share the work: neither fails, and nothing is run twice."""
    jobs = jobs_of(cells_of("table8", "smoke", 1))
    recorder = [Recorder(), Recorder()]
    with ThreadPoolExecutor(2) as pool:  # file locks are held by an object, so threads are strangers too
        found = list(pool.map(lambda one: run_all(jobs, tmp_path, one), recorder))
    assert found == [0, 0]
    assert set(read_records(tmp_path / TABLE)) == {job.key for job in jobs}


def test_a_damaged_record_is_made_again(tmp_path):
    (job,) = [job for job in jobs_of(cells_of("toy", "smoke", 1)) if job.label.startswith("6 vs 9, upright")]
    assert run_all([job], tmp_path, Recorder()) == 0
    before = read_records(tmp_path / TABLE)[job.key]
    (tmp_path / TABLE).unlink()
    (folder_of(job, tmp_path) / "record.json").write_text("{")
    assert run_all([job], tmp_path, Recorder()) == 0
    assert read_records(tmp_path / TABLE)[job.key].more == before.more


def test_a_folder_that_cannot_be_is_refused_in_a_line(tmp_path):
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        refused("cannot be written", run_all, jobs_of(cells_of("toy", "smoke", 1)), out, Recorder())


SLOW = {"run.iterations": 100, "run.checkpoint_every": 5}
SCRIPT = """
import json, sys
from pathlib import Path
from sla.recipes.load import recipe_settings
from sla.reproduce.jobs import Job
from sla.reproduce.runner import run_all
from sla.runs.signals import StoppedError
from tests_recorder import Recorder
jobs = [Job("train", *row) for row in json.loads(sys.argv[2])]
try:
    sys.exit(run_all(jobs, Path(sys.argv[1]), Recorder(), workers=int(sys.argv[3])))
except StoppedError as error:
    sys.exit(str(error))
"""


def test_killed_in_the_middle_it_resumes_and_repeats_nothing(tmp_path):
    """kill -9 during the second of two runs; a second start ends with the numbers of an unbroken one."""
    settings = recipe_settings("cifar10", "smoke")
    rows = [[settings, 0, "smoke", "first"], [settings | SLOW, 0, "smoke", "second"]]
    environment = _environment(tmp_path)
    words = [sys.executable, "-c", SCRIPT, str(tmp_path / "out"), json.dumps(rows), "1"]
    first, second = (Job("train", *row) for row in rows)
    process = subprocess.Popen(words, env=environment)
    try:
        reached = _wait_for(folder_of(second, tmp_path / "out") / "checkpoint", process)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert 0 < reached < SLOW["run.iterations"]
    finished = folder_of(first, tmp_path / "out") / "record.json"
    before = finished.stat().st_mtime_ns
    assert set(read_records(tmp_path / "out" / TABLE)) == {first.key}

    assert run_all([first, second], tmp_path / "out", Recorder()) == 0
    assert finished.stat().st_mtime_ns == before
    unbroken = Recorder()
    assert run_all([second], tmp_path / "whole", unbroken) == 0
    ours, theirs = (read_records(tmp_path / name / TABLE)[second.key] for name in ("out", "whole"))
    assert ours.scores == theirs.scores
    assert set(ours.scores) == {"last", "best"}
    metrics = [(folder_of(second, tmp_path / n) / "metrics.csv").read_bytes() for n in ("out", "whole")]
    assert metrics[0] == metrics[1]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="finds child processes in /proc")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_process_outlives_the_one_that_started_it(tmp_path, number):
    """Workers and the tracker of semaphores end; SIGTERM is answered with one line."""
    settings = recipe_settings("cifar10", "smoke") | SLOW | {"run.iterations": 100_000}
    rows = [[settings, seed, "smoke", "long"] for seed in range(2)]
    (tmp_path / "tmp").mkdir()
    environment = _environment(tmp_path) | {"TMPDIR": str(tmp_path / "tmp")}
    words = [sys.executable, "-c", SCRIPT, str(tmp_path / "out"), json.dumps(rows), "2"]
    process = subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        _wait_for(folder_of(Job("train", *rows[0]), tmp_path / "out") / "checkpoint", process)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        assert len(children) == 3
        process.send_signal(number)
        said = process.communicate(timeout=60)[1]
    finally:
        process.kill()
        process.wait()
    deadline = time.monotonic() + 2 * GRACE
    while (left := [child for child in children if _runs(child)]) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left
    if number == signal.SIGTERM:
        lines = [line for line in said.splitlines() if line and "stopping after this step" not in line]
        assert lines == [STOPPED]
    assert not list((tmp_path / "tmp").iterdir())


def _runs(child):
    try:
        return Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _environment(tmp_path):
    (tmp_path / "tests_recorder.py").write_text(
        "class Recorder:\n    def begin(self, *a): pass\n    advance = end = begin\n"
    )
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


def _wait_for(checkpoints, process):
    """The step of the first checkpoint that appears."""
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline and process.poll() is None:
        if checkpoints.exists() and (found := list(checkpoints.glob("last-*"))):
            return max(int(path.name.split("-")[1]) for path in found)
        time.sleep(0.01)
    pytest.fail("no checkpoint appeared")


def test_commands_for_a_cluster_stand_alone(tmp_path):
    jobs = jobs_of(cells_of("table2", "smoke", 1, ["ie"]))
    lines = commands("table2", "smoke", jobs, tmp_path / "a b", 1)
    assert len(lines) == len(set(lines)) == len(jobs)
    assert all(job.key in line and "'" in line for job, line in zip(jobs, lines, strict=True))
