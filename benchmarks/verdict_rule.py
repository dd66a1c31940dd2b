"""How often is a verdict of `sla reproduce render` wrong, and how often is it there? By simulation.

    python benchmarks/verdict_rule.py

Twenty claims are judged together: 10 null, 5 with an effect of 1 standard deviation (sd) of a paired
difference and 5 with 3. Their columns have 1, 2, 3 or 4 contrasts that share a baseline. A null claim of
several parts has one null part, the others have an effect of 3. Differences between columns cancel in the
average over the columns that were run. Where `columns_differ` is 1 the effects of columns have an sd of 1
around that of the claim, which then is about datasets in general.
Writes src/sla/reproduce/verdict_rule.csv, a part of the package because `render` shows it; 10 seconds.
"""

import csv
import itertools
from pathlib import Path

import numpy as np
from scipy import stats

from sla.reproduce.rule import RATES, RISK

EFFECTS = np.array([0.0] * 10 + [1.0] * 5 + [3.0] * 5)
SHAPES = [  # columns, seeds, parts of a claim, sd between columns, sd of the first column (the others: 1)
    *((*shape, 1, 0, 1) for shape in itertools.product((1, 2, 3, 6), (3, 5))),
    *((3, seeds, 2, 0, 1) for seeds in (3, 5)),
    *((columns, seeds, 1, 0, 3) for columns, seeds in ((3, 3), (6, 5))),
    *((columns, 3, 1, 1, 1) for columns in (1, 3, 6)),
]
COLUMNS = (
    *("columns", "seeds", "parts", "columns_differ", "noise", "repeats", "one_false_all_null", "one_false"),
    *("false_holds", "false_fails", "power_1", "power_3"),
)
REPEATS = 10_000


def draw(draws, shape, effects, repeats: int) -> np.ndarray:
    """Averages of a column's contrasts (repeats, claims, parts, columns, seeds); a difference has sd 1."""
    columns, seeds, parts, differ, noise = shape
    size = repeats, len(effects), parts, columns, seeds
    contrasts = 1 + np.arange(len(effects)) % 4
    baseline = draws.normal(size=(*size[:2], 1, *size[3:])) * np.sqrt(0.5)
    others = draws.normal(size=size) * np.sqrt(0.5 / contrasts)[:, None, None, None]
    means = np.repeat(np.asarray(effects, float)[:, None], parts, 1)
    if np.any(effects):
        means[:, 1:] = np.where(means[:, 1:] == 0, 3.0, means[:, 1:])
    between = differ * draws.normal(size=(*size[:4], 1))
    scale = np.where(np.arange(columns), 1, noise)[:, None]
    return scale * (others - baseline) + means[:, :, None, None] + between


def verdicts(values: np.ndarray) -> np.ndarray:
    """+1 holds, -1 does not, 0 undecided (repeats, claims): sla.reproduce.rule for whole arrays."""
    columns, seeds = values.shape[-2:]
    variance = values.var(-1, ddof=1) / seeds / columns**2
    error = np.sqrt(variance.sum(-1))
    freedom = error**4 / (variance**2 / (seeds - 1)).sum(-1)
    t = values.mean((-1, -2)) / error
    holds = stats.t.sf(t, freedom).max(-1)
    fails = np.minimum(1, t.shape[-1] * stats.t.cdf(t, freedom).min(-1))
    p = np.minimum(1, 2 * np.minimum(holds, fails))
    order = p.argsort(-1)
    steps = np.take_along_axis(p, order, -1) * np.arange(p.shape[-1], 0, -1)
    adjusted = np.empty_like(p)
    np.put_along_axis(adjusted, order, np.maximum.accumulate(steps, -1), -1)
    return np.where(adjusted < RISK, np.where(holds < fails, 1, -1), 0)


def measure(shape, repeats: int = REPEATS) -> dict[str, object]:
    draws = np.random.default_rng([*shape])
    null = verdicts(draw(draws, shape, np.zeros(len(EFFECTS)), repeats))
    found = verdicts(draw(draws, shape, EFFECTS, repeats))
    nulls = found[:, EFFECTS == 0]
    rates = (
        (null != 0).any(1).mean(),
        ((nulls != 0).any(1) | (found[:, EFFECTS > 0] < 0).any(1)).mean(),
        (nulls > 0).mean(),
        (nulls < 0).mean(),
        *((found[:, effect == EFFECTS] > 0).mean() for effect in (1, 3)),
    )
    return dict(zip(COLUMNS, (*shape, repeats, *(f"{rate:.4f}" for rate in rates)), strict=True))


if __name__ == "__main__":
    with Path(str(RATES)).open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(measure(shape) for shape in SHAPES)
