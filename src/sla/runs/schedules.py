"""The learning rate as a function of the iteration: pure, so a resumed run needs no state of it."""

import math

from sla.runs.config import OptimizerConfig

ONECYCLE_RISE = 0.3  # share of the run in which one-cycle rises, and where it starts, as torch has them
TOLERANCE = 1e-4  # of a step: 0.3333333333 of 60,000 steps is step 20,000
ONECYCLE_START, ONECYCLE_END = 1 / 25, 1 / 25e4


def rate_factor(config: OptimizerConfig, step: int, steps: int) -> float:
    """What the learning rate is multiplied with at `step` of `steps`; steps count from 0."""
    rise = (config.warmup or 0.0) * steps
    if step < rise - TOLERANCE:
        if config.warmup_stairs is None:
            return step / rise
        return (math.floor((step + TOLERANCE) * config.warmup_stairs / rise) + 1) / config.warmup_stairs
    if config.schedule == "constant":
        return 1.0
    if config.schedule == "multistep":
        passed = sum(step >= share * steps - TOLERANCE for share in config.milestones)
        return config.gamma**passed if config.factors is None else (1.0, *config.factors)[passed]
    if config.schedule == "cosine":
        length = steps - rise if config.cosine_length is None else config.cosine_length * steps
        return 0.5 * (1 + math.cos(math.pi * min((step - rise) / max(length, 1), 1.0)))
    top = ONECYCLE_RISE * steps - 1
    if step <= top:
        return _between(ONECYCLE_START, 1.0, step / max(top, 1))
    return _between(1.0, ONECYCLE_END, (step - top) / max(steps - 1 - top, 1))


def _between(start: float, end: float, share: float) -> float:
    """From start to end along half a cosine."""
    return end + (start - end) / 2 * (1 + math.cos(math.pi * share))
