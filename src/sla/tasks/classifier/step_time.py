"""Seconds of a training step, eager and compiled, and which of the two a run takes.

Steps are timed on a trainer of their own, with random draws of their own: the run's weights and draws stay as
they would have been.
"""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch

from sla.progress import Progress
from sla.runs.distributed import Group
from sla.runs.plan import Plan
from sla.sampling.loader import Batch, TrainLoader
from sla.tasks.classifier.config import ClassifierConfig
from sla.tasks.classifier.trainer import Trainer

COMPILE_SECONDS = 100.0  # of a network as large as ResNet-32, on two cores
MOST_SAVED = 0.5  # of an eager step, by compiling: below COMPILE_SECONDS of that nothing is tried
PAIRS, WARM_UP, MAX_TIMING_SECONDS = 6, 2, 20.0  # timed steps of each kind, steps before, time for all
SPEEDUP = 1.03  # of a compiled step over an eager one, above which it is not luck


class Mode(NamedTuple):
    """How a run takes its steps, why, and the seconds of one; `compiles` is None where that stays open."""

    compiles: bool | None
    reason: str
    step: float


def duration(seconds: float) -> str:
    """`40 seconds`, `12 minutes`, `6.4 hours`."""
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"


def measure_seconds(plan: Plan[ClassifierConfig], steps: int = 12) -> float:
    """Seconds of one eager training step: the median of a few steps of a model that is then thrown away."""
    with torch.random.fork_rng(devices=[]):
        trainer, batches = _throwaway(plan, compiles=False)
        return median(_time(trainer, batches, steps))


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
    if total * MOST_SAVED < COMPILE_SECONDS:
        return Mode(
            False, f"eager: about {total:.0f} s of training are too short to try torch.compile", eager
        )
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
    first = sum(_time(compiled, others, WARM_UP, warm_up=0))
    _time(eager, batches, 1, warm_up=0)
    pairs: list[tuple[float, ...]] = []
    start = time.monotonic()
    while len(pairs) < PAIRS and (len(pairs) < 2 or time.monotonic() - start < MAX_TIMING_SECONDS):
        pairs.append((*_time(eager, batches, 1, warm_up=0), *_time(compiled, others, 1, warm_up=0)))
    one, other = (median(times) for times in zip(*pairs, strict=True))
    return one, other, first


def _throwaway(plan: Plan[ClassifierConfig], compiles: bool) -> tuple[Trainer, Iterator[Batch]]:
    run = plan.config.run.model_copy(update={"iterations": 1, "compile": compiles})
    throwaway = plan.config.model_copy(update={"run": run})
    trainer = Trainer(Plan(throwaway, plan.train, None, None, ()), Path(), Group())
    trainer.prepare(frozen=False)
    batches = TrainLoader(plan.train, trainer.batch_size, seed=0, steps=1000, device=trainer.device)
    return trainer, iter(batches)


def _time(trainer: Trainer, batches: Iterator[Batch], steps: int, warm_up: int = WARM_UP) -> list[float]:
    """Seconds of each of these steps, fewer where they take long; those that warm up are left out."""
    times: list[float] = []
    for batch in batches:
        start = time.monotonic()
        trainer.learn(batch)
        if trainer.device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.monotonic() - start)
        if len(times) == steps or sum(times) > MAX_TIMING_SECONDS / 2:
            break
    return times[warm_up:] or times
