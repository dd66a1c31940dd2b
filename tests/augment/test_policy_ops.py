"""Every operation of the policies against Pillow: the same picture, the same magnitude, the same bytes."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageEnhance, ImageOps

from made_images import as_picture, as_tensor
from refusals import refused
from sla.augment import policy_ops
from sla.augment.policy_ops import GREY, NOTHING, NUMBER, OPERATIONS, affine, apply_operations

AFFINE = Image.Transform.AFFINE


def pictures(channels=3):
    """Noise, ramps, flat and nearly flat ones, few levels: what tables and histograms stumble over."""
    stream = torch.Generator().manual_seed(0)
    noise = torch.randint(0, 256, (4, channels, 32, 32), dtype=torch.uint8, generator=stream)
    ramp = torch.arange(1024).view(32, 32).div(4, rounding_mode="floor").to(torch.uint8)
    dark = torch.randint(20, 90, (2, channels, 32, 32), dtype=torch.uint8, generator=stream)
    flat = torch.full((1, channels, 32, 32), 77, dtype=torch.uint8)
    two = torch.where(noise[:1] > 250, 200, 13).to(torch.uint8)
    smooth = torch.nn.functional.avg_pool2d(noise.float(), 5, 1, 2).to(torch.uint8)
    return torch.cat([noise, ramp.expand(1, channels, 32, 32), dark, flat, two, smooth])


def sheared(picture, x=0.0, y=0.0):
    return picture.transform(picture.size, AFFINE, (1, x, 0, y, 1, 0))


def shifted(picture, x=0.0, y=0.0):
    return picture.transform(picture.size, AFFINE, (1, 0, x, 0, 1, y))


def added(picture, value):
    """Tensorflow's rule for SolarizeAdd, with numpy: Pillow has none."""
    pixels = np.array(picture).astype(int)
    return Image.fromarray(np.where(pixels < 128, (pixels + value).clip(0, 255), pixels).astype(np.uint8))


FACTORS = (0.0, 0.1, 0.37, 0.5, 0.9, 1.0, 1.3, 1.9, 2.6)
PILLOW = {  # (Pillow's operation, magnitudes)
    "shear_x": (lambda p, v: sheared(p, x=v), (-0.99, -0.3, -0.13, 0.0, 0.2, 0.3)),
    "shear_y": (lambda p, v: sheared(p, y=v), (-0.99, -0.3, -0.13, 0.0, 0.2, 0.3)),
    "translate_x": (lambda p, v: shifted(p, x=v), (-40.0, -14.4, -3.5, -0.49, 0.0, 0.5, 2.0, 14.5)),
    "translate_y": (lambda p, v: shifted(p, y=v), (-40.0, -14.4, -3.5, -0.49, 0.0, 0.5, 2.0, 14.5)),
    "rotate": (lambda p, v: p.rotate(v), (-135.0, -30.0, -7.3, 0.0, 1.0, 12.7, 30.0, 45.0, 90.0, 180.0)),
    "autocontrast": (lambda p, v: ImageOps.autocontrast(p), (0.0,)),
    "invert": (lambda p, v: ImageOps.invert(p), (0.0,)),
    "equalize": (lambda p, v: ImageOps.equalize(p), (0.0,)),
    "solarize": (lambda p, v: ImageOps.solarize(p, v), (0.0, 1.0, 70.3, 128.0, 255.0, 256.0)),
    "solarize_add": (lambda p, v: added(p, int(v)), (0.0, 30.0, 110.0)),
    "posterize": (lambda p, v: ImageOps.posterize(p, int(v)), (1.0, 2.9, 4.0, 7.0, 8.0)),
    "contrast": (lambda p, v: ImageEnhance.Contrast(p).enhance(v), FACTORS),
    "brightness": (lambda p, v: ImageEnhance.Brightness(p).enhance(v), FACTORS),
    "color": (lambda p, v: ImageEnhance.Color(p).enhance(v), FACTORS),
    "sharpness": (lambda p, v: ImageEnhance.Sharpness(p).enhance(v), FACTORS),
}


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", PILLOW)
def test_an_operation_is_pillows_to_the_bit(operate, name, channels):
    pillow, magnitudes = PILLOW[name]
    images = pictures(channels)
    for magnitude in magnitudes:
        got = operate(images, name, magnitude)
        expected = torch.stack([as_tensor(pillow(as_picture(image), magnitude)) for image in images])
        assert torch.equal(got, expected), (name, magnitude, (got != expected).float().mean())


def test_pillow_is_the_measure_of_every_operation():
    assert {*PILLOW, "cutout"} == set(OPERATIONS)


@pytest.mark.parametrize("name", PILLOW)
def test_real_pictures_that_are_not_square(operate, photographs, name):
    pillow, magnitudes = PILLOW[name]
    for picture in photographs[::4]:
        for magnitude in magnitudes[::2]:
            if name == "rotate" and magnitude % 90 == 0 and magnitude:
                continue  # Pillow transposes a square here; another shape goes through its affine transform
            got = operate(as_tensor(picture)[None], name, magnitude)[0]
            assert torch.equal(got, as_tensor(pillow(picture, magnitude))), magnitude


def cut_by_hand(picture, row, column, size):
    """A box of Pillow's drawing about a centre in pixels, as Fast AutoAugment draws it."""
    if size <= 0:
        return picture
    x, y = int(max(0, column - size / 2)), int(max(0, row - size / 2))
    corner = (min(picture.width, x + size), min(picture.height, y + size))
    fill = GREY if picture.mode == "RGB" else GREY[1]
    ImageDraw.Draw(picture).rectangle((x, y, *corner), fill=fill)
    return picture


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [0.0, 1.0, 6.4, 20.0, 99.0])
def test_cutout_is_a_box_of_pillows_drawing(operate, channels, size):
    images = pictures(channels)
    place = np.random.default_rng(3).random((len(images), 2))
    place[0], place[1] = 0.0, 0.999
    got = operate(images, "cutout", size, place)
    for image, (row, column), result in zip(images, place.tolist(), got, strict=True):
        assert torch.equal(result, as_tensor(cut_by_hand(as_picture(image), row * 32, column * 32, size)))


def test_images_of_a_batch_have_operations_of_their_own_in_one_call():
    images = pictures()[torch.arange(64) % len(pictures())]
    stream = np.random.default_rng(1)
    kind = stream.integers(NOTHING, NUMBER["cutout"], 64)
    choices = [(0.0,) if number == NOTHING else PILLOW[OPERATIONS[number]][1] for number in kind]
    magnitude = np.array([stream.choice(values) for values in choices])
    got = apply_operations(images, kind, magnitude, np.full((64, 2), 0.5))
    changed = 0
    for image, number, value, result in zip(images, kind, magnitude, got, strict=True):
        if number == NOTHING:
            assert torch.equal(result, image)
            continue
        expected = PILLOW[OPERATIONS[number]][0](as_picture(image), float(value))
        assert torch.equal(result, as_tensor(expected)), OPERATIONS[number]
        changed += not torch.equal(result, image)
    assert changed > 30


def test_work_in_parts_is_the_same_work(operate, monkeypatch):
    images = pictures()
    whole = {name: operate(images, name, PILLOW[name][1][-1]) for name in PILLOW}
    monkeypatch.setattr(policy_ops, "PART", 2 * 3 * 32 * 32)
    for name, expected in whole.items():
        assert torch.equal(operate(images, name, PILLOW[name][1][-1]), expected)


def test_what_is_given_stays_as_it_was(operate):
    images = pictures()
    before = images.clone()
    for name in OPERATIONS:
        operate(images, name, 0.3)
    grey = before[:, :1].expand(-1, 3, -1, -1)
    for name in OPERATIONS:
        operate(grey, name, 0.3)
    assert torch.equal(images, before)


def test_tiny_pictures_pass_through_every_operation(operate):
    for name in OPERATIONS:
        assert operate(pictures()[:2, :, :1, :2], name, 1.0).shape == (2, 3, 1, 2)


def test_an_affine_transform_is_pillows_for_any_matrix():
    stream = torch.Generator().manual_seed(5)
    images = torch.randint(0, 256, (20, 3, 24, 31), dtype=torch.uint8, generator=stream)
    matrix = np.random.default_rng(5).normal(size=(20, 6)) * [1, 1, 9, 1, 1, 9]
    got = affine(images, matrix)
    for image, row, result in zip(images, matrix.tolist(), got, strict=True):
        picture = as_picture(image)
        assert torch.equal(result, as_tensor(picture.transform(picture.size, AFFINE, row)))


def test_floats_are_refused(operate):
    refused(r"must be uint8, .* not torch\.float32", operate, torch.rand(2, 3, 8, 8), "invert")
