import pytest
import torch

from refusals import refused
from sla.runs.config import (
    OTHER_NAMES,
    OptimizerConfig,
    differing_keys,
    keys,
    parse_assignment,
    read_config,
    write_config,
)
from sla.runs.schedules import rate_factor
from sla.tasks.classifier.config import ClassifierConfig
from sla.tasks.registry import make_config, with_values


def test_a_written_configuration_comes_back_the_same(tmp_path):
    config = make_config(
        {"data": {"source": "phötos"}, "model": {"mean": [0.1, 0.2, 0.3]}, "optimizer": {"milestones": [0.3]}}
    )
    (tmp_path / "config.yaml").write_text(write_config(config), encoding="utf-8")
    assert make_config(read_config(tmp_path / "config.yaml")) == config


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ({"run": {"sede": 1}}, "unknown key 'run.sede', did you mean 'run.seed'?"),
        ({"runn": {}}, "unknown key 'runn'"),
        ({"optimizer": {"lr": 1}}, "unknown key 'optimizer.lr', did you mean 'optimizer.learning_rate'?"),
        ({"lr": 1}, "unknown key 'lr', did you mean 'optimizer.learning_rate'?"),
        ({"optimizer": {"wd": 1}}, "did you mean 'optimizer.weight_decay'?"),
        ({"epochs": 1}, "unknown key 'epochs', did you mean 'run.epochs'?"),
        ({"data": {"batch_size": 8}}, "did you mean 'run.batch_size'?"),
        ({"run": {"seed": -1}}, "run.seed: "),
        ({"run": {"seed": "x"}}, "not 'x'"),
        ({"method": {"name": "slaa"}}, "method.name: "),
        ({"optimizer": {"learning_rate": float("nan")}}, "optimizer.learning_rate"),
        ({"run": 3}, "run: "),
        ({"run": {"seed": True}}, "run.seed: must be a number, not true"),
        ({"run": {"iterations": True}}, "run.iterations: must be a number, not true"),
        ({"optimizer": {"ema": False}}, "optimizer.ema: must be a number, not false"),
        ({"task": "fewshot", "episodes": {"way": True}}, "episodes.way: must be a number, not true"),
        (
            {"optimizer": {"milestones": [0.8, 0.5]}},
            "rising fractions of the run, from 0 to 1, not (0.8",
        ),
        ({"optimizer": {"milestones": [0.5, 0.5]}}, "rising fractions"),
        ({"optimizer": {"milestones": [30, 60]}}, "rising fractions"),
        ({"optimizer": {"milestones": [-0.1, 0.5]}}, "rising fractions"),
        ({"run": {"epochs": 1e300}}, "run.epochs: .* less than or equal to 1000000, not 1e.300"),
        ({"run": {"minutes": 1e300}}, "run.minutes: .* less than or equal to 1000000, not 1e.300"),
        ({"run": {"iterations": 10**30}}, "run.iterations: .* less than or equal to 99999999"),
        ({"task": "fewshot", "run": {"iterations": 10**8}}, "run.iterations: .* 99999999"),
        ({"task": "simclr", "run": {"epochs": 1e300}}, "run.epochs: .* 1000000"),
        ({"data": {"stored_size": 99999}}, "data.stored_size: .* less than or equal to 8192, not 99999"),
        ({"model": {"resolution": 99999}}, "model.resolution: .* less than or equal to 8192, not 99999"),
    ],
)
def test_a_wrong_key_or_value_is_named(tree, words):
    refused(words, make_config, tree)


def test_other_names_stand_for_keys_that_are_there_and_for_none_that_is():
    ends = {key.rpartition(".")[2] for key in keys(ClassifierConfig)}
    assert set(OTHER_NAMES.values()) <= set(keys(ClassifierConfig))
    assert not set(OTHER_NAMES) & ends


def test_assignments_set_any_key():
    tree = with_values(
        {}, dict(map(parse_assignment, ["run.seed=3", "augment=crop(4), flip", "run.compile=false"]))
    )
    config = make_config(tree)
    assert (config.run.seed, config.augment, config.run.compile) == (3, "crop(4), flip", False)
    refused("did you mean 'run.seed'", with_values, {}, {"run.sed": 1})
    refused("key=value", parse_assignment, "run.seed")
    assert "optimizer.learning_rate" in keys(ClassifierConfig)


def test_differences_are_told_by_key():
    other = make_config({"run": {"seed": 1}, "method": {"views": "rot2"}})
    assert differing_keys(ClassifierConfig(), other) == [
        "method.views: 'rot4' is not 'rot2'",
        "run.seed: 0 is not 1",
    ]


TWICE = "c.yaml: not a configuration: the key {} is there twice, in lines {} and {}"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        *((text, "c.yaml: not a configuration") for text in ("- a\n- b", "a: [", "\0", "")),
        ("run:\n  seed: 1\n  seed: 2\n", TWICE.format("'seed'", 2, 3)),
        ("run: {seed: 1, seed: 1}\n", TWICE.format("'seed'", 1, 1)),
        ("run: {}\ndata: {}\nrun: {}\n", TWICE.format("'run'", 1, 3)),
    ],
)
def test_a_file_that_is_no_configuration_is_refused(tmp_path, text, words):
    (tmp_path / "c.yaml").write_text(text)
    refused(words, read_config, tmp_path / "c.yaml")


def torch_rates(schedule, steps):
    optimizer = schedule.optimizer
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return rates


@pytest.mark.parametrize("steps", [10, 97])
def test_schedules_are_torchs(steps):
    def optimizer():
        return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], 1.0)

    def ours(**values):
        config = OptimizerConfig(**values)
        return [rate_factor(config, step, steps) for step in range(steps)]

    scheduler = torch.optim.lr_scheduler
    cosine = torch_rates(scheduler.CosineAnnealingLR(optimizer(), steps), steps)
    assert ours(schedule="cosine") == pytest.approx(cosine)
    import math

    stones = [math.ceil(0.5 * steps), math.ceil(0.75 * steps)]
    multistep = torch_rates(scheduler.MultiStepLR(optimizer(), stones, 0.1), steps)
    assert ours(schedule="multistep") == pytest.approx(multistep)
    onecycle = torch_rates(scheduler.OneCycleLR(optimizer(), 1.0, total_steps=steps), steps)
    assert ours(schedule="onecycle") == pytest.approx(onecycle, abs=1e-6)
    assert ours(schedule="constant") == [1.0] * steps


def test_warm_up_rises_to_the_schedule():
    config = OptimizerConfig(schedule="constant", warmup=0.1)
    rates = [rate_factor(config, step, 50) for step in range(50)]
    assert rates[:6] == pytest.approx([0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert set(rates[5:]) == {1.0}
