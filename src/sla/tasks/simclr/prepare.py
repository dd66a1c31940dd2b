"""What a SimCLR run says before its first step: its choices, how long it takes, how much memory."""

from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch

from sla.progress import QUIET, Progress, duration
from sla.runs.defaults import override
from sla.runs.distributed import Group
from sla.runs.plan import Plan
from sla.runs.result import peak_memory
from sla.runs.timing import time_steps
from sla.sampling.loader import TrainLoader
from sla.tasks.simclr.config import SimCLRConfig
from sla.tasks.simclr.trainer import SimCLRTrainer

TIMED = 6  # steps, the first of which warm up


class Measured(NamedTuple):
    """Seconds of a step, and the most memory of the process so far, in bytes; None if unknown."""

    step: float
    memory: int | None


def prepare(
    plan: Plan[SimCLRConfig], group: Group, progress: Progress, *, starts: bool, search: bool
) -> Plan[SimCLRConfig]:
    """The plan with its number of steps; of a starting run, messages about time and memory."""
    for reason in plan.reasons:
        progress.message(reason)
    run = plan.config.run
    # The processes decide alike whether to measure: only the leading one has a display.
    announced = group.any(starts and progress is not QUIET)[0]
    if run.iterations is not None and not announced:
        return plan
    found = group.share(_measure(plan, group.world_size) if group.leads else None)
    steps = run.iterations or max(int(60 * (run.minutes or 0) / found.step), 1)
    memory = f", {found.memory / 1e9:.1f} GB of memory" if found.memory else ""
    each = " in each process" if group.world_size > 1 else ""
    progress.message(f"about {duration(steps * found.step)} of training{memory}{each}")
    if run.iterations is None:
        progress.message(f"{steps:,} steps fit into {run.minutes:g} minutes")
    return replace(plan, config=override(plan.config, "run", iterations=steps))


def _measure(plan: Plan[SimCLRConfig], processes: int) -> Measured:
    """A few steps, of one process's share of a batch, of a model that is then thrown away."""
    share = max((plan.config.run.batch_size or 0) // processes, 2)
    trial = replace(plan, config=override(plan.config, "run", iterations=1, batch_size=share), val=None)
    with torch.random.fork_rng(devices=[]):
        trainer = SimCLRTrainer(trial, Path("none"), Group())
        trainer.prepare(frozen=False)
        batches = TrainLoader(plan.train, share, seed=0, steps=TIMED, device=trainer.device)
        return Measured(median(time_steps(trainer, iter(batches), TIMED)), peak_memory(trainer.device))
