"""Policies: published ones, files, and the random ones, against their tables and Pillow."""

import json
from collections import Counter

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps

from made_images import as_picture, noise, through
from refusals import refused
from sla.augment.ops import ColorJitter, Cutout, Flip, Normalize, Pipeline, RandomErasing, VerticalFlip
from sla.augment.pipelines import find_contradictions, read_policies, train_pipeline
from sla.augment.policy import (
    RAND,
    SCALES,
    WIDE,
    Policy,
    RandAugment,
    TrivialAugment,
    make_policy,
    read_policy,
    shipped_policies,
)
from sla.augment.policy_ops import OPERATIONS
from sla.augment.syntax import quoted
from sla.backbones.torchvision_import import import_torchvision
from sla.errors import MissingExtraError
from sla.sampling.draws import Draws
from sla.views import ColorPermutation, Rotation


def check_augment(text):
    """Of images so large that anything fits."""
    train_pipeline(text, 1 << 30, (0.0,), (1.0,))


PUBLISHED = [  # in the form in which Fast AutoAugment publishes its policies
    [["Contrast", 0.8320659688593578, 0.49884310562180767], ["TranslateX", 0.41849883971249136, 0.394]],
    [["Cutout", 0.3, 0.9], ["Rotate", 1.0, 0.0]],
]


@pytest.mark.parametrize("name", ["cifar10", "imagenet"])
def test_autoaugment_is_the_published_one(name):
    """Names, probabilities and magnitudes against torchvision's copy of the tables."""
    try:
        import_torchvision()
    except MissingExtraError:
        pytest.skip("needs torchvision, of the extra timm")
    from torchvision.transforms import AutoAugment, AutoAugmentPolicy

    theirs = AutoAugment(AutoAugmentPolicy(name))
    ranges = theirs._augmentation_space(10, (331, 331))
    ours = make_policy(read_policy(f"autoaugment_{name}"), name).sub_policies
    assert len(ours) == len(theirs.policies) == 25
    for sub, wanted in zip(ours, theirs.policies, strict=True):
        for (operation, probability, level), (known, chance, step) in zip(sub, wanted, strict=True):
            assert (operation, probability) == (known, chance)
            if step is None:
                continue
            scale = SCALES[operation]
            value = scale.low + (scale.high - scale.low) * level
            magnitudes, signed = ranges[operation]
            expected = float(magnitudes[step])
            if operation in ("Color", "Contrast", "Brightness", "Sharpness"):
                # The paper's range is 0.1 to 1.9 in ten steps; torchvision counts from 1 to both sides.
                assert value == pytest.approx(0.1 + 0.2 * step)
                continue
            if operation.startswith("Translate"):
                value *= 331
            slack = {"Solarize": 1.1, "Posterize": 0.5, "TranslateX": 1.1, "TranslateY": 1.1}
            assert value == pytest.approx(expected, abs=slack.get(operation, 1e-6))
            assert scale.signed == signed


def test_a_published_policy_is_read_as_it_is(tmp_path):
    file = tmp_path / "policy.json"
    file.write_text(json.dumps(PUBLISHED))
    policy = make_policy(read_policy(file), str(file))
    assert policy.plain() == PUBLISHED
    file.write_text(json.dumps({"about": "mine", "scale": 10, "sub_policies": [[["Rotate", 0.5, 7]]]}))
    assert make_policy(read_policy(file), "x").sub_policies == ((("Rotate", 0.5, 0.7),),)


def pillow_of(name, magnitude, sign, picture):
    """One operation of a policy by Fast AutoAugment's ranges, with Pillow."""
    low, high = SCALES[name].low, SCALES[name].high
    value = (low + (high - low) * magnitude) * sign
    if name == "Rotate":
        return picture.rotate(value)
    if name == "Solarize":
        return ImageOps.solarize(picture, value)
    if name == "Color":
        return ImageEnhance.Color(picture).enhance(value)
    assert name == "TranslateY"
    moved = (1, 0, 0, 0, 1, value * picture.height)
    return picture.transform(picture.size, Image.Transform.AFFINE, moved)


def test_each_image_gets_a_sub_policy_in_order_with_its_probability():
    """Every result is one that Pillow makes of some sub-policy, and each as often as it should be."""
    content = [
        [["Rotate", 0.5, 0.9], ["Solarize", 1.0, 0.3]],
        [["TranslateY", 1.0, 0.8], ["Color", 0.25, 0.1]],
    ]
    image = noise(1)
    picture = as_picture(image[0])
    expected = {}
    for sub in content:
        for applied in ((True, True), (True, False), (False, True), (False, False)):
            for sign in (1, -1):
                result = picture
                for (name, _, magnitude), use in zip(sub, applied, strict=True):
                    side = sign if SCALES[name].signed else 1
                    result = pillow_of(name, magnitude, side, result) if use else result
                expected.setdefault(result.tobytes(), (sub[0][0], applied))
    out = through(make_policy(content, "x"), image.expand(4000, -1, -1, -1))
    counts = Counter(expected.get(result.permute(1, 2, 0).numpy().tobytes()) for result in out)
    assert None not in counts
    assert counts.pop(("Rotate", (True, True))) == pytest.approx(1000, abs=100)
    assert counts.pop(("Rotate", (False, True))) == pytest.approx(1000, abs=100)
    assert counts.pop(("TranslateY", (True, True))) == pytest.approx(500, abs=80)
    assert counts.pop(("TranslateY", (True, False))) == pytest.approx(1500, abs=120)
    assert not counts


@pytest.mark.parametrize(("table", "strongest"), [(RAND, 30), (WIDE, 135)])
def test_strengths_start_at_nothing_and_end_where_they_should(operate, table, strongest):
    assert len(table) == 14
    assert {row.operation for row in table} <= {"", *OPERATIONS}
    images = noise(4)
    for row in table:
        if row.operation not in ("", "autocontrast", "equalize"):
            assert torch.equal(operate(images, row.operation, row.none), images), row
            full = row.full * 32 if row.share else row.full
            assert not torch.equal(operate(images, row.operation, full), images), row
    assert next(row.full for row in table if row.operation == "rotate") == strongest


def test_randaugment_applies_its_number_of_operations():
    image = noise(1) // 2 + 20  # not of full contrast already
    once = through(RandAugment(1, 10), image.expand(3000, -1, -1, -1))
    kinds = Counter(result.numpy().tobytes() for result in once)
    assert len(kinds) == 14 + 9  # nine of the operations go to either side
    assert kinds[image[0].numpy().tobytes()] == pytest.approx(3000 / 14, abs=60)
    twice = through(RandAugment(2, 10), image.expand(3000, -1, -1, -1))
    assert len({result.numpy().tobytes() for result in twice}) > 150
    assert kinds.keys() & {result.numpy().tobytes() for result in twice}


def test_trivialaugment_gives_each_image_a_strength_of_its_own():
    out = through(TrivialAugment(), noise(1).expand(4000, -1, -1, -1))
    assert 300 < len({result.numpy().tobytes() for result in out}) < 14 * 2 * 31
    turned = np.rot90(noise(1)[0].numpy(), 1, (1, 2)).tobytes()
    assert turned in {result.numpy().tobytes() for result in out}  # why it contradicts rotations as views


def test_cutout_is_a_square_of_zeros_cut_off_at_the_border():
    ones = torch.ones(2000, 2, 20, 20)
    out = through(Cutout(8), ones)
    sizes = Counter()
    for result in out[:, 0]:
        rows, columns = ((result == 0).any(side).nonzero()[:, 0] for side in (1, 0))
        box = result[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
        assert not box.any()
        assert (result == 0).sum() == box.numel()
        sizes[len(rows)] += 1
        inside = rows[0] > 0 and rows[-1] < 19
        assert len(rows) == 8 or not inside
    assert set(sizes) == {4, 5, 6, 7, 8}  # the centre is inside: half a box at least
    assert sizes[8] == pytest.approx(2000 * 13 / 20, abs=110)
    assert torch.equal(out[:, 0], out[:, 1])
    half = through(Cutout(8, 0.5), ones)
    assert (half.flatten(1).amin(1) == 0).float().mean().item() == pytest.approx(0.5, abs=0.05)


def test_erasing_takes_boxes_of_the_areas_and_shapes_it_should():
    out = through(RandomErasing(0.25), torch.ones(4000, 1, 50, 50))
    areas = (out == 0).flatten(1).float().mean(1)
    assert (areas > 0).float().mean().item() == pytest.approx(0.25, abs=0.03)
    found = areas[areas > 0]
    assert 0.015 < found.min() < 0.03
    assert 0.3 < found.max() < 0.36
    assert found.mean().item() == pytest.approx((0.02 + 1 / 3) / 2, abs=0.02)


def test_the_mean_is_what_cutout_leaves():
    pipeline = train_pipeline("cutout(4)", 8, (0.3,), (0.5,))
    out = pipeline(torch.full((1, 1, 8, 8), 255, dtype=torch.uint8), Draws(0, 0, 1), torch.ones(1))
    assert out.unique().tolist() == pytest.approx([0.0, 1.4])


def test_the_order_is_fixed_whatever_the_text_says():
    text = "cutout(4), jitter(0.1), vflip, flip, crop(1), autoaugment"
    names = [type(op).__name__ for op in train_pipeline(text, 8, (0.5,) * 3, (0.5,) * 3).ops]
    order = ["Channels", "Policy", "RandomCrop", "VerticalFlip", "Flip", "ColorJitter", "Normalize", "Cutout"]
    assert names == order


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("{", "not a policy: not JSON"),
        ("\udcff", "not a policy: not JSON"),
        ("[" * 100_000, "not a policy: not JSON"),
        ("[]", "a policy is a list of sub-policies"),
        ('{"policies": []}', "an object with one as sub_policies"),
        ('{"scale": 0, "sub_policies": [[["Rotate", 1, 0]]]}', "scale must be a number above 0, not 0"),
        ('[[["Rotate", 1, 0]], 7]', "sub-policy 2 must be a list of [operation, probability, magnitude]"),
        (
            '[[["Rotate", 1]]]',
            "sub-policy 1, entry 1 must be [operation, probability, magnitude], not ['Rotate', 1]",
        ),
        (
            '[[["Rotate", 1, 0], ["Rotat", 1, 0]]]',
            "entry 2: unknown operation 'Rotat', did you mean 'Rotate'?",
        ),
        ("[[[null, 1, 0]]]", "entry 1: unknown operation None"),
        ('[[["Color", 1.2, 0]]]', "the probability of Color must be from 0 to 1, not 1.2"),
        ('[[["Color", true, 0]]]', "the probability of Color must be from 0 to 1, not True"),
        ('[[["Color", NaN, 0]]]', "the probability of Color must be from 0 to 1, not nan"),
        (
            '{"scale": 9, "sub_policies": [[["Color", 1, -1]]]}',
            "the magnitude of Color must be from 0 to 9, not -1",
        ),
    ],
)
def test_bad_files_are_refused_with_the_file_and_the_entry(content, line, tmp_path):
    file = tmp_path / "bad.json"
    file.write_bytes(content.encode("utf-8", "surrogateescape"))
    message = refused(f"{file}: ", check_augment, f"crop(4), policy({file})")
    assert line in message
    assert len(message) < 500


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("policy", "needs a file: policy(file.json)"),
        ("policy(no.json)", "no.json: no such file or directory"),
        ("policy(autoaugment_cifar)", "did you mean 'autoaugment_cifar10'? (a file of yours ends in .json)"),
        ("policy(a.json, b.json)", "takes up to 1 arguments; put a name with commas or brackets in double"),
        (
            "policy(a(1).json)",
            'put a name with commas or brackets in double quotes, as in policy("a (1).json")',
        ),
        ('policy("a.json)', "is unmatched; put a name with commas or brackets in double quotes"),
        ('crop("4")', "only numbers are allowed in brackets"),
        ("autoaugment(svhn)", "unknown policy 'svhn'"),
        ("autoaugment, randaugment", "one policy, not autoaugment and randaugment"),
        ("randaugment(2, 11)", "the magnitude must be from 0 to 10, not 11"),
        ("randaugment(0)", "the number of operations must be from 1 to 16, not 0"),
        ("randaugment(1.5)", "how many operations is a whole number, not 1.5"),
        ("trivialaugment(1)", "trivialaugment takes up to 0 numbers"),
        ("cutout(0)", "at least 1 pixel a side, not 0"),
        ("cutout(4.5)", "the box's side is a whole number of pixels, not 4.5"),
        ("cutout(4, 2)", "the probability of a box must be from 0 to 1, not 2.0"),
        ("erasing(0.5, 0.9, 0.1)", "shares of the area must be 0 < low <= high <= 1"),
        ("jitter", "jitter takes 1 to 5 numbers"),
    ],
)
def test_wrong_text_is_refused(text, line):
    refused(line, check_augment, text)


def test_a_policy_that_was_read_needs_its_file_no_more(tmp_path):
    file = tmp_path / "mine.json"
    file.write_text(json.dumps({"note": "any", "scale": 2, "sub_policies": [[["Invert", 1, 1]]]}))
    text = f"policy({file})"
    kept = read_policies(text, {})
    assert kept == {str(file): [[["Invert", 1.0, 0.5]]]}
    file.unlink()
    assert read_policies(text, kept) == kept
    images = noise(2)
    out = train_pipeline(text, 32, (0.0,) * 3, (1.0,) * 3, kept)(images, Draws(0, 0, 2), torch.ones(2))
    assert torch.equal((out * 255).round().to(torch.uint8), 255 - images)
    refused("no such file", read_policies, text, {})


@pytest.mark.parametrize("name", ["a, b.json", "a (1).json", "a)(.json", "plain name.json", "3.json"])
def test_any_file_can_be_named(name, tmp_path):
    (tmp_path / name).write_text('[[["Invert", 1, 1]]]')
    text = f"crop(4), policy({quoted(str(tmp_path / name))}), cutout(4)"
    assert list(read_policies(text, {})) == [str(tmp_path / name)]
    ops = train_pipeline(text, 8, (0.5,), (0.5,)).ops[:3]
    assert [type(op).__name__ for op in ops] == ["Channels", "Policy", "RandomCrop"]


def test_every_shipped_policy_is_one():
    assert {"autoaugment_cifar10", "autoaugment_imagenet"} <= set(shipped_policies())
    for name in shipped_policies():
        assert isinstance(make_policy(read_policy(name), name), Policy)


ROT4, ROT2, RGB3 = Rotation(), Rotation(0, 180), ColorPermutation("RGB", "GBR", "BRG")


@pytest.mark.parametrize(
    ("ops", "views", "count"),
    [
        ((Flip(), VerticalFlip()), ROT4, 1),
        ((Flip(), VerticalFlip()), ROT2, 1),
        ((Flip(), VerticalFlip()), Rotation(0, 90), 0),
        ((Flip(), VerticalFlip(0.0)), ROT4, 0),
        ((Flip(),), ROT4, 0),
        ((VerticalFlip(),), ROT4, 0),
        ((TrivialAugment(),), ROT4, 1),
        ((TrivialAugment(),), ROT2, 0),  # 135 degrees do not reach 180
        ((RandAugment(2, 9),), ROT4, 0),
        ((RandAugment(3, 10),), ROT4, 1),  # three times 30
        ((Policy(((("Rotate", 1.0, 1.0), ("Rotate", 1.0, 0.0)),)),), ROT4, 0),
        ((Policy(((("Rotate", 1.0, 1.0),) * 3,)),), ROT4, 1),
        ((Policy(((("Invert", 1.0, 1.0),),)),), RGB3, 0),
        ((ColorJitter(0.4, 0.4, 0.4, 0.25),), RGB3, 0),
        ((ColorJitter(hue=0.5),), RGB3, 1),
        ((ColorJitter(hue=0.5),), ROT4, 0),
        ((ColorJitter(hue=0.5), Flip(), VerticalFlip()), ROT2 * RGB3, 2),
    ],
)
def test_what_contains_a_view_is_found(ops, views, count):
    found = find_contradictions(Pipeline((*ops, Normalize((0.5,), (0.5,)))), views.elements)
    assert len(found) == count


def test_a_third_of_the_colour_circle_is_a_channel_permutation():
    from sla.augment.transforms import shift_hue

    image = torch.rand(1, 3, 6, 6)
    turned = shift_hue(image, torch.tensor([1 / 3]))
    assert any(torch.allclose(turned, image[:, order], atol=1e-5) for order in ([1, 2, 0], [2, 0, 1]))
