"""Mutation tests of the core: how many small mistakes in its code the tests notice.

    python benchmarks/mutation.py [--module heads] [--sample 100] [--again]

Every mutant (benchmarks/mutants.py) is a copy of a module with one mistake, and benchmarks/mutation_run.py
runs the tests with it. Survivors have their reasons in benchmarks/mutation.yaml; without one, or with one
that is no longer true, the command ends with an error.
"""

import argparse
import json
import os
import random
import sys
from pathlib import Path

import yaml
from mutants import Key, Mutant, Source
from mutation_run import KILLED, OUTCOMES, SURVIVED, TIMED_OUT, Campaign
from tables import REPOSITORY, Table

MODULES = ("labels", "views", "criteria", "imbalance", "losses", "linear_loss", "heads", "inference")
MODULES += ("anytime",)  # and those of methods/
TESTS = ("anytime", "classifier", "heads", "imbalance", "inference", "labels", "linear_loss", "losses")
TESTS += ("meta_device", "methods", "mixed_targets", "returned", "students", "unlabelled", "views")
FILES = [f"tests/test_{name}.py" for name in TESTS]
FILES += [
    "tests/tasks/classifier/test_distil.py::test_the_loss_is_a_sum_over_images_and_classes",
    "tests/test_extensions.py::test_views_and_criteria_are_declared_once",
    "tests/test_extensions.py::test_wrong_names_get_one_line",
]
COLUMNS = ("module", "mutants", "tried", "killed", "timed_out", "survived", "explained")
TABLE = Table("mutation", "docs/trust.md", COLUMNS)
REASONS = Path(__file__).with_suffix(".yaml")
LINE = 110  # characters of a line or change that the page shows
BUILD = REPOSITORY / "build"


def sample(mutants: list[Mutant], count: int | None) -> list[Mutant]:
    """So many of a module's mutants, always the same ones, in their order; all if there are no more."""
    if count is None or len(mutants) <= count:
        return mutants
    order = list(range(len(mutants)))
    random.Random(mutants[0].module).shuffle(order)
    return [mutants[index] for index in sorted(order[:count])]


def core() -> list[Source]:
    """The modules of the core, as benchmarks name them: `heads`, `methods/paper`."""
    folder = REPOSITORY / "src" / "sla"
    names = [*MODULES, *(f"methods/{path.stem}" for path in sorted((folder / "methods").glob("*.py")))]
    return [source for name in names if (source := Source(folder / f"{name}.py", name)).mutants]


def read_reasons() -> dict[Key, str]:
    """Why mutants that survive are no mistakes."""
    groups = yaml.safe_load(REASONS.read_text(encoding="utf-8")) or []
    return {tuple(mutant): group["reason"] for group in groups for mutant in group["mutants"]}


def find_stale(sources: list[Source]) -> list[Key]:
    """Mutants with a reason that are not there any more."""
    there = {mutant.key for source in sources for mutant in source.mutants}
    return [key for key in read_reasons() if key not in there]


def count(source: Source, outcomes: dict[Key, str]) -> dict[str, object]:
    """The row of a module."""
    reasons, own = read_reasons(), {key: found for key, found in outcomes.items() if key[0] == source.module}
    survivors = [key for key, outcome in own.items() if outcome == SURVIVED]
    number = {name: list(own.values()).count(name) for name in (KILLED, TIMED_OUT)}
    explained = sum(key in reasons for key in survivors)
    values = (len(source.mutants), len(own), number[KILLED], number[TIMED_OUT], len(survivors), explained)
    return dict(zip(COLUMNS, (source.module, *values), strict=True))


def render(rows: list[dict[str, str]]) -> str:
    """The table, then the survivors with a reason."""
    lines = ["| module | mutants | tried | killed | by the time limit | survived | explained |"]
    lines += ["|---|--:|--:|--:|--:|--:|--:|"]
    for row in rows:
        lines.append(f"| `{row['module']}` | {' | '.join(row[name] for name in COLUMNS[1:])} |")
    total = {name: sum(int(row[name]) for row in rows) for name in COLUMNS[1:]}
    lines.append(f"| all | {' | '.join(f'{each:,}' for each in total.values())} |")
    noticed, tried = total["killed"] + total["timed_out"], max(total["tried"], 1)
    open_ones = total["survived"] - total["explained"]
    lines += ["", f"{100 * noticed / tried:.1f}% were killed; {open_ones} survivors have no explanation.", ""]
    grouped: dict[str, list[Key]] = {}
    for key, reason in read_reasons().items():
        grouped.setdefault(reason, []).append(key)
    for reason, keys in grouped.items():
        lines.append(f"- {reason}")
        lines += [f"  - `{module}`: `{line[:LINE]}`: `{change[:LINE]}`" for module, line, change in keys]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--module", help="only this one: heads, methods/paper, ...")
    parser.add_argument("--sample", type=int, help="so many mutants of each module, by a fixed seed")
    parser.add_argument("--again", action="store_true", help="leave out what was killed or explained before")
    given = parser.parse_args()
    os.chdir(REPOSITORY)
    everything = core()
    sources = [source for source in everything if given.module in (None, source.module)]
    if not sources:
        parser.error(f"no module {given.module}: {', '.join(source.module for source in everything)}")
    if stale := find_stale(everything):
        parser.error(f"{REASONS.name} has mutants that are not there: {stale}")
    chosen = [mutant for source in sources for mutant in sample(source.mutants, given.sample)]
    last = read_outcomes() if given.again else {}
    kept = {mutant.key: last[mutant.key] for mutant in chosen if mutant.key in last}
    campaign = Campaign(everything, FILES, BUILD, kept)
    known = {key for key, found in kept.items() if found != SURVIVED or key in read_reasons()}
    campaign.run([mutant for mutant in chosen if mutant.key not in known])
    report(sources, campaign.outcomes)


def read_outcomes() -> dict[Key, str]:
    """What became of mutants so far."""
    path = BUILD / OUTCOMES
    rows = map(json.loads, path.read_text(encoding="utf-8").splitlines()) if path.exists() else ()
    return {tuple(row[:3]): row[3] for row in rows}


def report(sources: list[Source], outcomes: dict[Key, str]) -> None:
    """Rows for these modules in place of older ones; an error if reasons are missing or wrong."""
    rows = {row["module"]: row for row in TABLE.read()}
    rows |= {source.module: count(source, outcomes) for source in sources}
    TABLE.write(rows[source.module] for source in core() if source.module in rows)
    TABLE.show(render)
    reasons, survivors = read_reasons(), [key for key, found in outcomes.items() if found == SURVIVED]
    unexplained = [key for key in survivors if key not in reasons]
    killed = [key for key in reasons if outcomes.get(key) == KILLED]
    for what, keys in (("no reason", unexplained), ("a reason, but was killed", killed)):
        for key in keys:
            print(f"{what}: {' | '.join(key)}")
    print(f"{len(outcomes)} tried, {len(survivors)} survived, {len(unexplained)} without a reason")
    sys.exit(1 if unexplained or killed else 0)


if __name__ == "__main__":
    main()
