"""Label-keeping augmentation as text: `crop(4), flip` or `autoaugment, crop(4), flip, cutout(16)`."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

from torch import Tensor

from sla.augment.color_ops import Blur, Greyscale
from sla.augment.ops import (
    MIRRORED,
    UPSIDE_DOWN,
    CenterCrop,
    CenterWindow,
    ColorJitter,
    Cutout,
    Flip,
    Normalize,
    Op,
    Pipeline,
    RandomCrop,
    RandomErasing,
    RandomResizedCrop,
    Resize,
    VerticalFlip,
)
from sla.augment.policy import RandAugment, TrivialAugment, make_policy, read_policy
from sla.augment.syntax import Call, parse_calls
from sla.errors import InputError, nearest
from sla.images.channels import convert_channels
from sla.sampling.draws import Draws


@dataclass(frozen=True)
class Channels:
    """Converts to the model's number of channels: grey for one, three equal channels for three."""

    count: int
    stage: ClassVar[str] = "policy"

    def __call__(self, images: Tensor, draws: Draws, aspect: Tensor) -> Tensor:
        """uint8 (B, C, H, W) -> (B, count, H, W)."""
        return convert_channels(images, self.count)


def _whole(number: float, what: str = "padding", unit: str = " of pixels") -> int:
    if number != int(number):
        raise InputError(f"{what} is a whole number{unit}, not {number:g}")
    return int(number)


def _rand(size: int, count: float = 2, magnitude: float = 9) -> Op:
    return RandAugment(_whole(count, "how many operations", ""), magnitude)


def _auto(size: int, name: str | float = "cifar10") -> Op:
    if name not in AUTOAUGMENT:
        raise InputError(f"unknown policy {name!r}{nearest(str(name), AUTOAUGMENT)}")
    return make_policy(read_policy(f"autoaugment_{name}"), f"autoaugment_{name}")


def _jitter(size: int, *strengths: float) -> Op:
    if not strengths:
        raise InputError("jitter takes 1 to 5 numbers")
    return ColorJitter(*(strengths if len(strengths) > 1 else strengths * 3))


def _cutout(size: int, side: float = 16, probability: float = 1.0) -> Op:
    if side > size:  # at the centre it would erase the whole image
        raise InputError(f"the box's side must be at most that of the image, {size}, not {side:g}")
    return Cutout(_whole(side, "the box's side"), probability)


AUTOAUGMENT = ("cifar10", "imagenet")
Maker = Callable[..., Op]  # from the size and the arguments of the text
KNOWN: dict[str, tuple[int, Maker]] = {  # with the most arguments that each takes
    "autoaugment": (1, _auto),
    "randaugment": (2, _rand),
    "trivialaugment": (0, lambda size: TrivialAugment()),
    "crop": (1, lambda size, padding=4: RandomCrop(size, _whole(padding))),
    "resized": (2, lambda size, low=0.08, high=1.0: RandomResizedCrop(size, (low, high))),
    "flip": (1, lambda size, probability=0.5: Flip(probability)),
    "vflip": (1, lambda size, probability=0.5: VerticalFlip(probability)),
    "jitter": (5, _jitter),
    "grey": (1, lambda size, probability=0.2: Greyscale(probability)),
    "blur": (3, lambda size, probability=0.5, low=0.1, high=2.0: Blur(probability, (low, high))),
    "cutout": (2, _cutout),
    "erasing": (3, lambda size, chance=0.5, low=0.02, high=1 / 3: RandomErasing(chance, (low, high))),
}
POLICIES = ("autoaugment", "randaugment", "trivialaugment", "policy")  # at most one of them


def train_pipeline(
    text: str,
    size: int,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    policies: Mapping[str, Any] | None = None,
) -> Pipeline:
    """The pipeline of training: the ops of the text in their fixed order, and normalisation.

    First one of `autoaugment(cifar10 or imagenet)`, `randaugment(operations, magnitude of 10)`,
    `trivialaugment` and `policy(a file, or a policy of this package)`; then `crop(padding)` or
    `resized(smallest share of the area, largest)`, `flip(probability)`, `vflip(probability)`,
    `jitter(brightness, contrast, saturation, hue, probability)`, one number stands for the first three,
    `grey(probability)`, `blur(probability, smallest sigma, largest)`; after normalisation
    `cutout(side, probability)` and `erasing(probability, smallest share, largest)`. `none` is nothing. The
    result is size x size: without `crop` and `resized`, whole images of another size are resampled.
    `policies` has the sub-policies of policy files by name, as `read_policies` returns them; missing ones
    are read.
    """
    ops: list[Op] = [Channels(len(mean)), Normalize(mean, std)]
    for name, arguments in _calls(text):
        try:
            if name == "policy":
                source = str(arguments[0])
                content = (policies or {}).get(source)
                ops.append(make_policy(read_policy(source) if content is None else content, source))
            else:
                ops.append(KNOWN[name][1](size, *arguments))
        except InputError as error:
            raise InputError(f"augmentation {name!r} in {text!r}: {error}") from None
    if not any(op.stage == "crop" for op in ops):
        ops.append(Resize(size))
    return Pipeline(tuple(ops))


def eval_pipeline(text: str, size: int, mean: tuple[float, ...], std: tuple[float, ...]) -> Pipeline:
    """The pipeline of evaluation: size x size as in training, with objects at the same scale.

    After `resized` it is a `CenterCrop`, after `crop` the window in the middle, else the whole image,
    resampled. The last two leave an image that is already size x size unchanged. No file is read.
    """
    names = [name for name, _ in _calls(text)]
    middle: Op = Resize(size)
    if "resized" in names:
        middle = CenterCrop(size)
    elif "crop" in names:
        middle = CenterWindow(size)
    return Pipeline((Channels(len(mean)), middle, Normalize(mean, std)))


def read_policies(text: str, known: Mapping[str, Any]) -> dict[str, Any]:
    """The sub-policies of the files that the text names, by name: from `known`, else read now."""
    sources = [str(arguments[0]) for name, arguments in _calls(text) if name == "policy"]
    contents = {source: known[source] if source in known else read_policy(source) for source in sources}
    return {source: make_policy(content, source).plain() for source, content in contents.items()}


def strengthen(text: str, size: int) -> str:
    """The text with a policy, `randaugment`, and `cutout` of half the size, where it has no such op yet."""
    names = [name for name, _ in _calls(text)]
    first = [] if set(names) & {*POLICIES} else ["randaugment"]
    last = [] if set(names) & {"cutout", "erasing"} else [f"cutout({max(size // 2, 1)})"]
    return ", ".join([*first, *([text] if names else []), *last])


def refuse_policy(text: str) -> None:
    """Refuse a text that names a policy, for a search whose result is a policy."""
    named = [name for name, _ in _calls(text) if name in POLICIES]
    if named:
        raise InputError(f"augmentation {text!r}: leave out {named[0]}: the search itself finds a policy")


def find_contradictions(pipeline: Pipeline, elements: Collection[str]) -> list[str]:
    """Why label-keeping ops may produce one of these elements of views, which has another label.

    elements: as in `Views.elements`, e.g. `rotation by 90` or `channels GBR`. An element that is reached by
    chance alone counts as well: the same picture then has two labels.
    """
    reached: dict[str, list[str]] = {}  # by reason
    for op in pipeline.ops:
        for element, reason in getattr(op, "reaches", {}).items():
            reached.setdefault(reason, []).append(element)
    produced = {element for some in reached.values() for element in some}
    if {MIRRORED, UPSIDE_DOWN} <= produced:
        reached["flip and vflip together"] = ["rotation by 180"]
    found = ((reason, [one for one in some if one in elements]) for reason, some in reached.items())
    return [f"{reason}: {', '.join(some)}" for reason, some in found if some]


@cache
def _calls(text: str) -> tuple[Call, ...]:
    """The ops of the text, with at most one policy among them; each text is parsed once."""
    most = {"policy": 1, **{name: count for name, (count, _) in KNOWN.items()}}
    calls = parse_calls(text, most, "augmentation", words=("autoaugment", "policy"))
    chosen = [name for name, _ in calls if name in POLICIES]
    if len(chosen) > 1:
        raise InputError(f"augmentation {text!r}: at most one policy, not {' and '.join(chosen)}")
    if ("policy", []) in calls:
        raise InputError(f"augmentation 'policy' in {text!r} needs a file: policy(file.json)")
    return tuple(calls)
