"""A training step against the paper's listing run eagerly, with and without kept memory; ratios side by side.

    python benchmarks/speed.py [--rounds 8] [--threads N] [--quick]

Two processes, one with the C library's own memory and one that keeps what it frees, hold every way of taking
the step. Rounds take all of them in turn, so that what else the machine does disturbs all alike; a ratio is
that of one round, and its median counts. The rate of float32 matrix products is measured in the same rounds.
Highest memory is that of a process of its own for each. Writes results/speed.csv, docs/images/speed.png and
the table in docs/speed.md. About six minutes on two cores with nothing else to do; --quick takes small
batches and compiles nothing, to see that everything works.
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from tables import REPOSITORY, Table

CLASSES, SIZE, VIEWS = 100, 32, 4
NETWORKS, BATCH = ("resnet32", "resnet9_16"), 128
QUICK_NETWORKS, QUICK_BATCH = ("resnet8",), 16
WAYS = {  # of taking the step: what, memory layout, compiled
    "listing": ("the paper's listing, eager", False),
    "eager": ("ours, eager", False),
    "channels_last": ("ours, channels_last", True),
    "compiled": ("ours, channels_last, compiled", True),
}
MEMORY = {"default": "returned", "keep": "kept"}
FIRST = ("listing", "default")  # what the others are compared with
MATRIX = 1024
PLACE = ("threads", "machine", "torch", "commit", "quick")
COLUMNS = (
    *("network", "images", "way", "memory", "images_per_second", "ratio", "lowest", "highest"),
    *("share_of_matrix_rate", "page_faults", "peak_gigabytes", *PLACE),
)
TABLE = Table("speed", "docs/speed.md", COLUMNS)
PICTURE = REPOSITORY / "docs" / "images" / "speed.png"


def make_step(network: str, way: str, batch: int):
    """A function that takes one step, and the floating-point operations of it."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    import sla
    from sla.backbones.cost import count_flops

    torch.manual_seed(0)
    images, targets = torch.randn(batch, 3, SIZE, SIZE), torch.randint(CLASSES, (batch,))
    backbone = sla.create_backbone(network)
    flop = 3 * VIEWS * batch * count_flops(backbone, (3, SIZE, SIZE))
    if way == "listing":
        model: nn.Module = nn.Sequential(backbone, nn.Linear(backbone.num_features, VIEWS * CLASSES)).train()
    else:
        model = sla.create(network, CLASSES, sla.SLA()).train()
    if WAYS[way][1]:
        model = model.to(memory_format=torch.channels_last)
        images = images.contiguous(memory_format=torch.channels_last)
    module = torch.compile(model) if way == "compiled" else model
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)

    def listing() -> None:
        inputs = torch.stack([torch.rot90(images, k, (2, 3)) for k in range(4)], 1)
        inputs = inputs.view(-1, 3, SIZE, SIZE)
        joint = torch.stack([targets * 4 + k for k in range(4)], 1).view(-1)
        loss = F.cross_entropy(module(inputs), joint)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def ours() -> None:
        optimizer.zero_grad()
        module(images, targets)["loss"].backward()
        optimizer.step()

    return (listing if way == "listing" else ours), flop


def serve(batch: int, threads: int, keeps: bool) -> None:
    """In a process of its own: take the step that each line names; answer with seconds and page faults."""
    if keeps:
        import sla

        assert sla.keep_memory(), "memory cannot be kept here: the C library is not glibc"
    import torch

    torch.set_num_threads(threads)
    steps: dict[tuple[str, str], tuple] = {}
    matrix = torch.ones(MATRIX, MATRIX)
    for line in sys.stdin:
        network, way = line.split()
        if network == "matrix":
            start = time.perf_counter()
            matrix @ matrix
            print(json.dumps({"seconds": time.perf_counter() - start}), flush=True)
            continue
        if (network, way) not in steps:
            steps[network, way] = make_step(network, way, batch)
            for _ in range(2):
                steps[network, way][0]()
        step, flop = steps[network, way]
        before, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
        step()
        seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF)
        said = {"seconds": seconds, "faults": after.ru_minflt - before.ru_minflt, "flop": flop}
        print(json.dumps(said | {"peak": after.ru_maxrss * 1024}), flush=True)


class Server:
    """A process that takes steps when asked."""

    def __init__(self, memory: str, batch: int, threads: int) -> None:
        ours = ("MALLOC_", "GLIBC_TUNABLES", "SLA_ALLOCATOR")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        words = [
            sys.executable,
            __file__,
            "--serve",
            memory,
            "--batch",
            str(batch),
            "--threads",
            str(threads),
        ]
        self.process = subprocess.Popen(
            words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, network: str, way: str) -> dict[str, float]:
        """What one step took."""
        assert self.process.stdin
        assert self.process.stdout
        print(network, way, file=self.process.stdin, flush=True)
        said = self.process.stdout.readline()
        if not said:
            raise SystemExit(f"the process of {network}, {way} ended")
        return json.loads(said)

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


def measure(
    network: str, ways: list[str], batch: int, threads: int, rounds: int, quick: bool
) -> list[dict[str, object]]:
    """The rows of one network."""
    found: dict[tuple[str, str], list[dict[str, float]]] = {}
    products: list[float] = []
    with Server("default", batch, threads) as default, Server("keep", batch, threads) as keep:
        servers = {"default": default, "keep": keep}
        for number in range(-1, rounds):  # the first round builds and compiles
            for way in ways:
                for memory, server in servers.items():
                    products.append(min(server.ask("matrix", "product")["seconds"] for _ in range(3)))
                    said = server.ask(network, way)
                    if number >= 0:
                        found.setdefault((way, memory), []).append(said)
            print(f"{network}: round {number + 1} of {rounds}", flush=True)
    rate = 2 * MATRIX**3 / median(products)
    rows: list[dict[str, object]] = []
    for (way, memory), said in found.items():
        seconds = median(one["seconds"] for one in said)
        pairs = zip(found[FIRST], said, strict=True)
        ratios = sorted(first["seconds"] / one["seconds"] for first, one in pairs)
        peak = said[-1]["peak"]
        if not quick:
            with Server(memory, batch, threads) as alone:
                peak = alone.ask(network, way)["peak"]
        cells = (
            *(network, batch, way, memory, f"{batch / seconds:.1f}"),
            *(f"{ratio:.2f}" for ratio in (median(ratios), ratios[0], ratios[-1])),
            f"{said[0]['flop'] / seconds / rate:.2f}",
            round(median(one["faults"] for one in said)),
            f"{peak / 1e9:.2f}",
        )
        rows.append(dict(zip(COLUMNS, cells, strict=False)))
        print(*cells, sep="  ", flush=True)
    return rows


def place(threads: int, quick: bool) -> dict[str, object]:
    """Where and with what numbers were measured, for every row."""
    import torch

    from sla.runs.result import find_commit

    values = (threads, processor(), torch.__version__, find_commit(), quick)
    return dict(zip(PLACE, values, strict=True))


def processor() -> str:
    """The name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def note(rows: list[dict[str, str]]) -> str:
    """Below a table: where it was measured."""
    one = rows[0]
    text = f"{one['machine']}, {one['threads']} threads, torch {one['torch']}."
    return text + (" From `--quick`: these numbers only show that it runs." if one["quick"] == "True" else "")


def render(rows: list[dict[str, str]]) -> str:
    """A line a row."""
    lines = [
        "| network | step | freed memory | images/s | ratio (lowest to highest) | of the matrix rate "
        "| page faults | peak memory |",
        "|---|---|---|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        speed = f"{row['ratio']} ({row['lowest']} to {row['highest']})"
        cells = (
            *(
                row["network"],
                WAYS[row["way"]][0],
                MEMORY[row["memory"]],
                f"{float(row['images_per_second']):.0f}",
            ),
            *(speed, f"{100 * float(row['share_of_matrix_rate']):.0f}%", f"{int(row['page_faults']):,}"),
            f"{row['peak_gigabytes']} GB",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", f"{rows[0]['images']} images x {VIEWS} views per step. {note(rows)}"])


def draw(rows: list[dict[str, str]], path: Path) -> None:
    """A bar a row: the ratio, from the lowest to the highest round."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 0.6 + 0.3 * len(rows)), layout="constrained")
    axis = figure.subplots()
    names = [f"{row['network']}, {WAYS[row['way']][0]}, memory {MEMORY[row['memory']]}" for row in rows]
    ratios, low, high = ([float(row[name]) for row in rows] for name in ("ratio", "lowest", "highest"))
    ends = [
        [r - a for r, a in zip(ratios, low, strict=True)],
        [b - r for r, b in zip(ratios, high, strict=True)],
    ]
    colours = ["#2a6f97" if row["memory"] == "keep" else "#a9c6d8" for row in rows]
    axis.barh(names, ratios, xerr=ends, color=colours, ecolor="#444444", error_kw={"lw": 0.8})
    axis.invert_yaxis()
    axis.tick_params(labelsize=7)
    axis.set_xlabel("times the images per second of the paper's listing run eagerly", fontsize=8)
    axis.grid(axis="x", alpha=0.3)
    figure.savefig(path, dpi=90)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--serve", choices=MEMORY, help=argparse.SUPPRESS)
    parser.add_argument("--batch", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(given.batch, given.threads, given.serve == "keep")
        return
    networks, batch = (QUICK_NETWORKS, QUICK_BATCH) if given.quick else (NETWORKS, BATCH)
    ways = [way for way in WAYS if not (given.quick and way == "compiled")]
    rounds, where = 3 if given.quick else given.rounds, place(given.threads, given.quick)
    rows = [
        row for name in networks for row in measure(name, ways, batch, given.threads, rounds, given.quick)
    ]
    TABLE.write([row | where for row in rows])
    TABLE.show(render)
    draw(TABLE.read(), PICTURE)


if __name__ == "__main__":
    main()
