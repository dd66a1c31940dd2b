"""Views: the transformations whose index becomes part of the label. Identity is always view 0."""

import copy
import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from sla.errors import InputError, nearest
from sla.labels import is_readable
from sla.plugins import import_plugin, is_plugin_name

CHANNEL_ORDERS = ("RGB", "RBG", "GRB", "GBR", "BRG", "BGR")


class Views:
    """An ordered set of M transformations of a batch; the base class of all views.

    Attributes:
        text: the text form of the set: `parse_views(views.text)` returns it, unless the views are your own.
        names: one short name per view, for display.
        channels: number of channels an image must have; None for any number.
        elements: the elementary transformations in the set, by the names that augmentations use for them
            ("rotation by 180", "channels GBR", "horizontal flip"). An augmentation that produces one of them
            contradicts the label.
    """

    text: str = "own"
    names: tuple[str, ...]
    channels: int | None = None
    elements: frozenset[str] = frozenset()
    family: str = ""  # the name of a registered class: sets of one family have views in common

    def __len__(self) -> int:
        return len(self.names)

    def apply(self, input: Tensor, view: int) -> Tensor:
        """Apply transformation number `view` to a whole batch; the shape stays the same."""
        raise InputError(f"{type(self).__name__} does not say how to apply a view")

    def stack(self, input: Tensor) -> Tensor:
        """All views of a batch: (B, ...) -> (B, M, ...), in the memory layout of the batch."""
        seen = [apply_view(input, self, view) for view in range(len(self))]
        channels_last = torch.channels_last
        if input.ndim != 4 or input.is_contiguous() or not input.is_contiguous(memory_format=channels_last):
            return torch.stack(seen, 1)
        # Written once as the network reads it, instead of in torch's default layout and again in its own.
        return torch.stack([view.permute(0, 2, 3, 1) for view in seen], 1).permute(0, 1, 4, 2, 3)

    def __mul__(self, other: "Views") -> "Views":
        """Every view of `self` followed by every view of `other`: index = i * len(other) + j."""
        if not isinstance(other, Views):
            return NotImplemented
        if len(self) == 1:
            return other
        return self if len(other) == 1 else Product(self, other)

    def __eq__(self, other: object) -> bool:
        if self is other or type(self) is not type(other):
            return self is other
        # Views of your own without a name may differ in what no text says.
        return self.text == other.text != Views.text and tuple(self.names) == tuple(other.names)

    def __hash__(self) -> int:
        return hash((type(self), self.text))

    def __repr__(self) -> str:
        return f"<views {self.text}: {', '.join(self.names)}>"


class Family(NamedTuple):
    """A registered class of views, and the arguments that its short names imply."""

    make: Callable[..., Views]
    short: dict[str, tuple[Any, ...]]


FAMILIES: dict[str, Family] = {}
Kind = TypeVar("Kind", bound=type[Views])


def register_views(name: str, **short: tuple[Any, ...]) -> Callable[[Kind], Kind]:
    """Decorate a class of views: the text `name(a,b)` makes it with these arguments, a short name with its.

    A class without short names takes no arguments: `name` alone makes it.
    """

    def add(kind: Kind) -> Kind:
        if name in FAMILIES:
            raise InputError(f"views {name!r} are registered twice")
        kind.family, FAMILIES[name] = name, Family(kind, short)
        return kind

    return add


@register_views("none")
class Identity(Views):
    """The unchanged image: M = 1, no label augmentation."""

    text = "none"
    names = ("identity",)

    def apply(self, input: Tensor, view: int) -> Tensor:
        """The batch itself."""
        return input


@register_views("rot", rot4=(0, 90, 180, 270), rot2=(0, 180))
class Rotation(Views):
    """Rotation by multiples of 90 degrees, counter-clockwise: `rot90(x, k)`. All four by default."""

    def __init__(self, *degrees: int) -> None:
        self.degrees = degrees or (0, 90, 180, 270)
        if self.degrees[0] != 0 or any(d not in (0, 90, 180, 270) for d in self.degrees):
            raise InputError(f"rotations are 0 (first), 90, 180, 270 degrees, not {list(degrees)}")
        _check_distinct("rotation", [str(d) for d in self.degrees])
        self.names = tuple(f"{d}°" for d in self.degrees)
        self.text = _write(self.family, self.degrees)
        self.elements = frozenset(f"rotation by {d}" for d in self.degrees[1:])

    def apply(self, input: Tensor, view: int) -> Tensor:
        """(..., S, S) rotated by the view's angle."""
        turns = self.degrees[view] // 90
        if turns == 0:
            return input
        if input.ndim < 3 or (turns % 2 and input.shape[-1] != input.shape[-2]):
            shape = tuple(input.shape)
            raise InputError(
                f"rotation needs square images, not a batch of shape {shape}: crop or resize them"
            )
        return torch.rot90(input, turns, (-2, -1))


@register_views("rgb", rgb3=("RGB", "GBR", "BRG"), rgb6=CHANNEL_ORDERS)
class ColorPermutation(Views):
    """The colour channels in another order; all six orders by default, RGB first."""

    channels = 3

    def __init__(self, *orders: str) -> None:
        self.orders = orders or CHANNEL_ORDERS
        for order in self.orders:
            if order not in CHANNEL_ORDERS:
                raise InputError(f"unknown channel order {order!r}{nearest(str(order), CHANNEL_ORDERS)}")
        if self.orders[0] != "RGB":
            raise InputError(f"the first channel order must be RGB, the identity, not {self.orders[0]}")
        _check_distinct("channel order", list(self.orders))
        self.names = self.orders
        self.text = _write(self.family, self.orders)
        self.elements = frozenset(f"channels {order}" for order in self.orders[1:])

    def apply(self, input: Tensor, view: int) -> Tensor:
        """(B, 3, H, W) with its channels in the view's order."""
        if input.ndim < 2 or input.shape[1] != 3:
            raise InputError(
                f"colour permutation needs 3 channels, not a batch of shape {tuple(input.shape)}: "
                "use rotation for images of one channel"
            )
        if view == 0:
            return input
        return input[:, ["RGB".index(channel) for channel in self.orders[view]]]


class CustomViews(Views):
    """Your own views: the identity, then each named callable on a batch (B, ...) -> (B, ...).

    >>> CustomViews(mirror=lambda x: x.flip(-1))  # M = 2
    """

    def __init__(self, **transforms: Callable[[Tensor], Tensor]) -> None:
        for name, transform in transforms.items():
            if not callable(transform):
                raise InputError(f"view {name!r} must be a callable on a batch, not {transform!r}")
        self.transforms = tuple(transforms.values())
        self.names = ("identity", *transforms)
        self.text = f"custom({','.join(transforms)})"

    def apply(self, input: Tensor, view: int) -> Tensor:
        """Apply the view's callable to the batch."""
        return input if view == 0 else self.transforms[view - 1](input)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CustomViews) and self.transforms == other.transforms

    def __hash__(self) -> int:
        return hash(self.transforms)


class Product(Views):
    """Composed views: first `first`, then `second`. Created by `first * second`."""

    def __init__(self, first: Views, second: Views) -> None:
        _refuse_look_alikes(_factors(first), _factors(second))
        self.first, self.second = first, second
        self.names = tuple(f"{a} {b}" for a in first.names for b in second.names)
        self.text = f"{first.text}*{second.text}"
        self.channels = first.channels or second.channels
        self.elements = first.elements | second.elements

    def apply(self, input: Tensor, view: int) -> Tensor:
        """First's view i, then second's view j, where view = i * len(second) + j."""
        i, j = divmod(view, len(self.second))
        return apply_view(apply_view(input, self.first, i), self.second, j)

    def stack(self, input: Tensor) -> Tensor:
        """(B, ...) -> (B, M, ...); each of first's views is computed once."""
        once = self.first.stack(input).flatten(0, 1)
        return self.second.stack(once).unflatten(0, (input.shape[0], len(self.first))).flatten(1, 2)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Product) and (self.first, self.second) == (other.first, other.second)

    def __hash__(self) -> int:
        return hash((self.first, self.second))


def expand_views(input: Tensor, views: Views) -> Tensor:
    """Every view of every image, (B, ...) -> (B*M, ...), interleaved: image 0 view 0, image 0 view 1, ..."""
    _check_batch(input, views)
    return views.stack(input).flatten(0, 1)


def apply_view(input: Tensor, views: Views, view: int) -> Tensor:
    """View number `view` of a batch, of the same shape and type; the batch itself stays as it is."""
    # Views from outside this package get a copy: one that works in place would change the next views too.
    output = views.apply(input if _is_ours(views) else input.clone(), view)
    if not isinstance(output, Tensor):
        kind = type(output).__name__
        raise InputError(f"view {views.names[view]!r} returned a {kind}, not a batch {tuple(input.shape)}")
    if output.shape != input.shape:
        shapes = f"{tuple(input.shape)} into {tuple(output.shape)}"
        raise InputError(
            f"view {views.names[view]!r} turned {shapes}: a view must keep the shape of its batch"
        )
    return output.to(input.dtype)


def check_views(views: object) -> None:
    """Raise an error unless this is a `Views` object that names its views."""
    if isinstance(views, str):
        raise InputError(f"views are an object such as Rotation(), not text: parse_views({views!r})")
    if not isinstance(views, Views):
        raise InputError(f"views are an object such as Rotation(), not {views!r}")
    names = getattr(views, "names", None)
    if not isinstance(names, tuple | list) or not names or not all(isinstance(name, str) for name in names):
        kind = type(views).__name__
        raise InputError(
            f"{kind}.names must name each view, the unchanged image first, as in ('unchanged', 'mirrored'), "
            f"not {names!r}"
        )


def _check_batch(input: object, views: object) -> None:
    check_views(views)
    if not isinstance(input, Tensor):
        raise InputError(f"views are of a tensor of images (B, ...), not of a {type(input).__name__}")


def check_view_0(views: Views, shape: tuple[int, ...]) -> None:
    """Raise an error if view 0 of one's own views changes images of this shape (C, H, W)."""
    for factor in _factors(views):
        images = torch.linspace(0, 1, 2 * math.prod(shape)).view(2, *shape)
        if not _is_ours(factor) and not torch.equal(apply_view(images, factor, 0), images):
            what = f"view 0 of {type(factor).__name__}, {factor.names[0]!r}"
            raise InputError(f"{what}, changes the image: view 0 must be the image as it is")


def take_views(input: Tensor, views: Views, index: Tensor) -> Tensor:
    """The views `index` (B, k) of each image, (B, ...) -> (B*k, ...), interleaved."""
    _check_batch(input, views)
    if index.ndim != 2 or index.shape[0] != input.shape[0]:
        raise InputError(f"view numbers must be (B, k) for {input.shape[0]} images, not {tuple(index.shape)}")
    if index.shape[1] == 0:
        raise InputError("each image must be seen through at least one view, not (B, 0)")
    if index.is_floating_point() or index.dtype == torch.bool:
        raise InputError(f"view numbers must be whole numbers, not {index.dtype}")
    if not is_readable(index):
        # Which images have which view cannot be known without waiting for the device, or in a compiled graph:
        # every view of every image is made, which costs little beside the network, and the wanted are taken.
        rows = torch.arange(len(input), device=input.device).unsqueeze(1)
        return views.stack(input)[rows, index.to(input.device)].flatten(0, 1)
    for number in index.unique().tolist():
        if not 0 <= number < len(views):
            raise InputError(f"view {number} is out of range: {len(views)} views are 0..{len(views) - 1}")
    output = input.repeat_interleave(index.shape[1], 0)
    flat = index.flatten()
    for view in range(1, len(views)):
        rows = (flat == view).nonzero().squeeze(1)
        if len(rows):
            output[rows] = apply_view(output[rows], views, view)
    return output


def parse_views(text: str) -> Views:
    """Views from text: `rot4`, `rot2`, `rgb3`, `rgb6`, `rot(0,90)`, `rgb(RGB,BGR)`, `none`, joined by `*`.

    A term may also be your own views, `package.module:Name`: a `Views` object, or a class or function that
    returns one without arguments.
    """
    views: Views = Identity()
    for term in text.split("*"):
        views = views * _parse_term(term.strip(), text)
    return views


def view_names() -> list[str]:
    """The terms of `parse_views` that need no arguments: none, rot4, rot2, ..."""
    return [name for family, (_, short) in FAMILIES.items() for name in short or (family,)]


def _parse_term(term: str, text: str) -> Views:
    if is_plugin_name(term):
        return _own_views(term)
    for family, (make, short) in FAMILIES.items():
        call = re.fullmatch(rf"{family}\(([^()]*)\)", term) if short else None
        if call is not None:
            words = [word.strip() for word in call[1].split(",")]
            return make(*(int(word) if word.isdecimal() else word for word in words))
        if term in (short or (family,)):
            return make(*short.get(term, ()))
    where = "" if term == text.strip() else f" in {text!r}"
    choices = (*view_names(), *(f"{family}(...)" for family in FAMILIES if FAMILIES[family].short))
    raise InputError(f"unknown view {term!r}{where}{nearest(term, choices)}")


def _write(family: str, arguments: tuple[Any, ...]) -> str:
    """The text that `parse_views` makes these views from."""
    short = [name for name, own in FAMILIES[family].short.items() if own == arguments]
    return short[0] if short else f"{family}({','.join(map(str, arguments))})"


def _own_views(name: str) -> Views:
    found = import_plugin(name)
    views = found if isinstance(found, Views) else found() if callable(found) else None
    if not isinstance(views, Views):
        raise InputError(f"{name}: not views, nor a class or function that makes them")
    views = copy.copy(views)  # an object of the caller's keeps its own text
    views.text = name
    return views


def _is_ours(views: Views) -> bool:
    return type(views).__module__.startswith("sla.") and not isinstance(views, CustomViews)


def _factors(views: Views) -> list[Views]:
    return _factors(views.first) + _factors(views.second) if isinstance(views, Product) else [views]


def _refuse_look_alikes(first: list[Views], second: list[Views]) -> None:
    # Rotations (and channel orders) form a group: the product of two sets contains equal views.
    for a in first:
        for b in second:
            if a == b or (a.family and a.family == b.family):
                product = f"{a.text}*{b.text}"
                raise InputError(f"{product} repeats views: name them in one set")


def _check_distinct(what: str, values: list[str]) -> None:
    for value in values:
        if values.count(value) > 1:
            raise InputError(f"{what} {value} is named twice: two equal views cannot be distinguished")
