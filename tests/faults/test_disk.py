"""A disk that refuses to write, at each file that a run replaces: nothing is lost, one line each time."""

import errno
import os
import re

from sla.disk import explain
from sla.errors import SLAError
from sla.session import train
from sla.tasks.registry import make_config

TINY = {
    "data": {"source": "digits", "workers": 0, "per_class": 4},
    "model": {"backbone": "convnet4", "options": {"width": 4}},
    "method": {"name": "baseline"},
    "run": {"iterations": 2, "batch_size": 8, "evaluations": 1, "compile": False, "device": "cpu"},
}
REFUSALS = (errno.EROFS, errno.EFBIG, errno.EIO, errno.EDQUOT)


def test_a_disk_that_refuses_every_file_once(tmp_path, monkeypatch):
    """The run is started until it ends: every start gets one file further than the one before."""
    whole = train(make_config(TINY), tmp_path / "whole")
    real, refused, folder = os.replace, set(), tmp_path / "run"

    def refuses(source, target):
        name = re.sub(r"\.[0-9a-f]{12}", "", os.path.relpath(target, folder))
        if name not in refused:
            refused.add(name)
            number = REFUSALS[len(refused) % len(REFUSALS)]
            raise OSError(number, os.strerror(number), str(target))
        real(source, target)

    monkeypatch.setattr(os, "replace", refuses)
    said = []
    while len(said) < 40:
        try:
            run = train(make_config(TINY), folder, resume=(folder / "config.yaml").exists())
            break
        except SLAError as error:
            said.append(str(error))
    assert len(said) == len(refused) < 40
    assert all(str(folder) in line and "\n" not in line for line in said)
    assert {"config.yaml", "images.safetensors", "metrics.csv", "result.json"} <= refused
    for kind in ("last-00000002", "best-00000002"):
        assert f"checkpoint/{kind}" in refused
        files = [one.folder / "checkpoint" / kind / "weights.safetensors" for one in (whole, run)]
        assert files[0].read_bytes() == files[1].read_bytes()
    assert (whole.folder / "metrics.csv").read_bytes() == (run.folder / "metrics.csv").read_bytes()
    assert run.result["accuracies"] == whole.result["accuracies"]


def test_a_full_disk_is_called_so():
    for number in (errno.ENOSPC, errno.EDQUOT):
        assert explain(OSError(number, os.strerror(number), "file\x1b")) == r"file\x1b: the disk is full"
