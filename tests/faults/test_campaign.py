"""A small part of `make faults`; and that it would notice a run that goes on otherwise."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fault_processes import Ended, differences, fingerprint

REPOSITORY = Path(__file__).resolve().parents[2]
# In a process of its own, with one thread: it forks.
SCRIPT = """
import json, sys
from pathlib import Path
import faults, fault_kinds, fault_runs
from sla.runs import loop

place = fault_runs.set_up(Path(sys.argv[1]), fault_runs.QUICK)
trials = faults.make_trials([*faults.FAULTS], 0, True, fault_runs.QUICK)
found = [faults.run_trial(place, one) for one in trials]
loop.restore_optimizer = lambda *given: None
wrong = fault_kinds.Trial("killed at a file operation", "fewshot", "0", 0.6)
found.append(faults.run_trial(place, wrong))
print(json.dumps([[one.trial.fault, one.stage, one.said, one.same, one.failed] for one in found]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="it forks, and reads the CPU clocks of other processes")
def test_a_few_faults_change_no_byte_and_a_broken_resume_is_noticed(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        cwd=REPOSITORY / "benchmarks",
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    *found, (_, stage, _, _, failed) = json.loads(done.stdout.splitlines()[-1])
    faults = [fault for fault, *_ in found]
    assert faults.count("killed at a random moment") == faults.count("killed at a file operation") == 2
    assert {"file size limited", "checkpoint with a bit flipped"} <= set(faults)
    assert [why for *_, why in found if why] == []
    assert all(said or same for _, _, said, same, _ in found)
    assert stage == "train"
    assert "differs from an undisturbed run: checkpoint/" in failed


def test_times_are_no_difference_and_all_else_is(finished_run, tmp_path):
    folder = shutil.copytree(finished_run.folder, tmp_path / "run")
    whole = fingerprint(folder)
    result = json.loads((folder / "result.json").read_text())
    assert {"metrics.csv", "result.json", "config.yaml"} <= set(whole)
    result["finished"], result["cost"]["seconds"] = "later", 1e6
    (folder / "result.json").write_text(json.dumps(result))
    assert differences(fingerprint(folder), whole) == []
    result["seed"] += 1
    (folder / "result.json").write_text(json.dumps(result))
    (folder / ".left").touch()
    assert differences(fingerprint(folder), whole) == [".left", "result.json"]


@pytest.mark.parametrize(
    ("code", "errors", "expected"),
    [
        (1, "sla: the disk is full\n", True),
        (2, "sla: note: something\nsla: no such file\n", True),
        (0, "", False),
        (1, "sla: two\nsla: lines\n", False),
        (70, "Traceback (most recent call last):\n", False),
        (-9, "", False),
    ],
)
def test_what_counts_as_one_line(code, errors, expected):
    assert Ended(code, errors, 0.0).one_line is expected
