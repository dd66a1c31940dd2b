"""What an image goes through before a model sees it, as kept in the model's file."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from sla.augment.ops import Pipeline
from sla.augment.pipelines import eval_pipeline
from sla.errors import InputError, nearest
from sla.images.decode import MAX_SIDE


@dataclass(frozen=True)
class Preprocessing:
    """The sizes and statistics with which a model was trained."""

    augment: str  # of training: how test images are cropped follows from it
    resolution: int  # pixels per side that the network sees
    stored_size: int  # pixels per side to which images are resized first, ignoring aspect ratio
    mean: tuple[float, ...]  # per channel, of pixels in [0, 1]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.augment, str):
            raise InputError(f"preprocessing: augment must be text, not {self.augment!r}")
        for name in ("resolution", "stored_size"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_SIDE:
                wanted = f"a whole number from 1 to {MAX_SIDE}"
                raise InputError(f"preprocessing: {name} must be {wanted}, not {value!r}")
        for name, low in (("mean", -1e9), ("std", 0.0)):
            value = getattr(self, name)
            if not isinstance(value, list | tuple) or not value or not all(_is_above(low, v) for v in value):
                kind = "numbers" if name == "mean" else "numbers above 0"
                raise InputError(f"preprocessing: {name} must be {kind}, one per channel, not {value!r}")
            object.__setattr__(self, name, tuple(float(v) for v in value))
        if len(self.mean) != len(self.std):
            raise InputError(f"preprocessing: {len(self.mean)} means but {len(self.std)} stds")

    @property
    def channels(self) -> int:
        """C."""
        return len(self.mean)

    @classmethod
    def from_dict(cls, values: Any) -> "Preprocessing":
        """From what `to_dict` gave, perhaps by way of JSON; anything else is one line."""
        names = [field.name for field in fields(cls)]
        if not isinstance(values, Mapping):
            raise InputError(f"preprocessing: needs {', '.join(names)}, not {values!r}")
        if missing := [name for name in names if name not in values]:
            raise InputError(f"preprocessing: {missing[0]} is missing")
        if unknown := [str(name) for name in values if name not in names]:
            raise InputError(f"preprocessing: unknown key {unknown[0]!r}{nearest(unknown[0], names)}")
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """As plain values that JSON can hold."""
        return {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(self).items()}

    def eval_pipeline(self) -> Pipeline:
        """What a test image goes through."""
        return eval_pipeline(self.augment, self.resolution, self.mean, self.std)


def _is_above(low: float, value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and low < value < 1e9
