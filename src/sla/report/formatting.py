"""Numbers as text; a value that a result does not have is shown as unknown."""

import math
from typing import Any

UNKNOWN = "unknown"


def section(tree: dict[str, Any], key: str) -> dict[str, Any]:
    """A nested part of a result, empty where it is missing or damaged."""
    found = tree.get(key)
    return found if isinstance(found, dict) else {}


def amount(value: object, unit: str = "") -> str:
    """1234 as `1,234`, or with a unit as `1.23 kFLOP`."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        return UNKNOWN
    if not unit:
        return f"{value:,}"
    power = min(max(int(math.log10(max(abs(value), 1)) // 3), 0), 6)
    return f"{value / 1000**power:.3g} {('', 'k', 'M', 'G', 'T', 'P', 'E')[power]}{unit}"


def duration(seconds: object) -> str:
    """`4.2 s`, `3 min 20 s` or `5 h 3 min`."""
    if not isinstance(seconds, int | float) or not math.isfinite(seconds):
        return UNKNOWN
    minutes, rest = divmod(round(seconds), 60)
    if not minutes:
        return f"{seconds:.1f} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
