"""Several models, and ten crops of an image, as one answer: the mean of class logits."""

import warnings

import numpy as np
import pytest
import torch
from PIL import Image

from refusals import refused
from sla.augment.pipelines import eval_pipeline
from sla.augment.ten_crop import ten_crop_pipelines
from sla.compare.ensemble import evaluate_ensemble
from sla.datasets.load import load
from sla.errors import SLAWarning
from sla.images.store import ArrayImages, Dataset, Splits
from sla.sampling.draws import Draws
from sla.session import fit
from sla.tasks.classifier.run import Run


@pytest.fixture(scope="module")
def settings(tiny_settings):
    return tiny_settings | {"method__name": "sla", "run__iterations": 5, "run__batch_size": 16}


@pytest.fixture(scope="module")
def runs(settings, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return [fit("digits", folder / str(seed), run__seed=seed, **settings) for seed in range(3)]


def test_an_ensemble_is_the_mean_of_its_members_logits(runs):
    test = load("digits").test
    for inference in ("single", "aggregated"):
        outputs = evaluate_ensemble(runs, inference=inference)
        by_hand = sum(run.evaluate(test).logits[inference] for run in runs) / 3
        assert torch.allclose(outputs.logits["ensemble"], by_hand, atol=1e-5)
        assert outputs.targets.tolist() == test.targets.tolist()


def test_members_whose_classes_come_in_another_order_are_put_in_order(runs, tmp_path):
    other = Run(runs[1].folder)
    order = list(reversed(range(10)))
    other.model.class_names = [runs[1].classes[place] for place in order]
    head = other.model.heads["joint"]
    with torch.no_grad():
        for value in (head.weight, head.bias):
            blocks = value.unflatten(0, (10, 4))
            blocks.copy_(blocks[order].clone())
    straight = evaluate_ensemble(runs[:2]).logits["ensemble"]
    turned = evaluate_ensemble([runs[0], other]).logits["ensemble"]
    assert torch.allclose(straight, turned, atol=1e-5)


def test_what_makes_no_ensemble_is_refused(runs):
    refused("at least two", evaluate_ensemble, runs[:1])
    refused("no distilled inference", evaluate_ensemble, runs, inference="distilled")
    other = Run(runs[1].folder)
    other.model.class_names = [f"class {number}" for number in range(10)]
    refused("different label sets", evaluate_ensemble, [runs[0], other])


def test_members_are_judged_on_images_that_none_of_them_has_seen(settings, tmp_path):
    """Two runs hold out different shares of data without a test split: only what both held out counts."""
    digits = load("digits").train
    names = [f"{number:04d}" for number in range(len(digits))]
    pixels = digits.read(range(len(digits))).images
    splits = Splits("own", Dataset(ArrayImages(pixels, names=names), digits.targets, digits.classes))
    runs = [
        fit(splits, tmp_path / str(share), data__hold_out=share, data__hold_out_seed=seed, **settings)
        for share, seed in ((0.3, 0), (0.2, 1))
    ]
    held = [{val.name(i) for i in range(len(val))} for val in (run.find_images().dataset for run in runs)]
    assert held[0] - held[1]  # so that it matters
    with pytest.warns(SLAWarning, match="common to all runs"):
        outputs = evaluate_ensemble(runs)
    assert len(outputs.targets) == len(held[0] & held[1])


def test_ten_crops_of_a_small_image_are_cut_by_hand():
    """28 of 32 pixels: the corners, the centre, and all of them mirrored; not resampled."""
    image = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (1, 3, 32, 32), np.uint8))
    pipelines = ten_crop_pipelines(eval_pipeline("crop(4), flip", 32, (0.0,) * 3, (1.0,) * 3), 32)
    found = [pipeline(image, Draws(0, 0, 1), torch.ones(1)) * 255 for pipeline in pipelines]
    corners = [(0, 0), (0, 4), (4, 0), (4, 4), (2, 2)]
    cuts = [image[:, :, top : top + 28, left : left + 28].float() for top, left in corners]
    for one, expected in zip(found, [*cuts, *(cut.flip(3) for cut in cuts)], strict=True):
        assert torch.allclose(one, expected, atol=0.51)  # a resampling that copies may round


def test_ten_crops_of_a_photograph_are_pillows():
    """After `resized`, squares of 7/8 of the shorter side at full resolution, from the original's shape."""
    size, shape = 56, (64, 64)
    wide = Image.fromarray(np.random.default_rng(1).integers(0, 256, (64, 128, 3), np.uint8)).resize(shape)
    image = torch.from_numpy(np.array(wide)).permute(2, 0, 1)[None].contiguous()
    pipelines = ten_crop_pipelines(eval_pipeline("resized(0.3), flip", size, (0.0,) * 3, (1.0,) * 3), size)
    aspect = torch.tensor([2.0])
    places = [(0, 0), (0, 1), (1, 0), (1, 1), (0.5, 0.5)]
    high, width = 64 * 7 / 8, 64 * 7 / 16  # the square is half as wide in the squeezed image
    for pipeline, (down, across) in zip(pipelines, places, strict=False):
        left, top = across * (64 - width), down * (64 - high)
        box = (left, top, left + width, top + high)
        expected = np.array(wide.resize((size, size), Image.Resampling.BILINEAR, box)).astype(float)
        found = (pipeline(image, Draws(0, 0, 1), aspect)[0] * 255).permute(1, 2, 0).numpy()
        assert np.abs(found - expected).max() <= 1.01


def test_ten_crop_averages_the_logits_of_the_ten(runs):
    run, test = runs[0], load("digits").test.subset(range(20))
    with pytest.warns(SLAWarning, match="trained without flips"):
        found = run.ten_crop(test).logits["ten-crop"]
    pixels = test.read(range(20))
    draws = Draws(0, 0, 20)
    crops = ten_crop_pipelines(run.pipeline, 8)
    with torch.inference_mode():
        each = [run.model.logits(crop(pixels.images, draws, pixels.aspect), "single") for crop in crops]
    assert len(each) == 10
    assert each[0].shape == (20, 10)
    assert torch.allclose(found, sum(each) / 10, atol=1e-5)


@pytest.mark.parametrize(
    ("augment", "noted"), [("crop(1), flip", False), ("crop(1), flip(0)", True), ("none", True)]
)
def test_mirror_images_are_noted_where_training_had_none(augment, noted, tiny_settings, tmp_path):
    few = tiny_settings | {"run__iterations": 1, "run__evaluations": 1, "augment": augment}
    run, test = fit("digits", tmp_path / "run", **few), load("digits").test.subset(range(5))
    for inference in (run.flips, run.ten_crop):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", SLAWarning)
            inference(test)
        said = [str(one.message) for one in caught]
        assert any(f"trained without flips (augment: {augment})" in line for line in said) == noted
