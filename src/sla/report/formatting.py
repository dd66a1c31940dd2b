"""The numbers of a run's result in words; what a result does not say is not known."""

import math
from typing import Any


def part(tree: dict[str, Any], key: str) -> dict[str, Any]:
    """A branch of a result, empty where there is none."""
    found = tree.get(key)
    return found if isinstance(found, dict) else {}


def amount(value: object, unit: str = "") -> str:
    """1234 as `1,234`, or with a unit as `1.23 kFLOP`; what is no number is not known."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        return "not known"
    if not unit:
        return f"{value:,}"
    power = min(max(int(math.log10(max(abs(value), 1)) // 3), 0), 6)
    return f"{value / 1000**power:.3g} {('', 'k', 'M', 'G', 'T', 'P', 'E')[power]}{unit}"


def duration(seconds: object) -> str:
    """`4.2 s`, `3 min 20 s`, `5 h 3 min`; what is no number is not known."""
    if not isinstance(seconds, int | float) or not math.isfinite(seconds):
        return "not known"
    minutes, rest = divmod(round(seconds), 60)
    if not minutes:
        return f"{seconds:.1f} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
