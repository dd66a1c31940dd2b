"""Damaged and hostile files for every reader, 100,000 each: a valid result or one line, and nothing else.

    python benchmarks/fuzz.py                      # all readers
    python benchmarks/fuzz.py --reader idx zip     # these
    python benchmarks/fuzz.py --reader idx --replay 4711

Each reader is a process that is watched (benchmarks/fuzzing/guard.py). The rows of results/fuzz.csv are
replaced reader by reader, and the table in docs/trust.md is made from them. It ends with 1 if an input led to
anything else; `--replay` reads one of them again, without the watch. About 35 minutes on one core.
"""

import argparse
import os
import sys

from fuzzing.guard import make_input, run, work_folder
from fuzzing.readers import READERS
from tables import Table

COLUMNS = (
    "reader",
    "inputs",
    "valid",
    "refused",
    "other",
    "slowest_ms",
    "memory_mib",
    "seconds",
    "seed",
    "commit",
)
TABLE = Table("fuzz", "docs/trust.md", COLUMNS)


def main() -> None:
    from sla.runs.result import find_commit

    parser = argparse.ArgumentParser()
    parser.add_argument("--reader", nargs="+", choices=READERS, default=list(READERS), metavar="NAME")
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--replay", type=int, metavar="INDEX", help="read one input, and show what happens")
    parser.add_argument("--dry-run", action="store_true", help="write no results")
    options = parser.parse_args()
    if options.replay is not None:
        replay(options.reader[0], options.seed, options.replay)
        return
    failed, commit = 0, find_commit()
    for name in options.reader:
        found = run(READERS[name], options.seed, options.inputs)
        failed += found.other
        print(
            f"{name}: {found.valid:,} valid, {found.refused:,} refused, {found.other:,} other; slowest "
            f"{found.slowest_ms:.0f} ms ({found.slowest_index}), {found.memory_mib:.0f} MiB, "
            f"{found.seconds:.0f} s",
            flush=True,
        )
        for line in summed_up(found.failures):
            print(f"    {line}", flush=True)
        if options.dry_run:
            continue
        numbers = (found.inputs, found.valid, found.refused, found.other, f"{found.slowest_ms:.1f}")
        cells = (name, *numbers, f"{found.memory_mib:.0f}", f"{found.seconds:.1f}", options.seed, commit)
        with TABLE.alone("rows"):
            rows = {row["reader"]: row for row in TABLE.read()}
            rows[name] = dict(zip(COLUMNS, map(str, cells), strict=True))
            TABLE.write(rows[one] for one in READERS if one in rows)
    if not options.dry_run:
        TABLE.show(render)
    sys.exit(failed > 0)


def summed_up(failures: list[str]) -> list[str]:
    """The first failure of each kind, with the number of its kind."""
    kinds: dict[str, list[str]] = {}
    for line in failures:
        kinds.setdefault(line.partition(": ")[2][:60], []).append(line)
    return [f"{len(lines)}x, first {lines[0]}" for lines in kinds.values()]


def replay(name: str, seed: int, index: int) -> None:
    """Read one input in this process; its error is shown whole."""
    reader, data = READERS[name], make_input(READERS[name], seed, index)
    print(data[:3000])
    with work_folder() as folder:
        os.chdir(folder)
        read = reader.open(folder)
        (folder / reader.file).write_bytes(data)
        print(read(folder / reader.file))


def render(rows: list[dict[str, str]]) -> str:
    lines = [
        "| reader | inputs | valid | refused | other | slowest, ms | memory, MiB |",
        "| --- " + "| --: " * 6 + "|",
    ]
    for row in rows:
        counts = " | ".join(f"{int(row[name]):,}" for name in ("inputs", "valid", "refused", "other"))
        lines.append(
            f"| {row['reader']} | {counts} | {float(row['slowest_ms']):,.0f} | {int(row['memory_mib']):,} |"
        )
    total, other = sum(int(row["inputs"]) for row in rows), sum(int(row["other"]) for row in rows)
    minutes = sum(float(row["seconds"]) for row in rows) / 60
    seeds = ", ".join(sorted({row["seed"] for row in rows}))
    lines += [
        "",
        f"{total:,} inputs, seed {seeds}, {minutes:.0f} minutes on one core: {other:,} led to anything else.",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
