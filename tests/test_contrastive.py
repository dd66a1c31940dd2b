"""NT-Xent against a double loop, its limits, and two processes against one."""

import math
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

import sla
from refusals import refused
from sla.contrastive import contrast_logits
from sla.runs.distributed import Group


def by_hand(embeddings, temperature):
    """Row by row; rows 2i and 2i + 1 are views of image i."""
    rows, total = list(embeddings.unbind()), 0.0
    for i, own in enumerate(rows):
        similar = []
        for k, other in enumerate(rows):
            if k == i:
                continue
            cosine = (own * other).sum() / (own.square().sum().sqrt() * other.square().sum().sqrt())
            similar.append((k, (cosine / temperature).exp()))
        pair = i + 1 if i % 2 == 0 else i - 1
        total = total - (dict(similar)[pair] / sum(value for _, value in similar)).log()
    return total / len(rows)


def rows(images, width=5, seed=0):
    return torch.randn(2 * images, width, generator=torch.Generator().manual_seed(seed))


@given(st.integers(2, 4), st.integers(1, 8), st.sampled_from([0.1, 0.5, 1.0, 3.0]), st.integers(0, 10**6))
def test_it_is_a_double_loop_over_rows(images, width, temperature, seed):
    ours, theirs = (rows(images, width, seed).requires_grad_() for _ in range(2))
    loss, expected = sla.nt_xent_loss(ours, temperature), by_hand(theirs, temperature)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5, abs=1e-5)
    loss.backward()
    expected.backward()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("images", [2, 7])
def test_limits_of_the_temperature(images):
    """Hot: all rows but the own one are as likely. Cold: the nearest row decides, by its distance over T."""
    embeddings = rows(images)
    assert sla.nt_xent_loss(embeddings, 1e6).item() == pytest.approx(math.log(2 * images - 1), rel=1e-4)
    cosines = F.normalize(embeddings, dim=1) @ F.normalize(embeddings, dim=1).T
    places = torch.arange(2 * images)
    nearest = cosines.clone().fill_diagonal_(-2).amax(1)
    cold = (nearest - cosines[places, places ^ 1]).mean().item()
    assert sla.nt_xent_loss(embeddings, 1e-4).item() * 1e-4 == pytest.approx(cold, rel=1e-3)
    # Pairs alike and orthogonal to the others: 0 when cold, log(1 + (2n - 2) / e) at T = 1.
    alike = torch.eye(images).repeat_interleave(2, 0)
    assert sla.nt_xent_loss(alike, 1e-3).item() == pytest.approx(0, abs=1e-6)
    assert sla.nt_xent_loss(alike, 1.0).item() == pytest.approx(math.log(1 + (2 * images - 2) / math.e))


def test_length_of_an_embedding_and_order_of_images_do_not_matter():
    embeddings = rows(4)
    loss = sla.nt_xent_loss(embeddings).item()
    assert sla.nt_xent_loss(embeddings * torch.rand(8, 1).add(0.1)).item() == pytest.approx(loss, rel=1e-5)
    assert sla.nt_xent_loss(embeddings.flip(0)).item() == pytest.approx(loss, rel=1e-5)
    assert sla.nt_xent_loss(embeddings.roll(1, 0)).item() != pytest.approx(loss, rel=1e-2)  # other pairs


def test_a_part_of_the_rows_against_all_is_a_part_of_the_loss():
    embeddings = rows(6)
    parts = [
        sla.nt_xent_loss(embeddings[start : start + 4], 0.5, embeddings, start).item() for start in (0, 4, 8)
    ]
    assert sum(parts) / 3 == pytest.approx(sla.nt_xent_loss(embeddings).item(), rel=1e-6)
    _, target = contrast_logits(embeddings[4:8], 0.5, embeddings, 4)
    assert target.tolist() == [5, 4, 7, 6]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((rows(1),), "it needs at least two, not 1"),
        ((rows(2)[:3],), "must be (2B, D), two views of each image, not (3, 5)"),
        ((rows(2)[0],), "must be (2B, D), two views of each image, not (5,)"),
        ((rows(2), 0.0), "temperature must be a number above 0, not 0.0"),
        ((rows(2), math.nan), "temperature must be a number above 0, not nan"),
        ((rows(2), 0.5, rows(3), 4), "4 rows from row 4 on are not among all 6"),
    ],
)
def test_what_cannot_be_is_refused(arguments, words):
    refused(words, sla.nt_xent_loss, *arguments)


def test_half_precision_does_not_lose_the_loss():
    embeddings = rows(64, 32) * 100
    whole = sla.nt_xent_loss(embeddings.bfloat16().float(), 0.1).item()
    with torch.autocast("cpu", torch.bfloat16):  # the product of similarities too
        assert sla.nt_xent_loss(embeddings.bfloat16(), 0.1).item() == pytest.approx(whole, rel=1e-6)


NET = """
import torch
import sla
from sla.runs.distributed import Group

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4))
    def forward(self, rows, group):
        found = self.layers(rows)
        return sla.nt_xent_loss(found, 0.5, group.gather(found), group.rank * len(found))

torch.manual_seed(0)
net, rows = Net(), torch.randn(12, 6)
"""
TWO = """
import sys
import torch.distributed as dist
from safetensors.torch import save_file

rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
wrapped = torch.nn.parallel.DistributedDataParallel(net)
loss = wrapped(rows[6 * rank : 6 * rank + 6], Group(rank, 2))
loss.backward()
save_file({"loss": loss.detach()} | {n: p.grad for n, p in net.named_parameters()}, f"{folder}/{rank}.st")
dist.barrier()
dist.destroy_process_group()
"""


def test_two_processes_have_the_loss_and_the_gradients_of_one(tmp_path):
    """Every process contrasts its images with those of both; gradients cross the processes."""
    words = [sys.executable, "-c", NET + TWO]
    started = [subprocess.Popen([*words, str(rank), str(tmp_path)]) for rank in (0, 1)]
    names = {}
    with torch.random.fork_rng(devices=[]):
        exec(NET, names)
    alone = names["net"](names["rows"], Group())
    alone.backward()
    assert [process.wait(timeout=120) for process in started] == [0, 0]
    found = [load_file(tmp_path / f"{rank}.st") for rank in (0, 1)]
    assert alone.item() == pytest.approx(sum(part["loss"].item() for part in found) / 2, rel=1e-6)
    for name, parameter in names["net"].named_parameters():
        assert parameter.grad.abs().max() > 1e-3
        for part in found:
            torch.testing.assert_close(part[name], parameter.grad)
