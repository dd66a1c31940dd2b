"""Two processes: the model itself is wrapped, and its gradients are those of one process."""

import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

import sla

MODEL = """
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Tanh(), torch.nn.Flatten())
model = sla.Classifier(net, 5, sla.SLA(sla.Rotation(), distill=True), num_features=8 * 16)
images, targets = torch.randn(8, 3, 6, 6), torch.randint(5, (8,))
"""
SCRIPT = f"""
import sys, warnings
import torch, torch.distributed as dist
from safetensors.torch import save_file
import sla
{MODEL}
rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{{folder}}/store", rank=rank, world_size=2)
images, targets = images[4 * rank : 4 * rank + 4], targets[4 * rank : 4 * rank + 4]
ddp = torch.nn.parallel.DistributedDataParallel(model)
for way, losses in {{"wrapped": ddp, "bypassed": model.losses}}.items():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            model.zero_grad()
            losses(images, targets)["loss"].backward()
    print(way, sum("bypasses DistributedDataParallel" in str(one.message) for one in caught))
    save_file({{n: p.grad for n, p in model.named_parameters()}}, f"{{folder}}/{{way}}-{{rank}}")
dist.barrier()
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def gradients(tmp_path_factory):
    """{way: those of both processes}; bypassing DDP, and nothing else, was warned of, once."""
    folder, pipe = tmp_path_factory.mktemp("ddp"), subprocess.PIPE
    words = [[sys.executable, "-c", SCRIPT, rank, str(folder)] for rank in "01"]
    processes = [subprocess.Popen(one, stdout=pipe, stderr=pipe, text=True) for one in words]
    output = [process.communicate(timeout=120) for process in processes]
    assert [said for said, _ in output] == ["wrapped 0\nbypassed 1\n"] * 2, output
    return {way: [load_file(folder / f"{way}-{rank}") for rank in (0, 1)] for way in ("wrapped", "bypassed")}


def test_gradients_of_two_processes_are_those_of_one(gradients):
    alone = {"torch": torch, "sla": sla}
    exec(MODEL, alone)
    alone["model"](alone["images"], alone["targets"])["loss"].backward()
    expected = {name: value.grad for name, value in alone["model"].named_parameters()}
    for found in gradients["wrapped"]:
        torch.testing.assert_close(found, expected)


def test_losses_outside_forward_are_not_synchronised(gradients):
    first, second = gradients["bypassed"]
    assert any(not torch.equal(first[name], second[name]) for name in first)
