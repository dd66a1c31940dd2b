"""The learning rates and the weight decay of published recipes, by values worked out by hand."""

import math
import re
from pathlib import Path

import pytest
import torch
import yaml

from sla.errors import InputError
from sla.factory import create
from sla.methods import SLA
from sla.runs.config import OptimizerConfig, read_config, write_config
from sla.runs.optimizer import build_optimizer
from sla.runs.schedules import rate_factor
from sla.tasks.registry import make_config

PAGE = Path(__file__).resolve().parents[2] / "docs" / "training.md"


def published(name):
    """The keys that the page gives for a recipe."""
    row = re.search(rf"^\| {name}.*?`(.*)` \|$", PAGE.read_text(encoding="utf-8"), re.M)
    return OptimizerConfig(**yaml.safe_load("{" + row[1] + "}"))


def test_fast_autoaugment():
    """Linear from 0 over 5 epochs, then half a cosine that would take 200; rates change every step."""
    config, epoch = published("Fast AutoAugment"), 390
    steps = 200 * epoch

    def at(epochs):
        return rate_factor(config, round(epochs * epoch), steps)

    assert [at(0), at(1), at(2.5), at(5)] == pytest.approx([0.0, 0.2, 0.5, 1.0])
    assert rate_factor(config, 1, steps) == pytest.approx(1 / 1950)
    assert at(55) == pytest.approx(0.5 + math.sqrt(0.5) / 2)  # a quarter of the cosine
    assert at(105) == pytest.approx(0.5)
    assert at(155) == pytest.approx(0.5 - math.sqrt(0.5) / 2)
    assert at(200) == pytest.approx(0.0015413, rel=1e-4)  # (1 + cos(175.5 degrees)) / 2
    assert rate_factor(config, steps - 1, steps) > at(200)
    assert (config.clip, config.weight_decay, config.nesterov) == (5, 2e-4, True)


def test_a_short_cosine_stays_at_its_end():
    config = OptimizerConfig(schedule="cosine", cosine_length=0.5, warmup=0.1)
    rates = [rate_factor(config, step, 100) for step in range(100)]
    assert rates[35] == pytest.approx(0.5)
    assert rates[60:] == pytest.approx([0.0] * 40)


@pytest.mark.parametrize("steps", [200 * 97, math.ceil(200 * 12406 / 128), 400, 19361])
def test_long_tail(steps):
    """lr * e / 5 in epochs e = 1 to 5, then 1; 0.01 after epoch 160, 0.0001 after 180."""
    config = published("LDAM")
    for step in range(steps):
        epoch = step * 200 // steps + 1
        later = 1.0 if epoch <= 160 else 0.01 if epoch <= 180 else 0.0001
        expected = epoch / 5 if epoch <= 5 else later
        assert rate_factor(config, step, steps) == pytest.approx(expected), step
    assert not config.nesterov


def test_few_shot():
    config, steps = published("MetaOptNet"), 60 * 1000
    expected = {0: 1.0, 19: 1.0, 20: 0.06, 39: 0.06, 40: 0.012, 49: 0.012, 50: 0.0024, 59: 0.0024}
    for epoch, factor in expected.items():
        assert rate_factor(config, epoch * 1000, steps) == factor
        assert rate_factor(config, epoch * 1000 + 999, steps) == factor


@pytest.mark.parametrize(("milestones", "steps", "changes"), [
    ((1 / 3, 2 / 3), 900_000, (300_000, 600_000)),  # ImageNet
    ((1 / 3, 2 / 3), 300_000, (100_000, 200_000)),  # iNaturalist
    ((0.5, 0.75), 80_000, (40_000, 60_000)),  # CIFAR
    ((0.1, 0.7), 30, (3, 21)),  # 0.1 * 30 and 0.7 * 30 are not whole in floating point
])  # fmt: skip
def test_milestones_to_the_step(milestones, steps, changes):
    config = OptimizerConfig(schedule="multistep", milestones=milestones)
    for count, change in enumerate(changes):
        assert rate_factor(config, change - 1, steps) == pytest.approx(0.1**count)
        assert rate_factor(config, change, steps) == pytest.approx(0.1 ** (count + 1))


def test_factors_are_checked_and_written(tmp_path):
    for factors in ([0.1], [0.1, 0.2, 0.3], [0.1, -0.1], []):
        with pytest.raises(
            InputError, match=r"optimizer: factors must be one number from 0 for each of the 2 mile"
        ):
            make_config({"optimizer": {"factors": factors}})
    config = make_config({"optimizer": {"factors": [0.5, 2], "warmup_stairs": 3}})
    (tmp_path / "config.yaml").write_text(write_config(config))
    assert make_config(read_config(tmp_path / "config.yaml")) == config


@pytest.mark.parametrize("norms", [True, False])
@pytest.mark.parametrize("biases", [True, False])
def test_what_decays(norms, biases):
    """After a step without gradients only what decays has moved, and by the rate times the decay."""
    model = create("wrn10_1", 3, SLA(distill=True), variant="fast-autoaugment")
    for parameter in model.parameters():
        torch.nn.init.ones_(parameter)
        parameter.grad = torch.zeros_like(parameter)
    tree = {"learning_rate": 0.5, "weight_decay": 0.1, "decay_norms": norms, "decay_biases": biases}
    build_optimizer(
        make_config({"optimizer": {**tree, "name": "sgd", "momentum": 0}}).optimizer, model
    ).step()
    for name, parameter in model.named_parameters():
        decays = norms if ".bn" in name else biases or name.endswith("weight")
        expected = 0.95 if decays else 1.0
        assert torch.equal(parameter, torch.full_like(parameter, expected)), name


def test_every_parameter_is_in_one_group():
    model = create("resnet8", 3, SLA(distill=True))
    tree = {"name": "sgd", "learning_rate": 0.1, "weight_decay": 0.1, "decay_norms": False}
    optimizer = build_optimizer(make_config({"optimizer": tree}).optimizer, model)
    found = [id(value) for group in optimizer.param_groups for value in group["params"]]
    assert sorted(found) == sorted(id(value) for value in model.parameters())
    assert {group["weight_decay"] for group in optimizer.param_groups} == {0.0, 0.1}
