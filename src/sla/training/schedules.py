"""The learning rate as a function of the iteration: pure, so a resumed run needs no state of it."""

import math

from sla.training.config import OptimizerConfig

ONECYCLE_RISE = 0.3  # share of the run in which one-cycle rises, and where it starts, as torch has them
ONECYCLE_START, ONECYCLE_END = 1 / 25, 1 / 25e4


def rate_factor(config: OptimizerConfig, step: int, steps: int) -> float:
    """What the learning rate is multiplied with at `step` of `steps`; steps count from 0."""
    rise = config.warmup * steps
    if step < rise:
        return (step + 1) / (math.floor(rise) + 1)
    if config.schedule == "constant":
        return 1.0
    if config.schedule == "multistep":
        return config.gamma ** sum(step >= share * steps for share in config.milestones)
    if config.schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * (step - rise) / max(steps - rise, 1)))
    top = ONECYCLE_RISE * steps - 1
    if step <= top:
        return _between(ONECYCLE_START, 1.0, step / max(top, 1))
    return _between(1.0, ONECYCLE_END, (step - top) / max(steps - 1 - top, 1))


def _between(start: float, end: float, share: float) -> float:
    """From start to end along half a cosine."""
    return end + (start - end) / 2 * (1 + math.cos(math.pi * share))
