"""Two processes: the model itself is wrapped, and its gradients are those of one process."""

import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

SCRIPT = """
import sys, warnings
import torch, torch.distributed as dist
from safetensors.torch import save_file
import sla

rank, folder, wrapped = int(sys.argv[1]), sys.argv[2], sys.argv[3] == "wrapped"
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Tanh(), torch.nn.Flatten())
model = sla.Classifier(net, 5, sla.SLA(sla.Rotation(), distill=True), num_features=8 * 16)
images, targets = torch.randn(8, 3, 6, 6), torch.randint(5, (8,))
if rank >= 0:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    images, targets = images[4 * rank : 4 * rank + 4], targets[4 * rank : 4 * rank + 4]
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            model.zero_grad()
            losses = ddp(images, targets) if wrapped else ddp.module.losses(images, targets)
            losses["loss"].backward()
    print(*(str(one.message) for one in caught if "bypasses" in str(one.message)), sep="|")
else:
    model(images, targets)["loss"].backward()
save_file({n: p.grad for n, p in model.named_parameters()}, f"{folder}/{rank}.safetensors")
if rank >= 0:
    dist.barrier()
    dist.destroy_process_group()
"""


def run(folder, ranks, how):
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(rank), str(folder), how],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in ranks
    ]
    output = [process.communicate(timeout=120) for process in processes]
    assert not any(process.returncode for process in processes), output
    return [said.strip() for said, _ in output]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone")
    run(folder, [-1], "wrapped")
    return load_file(folder / "-1.safetensors")


def test_gradients_of_two_processes_are_those_of_one(alone, tmp_path):
    assert run(tmp_path, [0, 1], "wrapped") == ["", ""]
    for rank in (0, 1):
        found = load_file(tmp_path / f"{rank}.safetensors")
        assert found.keys() == alone.keys()
        for name, gradient in found.items():
            torch.testing.assert_close(gradient, alone[name])


def test_losses_outside_forward_warn_once_and_are_not_synchronised(tmp_path):
    said = run(tmp_path, [0, 1], "bypassed")
    assert all(words.count("bypasses DistributedDataParallel") == 1 for words in said)
    first, second = (load_file(tmp_path / f"{rank}.safetensors") for rank in (0, 1))
    assert any(not torch.equal(first[name], second[name]) for name in first)
