"""One step of SGD, forward, backward and update, with the network and settings of every paper-scale recipe.

Only the numbers of images, classes and views per step are small. One recipe of each task is quick; the others
are marked slow.
"""

import numpy as np
import pytest
import torch

from sla.images.store import ArrayImages, Dataset, Splits
from sla.progress import QUIET
from sla.recipes.load import all_recipes, config_settings, recipe_settings
from sla.runs.distributed import Group
from sla.tasks.registry import TASKS, make_config, with_values

CLASSES, EACH = 5, 6
QUICK = ("cifar10", "cifar-fs_1shot_protonet")
SMALL = {
    "classifier": {"method.name": "sla+sd", "method.views_per_step": 2, "run.batch_size": 2}
    | {"data.hold_out": 0, "data.per_class": None, "data.long_tail": None, "data.long_tail_max": None}
    | {"data.unlabelled": None, "data.unlabelled_count": None, "data.classes": None},
    "fewshot": {"method.views": "rot2", "episodes.per_step": 1, "episodes.shot": 1, "episodes.query": 2}
    | {"episodes.way": 3},
    "simclr": {"run.batch_size": 4, "data.hold_out": 0},
}
COMMON = {"data.workers": 0, "run.device": "cpu"}


RECIPES = [
    pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)
    for name, entry in all_recipes().items()
    if entry.task in TASKS
]


@pytest.mark.parametrize("name", RECIPES)
def test_one_step_moves_every_weight(name, tmp_path):
    task = TASKS[all_recipes()[name].task]
    settings = config_settings(recipe_settings(name)) | COMMON | SMALL[task.name]
    config = make_config(with_values({"task": task.name}, settings))
    size, images = config.data.stored_size, CLASSES * EACH
    pixels = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (images, 3, size, size), np.uint8))
    targets = np.arange(images) % CLASSES
    splits = Splits(config.data.source, Dataset(ArrayImages(pixels), targets, tuple("abcde")))
    plan = task.plan(config, splits, QUIET)
    (stage,) = task.stages(plan, Group())
    loop = stage.build(tmp_path)
    loop.prepare(frozen=False)
    for group in loop.optimizer.param_groups:
        group["lr"] = group["base_lr"]  # without the warm-up, which begins at 0
    learning = [item for item in loop.model.named_parameters() if item[1].requires_grad]
    before = {name: value.detach().clone() for name, value in learning}
    loop.learn(next(iter(loop.batches(plan.train, 0))))
    assert loop.meter.finite
    after = dict(loop.model.named_parameters())
    assert [name for name, value in before.items() if torch.equal(value, after[name])] == []
    assert all(value.isfinite().all() for value in after.values())
