"""Augmentation as text: what training and evaluation make of it, and what is refused."""

import pytest
import torch

from made_images import through
from refusals import refused
from sla.augment.pipelines import eval_pipeline, train_pipeline

ONE, ZERO = (1.0,), (0.0,)


def check_augment(text):
    """Of images so large that anything fits."""
    train_pipeline(text, 1 << 30, (0.0,), (1.0,))


def numbered(size):
    """One grey image whose pixels count from 0, row by row."""
    return torch.arange(size * size, dtype=torch.uint8).view(1, 1, size, size)


def levels(pipeline, images):
    """What comes out, as levels from 0 to 255."""
    return (through(pipeline, images) * 255).round()


@pytest.mark.parametrize("stored", [14, 16, 20, 32])
@pytest.mark.parametrize(
    "text", ["none", "flip", "jitter(0.4)", "crop(2)", "crop, flip", "resized", "resized(0.5), flip"]
)
def test_training_and_evaluation_see_the_same_size(text, stored):
    images = torch.randint(0, 256, (3, 3, stored, stored), dtype=torch.uint8)
    for pipeline in (train_pipeline, eval_pipeline):
        out = through(pipeline(text, 16, (0.5,) * 3, (0.5,) * 3), images)
        assert out.shape == (3, 3, 16, 16), pipeline


def test_evaluation_after_crops_is_the_middle_window_at_the_same_scale():
    image = numbered(8)
    out = levels(eval_pipeline("crop(0)", 4, ZERO, ONE), image)
    assert torch.equal(out, image[:, :, 2:6, 2:6].float())
    out = levels(eval_pipeline("crop(2)", 10, ZERO, ONE), image)
    assert torch.equal(out[:, :, 1:9, 1:9], image.float())
    assert out.sum() == image.sum()  # and black around it


def test_evaluation_without_crops_is_the_whole_image():
    even = torch.full((1, 1, 8, 8), 90, dtype=torch.uint8)
    even[:, :, 4:] = 30
    out = levels(eval_pipeline("flip", 2, ZERO, ONE), even)
    assert out[0, 0, 0, 0] > 75
    assert out[0, 0, 1, 1] < 45
    for text in ("none", "crop(4), flip"):
        assert torch.equal(levels(eval_pipeline(text, 8, ZERO, ONE), even), even.float())


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("crop(nan)", "only numbers are allowed in brackets"),
        ("crop(2.5)", "padding is a whole number of pixels, not 2.5"),
        ("crop(-1)", "padding must be from 0 to"),
        ("flip(7)", "probability of a flip must be from 0 to 1, not 7.0"),
        ("resized(2)", "scale must be 0 < low <= high <= 1"),
        ("resized(0.5, 0.2)", "scale must be 0 < low <= high <= 1"),
        ("jitter(-1)", "strengths must not be negative"),
    ],
)
def test_numbers_that_cannot_be_are_refused(text, line):
    message = refused(line, check_augment, text)
    assert text in message
    assert "\n" not in message


def test_what_is_larger_than_the_image_is_refused_where_its_size_is_known():
    check_augment("crop(99), cutout(99)")
    train_pipeline("cutout(8)", 8, ZERO, ONE)
    refused("'crop' in 'crop.99.': padding .* 8, not 99", train_pipeline, "crop(99)", 8, ZERO, ONE)
    for text, side in (("crop(1), cutout(9)", 9), ("cutout(99, 0.5)", 99), ("cutout", 16)):
        wrong = f"the box's side must be at most that of the image, 8, not {side}"
        message = refused(wrong, train_pipeline, text, 8, ZERO, ONE)
        assert message == f"augmentation 'cutout' in {text!r}: {wrong}"
