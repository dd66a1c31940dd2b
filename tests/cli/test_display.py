"""What is shown while a command works, where there is no terminal: each phase that takes its time."""

import pytest

from sla.cli import display as module
from sla.cli.display import TrainingDisplay


@pytest.fixture
def now(monkeypatch):
    """The time, which a test sets."""
    time = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: time[0])
    return time


def test_a_pass_that_takes_its_time_is_said_once(now, capsys):
    with TrainingDisplay(live=False) as display:
        for turn in range(3):  # short ones, such as evaluations during training, are not worth a line
            for done in (1, 2):
                display.advance("evaluating held-out images", done, 2)
                now[0] += 1.5 * (done == 1)
            now[0] += 60.0 * turn
        for done in range(1, 6):
            display.advance("testing", done, 6)
            now[0] += 1.0
        display.advance("waiting", 0, None)
        now[0] += 3.0
        display.advance("waiting", 0, None)
    assert capsys.readouterr().out.splitlines() == ["  testing ...", "  waiting ..."]


def test_phases_of_a_run_are_said_in_their_order(tmp_path):
    from commands import sla

    small = ("--backbone", "convnet4", "--set", "model.options={width: 4}", "--set", "run.compile=false")
    said = sla("train", "digits", "--out", tmp_path / "run", "--iterations", 2, *small)
    phases = ["timing a few steps", "about ", "step 1/2", "evaluating on 144 held-out and 360 test images"]
    phases += ["writing the report", "report: ", "Right on "]
    places = [said.find(phase) for phase in phases]
    assert -1 not in places
    assert places == sorted(places)
