"""Augmentation policies: AutoAugment and policies from files, RandAugment, TrivialAugment; random per image.

A policy file is JSON: a list of sub-policies, each a list of [operation, probability, magnitude] as Fast
AutoAugment publishes them, or an object with that list as `sub_policies`, the largest magnitude as `scale` (1
by default), and any other keys. Magnitudes map linearly to the ranges of SCALES.
"""

from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from torch import Tensor

from sla.augment.policy_ops import NOTHING, NUMBER, apply_operations
from sla.disk import reason
from sla.errors import InputError, nearest, shown
from sla.sampling.draws import Draws
from sla.trees import parse_json, read_text

LARGEST_FILE = 4 << 20  # bytes; the largest published policy has 60,000
BINS = 30  # TrivialAugment's strengths are 0 to 30 thirtieths


class Scale(NamedTuple):
    """What magnitudes 0 to 1 of a policy file mean for an operation, in the units of `policy_ops`."""

    operation: str
    low: float = 0.0
    high: float = 1.0
    signed: bool = False  # negated half of the time
    share: bool = False  # low and high are fractions of the image's side


SCALES = {  # Fast AutoAugment's names and ranges, and two more
    "ShearX": Scale("shear_x", -0.3, 0.3, signed=True),
    "ShearY": Scale("shear_y", -0.3, 0.3, signed=True),
    "TranslateX": Scale("translate_x", -0.45, 0.45, signed=True, share=True),
    "TranslateY": Scale("translate_y", -0.45, 0.45, signed=True, share=True),
    "TranslateXAbs": Scale("translate_x", 0, 10, signed=True),
    "TranslateYAbs": Scale("translate_y", 0, 10, signed=True),
    "Rotate": Scale("rotate", -30, 30, signed=True),
    "AutoContrast": Scale("autocontrast"),
    "Invert": Scale("invert"),
    "Equalize": Scale("equalize"),
    "Solarize": Scale("solarize", 0, 256),
    "SolarizeAdd": Scale("solarize_add", 0, 110),
    "Posterize": Scale("posterize", 4, 8),
    "Posterize2": Scale("posterize", 0, 4),
    "Contrast": Scale("contrast", 0.1, 1.9),
    "Color": Scale("color", 0.1, 1.9),
    "Brightness": Scale("brightness", 0.1, 1.9),
    "Sharpness": Scale("sharpness", 0.1, 1.9),
    "Cutout": Scale("cutout", 0, 0.2, share=True),
    "CutoutAbs": Scale("cutout", 0, 20),
    "Identity": Scale(""),
}


class Strength(NamedTuple):
    """How an operation grows with one strength from 0 to 1: from `none` to `full`."""

    operation: str
    none: float = 0.0
    full: float = 0.0
    signed: bool = False  # to either side of `none`
    share: bool = False


def _strengths(shear: float, shift: float, share: bool, turn: float, tone: float, bits: int) -> tuple:
    """The 14 operations of RandAugment and TrivialAugment; each has its weakest effect at strength 0."""
    return (
        Strength(""),
        Strength("autocontrast"),
        Strength("equalize"),
        Strength("rotate", 0, turn, signed=True),
        Strength("solarize", 256, 0),
        Strength("posterize", 8, bits),
        *(Strength(name, 1, 1 + tone, signed=True) for name in ("color", "contrast")),
        *(Strength(name, 1, 1 + tone, signed=True) for name in ("brightness", "sharpness")),
        *(Strength(name, 0, shear, signed=True) for name in ("shear_x", "shear_y")),
        *(Strength(name, 0, shift, signed=True, share=share) for name in ("translate_x", "translate_y")),
    )


RAND: tuple[Strength, ...] = _strengths(0.3, 0.45, True, 30, 0.9, 4)
WIDE: tuple[Strength, ...] = _strengths(0.99, 32, False, 135, 0.99, 2)


def _degrees(table: tuple[Strength, ...]) -> float:
    return next(row.full for row in table if row.operation == "rotate")


def _rotations(what: str, most: float) -> dict[str, str]:
    """The rotations of views that are within +- `most` degrees, as an op's `reaches`."""
    reason = f"{what} rotates images by up to {most:g} degrees"
    return {f"rotation by {angle}": reason for angle in (90, 180, 270) if min(angle, 360 - angle) <= most}


Entry = tuple[str, float, float]  # operation, probability, magnitude from 0 to 1


@dataclass(frozen=True)
class Policy:
    """One of the sub-policies for each image: its operations in order, each with its probability."""

    sub_policies: tuple[tuple[Entry, ...], ...]
    stage: ClassVar[str] = "policy"

    @cached_property
    def _table(self) -> np.ndarray:
        """(sub-policies, longest, 5): operation, probability, value, signed, share."""
        longest = max(map(len, self.sub_policies))
        rows = []
        for entries in self.sub_policies:
            row = []
            for name, probability, magnitude in entries:
                scale = SCALES[name]
                value = scale.low + (scale.high - scale.low) * magnitude
                number = NUMBER.get(scale.operation, NOTHING)
                row.append([number, probability, value, scale.signed, scale.share])
            rows.append(row + [[NOTHING, 0, 0, 0, 0]] * (longest - len(row)))
        return np.array(rows, np.float64)

    @property
    def reaches(self) -> dict[str, str]:
        """Rotations up to the largest angle of a sub-policy."""
        low, high = SCALES["Rotate"].low, SCALES["Rotate"].high
        angles = (
            [abs(low + (high - low) * m) for name, p, m in sub if name == "Rotate" and p]
            for sub in self.sub_policies
        )
        return _rotations("the policy", max((sum(angle) for angle in angles), default=0.0))

    def plain(self) -> list[list[list[Any]]]:
        """The sub-policies as a policy file has them, magnitudes from 0 to 1."""
        return [[list(entry) for entry in entries] for entries in self.sub_policies]

    def __call__(self, images: Tensor, draws: Draws, aspect: Tensor) -> Tensor:
        """uint8 (B, C, H, W) -> the same shape."""
        chosen = self._table[draws.integers("policy.pick", len(self.sub_policies))[:, 0].numpy()]
        uniform = draws.uniform("policy", 4 * chosen.shape[1]).numpy()
        for number in range(chosen.shape[1]):
            u = uniform[:, 4 * number : 4 * number + 4]
            kind, probability, value, signed, share = chosen[:, number].T
            kind = np.where(u[:, 0] < probability, kind, NOTHING).astype(int)
            value = np.where((signed > 0) & (u[:, 1] < 0.5), -value, value)
            images = apply_operations(images, kind, _pixels(value, share, kind, images), u[:, 2:])
        return images


@dataclass(frozen=True)
class RandAugment:
    """`count` random operations of RAND for each image, all at `magnitude` out of 10."""

    count: int = 2
    magnitude: float = 9.0
    stage: ClassVar[str] = "policy"

    def __post_init__(self) -> None:
        if not 1 <= self.count <= 16:
            raise InputError(f"the number of operations must be from 1 to 16, not {self.count}")
        if not 0 <= self.magnitude <= 10:
            raise InputError(f"the magnitude must be from 0 to 10, not {self.magnitude:g}")

    @property
    def reaches(self) -> dict[str, str]:
        """Rotations, each of its operations being one."""
        return _rotations("randaugment", self.count * _degrees(RAND) * self.magnitude / 10)

    def __call__(self, images: Tensor, draws: Draws, aspect: Tensor) -> Tensor:
        """uint8 (B, C, H, W) -> the same shape."""
        for number in range(self.count):
            uniform = draws.uniform(f"randaugment.{number}", 2).numpy()
            strength = np.full(len(images), self.magnitude / 10)
            images = _strengthen(images, RAND, uniform, strength)
        return images


@dataclass(frozen=True)
class TrivialAugment:
    """One random operation at a random strength for each image: TrivialAugment (Wide)."""

    stage: ClassVar[str] = "policy"

    @property
    def reaches(self) -> dict[str, str]:
        """Rotations."""
        return _rotations("trivialaugment", _degrees(WIDE))

    def __call__(self, images: Tensor, draws: Draws, aspect: Tensor) -> Tensor:
        """uint8 (B, C, H, W) -> the same shape."""
        strength = draws.integers("trivialaugment.strength", BINS + 1)[:, 0].numpy() / BINS
        return _strengthen(images, WIDE, draws.uniform("trivialaugment", 2).numpy(), strength)


def _strengthen(
    images: Tensor, table: tuple[Strength, ...], uniform: np.ndarray, strength: np.ndarray
) -> Tensor:
    """One operation of the table for each image; uniform (B, 2) chooses it and its sign."""
    rows = np.array([[NUMBER.get(row[0], NOTHING), *row[1:]] for row in table], np.float64)
    kind, none, full, signed, share = rows[(uniform[:, 0] * len(table)).astype(int)].T
    change = (full - none) * strength
    value = none + np.where((signed > 0) & (uniform[:, 1] < 0.5), -change, change)
    kind = kind.astype(int)
    value = np.where(kind == NUMBER["posterize"], np.round(value), value)
    return apply_operations(images, kind, _pixels(value, share, kind, images), uniform)


def _pixels(value: np.ndarray, share: np.ndarray, kind: np.ndarray, images: Tensor) -> np.ndarray:
    """Fractions of the image's side as pixels: of its height for vertical shifts, else of its width."""
    sides = np.where(kind == NUMBER["translate_y"], images.shape[2], images.shape[3])
    return np.where(share > 0, value * sides, value)


def shipped_policies() -> list[str]:
    """The names of the policies in this package."""
    found = (resources.files("sla.augment") / "policies").iterdir()
    return sorted(file.name.removesuffix(".json") for file in found if file.name.endswith(".json"))


def read_policy(source: str | Path) -> Any:
    """The content of a policy file (`*.json`), or of a policy in this package by its name."""
    name = str(source)
    if not name.endswith(".json"):
        if name not in shipped_policies():
            known = nearest(name, shipped_policies())
            raise InputError(
                f"no policy {shown(name)!r} in this package{known} (a file of yours ends in .json)"
            )
        return parse_json((resources.files("sla.augment") / "policies" / f"{name}.json").read_text("utf-8"))
    try:
        path = Path(name).expanduser()
        if path.stat().st_size > LARGEST_FILE:
            raise InputError(f"{shown(name)}: too large for a policy")
        return parse_json(read_text(path).removeprefix("\ufeff"))
    except OSError as error:
        raise InputError(f"{shown(name)}: {reason(error)}") from None
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{shown(name)}: not a policy: not JSON") from None


def make_policy(content: Any, where: str) -> Policy:
    """The policy in a file's content; errors name the file and the entry."""
    scale: Any = 1.0
    if isinstance(content, dict):
        scale, content = content.get("scale", 1.0), content.get("sub_policies")
        if not _is_number(scale) or not scale > 0:
            raise InputError(f"{shown(where)}: scale must be a number above 0, not {_shortly(scale)}")
    if not isinstance(content, list) or not content:
        form = "a list of sub-policies, or an object with one as sub_policies"
        raise InputError(f"{shown(where)}: a policy is {form}")
    made = []
    for number, sub_policy in enumerate(content, 1):
        place = f"{shown(where)}: sub-policy {number}"
        if not isinstance(sub_policy, list) or not sub_policy:
            raise InputError(f"{place} must be a list of [operation, probability, magnitude]")
        made.append(tuple(_entry(e, scale, f"{place}, entry {i}") for i, e in enumerate(sub_policy, 1)))
    return Policy(tuple(made))


def _entry(entry: Any, scale: float, place: str) -> Entry:
    if not isinstance(entry, list) or len(entry) != 3:
        raise InputError(f"{place} must be [operation, probability, magnitude], not {_shortly(entry)}")
    name, probability, magnitude = entry
    if not isinstance(name, str) or name not in SCALES:
        raise InputError(
            f"{place}: unknown operation {_shortly(name)}{nearest(str(name)[:40], tuple(SCALES))}"
        )
    if not _is_number(probability) or not 0 <= probability <= 1:
        raise InputError(
            f"{place}: the probability of {name} must be from 0 to 1, not {_shortly(probability)}"
        )
    if not _is_number(magnitude) or not 0 <= magnitude <= scale:
        wrong = f"from 0 to {scale:g}, not {_shortly(magnitude)}"
        raise InputError(f"{place}: the magnitude of {name} must be {wrong}")
    return name, float(probability), magnitude / scale


def _is_number(value: Any) -> bool:
    # An int may be too large for a float; no number of a policy is that large.
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e9


def _shortly(value: Any) -> str:
    text = shown(repr(value))
    return text if len(text) <= 60 else text[:57] + "..."
