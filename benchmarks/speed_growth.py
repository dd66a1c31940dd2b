"""How time and memory of a training step grow with views, images, pixels and classes; exponents fitted.

    python benchmarks/speed_growth.py [--rounds 5] [--threads N] [--quick]

ResNet-8, SLA, eager, channels_last; one of the four grows, the others stay. Rounds take every size in turn
and the median counts; memory is kept. Memory is what a step holds at its highest beyond what was there before
it, from the system's record of another process (Linux), which returns what it frees at once. The exponent is
the slope of a line through the logarithms of all sizes, and that of the largest half. Writes
results/speed_growth.csv, docs/images/speed_growth.png and the table in docs/speed.md. About three minutes on
two cores.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import torch
from speed import PLACE, note, place
from tables import REPOSITORY, Table

import sla

NETWORK = "resnet8"
FIXED = {"views": 4, "images": 32, "pixels": 32, "classes": 100}
SIZES = {
    "views": (1, 2, 3, 4, 6, 8, 12, 24),
    "images": (8, 16, 32, 64, 128, 256),
    "pixels": (16, 24, 32, 48, 64, 96),
    "classes": (10, 100, 1000, 3000, 10000, 30000),
}
QUICK = {"views": (1, 2, 4), "images": (4, 8, 16), "pixels": (8, 12, 16), "classes": (10, 100, 1000)}
VIEWS = {1: "none", 2: "rot2", 3: "rgb3", 4: "rot4", 6: "rgb6", 8: "rot4*rgb(RGB,BGR)", 12: "rot4*rgb3"}
VIEWS |= {24: "rot4*rgb6"}
LINEAR = {"views": 1, "images": 1, "pixels": 2, "classes": 1}  # exponents where nothing is fixed
COLUMNS = ("grows", "size", "milliseconds", "megabytes", *PLACE)
TABLE = Table("speed_growth", "docs/speed.md", COLUMNS)
PICTURE = REPOSITORY / "docs" / "images" / "speed_growth.png"


def make_step(views: int, images: int, pixels: int, classes: int):
    """A function that takes one step of this size."""
    torch.manual_seed(0)
    method = sla.Baseline() if views == 1 else sla.SLA(sla.parse_views(VIEWS[views]))
    model = sla.create(NETWORK, classes, method).train().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    batch = torch.randn(images, 3, pixels, pixels).contiguous(memory_format=torch.channels_last)
    targets = torch.randint(classes, (images,))

    def step() -> None:
        optimizer.zero_grad()
        model(batch, targets)["loss"].backward()
        optimizer.step()

    return step


def measure(sizes: dict[str, tuple[int, ...]], rounds: int) -> list[dict[str, object]]:
    """A row for every size."""
    rows, memory = [], highest_memory(sizes)
    for grows, values in sizes.items():
        found: dict[int, list[float]] = {value: [] for value in values}
        for number in range(rounds):
            for value in values:
                step = make_step(**FIXED | {grows: value})
                step()
                start = time.perf_counter()
                step()
                found[value].append(time.perf_counter() - start)
            print(f"{grows}: round {number + 1} of {rounds}", flush=True)
        for value, times in found.items():
            cells = (grows, value, f"{1000 * median(times):.2f}", f"{memory[grows, value] / 1e6:.1f}")
            rows.append(dict(zip(COLUMNS, cells, strict=False)))
            print(*cells, sep="  ", flush=True)
    return rows


def highest_memory(sizes: dict[str, tuple[int, ...]]) -> dict[tuple[str, int], int]:
    """Bytes for every size, from a process that returns every large block as soon as it is freed."""
    ours = ("MALLOC_", "GLIBC_TUNABLES")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    settings = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    words = [sys.executable, __file__, "--memory", json.dumps(sizes)]
    done = subprocess.run(words, env=environment | settings, stdout=subprocess.PIPE, text=True, check=True)
    places = [(grows, value) for grows, values in sizes.items() for value in values]
    return dict(zip(places, map(int, done.stdout.split()), strict=True))


def print_memory(sizes: dict[str, list[int]]) -> None:
    """In a process of its own: what the second step of each size holds at its highest, beyond the first."""
    for grows, values in sizes.items():
        for value in values:
            step = make_step(**FIXED | {grows: value})
            step()
            before = resident(highest=False)
            Path("/proc/self/clear_refs").write_text("5")  # forgets the highest
            step()
            print(resident(highest=True) - before, flush=True)


def resident(highest: bool) -> int:
    """Bytes of memory that this process has, or had at its highest."""
    name = "VmHWM:" if highest else "VmRSS:"
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(name))


def slope(points: list[tuple[float, float]]) -> float:
    """The exponent: the least-squares slope through the logarithms."""
    logs = [(math.log(x), math.log(max(y, 1e-3))) for x, y in points]
    mean_x, mean_y = (sum(part) / len(logs) for part in zip(*logs, strict=True))
    over = sum((x - mean_x) * (y - mean_y) for x, y in logs)
    return over / sum((x - mean_x) ** 2 for x, _ in logs)


def points_of(rows: list[dict[str, str]], grows: str, what: str) -> list[tuple[float, float]]:
    return [(float(row["size"]), float(row[what])) for row in rows if row["grows"] == grows]


def render(rows: list[dict[str, str]]) -> str:
    """A line for each thing that grows."""
    lines = [
        "| grows | from, to | time: exponent, of the largest half | memory: exponent, of the largest half "
        "| linear would be |",
        "|---|--:|--:|--:|--:|",
    ]
    for grows, linear in LINEAR.items():
        cells = []
        for what in ("milliseconds", "megabytes"):
            points = points_of(rows, grows, what)
            cells.append(f"{slope(points):.2f}, {slope(points[len(points) // 2 :]):.2f}")
        sizes = [int(size) for size, _ in points]
        lines.append(f"| {grows} | {min(sizes):,} to {max(sizes):,} | {' | '.join(cells)} | {linear} |")
    fixed = ", ".join(f"{value} {name}" for name, value in FIXED.items())
    return "\n".join([*lines, "", f"ResNet-8; what does not grow: {fixed}. {note(rows)}"])


def draw(rows: list[dict[str, str]], path: Path) -> None:
    """Time above, memory below, a column for each thing that grows; a dashed line is linear growth."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.6), layout="constrained")
    axes = figure.subplots(2, len(LINEAR))
    for column, (grows, linear) in enumerate(LINEAR.items()):
        for line, (what, unit) in enumerate((("milliseconds", "ms"), ("megabytes", "MB"))):
            axis, points = axes[line][column], points_of(rows, grows, what)
            axis.loglog(*zip(*points, strict=True), marker="o", ms=3, color="#2a6f97")
            (x, y), sizes = points[-1], [size for size, _ in points]
            axis.loglog(sizes, [y * (size / x) ** linear for size in sizes], "--", lw=0.8, color="#999999")
            axis.set_title(f"exponent {slope(points):.2f}", fontsize=8)
            axis.tick_params(labelsize=7, which="both")
            axis.grid(alpha=0.3)
            if not column:
                axis.set_ylabel(unit, fontsize=8)
            if line:
                axis.set_xlabel(grows, fontsize=8)
            ticks = [sizes[0], sizes[len(sizes) // 2], sizes[-1]]
            axis.set_xticks(ticks, [f"{size:,.0f}" for size in ticks])
            axis.set_xticks([], minor=True)
    figure.savefig(path, dpi=90)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--memory", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.memory:
        print_memory(json.loads(given.memory))
        return
    sla.keep_memory()
    torch.set_num_threads(given.threads)
    where = place(given.threads, given.quick)
    rows = measure(QUICK if given.quick else SIZES, 2 if given.quick else given.rounds)
    TABLE.write([row | where for row in rows])
    TABLE.show(render)
    draw(TABLE.read(), PICTURE)


if __name__ == "__main__":
    main()
