"""The paper-scale recipes of few-shot learning, built and run for a step, against numbers written by hand."""

import pytest

from sla.augment.ops import ColorJitter, Flip, Normalize, RandomCrop
from sla.augment.pipelines import train_pipeline
from sla.backbones import create_backbone
from sla.backbones.cost import count_flops, count_parameters
from sla.recipes.load import recipe_settings
from sla.reproduce.costs import flop_of, images_of
from sla.reproduce.paper import experiment
from sla.runs.schedules import rate_factor
from sla.tasks.registry import make_config, with_values

CIFAR = (129.377, 124.106, 112.478), (68.209, 65.431, 70.459)  # of pixels up to 255
MINI = (120.396, 115.594, 104.540), (70.682, 68.276, 72.545)
FACTS = {  # pixels, features, padding, mean and std, shots that MetaOptNet trains at, its label smoothing
    "mini-imagenet": (84, 16_000, 8, MINI, 15, 0.1),
    "cifar-fs": (32, 2_560, 4, CIFAR, 5, 0.0),
    "fc100": (32, 2_560, 4, CIFAR, 15, 0.0),
}
NAMES = [
    f"{name}_{shot}shot_{head}" for name in FACTS for shot in (1, 5) for head in ("protonet", "metaoptnet")
]


def config_of(settings):
    return make_config(with_values({"task": "fewshot"}, settings))


def test_these_are_the_recipes_of_the_table():
    table = experiment("table6")
    rows = [row for row in table.rows.values() if row.kind == "fewshot"]
    assert {column.recipe + row.suffix for row in rows for column in table.columns.values()} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_episodes_and_schedule(name):
    dataset, shot, head = name.split("_")
    _, _, _, _, train_shot, smoothing = FACTS[dataset]
    config = config_of(recipe_settings(name))
    episodes, part = config.episodes, config.optimizer
    ridge = head == "metaoptnet"
    assert episodes.shot == (train_shot if ridge else int(shot[0]))
    assert (episodes.way, episodes.query, episodes.per_step) == (5, 6, 8)
    assert (episodes.test_query, episodes.test_episodes) == (15, 1000)
    assert (episodes.val_shot, episodes.val_episodes) == (5, 2000)
    assert config.method.label_smoothing == (smoothing if ridge else 0.0)
    assert config.method.name == ("ridge" if ridge else "protonet")
    assert config.run.iterations == 60_000
    assert (part.learning_rate, part.momentum, part.nesterov, part.weight_decay) == (0.1, 0.9, True, 5e-4)
    # Public code steps the schedule before epoch e = 1, 2, ...: factors 1, 0.06, ... from e = 20, 40, 50 on.
    rates = {0: 0.1, 18_999: 0.1, 19_000: 0.006, 38_999: 0.006, 39_000: 0.0012}
    rates |= {48_999: 0.0012, 49_000: 0.00024, 59_999: 0.00024}
    found = {step: 0.1 * rate_factor(part, step, 60_000) for step in rates}
    assert found == pytest.approx(rates)


@pytest.mark.parametrize("name", NAMES)
def test_pipeline(name):
    size, _, padding, (mean, std), _, _ = FACTS[name.split("_")[0]]
    config = config_of(recipe_settings(name))
    model = config.model
    ops = train_pipeline(config.augment, model.resolution, model.mean, model.std).ops[1:]
    assert ops[:3] == (RandomCrop(size, padding), Flip(0.5), ColorJitter(0.4, 0.4, 0.4))
    assert isinstance(ops[3], Normalize)
    assert ops[3].mean == pytest.approx([value / 255 for value in mean], abs=1e-6)
    assert ops[3].std == pytest.approx([value / 255 for value in std], abs=1e-6)


@pytest.mark.parametrize("dataset", FACTS)
def test_network(dataset):
    """Four blocks of three 3x3 convolutions and a 1x1 shortcut, each with batch norm."""
    size, features, *_ = FACTS[dataset]
    settings = recipe_settings(f"{dataset}_5shot_protonet")
    backbone = create_backbone(settings["model.backbone"], **settings["model.options"])
    parameters = multiply_adds = 0
    channels, side = 3, size
    for width in (64, 160, 320, 640):
        weights = channels * width * 9 + 2 * width * width * 9 + channels * width
        parameters += weights + 4 * 2 * width
        multiply_adds += weights * side * side
        channels, side = width, side // 2
    assert count_parameters(backbone) == parameters
    assert backbone.num_features == features == 640 * side * side
    assert count_flops(backbone, (3, size, size)) == 2 * multiply_adds
    images = 60_000 * 8 * 5 * (5 + 6)
    assert images_of(settings) == images
    assert flop_of(settings) == 3 * 2 * multiply_adds * images
    assert images_of(settings | {"method.views": "rot4"}) == 4 * images
