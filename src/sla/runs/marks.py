"""Numbers of steps at which something is due: rows, evaluations, snapshots."""

import math
from collections.abc import Iterable


def spaced(steps: int, count: int) -> set[int]:
    """`count` evenly spaced numbers of steps done, the last of them all."""
    return {math.ceil(steps * (i + 1) / count) for i in range(count)}


def passed(marks: set[int], before: int, done: int) -> bool:
    """Whether one of the marks is reached when `done` steps are done, and `before` was the last number."""
    return not marks.isdisjoint(range(before + 1, done + 1))


def landing(marks: Iterable[int], record: dict[int, int]) -> set[int]:
    """Where a run that skipped steps stopped for these marks: at the first number of steps from each on.

    record: {taken: step}, after so many steps taken the run moved on to this one.
    """
    jumps, skipped = list[tuple[int, int]](), 0
    for taken, step in record.items():
        jumps.append((taken + skipped, step))
        skipped = step - taken
    return {next((end for start, end in jumps if start <= mark <= end), mark) for mark in marks}
