"""Every paper-scale recipe, built and run for a step, against numbers written down by hand.

The numbers below come from the paper and from the papers it follows, not from the recipes.
"""

import math
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch

from sla.augment.ops import CenterCrop, CenterWindow, Flip, Normalize, RandomCrop, RandomResizedCrop
from sla.backbones.cost import count_flops, count_parameters
from sla.recipes.load import config_settings, recipe_settings
from sla.reproduce.costs import cost, cost_of, flop_of, images_of, runs_of
from sla.reproduce.jobs import cell_settings
from sla.reproduce.names import PAPER
from sla.reproduce.paper import experiments
from sla.runs.optimizer import build_optimizer
from sla.runs.preprocessing import build_pipelines
from sla.runs.schedules import rate_factor
from sla.sampling.draws import Draws
from sla.tasks.classifier.build import build_model
from sla.tasks.registry import make_config, with_values
from sla.views import parse_views

HALVES = (0.5, 0.5, 0.5)
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
WRN = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
PYRAMID = tuple(v / 255 for v in (125.3, 123.0, 113.9)), tuple(v / 255 for v in (63.0, 62.1, 66.7))
SMALL_CROP = [RandomCrop(32, 4), Flip(0.5)]
LARGE_CROP = [RandomResizedCrop(224, (0.08, 1.0), (3 / 4, 4 / 3)), Flip(0.5)]


@dataclass(frozen=True)
class Facts:
    """What a recipe must be."""

    classes: int
    features: int
    parameters: int  # of the baseline, head included
    mega_multiply_adds: float  # of the backbone, one image
    rates: dict[int, float]  # learning rate at iterations, counted from 0
    iterations: int
    batch: int = 128
    size: int = 32
    mean_std: tuple[tuple[float, ...], tuple[float, ...]] = (HALVES, HALVES)
    augment: list[Any] = field(default_factory=lambda: SMALL_CROP)
    stages: tuple[str, ...] = ("crop", "flip", "normalize")
    weight_decay: float = 1e-4
    decay_norms: bool = True
    nesterov: bool = False
    clip: float | None = None
    hold_out: float = 0.1
    sampling: str = "random"  # a fresh sample for every batch


def falls(first, second, last, top=0.1, by=0.1):
    """The rate before and at each milestone, and at the end."""
    steps = (0, first - 1, first, second - 1, second, last)
    return dict(zip(steps, (top, top, top * by, top * by, top * by**2, top * by**2), strict=True))


CIFAR = Facts(10, 64, 464_154, 68.9, falls(40_000, 60_000, 79_999), 80_000)
BIRDS = Facts(200, 512, 11_176_512 + 200 * 513, 1813.6, falls(15_000, 22_500, 29_999), 30_000, batch=32)
BIRDS = replace(BIRDS, size=224, mean_std=IMAGENET, augment=LARGE_CROP, hold_out=0.0)
LARGE = replace(BIRDS, classes=1000, features=2048, parameters=25_557_032, batch=128)
LARGE = replace(LARGE, mega_multiply_adds=4087.1)
# Convolutions with biases: 16, then 13 of each width (two in each of six blocks, one shortcut). 200 epochs of
# 390.625 steps; the cosine has a period of 200 epochs and begins after 5 of warm-up.
# The stride on the second convolution: two first ones see a map four times as large.
MORE = (32 * 64 * 9 * (1024 - 256) + 64 * 128 * 9 * (256 - 64)) / 1e6
LATE = {1954: 0.1, 41_016: 0.05, 78_124: 0.1 * (1 + math.cos(math.pi * 195 / 200)) / 2}
WIDE = Facts(10, 128, 2_243_546 + 16 + 13 * (32 + 64 + 128), 327.4 + MORE, LATE, 78_125, mean_std=WRN)
WIDE = replace(
    WIDE, hold_out=0.0, weight_decay=2e-4, decay_norms=False, nesterov=True, clip=5.0, sampling="epochs"
)
# As published, to two digits of a million; the operations are counted by hand below. 300 epochs of 781.25
# steps; the rate falls at 150 and 225.
DEEP = Facts(10, 1024, 26_750_000, 0, falls(117_188, 175_782, 234_374, top=0.25), 234_375, batch=64)
DEEP = replace(DEEP, mean_std=PYRAMID, nesterov=True, hold_out=0.0, sampling="epochs")
POLICY = ("policy", "crop", "flip", "normalize", "cutout")


def tail(classes, images, parameters):
    """200 epochs: by epoch e/5 of the rate for e = 1..5, 0.01 of it after 160, 0.0001 of it after 180."""
    steps = math.ceil(200 * images / 128)
    middle = {math.floor((e - 0.5) * steps / 200): 0.1 * min(e / 5, 1) for e in (1, 2, 5, 6, 160)}
    late = {math.floor(160.5 * steps / 200): 1e-3, math.floor(180.5 * steps / 200): 1e-5, steps - 1: 1e-5}
    about = {"mean_std": WRN, "weight_decay": 2e-4, "sampling": "epochs", "rates": middle | late}
    return replace(CIFAR, classes=classes, parameters=parameters, iterations=steps, **about)


HUNDRED = replace(CIFAR, classes=100, parameters=464_154 + 90 * 65)
FACTS: dict[str, Facts] = {
    "cifar10": CIFAR,
    "cifar100": HUNDRED,
    **{f"cifar100_n{n}": HUNDRED for n in (25, 50, 100, 250)},
    # ResNet-18 as everybody takes it on CIFAR: a 3x3 stem instead of 7x7, and no pooling behind it.
    "cifar10_resnet18": replace(CIFAR, features=512, parameters=11_173_962, mega_multiply_adds=555.4),
    "cub200": BIRDS,
    "mit67": replace(BIRDS, classes=67, parameters=11_176_512 + 67 * 513),
    "stanford-dogs": replace(BIRDS, classes=120, parameters=11_176_512 + 120 * 513),
    "tiny-imagenet": replace(BIRDS, rates=CIFAR.rates, iterations=80_000, batch=128),
    "imagenet": replace(LARGE, rates=falls(450_000, 675_000, 899_999), iterations=900_000),
    "inaturalist2018": replace(
        LARGE,
        classes=8142,
        parameters=23_508_032 + 8142 * 2049,
        rates=falls(150_000, 225_000, 299_999),
        iterations=300_000,
    ),
    "cifar10_wrn": WIDE,
    "cifar10_wrn_cutout": replace(WIDE, stages=POLICY[1:]),
    "cifar10_wrn_autoaugment": replace(WIDE, stages=POLICY),
    "cifar10_wrn_fastautoaugment": replace(WIDE, stages=POLICY),
    "cifar10_wrn_own": replace(WIDE, stages=POLICY),
    "cifar10_pyramid": DEEP,
    "cifar10_pyramid_mixup": DEEP,
    "cifar10_pyramid_cutmix": DEEP,
    "cifar10_longtail100": tail(10, 12_406, 464_154),
    "cifar10_longtail10": tail(10, 20_431, 464_154),
    "cifar100_longtail100": tail(100, 10_847, 464_154 + 90 * 65),
    "cifar100_longtail10": tail(100, 19_573, 464_154 + 90 * 65),
}
FACTS |= {
    name.replace("cifar10_", "cifar100_"): replace(facts, classes=100, parameters=facts.parameters + 90 * 129)
    for name, facts in FACTS.items()
    if "_wrn" in name
}
FACTS |= {
    name.replace("cifar10_", "cifar100_"): replace(facts, classes=100, parameters=26_840_000)
    for name, facts in FACTS.items()
    if "_pyramid" in name
}


def cells():
    """Every distinct run at paper scale with its recipe, but those of few-shot learning and the toy."""
    found = {}
    for table in (experiments()[name] for name in PAPER):
        for row in table.rows.values():
            for column in row.columns or table.columns:
                if row.kind in ("toy", "not-run", "fewshot"):
                    continue
                name = table.columns[column].recipe + row.suffix
                settings = cell_settings(row, table.columns[column], "paper")
                method, views = settings["method.name"], settings["method.views"]
                parts = [name, method, "" if method == "baseline" else views]
                parts.append(settings.get("method.imbalance", ""))
                found[" ".join(part for part in parts if part)] = (name, settings)
    return found


CELLS = cells()


def config_of(settings):
    return make_config(with_values({}, config_settings(settings)))


def test_facts_cover_every_recipe():
    assert {name for name, _ in CELLS.values()} == set(FACTS)


@pytest.mark.parametrize("name", FACTS)
def test_schedule_batch_and_optimizer(name):
    facts, settings = FACTS[name], recipe_settings(name)
    config = config_of(settings)
    part = config.optimizer
    assert (part.name, part.learning_rate) == ("sgd", max(facts.rates.values()))
    assert (part.momentum, part.nesterov, part.weight_decay) == (0.9, facts.nesterov, facts.weight_decay)
    assert part.clip == facts.clip
    assert config.run.batch_size == facts.batch
    assert images_of(settings) == facts.iterations * facts.batch
    rates = {step: part.learning_rate * rate_factor(part, step, facts.iterations) for step in facts.rates}
    assert rates == pytest.approx(facts.rates, rel=2e-3)
    assert (config.data.hold_out, config.data.sampling) == (facts.hold_out, facts.sampling)
    assert config.model.weights == "none"


@pytest.mark.parametrize("name", FACTS)
def test_pipelines(name):
    """Order, sizes and normalisation; what the network sees in test is what it saw in training."""
    facts = FACTS[name]
    train, test = build_pipelines(config_of(recipe_settings(name)))
    ops = [op for op in train.ops if type(op).__name__ != "Channels"]
    stages = [op.stage for op in ops]
    assert tuple(dict.fromkeys(stages)) == facts.stages
    assert [op for op in ops if op.stage in ("crop", "flip")] == facts.augment
    assert [op for op in ops if op.stage == "normalize"] == [Normalize(*facts.mean_std)]
    middle = CenterCrop(224, 224 / 256) if facts.size == 224 else CenterWindow(32)
    assert [op for op in test.ops if op.stage == "crop"] == [middle]
    pixels = torch.arange(3 * facts.size**2).reshape(1, 3, facts.size, facts.size).remainder(251).byte()
    draws = Draws(0, 0, 1)
    assert train(pixels, draws, torch.ones(1)).shape == (1, 3, facts.size, facts.size)
    if facts.size == 32:
        mean, std = (torch.tensor(values)[:, None, None] for values in facts.mean_std)
        assert torch.allclose(test(pixels, draws, torch.ones(1)), (pixels / 255 - mean) / std, atol=1e-6)


def pyramid_multiply_adds():
    """22 bottlenecks a stage; the width before the last 1x1 grows by 240 / 66 a block and is rounded."""
    total, channels, width, size = 3 * 16 * 9 * 32**2, 16, 16.0, 32
    for block in range(66):
        width += 240 / 66
        inner, before = round(width), size
        if block in (22, 44):
            size //= 2
        total += channels * inner * before**2 + inner**2 * 9 * size**2 + inner * 4 * inner * size**2
        channels = 4 * inner
    return total


def slow_if(name):
    """PyramidNet-200 takes seconds to count: one of its recipes is enough for every day."""
    return pytest.mark.slow if "_pyramid" in name and name != "cifar100_pyramid_cutmix" else ()


@pytest.mark.parametrize("name", [pytest.param(name, marks=slow_if(name)) for name in FACTS])
def test_network(name):
    """Parameters and operations are the published ones."""
    facts, settings = FACTS[name], recipe_settings(name)
    config = config_of(settings)
    with torch.device("meta"):  # shapes are enough to count
        model = build(config, facts)
    norm = next(part.weight for part in model.modules() if isinstance(part, torch.nn.BatchNorm2d))
    groups = build_optimizer(config.optimizer, model).param_groups
    (decay,) = [one["weight_decay"] for one in groups if any(value is norm for value in one["params"])]
    assert decay == (facts.weight_decay if facts.decay_norms else 0.0)
    assert model.backbone.num_features == facts.features or "_pyramid" in name
    if "_pyramid" in name:
        assert round(count_parameters(model) / 1e6, 2) == facts.parameters / 1e6
        expected = pyramid_multiply_adds() / 1e6
    else:
        assert count_parameters(model) == facts.parameters
        expected = facts.mega_multiply_adds
    flops = count_flops(model.backbone, (3, facts.size, facts.size))
    assert flops / 2e6 == pytest.approx(expected, rel=1e-3)
    assert flop_of(settings) == 3 * flops * facts.iterations * facts.batch


def build(config, facts):
    classes = tuple(str(number) for number in range(facts.classes))
    return build_model(config, classes, list(range(100 + facts.classes, 100, -1)))


@pytest.mark.parametrize("cell", [pytest.param(cell, marks=slow_if(cell)) for cell in CELLS])
def test_heads(cell):
    """Labels of every head; with `test_network` and the runs at smoke scale it is all of a cell."""
    name, settings = CELLS[cell]
    facts, config = FACTS[name], config_of(settings)
    with torch.device("cpu" if config.method.imbalance != "none" else "meta"):
        model = build(config, facts)
    method, classes, count = config.method.name, facts.classes, len(parse_views(config.method.views))
    joint = {classes * count}
    expected = {"mt": {classes, count}, "sla": joint, "lorot": {classes, 16}}
    expected |= dict.fromkeys(("sla+sd", "sla+memory"), joint | {classes})
    assert {head.weight.shape[0] for head in model.heads.values()} == expected.get(method, {classes})


def test_cost_of_the_papers_cifar_runs():
    """ResNet-32 for 80,000 iterations of 128: 4.2 PFLOP, with four views 16.9."""
    base = recipe_settings("cifar10")
    assert round(flop_of(base) / 1e15, 1) == 4.2
    assert round(flop_of(base | {"method.name": "sla"}) / 1e15, 1) == 16.9
    assert images_of(base | {"method.name": "sla", "method.views": "rot4*rgb6"}) == 24 * 80_000 * 128


def test_shared_runs_are_counted_once():
    """Table 8 has two trainings a column: ten-crop is of the baseline. Table 2's ensembles hold its models.

    Figure 3's train and test curves come from one run."""
    one, four = (128 * 80_000 * views for views in (1, 4))
    assert cost("table8", "paper", 1).images == 3 * (one + four)
    assert cost("table2", "paper", 1).images == 3 * 4 * (one + four)
    assert cost("figure3", "paper", 3).images == 3 * 3 * four


def test_a_convex_problem_is_counted_once_and_what_cannot_be_run_is_not():
    assert cost("toy", "paper", 1) == cost("toy", "paper", 3)


def test_pre_training_is_counted_once_for_the_rows_that_start_from_it():
    """1,000 epochs of 45,000 images, two views of each; then two rows with it and two without."""
    pretraining = 2 * 512 * math.ceil(1000 * 45_000 / 512)
    assert cost("table11", "paper", 1).images == 2 * (1 + 4) * 128 * 80_000 + pretraining
    small = [job for job in runs_of("table11", "small", 1) if job.kind == "simclr"]
    assert [cost_of(job).images for job in small] == [2 * 256 * 1000]
    assert cost_of(small[0]).flop < 75e12


def test_the_pre_training_has_the_settings_of_simclr():
    """Batch 512, rate 1 after 10 of 1,000 epochs and a cosine, temperature 0.5; views without blur."""
    settings = config_settings(recipe_settings("cifar10_resnet18_simclr"))
    config = make_config(with_values({"task": "simclr"}, settings))
    assert (config.method.temperature, config.run.batch_size, config.run.epochs) == (0.5, 512, 1000)
    part, steps = config.optimizer, 87_891
    rates = {step: part.learning_rate * rate_factor(part, step, steps) for step in (0, 439, 879, steps - 1)}
    assert rates == pytest.approx({0: 0.0, 439: 0.5, 879: 1.0, steps - 1: 0.0}, abs=2e-3)
    assert (part.weight_decay, part.momentum) == (1e-4, 0.9)
    ops = {type(op).__name__: op for op in build_pipelines(config)[0].ops}
    views = [name for name in ops if name not in ("Channels", "Normalize")]
    assert views == ["RandomResizedCrop", "Flip", "ColorJitter", "Greyscale"]
    jitter = ops["ColorJitter"]
    assert (jitter.brightness, jitter.contrast, jitter.saturation) == (0.4, 0.4, 0.4)
    assert (jitter.hue, jitter.probability, ops["Greyscale"].probability) == (0.1, 0.8, 0.2)
