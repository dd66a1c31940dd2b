import colorsys
import math
from itertools import permutations

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance

from made_images import as_picture, as_tensor, noise
from refusals import refused
from sla.augment import transforms
from sla.augment.ops import (
    CenterCrop,
    ColorJitter,
    Flip,
    Normalize,
    Pipeline,
    RandomCrop,
    RandomResizedCrop,
    VerticalFlip,
)
from sla.augment.policy import RandAugment, TrivialAugment, make_policy, read_policy
from sla.errors import InputError
from sla.sampling.draws import Draws

BILINEAR = Image.Resampling.BILINEAR


@pytest.mark.parametrize("channels", [1, 3])
def test_crop_with_padding_is_a_slice_of_the_padded_image(channels):
    images = noise(6, channels, 20, 28)
    top, left = torch.tensor([0, 1, 4, 8, 3, 8]), torch.tensor([16, 1, 4, 0, 0, 16])
    out = transforms.pad_crop(images, top, left, size=20, padding=4)
    for image, got, y, x in zip(images.numpy(), out.numpy(), top, left, strict=True):
        padded = np.pad(image, ((0, 0), (4, 4), (4, 4)))
        assert np.array_equal(got, padded[:, y : y + 20, x : x + 20])


def test_random_crop_reaches_every_place_and_flip_half_of_the_images():
    marked = torch.arange(64, dtype=torch.uint8).view(1, 1, 8, 8).expand(4000, 1, 8, 8) + 1
    draws, ones = Draws(0, 0, 4000), torch.ones(4000)
    crops = RandomCrop(8, padding=2)(marked, draws, ones)
    places = {tuple(crop[0, 4, 3:5].tolist()) for crop in crops}
    assert len(places) == 25  # five rows by five columns
    whole = {tuple(crop.flatten().tolist()) for crop in RandomCrop(8)(marked[:5], Draws(0, 0, 5), ones)}
    assert whole == {tuple(range(1, 65))}
    flipped = (Flip()(marked, draws, ones)[:, 0, 0, 0] == 8).float().mean()
    assert abs(flipped - 0.5) < 0.04
    assert not Flip(0.0)(marked, draws, ones).ne(marked).any()


def test_flip_mirrors_the_chosen_images_only():
    images = noise(4)
    out = transforms.flip(images, torch.tensor([True, False, False, True]))
    for i, chosen in enumerate((True, False, False, True)):
        expected = images[i].numpy()[:, :, ::-1] if chosen else images[i].numpy()
        assert np.array_equal(out[i].numpy(), expected)


def test_normalize_by_channel():
    images = noise(3)
    mean, std = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
    out = transforms.normalize(images, mean, std)
    expected = (images.double().numpy() / 255 - np.reshape(mean, (3, 1, 1))) / np.reshape(std, (3, 1, 1))
    assert out.dtype == torch.float32
    assert np.abs(out.numpy() - expected).max() < 2e-6
    assert torch.allclose(transforms.normalize(images / 255, mean, std), out, atol=2e-6)
    assert transforms.normalize(noise(2, channels=1), (0.5,), (0.5,)).abs().max() <= 1
    with pytest.raises(InputError, match="3 means and 3 stds for images with 1 channels"):
        transforms.normalize(noise(2, channels=1), mean, std)


@pytest.mark.parametrize(("height", "width"), [(40, 56), (128, 128), (7, 300)])
@pytest.mark.parametrize("channels", [1, 3])
def test_resized_crop_is_pillows_to_one_level(height, width, channels):
    images = noise(8, channels, height, width)
    aspect = torch.linspace(0.4, 2.5, 8)
    boxes = transforms.random_boxes(Draws(1, 1, 8).uniform("b", 22), aspect, (0.08, 1.0), (3 / 4, 4 / 3))
    boxes[0] = torch.tensor([0.0, 0.0, 1.0, 1.0])  # the whole picture
    for size in (24, 96):
        out = transforms.resized_crop(images, boxes, size)
        assert out.dtype == torch.uint8
        for image, box, got in zip(images, boxes.tolist(), out, strict=True):
            top, left, high, wide = box[0] * height, box[1] * width, box[2] * height, box[3] * width
            place = (left, top, min(left + wide, width), min(top + high, height))
            expected = np.array(as_picture(image).resize((size, size), BILINEAR, box=place))
            difference = np.array(as_picture(got)).astype(int) - expected
            assert np.abs(difference).max() <= 1


def test_a_whole_picture_at_its_own_size_is_unchanged():
    images = noise(4)
    whole = torch.tensor([[0.0, 0.0, 1.0, 1.0]]).expand(4, 4)
    assert torch.equal(transforms.resized_crop(images, whole, 32), images)


def test_resized_images_give_the_crops_of_the_originals(photographs):
    """Stored at 128 x 128, cropped to 96: within 2 levels of 255, on average, of cropping the original."""
    aspect = torch.tensor([picture.width / picture.height for picture in photographs])
    draws = Draws(0, 0, len(photographs))
    stored = torch.stack([as_tensor(picture.resize((128, 128), BILINEAR)) for picture in photographs])
    out = RandomResizedCrop(96)(stored, draws, aspect)
    uniform = draws.uniform("resized_crop", 22)
    boxes = transforms.random_boxes(uniform, aspect, (0.08, 1.0), (3 / 4, 4 / 3)).tolist()
    errors = []
    for picture, (top, left, high, wide), got in zip(photographs, boxes, out, strict=True):
        w, h = picture.size
        place = (left * w, top * h, min((left + wide) * w, w), min((top + high) * h, h))
        expected = as_tensor(picture.resize((96, 96), BILINEAR, box=place))
        errors.append((got.int() - expected.int()).abs().float().mean())
    assert torch.stack(errors).mean() < 2


def box_by_the_usual_rule(uniform, aspect, scale, ratio):
    """Ten tries, then the centre: one picture of 1 by `aspect`, written out as a loop."""
    area = aspect
    for i in range(10):
        target = area * (scale[0] + (scale[1] - scale[0]) * uniform[2 * i])
        shape = math.exp(math.log(ratio[0]) + math.log(ratio[1] / ratio[0]) * uniform[2 * i + 1])
        width, height = math.sqrt(target * shape), math.sqrt(target / shape)
        if width <= aspect and height <= 1:
            top, left = uniform[20] * (1 - height), uniform[21] * (aspect - width)
            return top, left / aspect, height, width / aspect
    width, height = aspect, 1.0
    if aspect < ratio[0]:
        height = aspect / ratio[0]
    elif aspect > ratio[1]:
        width = ratio[1]
    return (1 - height) / 2, (aspect - width) / 2 / aspect, height, width / aspect


@pytest.mark.parametrize("scale", [(0.08, 1.0), (0.6, 1.0)])
def test_boxes_follow_the_usual_rule_in_the_originals_proportions(scale):
    aspect = torch.tensor([1.0, 1.5, 0.66, 4.0, 0.2, 10.0, 0.05, 1.3] * 50)
    uniform = Draws(5, 5, 400).uniform("b", 22)
    boxes = transforms.random_boxes(uniform, aspect, scale, (3 / 4, 4 / 3))
    for row, shape, box in zip(uniform.tolist(), aspect.tolist(), boxes, strict=True):
        expected = torch.tensor(box_by_the_usual_rule(row, shape, scale, (3 / 4, 4 / 3)))
        assert torch.allclose(box, expected, atol=1e-5)
    top, left, height, width = boxes.T
    assert (boxes >= -1e-6).all()
    assert (top + height).max() <= 1 + 1e-6
    assert (left + width).max() <= 1 + 1e-6
    shape = width * aspect / height
    assert shape.min() > 3 / 4 - 1e-4
    assert shape.max() < 4 / 3 + 1e-4
    ordinary = ((aspect > 0.6) & (aspect < 1.6)).nonzero()[:, 0]
    assert (height * width)[ordinary].min() > scale[0] - 1e-4


def test_centre_crop_is_resize_shorter_side_then_crop(photographs):
    """Against Pillow by the usual recipe: shorter side to 256, the middle 224."""
    aspect = torch.tensor([picture.width / picture.height for picture in photographs])
    exact = 0
    for picture, shape in zip(photographs, aspect, strict=True):
        w, h = picture.size
        scale = 256 / min(w, h)
        large = picture.resize((round(w * scale), round(h * scale)), BILINEAR)
        left, top = (large.width - 224) / 2, (large.height - 224) / 2
        expected = as_tensor(large.crop((round(left), round(top), round(left) + 224, round(top) + 224)))
        got = CenterCrop(224)(as_tensor(picture)[None], Draws(0, 0, 1), shape[None])[0]
        error = (got.int() - expected.int()).abs().float()
        if all(float(x).is_integer() for x in (w * scale, h * scale, left, top)):
            exact += 1
            assert error.max() <= 1
        assert error.mean() < 3  # half a pixel of rounding in the recipe
    assert exact >= 3
    square = noise(2, 3, 64, 64)
    out = CenterCrop(56)(square, Draws(0, 0, 2), torch.ones(2))
    assert torch.equal(out, square[:, :, 4:60, 4:60])


@pytest.mark.parametrize("factor", [0.0, 0.6, 1.0, 1.4])
def test_brightness_contrast_and_saturation_are_pillows(photographs, factor):
    kinds = (
        (transforms.BRIGHTNESS, ImageEnhance.Brightness),
        (transforms.CONTRAST, ImageEnhance.Contrast),
        (transforms.SATURATION, ImageEnhance.Color),
    )
    for picture in photographs[:4]:
        for kind, enhance in kinds:
            factors = torch.full((1, 4), factor)
            got = transforms.color_jitter(as_tensor(picture)[None], factors, torch.tensor([[kind]]))[0]
            expected = as_tensor(enhance(picture).enhance(factor))
            assert (got.int() - expected.int()).abs().max() <= 1  # Pillow rounds its greys


@pytest.mark.parametrize("shift", [-0.5, -0.13, 0.0, 0.25, 0.4])
def test_hue_is_that_of_a_loop_over_pixels(shift):
    grid = torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0])
    image = torch.cartesian_prod(grid, grid, grid).T.reshape(1, 3, 5, 25)  # ties, greys, primaries
    image = torch.cat([image, torch.rand(1, 3, 5, 25, generator=torch.Generator().manual_seed(0))], 3)
    got = transforms.shift_hue(image, torch.tensor([shift]))[0].flatten(1).T
    for pixel, result in zip(image[0].flatten(1).T.tolist(), got.tolist(), strict=True):
        hue, saturation, value = colorsys.rgb_to_hsv(*pixel)
        expected = colorsys.hsv_to_rgb((hue + shift) % 1, saturation, value)
        assert result == pytest.approx(expected, abs=2e-5)


def test_each_image_is_jittered_in_its_own_order():
    images = noise(24, 3, 9, 9)
    order = torch.tensor(list(permutations(range(4))))
    factors = torch.tensor([1.4, 0.6, 1.3, 0.2]) + torch.linspace(-0.1, 0.1, 24)[:, None]
    got = transforms.color_jitter(images, factors, order)
    results = set()
    for image, one, steps, result in zip(images, factors, order.tolist(), got, strict=True):
        pixels = image.double().numpy() / 255
        for step in steps:
            grey = np.tensordot([0.299, 0.587, 0.114], pixels, 1)
            f = float(one[step])
            if step == transforms.BRIGHTNESS:
                pixels = pixels * f
            elif step == transforms.CONTRAST:
                pixels = f * pixels + (1 - f) * grey.mean()
            elif step == transforms.SATURATION:
                pixels = f * pixels + (1 - f) * grey
            else:
                turned = [
                    colorsys.hsv_to_rgb((h + f) % 1, s, v)
                    for h, s, v in (colorsys.rgb_to_hsv(*rgb) for rgb in pixels.reshape(3, -1).T)
                ]
                pixels = np.array(turned).T.reshape(3, 9, 9)
            pixels = pixels.clip(0, 1)
        assert np.abs(result.numpy() - pixels * 255).max() < 0.52
        results.add(tuple(result.flatten().tolist()))
    assert len(results) == 24


def test_jitter_draws_its_factors_from_the_whole_range():
    flat = torch.full((4000, 1, 1, 1), 100, dtype=torch.uint8)
    out = ColorJitter(brightness=0.4)(flat, Draws(0, 0, 4000), torch.ones(4000)).float()
    assert (out.min(), out.max()) == (60, 140)
    assert abs(out.mean() - 100) < 1.5
    assert out.unique().numel() == 81
    assert ColorJitter(brightness=3.0)(flat, Draws(0, 0, 4000), torch.ones(4000)).min() == 0


def test_grey_images_have_brightness_and_contrast_only():
    grey = noise(5, channels=1)
    draws, ones = Draws(0, 3, 5), torch.ones(5)
    assert torch.equal(ColorJitter(saturation=0.9, hue=0.5)(grey, draws, ones), grey)
    assert not torch.equal(ColorJitter(contrast=0.9)(grey, draws, ones), grey)


OPS = [
    RandomCrop(28, padding=2),
    RandomCrop(30),
    RandomResizedCrop(24),
    CenterCrop(24),
    Flip(),
    VerticalFlip(),
    make_policy(read_policy("autoaugment_cifar10"), "x"),
    RandAugment(),
    TrivialAugment(),
    ColorJitter(0.4, 0.4, 0.4, 0.25),
    Normalize((0.5,) * 3, (0.25,) * 3),
]


@pytest.mark.parametrize("op", OPS, ids=lambda op: type(op).__name__)
def test_an_image_gets_the_same_bytes_whoever_else_is_in_its_part(op):
    images, aspect = noise(12, 3, 32, 36), torch.linspace(0.5, 2, 12)
    whole = op(images, Draws(0, 4, 12), aspect)
    parts = [op(images[i : i + 3], Draws(0, 4, 12, i, i + 3), aspect[i : i + 3]) for i in (0, 3, 6, 9)]
    assert torch.equal(torch.cat(parts), whole)


@pytest.mark.parametrize("op", [OPS[0], OPS[2], OPS[4], OPS[8]], ids=lambda op: type(op).__name__)
def test_images_of_a_batch_and_steps_differ(op):
    same = noise(1).expand(64, -1, -1, -1)
    out = op(same, Draws(0, 0, 64), torch.ones(64))
    kinds = len({tuple(image.flatten().tolist()) for image in out})
    assert kinds == (2 if isinstance(op, Flip) else pytest.approx(50, abs=14))
    assert not torch.equal(op(same, Draws(0, 1, 64), torch.ones(64)), out)
    assert torch.equal(op(same, Draws(0, 0, 64), torch.ones(64)), out)


def test_a_pipeline_has_one_order_and_ends_in_floats():
    crop, color, norm = RandomResizedCrop(16), ColorJitter(0.4), Normalize((0.5,) * 3, (0.5,) * 3)
    given = Pipeline((norm, Flip(), color, crop))
    assert given.ops == (crop, Flip(), color, norm)
    images, draws, aspect = noise(6), Draws(0, 0, 6), torch.full((6,), 1.5)
    by_hand = images
    for op in (crop, Flip(), color, norm):
        by_hand = op(by_hand, draws, aspect)
    assert torch.equal(given(images, draws, aspect), by_hand)
    plain = Pipeline(())(images, draws, aspect)
    assert torch.equal(plain, images / 255)


def test_later_parts_can_plug_in_by_their_stage():
    class Blank:
        stage = "cutout"

        def __call__(self, images, draws, aspect):
            return images * 0

    class Nowhere(Blank):
        stage = "crops"

    norm = Normalize((0.5,) * 3, (0.5,) * 3)
    out = Pipeline((Blank(), norm))(noise(2), Draws(0, 0, 2), torch.ones(2))
    assert not out.any()  # after normalising: zero, not the mean's distance from it
    refused("Nowhere has unknown stage 'crops', did you mean 'crop'", Pipeline, (Nowhere(),))


def test_settings_that_cannot_be_are_refused():
    draws, ones = Draws(0, 0, 2), torch.ones(2)
    with pytest.raises(InputError, match="a crop of 48 does not fit into 32 x 32 images with padding 4"):
        RandomCrop(48, padding=4)(noise(2), draws, ones)
    refused("scale must be", RandomResizedCrop, 32, scale=(0.0, 1.0))
    refused("ratio must be", RandomResizedCrop, 32, ratio=(2.0, 1.0))
    refused("share must be", CenterCrop, 32, share=1.5)
    refused(r"hue at most 0\.5", ColorJitter, hue=0.7)
    refused("padding must be from 0 to the crop's size 8, not 9", RandomCrop, 8, padding=9)
    for probability in (-0.1, 7.0, float("nan")):
        refused("probability of a flip must be from 0 to 1", Flip, probability)
    for mean, std in ((0.5, 0.0), (0.5, -1.0), (0.5, float("nan")), (float("inf"), 1.0)):
        refused("mean must be finite and std above 0", Normalize, (mean,), (std,))
    for op in (RandomResizedCrop(32), CenterCrop(32), ColorJitter(0.4)):
        refused(r"must be uint8, .* not torch\.float32", op, noise(2) / 255, draws, ones)
