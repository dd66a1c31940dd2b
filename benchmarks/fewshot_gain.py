"""What joint labels gain in few-shot learning: the runs of Table 6 at small scale, pair by pair.

    sla reproduce table6 --scale small --columns cifar-fs-1,cifar-fs-5,fc100-1,fc100-5 --out OUT
    SLA_DATA=FOLDER python benchmarks/fewshot_gain.py OUT

Plain method and SLA+AG of a seed are tested on the same 1,000 episodes, so their difference has an interval
over episodes; the differences of the seeds have one over seeds, which says what training again would give.
Rows of results/fewshot_gain.csv that are there are kept. Writes the table in docs/fewshot.md. About a
quarter of a minute a run on one core.
"""

import sys
from pathlib import Path

import numpy as np
from tables import Table, with_ends

SCALE, SEEDS, ALL = "small", 3, "all"
METHODS = {"protonet": "protonet-ag", "metaoptnet-rr": "metaoptnet-rr-ag"}  # rows of Table 6: plain, joint
COLUMNS = ("cifar-fs-1", "cifar-fs-5", "fc100-1", "fc100-5")
NUMBERS = ("plain", "joint", "gain", "low", "high")
TABLE = Table("fewshot_gain", "docs/fewshot.md", ("column", "method", "seed", *NUMBERS, "commit"))


def episodes_of(row: str, column: str, seed: int, out: Path) -> np.ndarray:
    """Accuracy in percent of each test episode, by the run of a cell of Table 6."""
    from sla.reproduce.jobs import cells_of
    from sla.reproduce.work import folder_of
    from sla.tasks.fewshot.run import FewShotRun

    cells = cells_of("table6", SCALE, SEEDS, [row], [column])
    job = next(cell.job for cell in cells if cell.seed == seed)
    run, shot = FewShotRun(folder_of(job, out)), int(column[-1])
    return run.evaluate(shots=[shot])[shot][run.model.inferences[-1]]


def measure(method: str, column: str, out: Path, commit: str | None) -> list[dict[str, object]]:
    """A row for each seed, and one for all: there the differences of an episode are averaged over seeds."""
    from sla.tasks.fewshot.evaluate import paired_interval

    both, pairs = (method, METHODS[method]), {}
    for seed in range(SEEDS):
        pairs[str(seed)] = [episodes_of(row, column, seed, out) for row in both]
    pairs[ALL] = [np.mean([pair[i] for pair in pairs.values()], axis=0) for i in (0, 1)]
    rows: list[dict[str, object]] = []
    for seed, (plain, joint) in pairs.items():
        found = (plain.mean(), joint.mean(), *paired_interval(joint, plain))
        cells = (column, method, seed, *(f"{value:.3f}" for value in found), commit)
        rows.append(dict(zip(TABLE.columns, cells, strict=True)))
    return rows


def main() -> None:
    from sla.runs.result import find_commit

    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    commit = find_commit()
    for column in COLUMNS:
        for method in METHODS:
            if any((row["column"], row["method"]) == (column, method) for row in TABLE.read()):
                continue
            for row in measure(method, column, Path(sys.argv[1]), commit):
                TABLE.append(row)
                print("  ".join(map(str, row.values())), flush=True)
    TABLE.show(render)


def render(rows: list[dict[str, str]]) -> str:
    """A line for each method and column: both accuracies, the gain over episodes and over seeds."""
    from sla.reproduce.paper import experiment
    from sla.stats import Interval, paired

    table = experiment("table6")
    lines = [
        "| | | plain % | SLA+AG % | gain, over episodes | gain, over seeds | |",
        "|---|---|--:|--:|--:|--:|---|",
    ]
    for row in rows:
        if row["seed"] != ALL:
            continue
        own = {"column": row["column"], "method": row["method"]}
        seeds = [r for r in rows if r | own == r and r is not row]
        over_seeds = paired([float(r["joint"]) for r in seeds], [float(r["plain"]) for r in seeds])
        over_episodes = Interval(*(float(row[end]) for end in ("gain", "low", "high")))
        verdict = ("undecided", "better", "worse")[over_seeds.sign]
        names = f"{table.columns[row['column']].label} | {table.rows[row['method']].label}"
        cells = [f"{float(row['plain']):.1f}", f"{float(row['joint']):.1f}"]
        cells += [with_ends(over_episodes, 2), with_ends(over_seeds, 2), verdict]
        lines.append(f"| {names} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
