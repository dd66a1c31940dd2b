"""How long the threads of OpenMP spin: briefly, set before torch is imported, unless a person set it."""

import os
import subprocess
import sys

import pytest

from sla.threads import POLICY, SHORT, SPINS, wait_briefly


@pytest.mark.parametrize(
    ("before", "after"),
    [({}, str(SHORT)), ({SPINS: "7"}, "7"), ({POLICY: "active"}, None)],
)
def test_what_is_set_already_stays(before, after, monkeypatch):
    for name in (SPINS, POLICY):
        monkeypatch.delenv(name, raising=False)
    for name, value in before.items():
        monkeypatch.setenv(name, value)
    wait_briefly()
    assert os.environ.get(SPINS) == after


def test_the_command_line_sets_it_before_torch_reads_it():
    """`sla --version` imports no torch; OpenMP prints its settings when it is loaded."""
    words = "import sys; from sla.cli import main; assert 'torch' not in sys.modules\n"
    words += "try: main(['--version'])\nexcept SystemExit: assert 'torch' not in sys.modules\nimport torch"
    surroundings = {name: value for name, value in os.environ.items() if name not in (SPINS, POLICY)}
    surroundings["OMP_DISPLAY_ENV"] = "verbose"
    done = subprocess.run(
        [sys.executable, "-c", words], env=surroundings, capture_output=True, text=True, check=True
    )
    if SPINS not in done.stderr:
        pytest.skip("this torch has another OpenMP than GNU's")
    assert f"{SPINS} = '{SHORT}'" in done.stderr
