"""Two machines that see the same files: here two network namespaces, joined by a virtual cable."""

import json
import os
import shutil
import subprocess
import sys

import pytest
import yaml
from safetensors.torch import load_file
from torch.testing import assert_close

from sla.runs.checkpoint import find_checkpoint

CONFIG = {
    "data": {"source": "digits", "workers": 0},
    "model": {"backbone": "convnet4", "options": {"width": 8, "norm": False}},
    "optimizer": {"learning_rate": 0.05},
    "run": {"iterations": 6, "batch_size": 32, "evaluations": 1, "compile": False},
}


def ip(*words):
    return subprocess.run(["ip", *words], capture_output=True, text=True, check=False)


@pytest.fixture
def hosts():
    """Names of two namespaces that reach each other as 10.77.0.1 and 10.77.0.2, and nothing else."""
    names = [f"sla-test-{os.getpid()}-{number}" for number in (1, 2)]
    if shutil.which("ip") is None or ip("netns", "add", names[0]).returncode:
        pytest.skip("network namespaces need `ip netns` and the right to make them")
    try:
        cable = [f"sla{os.getpid() % 10000}{end}" for end in "ab"]
        steps = [
            ("netns", "add", names[1]),
            ("link", "add", cable[0], "type", "veth", "peer", "name", cable[1]),
        ]
        for number, (name, end) in enumerate(zip(names, cable, strict=True), 1):
            steps += [
                ("link", "set", end, "netns", name),
                ("-n", name, "addr", "add", f"10.77.0.{number}/24", "dev", end),
                ("-n", name, "link", "set", end, "up"),
                ("-n", name, "link", "set", "lo", "up"),
            ]
        for step in steps:
            done = ip(*step)
            if done.returncode:
                pytest.skip(f"ip {' '.join(step)}: {done.stderr.strip()}")
        yield list(zip(names, cable, strict=True))
    finally:
        for name in names:
            ip("netns", "delete", name)


@pytest.mark.slow
def test_two_hosts_train_as_one(hosts, tmp_path):
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(CONFIG))
    words = ["sla", "train", "--config", str(tmp_path / "config.yaml"), "--out"]
    subprocess.run([sys.executable, "-m", *words, str(tmp_path / "one")], check=True, capture_output=True)
    processes = []
    for rank, (name, device) in enumerate(hosts):
        launch = ["--nnodes=2", f"--node_rank={rank}", "--nproc_per_node=1"]
        launch += ["--master_addr=10.77.0.1", "--master_port=29500"]
        inside = ["ip", "netns", "exec", name, sys.executable, "-m", "torch.distributed.run", *launch, "-m"]
        processes.append(
            subprocess.Popen(
                [*inside, *words, str(tmp_path / "two")],
                env={**os.environ, "GLOO_SOCKET_IFNAME": device},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    said = [process.communicate(timeout=180)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    one, two = (
        load_file(find_checkpoint(tmp_path / name / "checkpoint", "last") / "weights.safetensors")
        for name in ("one", "two")
    )
    for name, value in one.items():
        assert_close(two[name], value, rtol=0, atol=1e-5)
    assert json.loads((tmp_path / "two" / "result.json").read_text())["cost"]["processes"] == 2
