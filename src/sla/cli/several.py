"""`sla train --seeds` and `--compare`: several runs by one command, one after the other, and their table."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sla.cli.output import say
from sla.errors import InputError, nearest, shown

if TYPE_CHECKING:
    from sla.compare.seeds import SeedTable
    from sla.runs.plan import Plan
    from sla.runs.run import OpenedRun


class Job(NamedTuple):
    """A run of the command: the settings it has beside those of the command, and its folder.

    `cost_of`: the folder of the run whose FLOP it gets.
    """

    settings: dict[str, Any]
    folder: Path
    cost_of: Path | None = None


def check_method(compare: str) -> None:
    """Refuse a method of --compare that could not be trained, before the first run is."""
    from sla.methods import METHODS
    from sla.plugins import is_plugin_name
    from sla.tasks.classifier.config import DISTILLED

    if compare == DISTILLED:
        raise InputError(
            "--compare distilled: a student learns from a run: `sla distill RUN`, then `sla compare`"
        )
    if compare not in METHODS and not is_plugin_name(compare):
        raise InputError(f"--compare: unknown method {compare!r}{nearest(compare, tuple(METHODS))}")


def list_jobs(
    tree: dict[str, Any], out: Path, seeds: int | None, compare: str | None, equal_cost: bool
) -> list[Job]:
    """The runs of a command in their order: each seed, and with it the method to compare with."""
    if equal_cost and compare is None:
        raise InputError("--equal-cost is for --compare: it gives the other method the same FLOP")
    for method in (compare, (tree.get("method") or {}).get("name")) if equal_cost else ():
        if method in ("features", "distilled"):
            raise InputError(f"--equal-cost: {method} is not trained for a number of FLOP")
    out, found = out if out.name else out.absolute(), list[Job]()
    given = (tree.get("run") or {}).get("seed")
    first = 1 if given is None else given
    for seed in range(first, first + (seeds or 1)):
        own = {} if seeds is None else {"run.seed": seed}
        folder = out if seeds is None else out.with_name(f"{out.name}-seed{seed}")
        found.append(Job(own, folder))
        if compare is not None:
            beside = folder.with_name(f"{folder.name}-{compare.replace('+', '-').replace(':', '-')}")
            found.append(Job({**own, "method.name": compare}, beside, folder if equal_cost else None))
    return found


def refuse_begun(jobs: Sequence[Job], resume: bool, several: bool) -> None:
    """Without --resume, none of the folders but the first may have a run: that one says so itself."""
    begun = [job.folder for job in jobs[0 if several else 1 :] if (job.folder / "config.yaml").exists()]
    if begun and not resume:
        raise InputError(f"{shown(begun[0])}: exists already; --resume continues what was begun")


def same_cost(folder: Path) -> dict[str, Any]:
    """The key that gives a run the FLOP that a finished one trained for, the quick model not counted."""
    from sla.runs.folder import read_result

    cost = read_result(folder)["cost"]
    return {"run.flop": float(cost["training_flop"] - cost.get("features_flop", 0))}


def planned_cost(plan: "Plan") -> dict[str, Any]:
    """The same for a run that has only been planned; of minutes, what seemed to fit into them."""
    from sla.tasks.classifier.passes import distil_cost, step_flop
    from sla.tasks.classifier.time_shares import AMPLE

    run = plan.config.run
    steps = (run.iterations or 1) / (1 if run.pace is None else AMPLE)
    share, once = distil_cost(plan.config, len(plan.train))
    return {"run.flop": float(step_flop(plan) * (steps * (1 + share) + once))}


def train_job(
    tree: dict[str, Any], job: Job, where: str, resume: bool, report: bool, several: bool
) -> "OpenedRun":
    """A run of the command; of several seeds, what is finished is not done again."""
    from sla.cli.train import train_one
    from sla.runs.defaults import with_absolute_paths
    from sla.runs.folder import CONFIG, has_result, read_run_config, refuse_differences
    from sla.session import open_run
    from sla.tasks.registry import make_config, with_values

    cost = {} if job.cost_of is None else same_cost(job.cost_of)
    config = make_config(with_values(tree, {**job.settings, **cost}), where)
    if several and resume and has_result(job.folder):
        stored = make_config(read_run_config(job.folder), f"{job.folder}/{CONFIG}")
        refuse_differences(stored, with_absolute_paths(config), job.folder)
        return open_run(job.folder)
    if several:
        say(f"run: {shown(job.folder)}")
    begun = resume and (job.folder / "config.yaml").exists()
    alone = not several and "method.name" not in job.settings
    return train_one(config, job.folder, resume if alone else begun, report)


def preview_jobs(tree: dict[str, Any], jobs: Sequence[Job], where: str) -> None:
    """What each run would do; seeds differ in nothing that is said."""
    from sla.cli.train import preview_one
    from sla.tasks.registry import make_config, with_values

    plans: dict[Path, Plan] = {}
    for job in jobs[:2]:
        if job.settings.keys() == {"run.seed"} and plans:
            continue
        cost = {} if job.cost_of is None else planned_cost(plans[job.cost_of])
        plans[job.folder] = preview_one(make_config(with_values(tree, {**job.settings, **cost}), where))


def print_seeds(finished: "Sequence[OpenedRun]") -> None:
    """The table over seeds, the mean with its interval, and two methods paired by seed."""
    from sla.cli.display import print_table
    from sla.compare.seeds import compare_seeds
    from sla.tasks.classifier.choice import MODELS
    from sla.tasks.classifier.config import FEATURES
    from sla.tasks.classifier.run import Run

    runs = [run for run in finished if isinstance(run, Run)]
    table = compare_seeds(runs)
    what = "test" if table.split == "test" else "held-out"
    say(f"accuracy in percent on {table.images:,} {what} images, by seed")
    header = ("method", *(f"seed {seed}" for seed in table.seeds), "mean", "95% interval")
    print_table(header, list(_rows(table)))
    quick = all(run.model_name == MODELS[FEATURES] or run.config.is_features for run in runs)
    if quick and all(len(set(row.values.values())) == 1 for row in table.rows):
        say(
            "All answer with their quick model, which does not depend on the seed: this says nothing of how "
            "much training runs differ."
        )
    say("* what sla predict answers with. The interval is over seeds (Student's t), on the same images.")
    for first, other, points in table.differences():
        ends = "in every seed" if math.isnan(points.low) else points.ends("+.1f")
        verdict = {1: "better", -1: "worse", 0: "no clear difference"}[points.sign]
        say(
            f"{first.method} ({first.inference}) against {other.method} ({other.inference}), paired by seed: "
            f"{points.mean:+.2f} points ({ends}): {verdict}"
        )


def _rows(table: "SeedTable") -> Iterator[tuple[str, ...]]:
    for row in table.rows:
        star = " *" if table.headlines[row.method] == row.inference else ""
        mean, low, _ = found = row.mean
        ends = "all seeds equal" if math.isnan(low) else found.ends()
        values = (f"{row.values[seed]:.2f}" for seed in table.seeds)
        yield f"{row.method}, {row.inference}{star}", *values, f"{mean:.2f}", ends
