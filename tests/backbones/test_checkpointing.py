"""Checkpoints change memory and nothing else: gradients and statistics against a network without them."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from sla.backbones import create_backbone
from sla.backbones.checkpointing import run_blocks

NETWORKS = [
    ("resnet8", {}),
    ("resnet18", {"stem": "small"}),
    ("wrn10_1", {"dropout": 0.3}),
    ("pyramidnet20_48", {}),
    ("pyramidnet11_9", {"bottleneck": True}),
    ("resnet12", {"width": 0.125, "drop_rate": 0.3, "ramp_steps": 1}),
]


def pair(name, options):
    """The same network with checkpoints and without."""
    torch.manual_seed(0)
    checkpointed = create_backbone(name, checkpointing=True, **options)
    plain = create_backbone(name, **options)
    for key, value in checkpointed.named_buffers():
        if key.endswith("steps"):
            value.fill_(5)  # DropBlock at its full rate
    plain.load_state_dict(checkpointed.state_dict())
    return checkpointed, plain


def learn(module, owner, passes=1):
    """Gradients and buffers after forward passes with dropout from one seed, and one backward pass."""
    torch.manual_seed(1)
    loss = sum(module(torch.randn(4, 3, 16, 16)).square().sum() for _ in range(passes))
    loss.backward()
    gradients = {key: value.grad for key, value in owner.named_parameters()}
    return {"loss": loss.detach()} | gradients | dict(owner.named_buffers())


def same(found, expected):
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, rtol=0, atol=0, msg=key)


@pytest.mark.parametrize(("name", "options"), NETWORKS, ids=[name for name, _ in NETWORKS])
@pytest.mark.parametrize("passes", [1, 2])
def test_gradients_and_statistics_are_the_same(name, options, passes):
    """Also where a block goes forward twice before it goes backward, as support and query images do."""
    checkpointed, plain = pair(name, options)
    same(learn(checkpointed, checkpointed, passes), learn(plain, plain, passes))
    counts = [v for k, v in checkpointed.named_buffers() if k.endswith("num_batches_tracked")]
    assert {int(count) for count in counts} == {passes}


@pytest.mark.parametrize("kind", ["no numbers", "frozen"])
def test_statistics_of_another_kind(kind):
    """What batch norm knew before does not enter a training step; in evaluation inside a block it stays."""
    checkpointed, plain = pair("resnet8", {})
    for module in (*checkpointed.modules(), *plain.modules()):
        if isinstance(module, nn.BatchNorm2d):
            module.eval() if kind == "frozen" else module.running_mean.fill_(float("inf"))
    before = {key: value.clone() for key, value in plain.named_buffers()}
    found, expected = learn(checkpointed, checkpointed), learn(plain, plain)
    same(found, expected)
    assert found["conv1.weight"].isfinite().all()
    assert kind != "frozen" or all(torch.equal(found[key], value) for key, value in before.items())


def test_only_the_inputs_of_blocks_are_kept():
    """Numbers that wait for the backward pass, counted as autograd puts them away."""

    def kept(module):
        sizes = {}

        def pack(tensor):
            sizes[tensor.data_ptr()] = tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            output = module(images)
        del output
        return sum(sizes.values())

    images = torch.randn(16, 3, 32, 32)
    checkpointed, plain = pair("pyramidnet29_30", {"bottleneck": True})
    weights = sum(value.numel() for value in plain.parameters())
    assert kept(checkpointed) < kept(plain) / 3
    assert weights < kept(plain) / 3  # so that it is the maps that were counted


class Counting(nn.Module):
    """Counts how often it runs."""

    def __init__(self):
        super().__init__()
        self.layer, self.runs = nn.Linear(3, 3), 0

    def forward(self, input):
        self.runs += 1
        return self.layer(input).relu()


def test_computed_again_only_where_there_is_a_backward_pass():
    blocks = nn.ModuleList([Counting(), Counting()])
    input = torch.randn(2, 3)
    run_blocks(blocks, input, checkpointing=True).sum().backward()
    assert [block.runs for block in blocks] == [2, 2]
    with torch.no_grad():
        run_blocks(blocks, input, checkpointing=True)
    run_blocks(blocks.eval(), input, checkpointing=True).sum().backward()
    assert [block.runs for block in blocks] == [4, 4]
    run_blocks(blocks.train(), input, checkpointing=False).sum().backward()
    assert [block.runs for block in blocks] == [5, 5]


@pytest.fixture
def group_of_one(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_inside_ddp(group_of_one):
    checkpointed, plain = pair("wrn10_1", {"dropout": 0.3})
    wrapped = nn.parallel.DistributedDataParallel(checkpointed)
    same(learn(wrapped, checkpointed, passes=1), learn(plain, plain, passes=1))


def test_mixed_precision():
    checkpointed, plain = pair("wrn10_1", {"dropout": 0.3})
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, expected = learn(checkpointed, checkpointed), learn(plain, plain)
    same(found, expected)


@pytest.mark.parametrize("name", ["wrn10_1", pytest.param("resnet12", marks=pytest.mark.slow)])
def test_one_graph_for_the_compiler(name):
    """The compiler's own checkpoints, with the eager kernels: the same numbers, statistics counted once."""
    checkpointed, plain = pair(*next(pair for pair in NETWORKS if pair[0] == name))
    traced = torch.compile(checkpointed, backend="aot_eager", fullgraph=True)
    same(learn(traced, checkpointed), learn(plain, plain))


@pytest.mark.slow
def test_compiled():
    checkpointed, plain = pair("wrn10_1", {})
    found, expected = learn(torch.compile(checkpointed), checkpointed), learn(plain, plain)
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, rtol=1e-3, atol=1e-3, msg=key)
