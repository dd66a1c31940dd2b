import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import sla
from refusals import refused
from sla.views import Product, check_view_0, register_views, view_names

MIRROR = sla.CustomViews(mirror=lambda x: x.flip(-1))
GREY = sla.CustomViews(grey=lambda x: x.mean(1, keepdim=True))


def images(batch=2, channels=3, size=5, width=None):
    shape = (batch, channels, size, width or size)
    return torch.arange(int(np.prod(shape)), dtype=torch.float32).reshape(shape)


def test_rotation_is_rot90_of_each_image_counted_by_hand():
    x = images()
    out = sla.expand_views(x, sla.Rotation())
    assert out.shape == (8, 3, 5, 5)
    for image in range(2):
        for k in range(4):
            for channel in range(3):
                by_hand = np.rot90(x[image, channel].numpy(), k)
                assert np.array_equal(out[image * 4 + k, channel].numpy(), by_hand)
    top_right = x[0, 0, 0, -1]
    assert out[1, 0, 0, 0] == top_right  # 90 degrees counter-clockwise brings the top right to the top left


@pytest.mark.parametrize("text", ["rot4", "rgb6", "rot4*rgb3", "rot2*rgb(RGB,BGR)"])
def test_views_have_the_layout_of_the_batch_and_the_same_pixels(text):
    views, x = sla.parse_views(text), images()
    plain = sla.expand_views(x, views)
    assert plain.is_contiguous()
    found = sla.expand_views(x.contiguous(memory_format=torch.channels_last), views)
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(found, plain)


def test_colour_permutation_orders_channels_as_the_paper_lists_them():
    views = sla.ColorPermutation()
    assert views.names == ("RGB", "RBG", "GRB", "GBR", "BRG", "BGR")
    x = images(batch=1, size=1)  # R, G, B = 0, 1, 2
    expected = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]]
    assert sla.expand_views(x, views).flatten(1).tolist() == expected


def test_product_rotates_then_permutes_and_counts_rotation_first():
    views = sla.Rotation() * sla.ColorPermutation("RGB", "GBR", "BRG")
    x = images(batch=2, size=4)
    out = sla.expand_views(x, views)
    assert len(views) == 12
    assert out.shape[0] == 24
    for image in range(2):
        for r in range(4):
            for c, order in enumerate(([0, 1, 2], [1, 2, 0], [2, 0, 1])):
                expected = torch.rot90(x[image], r, (1, 2))[order]
                assert torch.equal(out[image * 12 + r * 3 + c], expected)
                assert torch.equal(views.apply(x, r * 3 + c)[image], expected)
    assert views.names[5] == "90° BRG"


@pytest.mark.parametrize(
    "text", ["rot4", "rot2", "rgb3", "rgb6", "rot4*rgb3", "rot(0,270)", "rgb(RGB,BGR)*rot2"]
)
def test_identity_is_first_and_text_comes_back(text):
    views = sla.parse_views(text)
    x = images()
    assert torch.equal(views.apply(x, 0), x)
    assert torch.equal(sla.expand_views(x, views)[:: len(views)], x)
    assert views.text == text
    assert sla.parse_views(views.text) == views
    assert hash(sla.parse_views(views.text)) == hash(views)


def test_custom_views_take_part_in_products():
    mirror = sla.CustomViews(mirror=lambda x: x.flip(-1))
    both = sla.Rotation(0, 180) * mirror
    x = images()
    out = sla.expand_views(x, both).unflatten(0, (2, 4))
    assert isinstance(both, Product)
    assert torch.equal(out[:, 1], x.flip(-1))
    assert torch.equal(out[:, 3], torch.rot90(x, 2, (2, 3)).flip(-1))
    assert (mirror * sla.Rotation()).names[4] == "mirror 0°"


def test_one_view_is_neutral_in_products():
    rotation = sla.Rotation()
    assert sla.Identity() * rotation is rotation
    assert rotation * sla.Identity() is rotation
    assert len(sla.parse_views("none")) == 1


@given(st.integers(1, 4), st.integers(1, 5), st.integers(0, 10**6))
def test_take_views_equals_picking_from_all_views(batch, k, seed):
    views = sla.parse_views("rot4*rgb3")
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(batch, 3, 4, 4, generator=generator)
    index = torch.randint(0, 12, (batch, k), generator=generator)
    everything = sla.expand_views(x, views).unflatten(0, (batch, 12))
    by_hand = torch.stack([everything[b, index[b, i]] for b in range(batch) for i in range(k)])
    before = x.clone()
    assert torch.equal(sla.take_views(x, views, index), by_hand)
    assert torch.equal(x, before)


def test_half_turns_work_on_any_shape_and_any_channels():
    x = images(channels=7, size=3, width=5)
    out = sla.expand_views(x, sla.Rotation(0, 180))
    assert torch.equal(out[1], x[0].flip(1).flip(2))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: sla.expand_views(images(size=3, width=5), sla.Rotation()), "square"),
        (lambda: sla.expand_views(torch.zeros(4, 9), sla.Rotation()), "square"),
        (lambda: sla.expand_views(images(channels=1), sla.ColorPermutation()), "3 channels"),
        (lambda: sla.parse_views("rot5"), "did you mean 'rot4'"),
        (lambda: sla.parse_views(""), "one of: none"),
        (lambda: sla.parse_views("rot(0,45)"), "0 (first), 90, 180, 270"),
        (lambda: sla.parse_views("rot(0,x)"), "0 (first), 90, 180, 270"),
        (lambda: sla.parse_views("rgb(RGB,XYZ)"), "unknown channel order 'XYZ'"),
        (lambda: sla.ColorPermutation("BGR", "RGB"), "must be RGB"),
        (lambda: sla.Rotation(90, 180), "0 (first)"),
        (lambda: sla.Rotation(0, 90, 90), "named twice"),
        (lambda: sla.CustomViews(broken=3), "must be a callable"),
        (lambda: sla.CustomViews(crop=lambda x: x[..., 1:]).stack(images()), "must keep the shape"),
        (lambda: sla.take_views(images(), sla.Rotation(), torch.zeros(3, 1)), "(B, k) for 2 images"),
        (lambda: sla.parse_views("rot4*rot4"), "rot4*rot4 repeats views"),
        (lambda: sla.parse_views("rot2*rgb3*rot(0,90)"), "rot2*rot(0,90) repeats views"),
        (lambda: sla.Rotation() * (sla.ColorPermutation() * sla.Rotation(0, 180)), "rot4*rot2 repeats views"),
        (lambda: MIRROR * MIRROR, "repeats views"),
        (lambda: sla.expand_views(images(), [torch.flip]), "views are an object such as Rotation()"),
        (lambda: sla.expand_views(images().numpy(), sla.Rotation()), "of a tensor of images (B, ...)"),
        (lambda: sla.take_views(images(), GREY, torch.tensor([[0], [1]])), "must keep the shape"),
        (
            lambda: sla.take_views(images(), sla.Rotation(), torch.tensor([[0], [4]])),
            "view 4 is out of range",
        ),
        (lambda: sla.take_views(images(), sla.Rotation(), torch.tensor([[0], [-1]])), "view -1 is out of"),
        (lambda: sla.take_views(images(), sla.Rotation(), torch.zeros(2, 0).long()), "at least one view"),
        (lambda: sla.take_views(images(), sla.Rotation(), torch.zeros(2, 1)), "whole numbers, not torch"),
    ],
)
def test_wrong_views_are_refused_in_one_clear_line(call, words):
    refused(words, call)


class Darkening(sla.Views):
    """Works in place, view 0 too."""

    names = ("unchanged", "darker", "black")

    def apply(self, input, view):
        return input.mul_((1.0, 0.5, 0.0)[view])


def test_views_that_work_in_place_change_nothing_but_their_own_view():
    images = torch.rand(3, 1, 4, 4) + 1
    before = images.clone()
    wanted = torch.stack([before, before * 0.5, before * 0], 1)
    custom = sla.CustomViews(darker=lambda x: x.mul_(0.5), black=lambda x: x.zero_())
    for views in (Darkening(), custom):
        torch.testing.assert_close(views.stack(images), wanted)
        torch.testing.assert_close((sla.Rotation(0, 180) * views).apply(images, 1), before * 0.5)
        torch.testing.assert_close((views * sla.Rotation(0, 180)).stack(images)[:, ::2], wanted)
        index = torch.tensor([[0, 2], [1, 0], [2, 1]])
        taken = sla.take_views(images, views, index).unflatten(0, (3, 2))
        torch.testing.assert_close(taken, wanted[torch.arange(3).unsqueeze(1), index])
        torch.testing.assert_close(images, before)


class Shifted(sla.Views):
    names = ("unchanged", "shifted")

    def __init__(self, pixels):
        self.pixels = pixels

    def apply(self, input, view):
        return input.roll(view * self.pixels, -1)


SHIFTED = Shifted(1)


def test_views_of_ones_own_with_other_parameters_are_other_views():
    one, two = Shifted(1), Shifted(2)
    assert one == one
    assert one != two
    assert len({one, two}) == 2
    assert len(one * two) == 4
    refused("repeats views", lambda: one * one)


def test_an_imported_object_keeps_its_text():
    name = f"{__name__}:SHIFTED"
    sla.allow(name)
    found = sla.parse_views(name)
    assert (found.text, SHIFTED.text) == (name, "own")
    assert found == sla.parse_views(name)


def test_views_of_another_type_are_cast_back():
    views = sla.CustomViews(halved=lambda x: x.double() / 2)
    assert sla.expand_views(torch.rand(2, 1, 4, 4), views).dtype == torch.float32


def test_what_views_say_of_themselves():
    views = sla.parse_views("rot4*rgb3")
    turns = {f"rotation by {degrees}" for degrees in (90, 180, 270)}
    assert views.elements == turns | {"channels GBR", "channels BRG"}
    assert sla.Rotation(0, 180).elements == {"rotation by 180"}
    assert (views.channels, sla.Rotation().channels, sla.ColorPermutation().channels) == (3, None, 3)
    assert (sla.ColorPermutation() * MIRROR).channels == 3
    assert repr(sla.Rotation(0, 180)) == "<views rot2: 0°, 180°>"
    assert MIRROR.text == "custom(mirror)"
    assert sla.Identity().elements == frozenset()
    assert {"none", "rot4", "rot2", "rgb3", "rgb6"} <= set(view_names())


def test_views_are_equal_if_they_do_the_same():
    def flip(x):
        return x.flip(-1)

    one, same, other = sla.CustomViews(a=flip), sla.CustomViews(b=flip), sla.CustomViews(a=lambda x: x)
    assert one == same
    assert hash(one) == hash(same)
    assert one != other
    assert sla.Rotation() == sla.Rotation(0, 90, 180, 270)
    assert sla.Rotation() != sla.Rotation(0, 180)
    assert sla.Rotation() != sla.ColorPermutation()
    assert sla.Rotation() * one == sla.Rotation() * same
    assert sla.Rotation() * one != one * sla.Rotation()
    assert sla.Rotation() * one != sla.Rotation(0, 180) * one
    with pytest.raises(TypeError):
        sla.Rotation() * 3


def test_text_may_have_spaces_and_errors_name_the_term():
    assert sla.parse_views(" rot( 0, 90 ) * rgb3 ").text == "rot(0,90)*rgb3"
    assert sla.parse_views("none*rot2").text == "rot2"
    refused("unknown view 'rgb7' in 'rot4*rgb7'", sla.parse_views, "rot4*rgb7")
    message = refused("unknown view 'rgb7'", sla.parse_views, " rgb7 ")
    assert " in " not in message
    refused("unknown view 'none(1)'", sla.parse_views, "none(1)")


def test_rotations_of_a_batch_without_channels_and_colours_of_points():
    x = torch.arange(8.0).view(2, 2, 2)
    assert torch.equal(sla.Rotation().apply(x, 1), torch.rot90(x, 1, (1, 2)))
    points = torch.tensor([[1.0, 2.0, 3.0]])
    assert sla.ColorPermutation().apply(points, 5).tolist() == [[3, 2, 1]]
    refused("needs 3 channels, not a batch of shape (3,)", sla.ColorPermutation().apply, torch.zeros(3), 1)
    refused("needs square images, not a batch of shape (9, 9)", sla.Rotation().apply, torch.zeros(9, 9), 2)
    for shape in ((2, 3, 5), (2, 3, 3, 5)):
        refused("needs square images", sla.Rotation().apply, torch.zeros(shape), 3)


class Brighter(sla.Views):
    names = ("brighter", "unchanged")

    def apply(self, input, view):
        return input + (0.1 if view == 0 else 0)


def test_view_0_of_ones_own_views_must_be_the_image():
    check_view_0(sla.Rotation() * Shifted(1), (3, 4, 4))
    check_view_0(MIRROR, (1, 5))
    for views in (Brighter(), sla.Rotation() * Brighter(), Brighter() * sla.Rotation()):
        refused("view 0 of Brighter, 'brighter', changes the image", check_view_0, views, (3, 4, 4))


@pytest.mark.parametrize("names", [(), ("same", 3), "same", None])
def test_views_name_each_view(names):
    views = Shifted(1)
    views.names = names
    refused("names must name each view", sla.expand_views, images(), views)
    views.names = ["same", "shifted"]
    assert sla.expand_views(images(), views).shape[0] == 4


def test_numbers_of_views_are_whole_numbers_of_any_size():
    x, views = images(), sla.Rotation()
    by_hand = torch.stack([torch.rot90(x[0], 3, (1, 2)), x[1]])
    for dtype in (torch.uint8, torch.int32):
        assert torch.equal(sla.take_views(x, views, torch.tensor([[3], [0]], dtype=dtype)), by_hand)
    refused("whole numbers, not torch.bool", sla.take_views, x, views, torch.tensor([[True], [False]]))
    refused("(B, k) for 2 images, not (2,)", sla.take_views, x, views, torch.tensor([0, 1]))


def test_a_family_of_views_is_registered_once():
    refused("views 'rot' are registered twice", register_views("rot"), sla.Rotation)
    refused("does not say how to apply a view", sla.Views().apply, images(), 0)


def make_shifted():
    return Shifted(2)


NO_VIEWS = 3


def test_views_of_ones_own_are_an_object_a_class_or_a_function():
    names = {
        what: f"{__name__}:{what}" for what in ("SHIFTED", "Darkening", "make_shifted", "NO_VIEWS", "images")
    }
    sla.allow(*names.values())
    found = {what: sla.parse_views(names[what]) for what in ("SHIFTED", "Darkening", "make_shifted")}
    assert [type(views) for views in found.values()] == [Shifted, Darkening, Shifted]
    assert [views.text for views in found.values()] == [names[what] for what in found]
    assert found["make_shifted"].pixels == 2
    for what in ("NO_VIEWS", "images"):
        refused("not views, nor a class or function that makes them", sla.parse_views, names[what])
