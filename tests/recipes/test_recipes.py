"""Every recipe: a valid configuration at every scale, its stated cost, and the paper's numbers."""

import re

import pytest
import yaml

from refusals import refused
from sla.cli.recipe import with_recipe
from sla.recipes import SCALES
from sla.recipes.load import _entries, all_recipes, recipe_settings
from sla.reproduce.costs import flop_of
from sla.reproduce.paper import experiments
from sla.tasks.registry import make_config, with_values

TRAINED = [name for name, entry in all_recipes().items() if entry.task != "toy"]


def printed_with(name):
    """Everything that the paper prints for the runs of a recipe."""
    return [
        table.printed[row][column].value
        for table in experiments().values()
        for row in table.printed
        for column in table.printed[row]
        if table.rows[row].kind != "not-run" and table.columns[column].recipe + table.rows[row].suffix == name
    ]


@pytest.mark.parametrize("name", TRAINED)
def test_a_recipe_is_a_configuration_at_every_scale(name):
    task = all_recipes()[name].task
    for scale in SCALES:
        settings = recipe_settings(name, scale)
        config = make_config(with_values({"task": task}, settings))
        assert (config.data.source == "digits") == (scale == "smoke")


@pytest.mark.parametrize("name", TRAINED)
def test_the_stated_cost_is_the_computed_one_to_two_digits_and_other_scales_cost_less(name):
    smoke, small, paper = (flop_of(recipe_settings(name, scale)) for scale in SCALES)
    assert f"{all_recipes()[name].cost:.1e}" == f"{paper:.1e}"
    assert smoke < small < (paper if name.startswith("fast") else paper / 100)  # our own is for minutes


@pytest.mark.parametrize("name", all_recipes())
def test_expected_numbers_are_printed_in_the_paper(name):
    """The first is the baseline's (or the error's); with nothing printed it is unknown."""
    expected, printed = all_recipes()[name].expected, printed_with(name)
    numbers = [float(number) for number in re.findall(r"\d+\.\d+|\b13\b", expected)]
    assert set(numbers) <= set(printed)
    assert bool(numbers) == bool(printed)
    assert numbers or expected in ("unknown", "drawn only (Figure 4)")


def test_recipes_are_those_of_the_paper_and_every_family_is_used():
    used = {
        column.recipe + ending
        for table in experiments().values()
        for row in table.rows.values()
        for column in table.columns.values()
        for ending in (row.suffix, *([row.pretraining] if row.pretraining else []))
        if row.kind != "not-run"
    }
    families, recipes = _entries()
    assert set(recipes) == used
    extended = {name for entry in (*families.values(), *recipes.values()) for name in entry.extends}
    assert extended == set(families)


def test_later_layers_win_and_the_scale_wins_over_all():
    """By hand: WRN's augmentation is Cutout's, and its network at small scale is neither's of CIFAR."""
    paper, small = (recipe_settings("cifar10_wrn_cutout", scale) for scale in ("paper", "small"))
    assert paper["augment"] == small["augment"] == "crop(4), flip, cutout(16)"
    assert (paper["model.backbone"], small["model.backbone"]) == ("wrn40_2", "resnet9_16")
    assert (paper["run.epochs"], paper["run.iterations"]) == (200, None)
    assert (small["run.epochs"], small["run.iterations"], small["data.per_class"]) == (None, 2000, 100)


def test_the_settings_of_one_caller_are_not_those_of_the_next():
    recipe_settings("cifar10_wrn")["model.options"]["variant"] = "original"
    assert recipe_settings("cifar10_wrn")["model.options"]["variant"] == "fast-autoaugment"


def test_unknown_names_are_refused():
    wrong = "cifar10_wrn_cutuot"
    refused(f"unknown recipe {wrong!r}, did you mean 'cifar10_wrn_cut", recipe_settings, wrong)
    refused("did you mean 'smoke'", recipe_settings, "cifar10", "smok")


def test_with_other_images_only_what_fits_its_own_is_left_out():
    own = recipe_settings("cifar10_longtail100")
    assert recipe_settings("cifar10_longtail100", data="cifar10") == own
    left_out = own.keys() - recipe_settings("cifar10_longtail100", data="photos/").keys()
    assert left_out == {"data.source", "data.hold_out", "data.long_tail_max", "model.mean", "model.std"}


def test_the_file_has_no_key_twice():
    """YAML keeps the last of two equal keys silently."""

    class Strict(yaml.SafeLoader):
        def construct_mapping(self, node, deep=False):
            keys = [self.construct_object(key) for key, _ in node.value]
            assert len(keys) == len(set(keys)), keys
            return super().construct_mapping(node, deep)

    from importlib import resources

    for package, file in (("sla.recipes", "recipes.yaml"), ("sla.reproduce", "paper.yaml")):
        yaml.load(resources.files(package).joinpath(file).read_text(encoding="utf-8"), Strict)


def test_a_recipe_brings_its_task_and_a_few_shot_one_its_method():
    tree = with_recipe("fc100_5shot_metaoptnet:smoke", {}, {})
    assert (tree["task"], tree["method"]["name"]) == ("fewshot", "ridge")
    assert "name" not in with_recipe("cifar10:smoke", {}, {})["method"]
    other = {"task": "classifier"}
    refused("is of task fewshot, not classifier", with_recipe, "fc100_5shot_metaoptnet", other, {})
