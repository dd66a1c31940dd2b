"""How long training steps take."""

import time
from collections.abc import Iterator

import torch

from sla.runs.loop import Loop
from sla.sampling.loader import Batch

WARM_UP, MAX_TIMING_SECONDS = 2, 20.0  # steps before those that count, and the time for all


def time_steps(loop: Loop, batches: Iterator[Batch], steps: int, warm_up: int = WARM_UP) -> list[float]:
    """Seconds of each of these steps, fewer where they take long; those that warm up are left out.

    The first step alone says nothing: it takes ten times as long where its memory is new to the process.
    """
    times: list[float] = []
    for batch in batches:
        start = time.monotonic()
        loop.learn(batch)
        if loop.device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.monotonic() - start)
        slow = sum(times) > MAX_TIMING_SECONDS / 2 and len(times) > min(warm_up, 1)
        if len(times) == steps or slow:
            break
    return times[min(warm_up, len(times) - 1) :]
