"""Greyscale, blur and jitter with a probability: what each image becomes, and how many of them."""

import math

import pytest
import torch

from made_images import as_picture, as_tensor, noise, through
from refusals import refused
from sla.augment import transforms
from sla.augment.color_ops import Blur, Greyscale
from sla.augment.ops import ColorJitter
from sla.augment.pipelines import find_contradictions, train_pipeline
from sla.sampling.draws import Draws
from sla.views import parse_views

COLOURS = (0.5,) * 3


def changed(before, after):
    """Which images are not what they were, bool (B,)."""
    return (before != after).flatten(1).any(1)


def test_grey_is_pillows_in_every_channel():
    images = noise(6)
    out = through(Greyscale(1.0), images)
    for image, grey in zip(images, out, strict=True):
        expected = as_tensor(as_picture(image).convert("L"))
        assert torch.equal(grey, expected.expand(3, -1, -1))
    one_channel = noise(3, channels=1)
    assert torch.equal(through(Greyscale(1.0), one_channel), one_channel)


def blurred_by_hand(image, sigma, reach):
    """One channel, pixel by pixel; beyond the border it is mirrored without repeating the border."""
    side = len(image)
    weights = [math.exp(-(d**2) / (2 * sigma**2)) for d in range(-reach, reach + 1)]
    total = sum(weights)

    def at(place):
        place = abs(place)
        return 2 * (side - 1) - place if place >= side else place

    out = torch.zeros(side, side, dtype=torch.float64)
    for row in range(side):
        for column in range(side):
            for i, a in enumerate(weights):
                for j, b in enumerate(weights):
                    value = float(image[at(row + i - reach), at(column + j - reach)])
                    out[row, column] += a * b / total**2 * value
    return out


def test_each_image_is_blurred_by_its_own_gaussian():
    images, sigma = noise(3, 3, 9, 9), torch.tensor([0.1, 0.9, 2.0])
    out = transforms.gaussian_blur(images, sigma, 2)
    assert out.dtype == torch.uint8
    for number, image in enumerate(images):
        for channel in range(3):
            expected = blurred_by_hand(image[channel], float(sigma[number]), 2)
            assert (out[number, channel].double() - expected).abs().max() <= 0.5 + 1e-3
    flat = torch.full((1, 3, 40, 40), 77, dtype=torch.uint8)
    assert torch.equal(through(Blur(1.0), flat), flat)


@pytest.mark.parametrize(
    ("op", "share"), [(Greyscale(0.2), 0.2), (Blur(0.5), 0.5), (ColorJitter(0.4, probability=0.8), 0.8)]
)
def test_the_probability_is_per_image_and_the_other_images_stay(op, share):
    images = noise(2000, 3, 6, 6)
    out = through(op, images)
    assert changed(images, out).float().mean().item() == pytest.approx(share, abs=0.04)
    # A process that has a part of the batch makes the same of it.
    some = op(images[500:900], Draws(0, 0, 2000, 500, 900), torch.ones(400))
    assert torch.equal(some, out[500:900])


def test_a_jitter_that_is_always_applied_draws_what_it_always_drew():
    images = noise(50)
    always, often = ColorJitter(0.4, 0.4, 0.4, 0.1), ColorJitter(0.4, 0.4, 0.4, 0.1, 0.5)
    whole, some = through(always, images), through(often, images)
    applied = changed(images, some)
    assert 0 < applied.sum() < 50
    assert torch.equal(some[applied], whole[applied])


def test_the_views_of_simclr_as_text():
    """Order whatever the text says; every op at its own place."""
    text = "blur(0.5), grey(0.2), jitter(0.4, 0.4, 0.4, 0.1, 0.8), flip, resized(0.2)"
    pipeline = train_pipeline(text, 16, COLOURS, COLOURS)
    assert [type(op).__name__ for op in pipeline.ops] == [
        *("Channels", "RandomResizedCrop", "Flip", "ColorJitter", "Greyscale", "Blur", "Normalize")
    ]
    assert pipeline.ops[3] == ColorJitter(0.4, 0.4, 0.4, 0.1, 0.8)
    assert through(pipeline, noise(4)).shape == (4, 3, 16, 16)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("grey(2)", "the probability of greyscale must be from 0 to 1, not 2"),
        ("blur(-1)", "the probability of a blur must be from 0 to 1, not -1"),
        ("blur(0.5, 0)", "sigma must be 0 < low <= high, not (0.0, 2.0)"),
        (
            "jitter(0.4, 0.4, 0.4, 0.1, 1.5)",
            "of a colour jitter must be from 0 to 1, not 1.5",
        ),
    ],
)
def test_numbers_that_cannot_be_are_refused(text, line):
    refused(line, train_pipeline, text, 16, COLOURS, COLOURS)


def test_grey_contradicts_every_order_of_the_channels():
    views = parse_views("rgb6")
    (found,) = find_contradictions(train_pipeline("grey", 8, COLOURS, COLOURS), views.elements)
    assert found.startswith("grey makes all channels alike: ")
    assert found.count("channels") - 1 == len(views) - 1
    assert not find_contradictions(train_pipeline("grey(0), blur", 8, COLOURS, COLOURS), views.elements)
