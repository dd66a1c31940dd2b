"""Numbers as text; a value that a result does not have is shown as unknown."""

import math
from typing import Any

from sla.progress import duration

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


def time_taken(seconds: object) -> str:
    """`45 seconds`, as `sla.progress.duration` has it."""
    return duration(seconds) if isinstance(seconds, int | float) and math.isfinite(seconds) else UNKNOWN
