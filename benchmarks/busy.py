"""Training beside other programs: how long OpenMP's threads spin before they sleep.

    python benchmarks/busy.py

Steps of training with as many threads as the machine has cores, quiet and beside a busy process for each
core; with the spin of OpenMP's own and with that of the command line (sla/threads.py). The variants take
turns, each in a process of its own. Writes results/busy.csv and the table in docs/speed.md. Ten minutes.
"""

import os
import statistics
import subprocess
import sys
import time
from itertools import product

from tables import Table

from sla.runs.result import find_commit
from sla.threads import SHORT, SPINS

NETWORKS = {"resnet9_16": (32, 64, 60), "efficientnet_lite0": (224, 32, 12)}  # size, images of a step, steps
OTHERS, VARIANTS, ROUNDS, WARM_UP = (0, os.cpu_count() or 1), ("default", str(SHORT)), 3, 3
COLUMNS = ("network", "others", "spin", "steps_per_second", "ratio", "lowest", "highest", "threads", "commit")
TABLE = Table("busy", "docs/speed.md", COLUMNS)


def take_steps(network: str) -> None:
    """Prints the steps per second."""
    import torch

    import sla

    sla.keep_memory()
    size, count, steps = NETWORKS[network]
    torch.manual_seed(0)
    model = sla.create(network, 10, sla.Baseline()).train().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    images, targets = torch.randn(count, 3, size, size), torch.randint(10, (count,))
    start = time.monotonic()
    for step in range(steps + WARM_UP):
        if step == WARM_UP:
            start = time.monotonic()
        optimizer.zero_grad()
        model.losses(images, targets)["loss"].backward()
        optimizer.step()
    print(steps / (time.monotonic() - start))


def measure(network: str, others: int, spin: str) -> float:
    """Steps per second beside so many busy processes."""
    surroundings = {name: value for name, value in os.environ.items() if name != SPINS}
    if spin != "default":
        surroundings[SPINS] = spin
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(others)]
    try:
        words = [sys.executable, __file__, network]
        return float(subprocess.run(words, env=surroundings, capture_output=True, check=True).stdout)
    finally:
        for one in busy:
            one.kill()
            one.wait()


def main() -> None:
    rows = []
    for network, others in product(NETWORKS, OTHERS):
        found = [{spin: measure(network, others, spin) for spin in VARIANTS} for _ in range(ROUNDS)]
        for spin in VARIANTS:
            ratios = sorted(one[spin] / one["default"] for one in found)
            speed = statistics.median(one[spin] for one in found)
            numbers = (f"{value:.2f}" for value in (speed, statistics.median(ratios), ratios[0], ratios[-1]))
            cells = (network, others, spin, *numbers, os.cpu_count(), find_commit())
            rows.append(dict(zip(COLUMNS, cells, strict=True)))
            print(*cells, sep="  ", flush=True)
    TABLE.write(rows)
    TABLE.show(render)


def render(rows: list[dict[str, str]]) -> str:
    """A line for each network, load and spin."""
    lines = [
        "| network | busy processes | spin | steps/s | ratio (lowest to highest) |",
        "|---|--:|---|--:|--:|",
    ]
    for row in rows:
        spin = "OpenMP's own" if row["spin"] == "default" else f"{int(row['spin']):,} turns"
        ratio = f"{row['ratio']} ({row['lowest']} to {row['highest']})"
        lines.append(f"| {row['network']} | {row['others']} | {spin} | {row['steps_per_second']} | {ratio} |")
    return "\n".join([*lines, "", f"{rows[0]['threads']} threads."])


if __name__ == "__main__":
    take_steps(*sys.argv[1:]) if sys.argv[1:] else main()
