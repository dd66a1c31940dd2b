"""Thousands of labels: the joint loss in parts against plain cross entropy, its memory and time.

    python benchmarks/label_loss.py [--rounds 3]

A linear head over 8,142 classes (those of iNaturalist 2018) x M views on 512 features, forward and backward,
hard targets. Memory is the highest resident one of a process that does one step, less what it had before and
less the gradients; every row is a process of its own. Time is CPU time of one thread, the least of some
rounds in which the ways take turns, so that other work on the machine disturbs little. "torch" is
torch.nn.functional.linear_cross_entropy with parts of 128 rows. The target is at most a quarter of the memory
of plain cross entropy at 1.2 times its time. Writes results/label_loss.csv and the table in docs/training.md.
Some minutes.
"""

import argparse
import subprocess
import sys
import time

import torch
import torch.nn.functional as F
from tables import Table

from sla.criteria import cross_entropy
from sla.linear_loss import linear_cross_entropy
from sla.runs.result import find_commit

CLASSES, WIDTH = 8142, 512
VIEWS, ROWS = (4, 12, 24), (128, 256, 512)
MEMORY, TIME = 0.25, 1.2
COLUMNS = ("way", "views", "rows", "megabytes", "seconds", "memory_ratio", "time_ratio", "commit")
TABLE = Table("label_loss", "docs/training.md", COLUMNS)


def plain(features, weight, bias, target):
    return cross_entropy(F.linear(features, weight, bias), target)


def torchs(features, weight, bias, target):
    options = torch.nn.LinearCrossEntropyOptions(batch_chunk_size=128, chunking_method=None)
    return F.linear_cross_entropy(features, weight, target, linear_bias=bias, options=options)


WAYS = {"plain": plain, "parts": linear_cross_entropy, "torch": torchs}


def make(views, rows, classes=CLASSES):
    torch.manual_seed(0)
    labels = classes * views
    features = torch.randn(rows, WIDTH, requires_grad=True)
    weight = torch.empty(labels, WIDTH).uniform_(-0.04, 0.04).requires_grad_()
    return features, weight, torch.zeros(labels, requires_grad=True), torch.randint(labels, (rows,))


def megabytes(way, views, rows):
    """Of one step in this process, beyond parameters and gradients."""
    WAYS[way](*make(1, rows, 1000)).backward()  # code and threads are loaded
    made = make(views, rows)
    before = resident("VmRSS")
    WAYS[way](*made).backward()
    gradients = sum(tensor.grad.nbytes for tensor in made[:3])
    return (resident("VmHWM") - before - gradients) / 1e6


def resident(name):
    """Bytes of this process, now or at most; not ru_maxrss, which starts at what its parent held."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(name))


def seconds(way, made):
    for tensor in made[:3]:
        tensor.grad = None
    start = time.process_time()
    WAYS[way](*made).backward()
    return time.process_time() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory", nargs=3, help=argparse.SUPPRESS)  # way, views, rows: a process for it
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.memory:
        way, views, rows = options.memory
        print(megabytes(way, int(views), int(rows)))
        return
    table = []
    for views in VIEWS:
        for rows in ROWS:
            words = [sys.executable, __file__, "--memory"]
            held = {way: float(subprocess.check_output([*words, way, str(views), str(rows)])) for way in WAYS}
            made = make(views, rows)
            rounds = [[seconds(way, made) for way in WAYS] for _ in range(options.rounds + 1)]
            least = dict(zip(WAYS, map(min, zip(*rounds[1:], strict=True)), strict=True))  # one to warm up
            for way in WAYS:
                numbers = (held[way], least[way], held[way] / held["plain"], least[way] / least["plain"])
                cells = (way, views, rows, *(f"{number:.3g}" for number in numbers), find_commit())
                table.append(dict(zip(COLUMNS, cells, strict=True)))
                print(*cells, sep="  ", flush=True)
            TABLE.write(table)
    TABLE.show(render)


def render(rows):
    """Memory of plain cross entropy, and the parts' share of it and of its time."""
    lines = [
        "| views | rows | plain cross entropy | in parts | share of the memory | share of the time |",
        "|--:|--:|--:|--:|--:|--:|",
    ]
    found = {(row["way"], row["views"], row["rows"]): row for row in rows}
    for way, views, count in found:
        if way == "parts":
            row, all_held = found[way, views, count], found["plain", views, count]
            megabytes = " | ".join(f"{float(one['megabytes']):,.0f} MB" for one in (all_held, row))
            shares = " | ".join(f"{float(row[name]):.2f}" for name in ("memory_ratio", "time_ratio"))
            lines.append(f"| {views} | {count} | {megabytes} | {shares} |")
    parts = [row for row in rows if row["way"] == "parts"]
    missed = {
        int(row["rows"])
        for row in parts
        if float(row["memory_ratio"]) > MEMORY or float(row["time_ratio"]) > TIME
    }
    met = sorted({int(row["rows"]) for row in parts} - missed)
    verdict = f"met by all with {met[0]} rows (images x views) or more" if met else "missed"
    if met and missed:
        verdict += ", and not by all with fewer: smaller parts would take longer"
    lines += ["", f"The target, at most {MEMORY:g} of the memory and {TIME:g} of the time, is {verdict}."]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
