"""Does every run go on bit for bit after a fault, or say in one line what is wrong?

    python benchmarks/faults.py [--seed 0] [--jobs 2] [--quick] [--only FAULT] [--folder FOLDER]

Also `make faults`. Tiny runs of every task on the bundled digits are killed at random moments and at file
operations, get a full disk, a limit of file sizes, a read-only folder, other data, damaged checkpoints, or
lose one of two processes. Then they are resumed, and all files compared with those of an undisturbed run,
but for times. Writes results/faults.csv and the table in docs/trust.md; `--quick` writes nothing. Exit code 1
if a trial failed. A full disk needs the right to mount one, and is left out without it.
"""

import argparse
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from fault_kinds import FAULTS, Outcome, Trial, can_mount, set_up_group
from fault_runs import GROUP, QUICK, TASKS, Place, set_up
from tables import Table

COUNTS = ("tried", "bit_for_bit", "one_line", "failed")
TABLE = Table("faults", "docs/trust.md", ("fault", "task", "stage", *COUNTS, "seed", "commit"))


def make_trials(faults: Sequence[str], seed: int, quick: bool, tasks: Sequence[str]) -> Iterator[Trial]:
    """Trials that are spread over the tasks, by the time these take, and over the length of each run."""
    for fault in faults:
        _, known, count, few = FAULTS[fault]
        own = [task for task in known if task in tasks]
        weights = [3 if task == "classifier" else 1 for task in own]  # it has three stages
        total = few if quick else count
        for number, task in enumerate(own):
            upto = [round(total * sum(weights[:end]) / sum(weights)) for end in (number, number + 1)]
            stream, times = random.Random(f"{seed} {fault} {task}"), upto[1] - upto[0]
            for part in range(times):
                yield Trial(fault, task, str(seed), (part + stream.random()) / times)


def run_trial(place: Place, trial: Trial) -> Outcome:
    """In a folder of its own, which goes if nothing failed."""
    folder = Path(tempfile.mkdtemp(prefix="trial-", dir=place.base)) / "run"
    try:
        found = FAULTS[trial.fault][0](place, trial, folder)
    except Exception as error:  # of the campaign itself: the others go on
        found = Outcome(trial, "", failed=repr(error))
    if not found.failed:
        shutil.rmtree(folder.parent)
    return found


def run_trials(place: Place, trials: Sequence[Trial], jobs: int) -> list[Outcome]:
    """All of them, several at a time; failures are printed as they come."""
    found: list[Outcome] = []
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        for one in pool.imap_unordered(partial(run_trial, place), trials):
            found.append(one)
            if one.failed:
                print(f"FAILED {one.trial} at {one.stage}: {one.failed}", flush=True)
            if not len(found) % 20:
                print(f"{len(found)} of {len(trials)}", flush=True)
    return found


def summarise(outcomes: Sequence[Outcome], seed: int, commit: str | None) -> list[dict[str, object]]:
    """A row for each fault, task and stage."""
    counts: dict[tuple[str, str, str], Counter[str]] = {}
    for one in outcomes:
        own = counts.setdefault((one.trial.fault, one.trial.task, one.stage), Counter())
        own.update(tried=1, bit_for_bit=int(one.same), one_line=int(one.said), failed=int(bool(one.failed)))
    faults = list(FAULTS)
    order = sorted(counts, key=lambda key: (faults.index(key[0]), key[1:]))
    columns = TABLE.columns[:3]
    return [
        {**dict(zip(columns, key, strict=True)), **{name: counts[key][name] for name in COUNTS}}
        | {"seed": seed, "commit": commit}
        for key in order
    ]


def render(rows: list[dict[str, str]]) -> str:
    """The counts by fault and task, with the stages that were hit."""
    lines = ["| fault | run | tried | resumed bit for bit | reported in one line | failed | hit in |"]
    lines.append("|---|---|--:|--:|--:|--:|---|")
    for fault, task in dict.fromkeys((row["fault"], row["task"]) for row in rows):
        own = [row for row in rows if (row["fault"], row["task"]) == (fault, task)]
        sums = [str(sum(int(row[name]) for row in own)) for name in COUNTS]
        stages = ", ".join(f"{row['stage']} {row['tried']}" for row in own)
        lines.append(f"| {fault} | {task} | {' | '.join(sums)} | {stages} |")
    sums = [str(sum(int(row[name]) for row in rows)) for name in COUNTS]
    return "\n".join([*lines, f"| all | | {' | '.join(sums)} | |"])


def main(words: Sequence[str] | None = None) -> int:
    """The exit code: 1 if a trial failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--quick", action="store_true", help="a few trials, nothing is written")
    parser.add_argument("--only", choices=FAULTS, help="this fault alone, nothing is written")
    parser.add_argument("--folder", type=Path, default=Path("/dev/shm"), help="a fast disk with 1 GB")
    given = parser.parse_args(words)
    os.environ["TORCH_CPP_LOG_LEVEL"] = "FATAL"  # torch logs lost connections too, in many lines
    import torch

    from sla.runs.result import find_commit

    torch.set_num_threads(1)
    os.environ["SLA_ALLOCATOR"] = "default"  # forked processes share the memory of this one
    commit = find_commit()
    base = Path(tempfile.mkdtemp(prefix="sla-faults-", dir=given.folder))
    base.chmod(0o755)
    faults = [given.only] if given.only else list(FAULTS)
    if "disk full" in faults and not given.quick and not can_mount(base / "disk"):
        print("disk full: left out, it needs the right to mount a disk", flush=True)
        faults.remove("disk full")
    used = {task for fault in faults for task in FAULTS[fault][1]} & set(
        QUICK if given.quick else (*TASKS, GROUP)
    )
    place = set_up(base, [task for task in TASKS if task in used or (task == "classifier" and GROUP in used)])
    if GROUP in used:
        set_up_group(place)
    trials = list(make_trials(faults, given.seed, given.quick, [*place.wholes]))
    outcomes = run_trials(place, trials, given.jobs)
    failed = sum(bool(one.failed) for one in outcomes)
    print(f"{len(outcomes)} trials, {failed} failed")
    if not (given.quick or given.only):
        TABLE.write(summarise(outcomes, given.seed, commit))
        TABLE.show(render)
    if failed:
        print(f"kept: {base}")
    else:
        shutil.rmtree(base)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
