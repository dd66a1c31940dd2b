"""Seconds of a training step, eager and compiled, and which of the two a run takes.

Steps are timed on a trainer of their own, with random draws of their own: the run's weights and draws stay as
they would have been.
"""

import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch

from sla.progress import Progress
from sla.runs.defaults import override
from sla.runs.distributed import Group
from sla.runs.plan import Plan
from sla.runs.timing import MAX_TIMING_SECONDS, WARM_UP, time_steps
from sla.sampling.loader import Batch
from sla.tasks.classifier.config import ClassifierConfig
from sla.tasks.classifier.grow import Grower
from sla.tasks.classifier.trainer import Trainer

COMPILE_SECONDS = 100.0  # of a network as large as ResNet-32, on two cores
LIKELY_SAVED = 0.1  # of an eager step, by compiling: below COMPILE_SECONDS of that nothing is tried
PAIRS = 6  # of timed steps, an eager and a compiled one
SPEEDUP = 1.03  # of a compiled step over an eager one, above which it is not luck


class Mode(NamedTuple):
    """How a run takes its steps, why, and the seconds of one; `compiles` is None where that stays open."""

    compiles: bool | None
    reason: str
    step: float


def measure_seconds(plan: Plan[ClassifierConfig], steps: int = 12) -> float:
    """Seconds of one eager training step: the median of a few steps of a model that is then thrown away."""
    with torch.random.fork_rng(devices=[]):
        trainer, batches = _throwaway(plan, compiles=False)
        return median(time_steps(trainer, batches, steps))


def choose_mode(
    plan: Plan[ClassifierConfig],
    iterations: int | None,
    left: float,
    progress: Progress,
    *,
    tries: bool = True,
) -> Mode:
    """Eager or compiled: the faster of a few steps of each, where the run is long enough to try.

    iterations: of the run; None where it takes the `left` seconds instead. Without `tries`, only eager steps
    are timed.
    """
    eager = measure_seconds(plan)
    total = iterations * eager if iterations else left
    if plan.config.run.device == "cpu" and shutil.which("g++") is None:
        return Mode(False, "eager: there is no g++ to compile with", eager)
    if total * LIKELY_SAVED < COMPILE_SECONDS:
        return Mode(False, f"eager: about {total:.0f} s of training is too short to try torch.compile", eager)
    if not tries:
        return Mode(None, "eager or compiled: both will be timed when the run starts", eager)
    progress.message("trying torch.compile: a minute or two, less when its code is still in the cache")
    try:
        with torch.random.fork_rng(devices=[]):
            eager, compiled, first = _time_both(plan)
    except Exception as error:  # the compiler's errors have no common type, and the run can do without it
        lines = str(error).strip().splitlines() or [type(error).__name__]
        return Mode(False, f"eager: torch.compile failed: {lines[0][:200]}", eager)
    times = f"{1000 * eager:.0f} ms per step eager, {1000 * compiled:.0f} ms compiled (after {first:.0f} s)"
    faster = eager > SPEEDUP * compiled
    return Mode(faster, f"{'compiled' if faster else 'eager'}: {times}", compiled if faster else eager)


def _time_both(plan: Plan[ClassifierConfig]) -> tuple[float, float, float]:
    """Median seconds of an eager and of a compiled step, in turn, and those of the first compiled one."""
    eager, batches = _throwaway(plan, compiles=False)
    compiled, others = _throwaway(plan, compiles=True)
    first = sum(time_steps(compiled, others, WARM_UP, warm_up=0))
    time_steps(eager, batches, 1, warm_up=0)
    pairs: list[tuple[float, ...]] = []
    start = time.monotonic()
    while len(pairs) < PAIRS and (len(pairs) < 2 or time.monotonic() - start < MAX_TIMING_SECONDS):
        pairs.append((*time_steps(eager, batches, 1, warm_up=0), *time_steps(compiled, others, 1, warm_up=0)))
    one, other = (median(times) for times in zip(*pairs, strict=True))
    return one, other, first


def _throwaway(plan: Plan[ClassifierConfig], compiles: bool) -> tuple[Trainer, Iterator[Batch]]:
    changed = override(plan.config, "run", iterations=1000, compile=compiles)
    changed = override(changed, "data", workers=0)
    kind = Grower if plan.config.is_grown else Trainer
    trainer = kind(replace(plan, config=changed, val=None, test=None), Path(), Group())
    trainer.prepare(frozen=False)
    return trainer, iter(trainer.batches(plan.train, 0))
