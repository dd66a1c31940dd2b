"""The tables of docs/photographs.md: accuracies by budget, and the pilots."""

from collections.abc import Iterable
from pathlib import Path
from statistics import fmean

from photographs_plan import CELLS, PILOTS, VARIANTS

from sla.stats import Interval, interval, share

SCORES = ("quick", "single", "flips", "aggregated", "distilled", "averaged", "averaged_views")
ANSWERS = (  # a line of a table: way, score, words, passes per picture
    ("features", "quick", "linear classifier on features", 1),
    ("plain", "single", "fine-tuning", 1),
    ("plain", "flips", "fine-tuning, over flips", 2),
    ("plain", "averaged", "fine-tuning, averaged", 1),
    ("mixed", "averaged", "fine-tuning, smoothing and mixup, averaged", 1),
    ("strong", "single", "fine-tuning, smoothing and RandAugment", 1),
    ("strong", "flips", "fine-tuning, smoothing and RandAugment, over flips", 2),
    ("strong", "averaged", "fine-tuning, smoothing and RandAugment, averaged", 1),
    ("timm", "single", "timm's usual fine-tuning", 1),
    ("sla", "single", "SLA, single", 1),
    ("sla", "aggregated", "SLA, aggregated", 4),
    ("sla", "averaged", "SLA, averaged, single", 1),
    ("sla", "averaged_views", "SLA, averaged, aggregated", 4),
    ("sla-strong", "single", "SLA, smoothing and RandAugment, single", 1),
    ("sla-strong", "aggregated", "SLA, smoothing and RandAugment, aggregated", 4),
    ("sla-strong", "averaged", "SLA, smoothing and RandAugment, averaged, single", 1),
    ("sla-strong", "averaged_views", "SLA, smoothing and RandAugment, averaged, aggregated", 4),
    ("student", "distilled", "SLA, student", 1),
)
QUICK, TUNED = ("features", "quick"), ("plain", "averaged")
DEFAULTS = {"1": QUICK}  # what `sla train --minutes` answers by; with more minutes, TUNED
DRAWN = (
    ("plain", "single", "fine-tuning"),
    ("plain", "averaged", "fine-tuning, averaged"),
    ("sla", "single", "SLA, single"),
    ("sla", "averaged", "SLA, averaged, single"),
    ("sla", "averaged_views", "SLA, averaged, aggregated"),
)
SLA_WAYS = ("sla", "sla-strong", "student")
Rows = list[dict[str, str]]


def render(rows: Rows) -> str:
    """A table for each budget: accuracies by answer and pictures; then the pilots."""
    tables = []
    for minutes in sorted({row["minutes"] for row in rows if row["cell"] in CELLS}, key=float):
        cells = [name for name in CELLS if any((r["cell"], r["minutes"]) == (name, minutes) for r in rows)]
        tables += [
            f"### {_time(minutes)} of two cores",
            _budget(rows, minutes, cells),
            _goal(rows, minutes, cells),
            _over_seeds(rows, minutes, cells),
        ]
    pilots = ["### Pilots", "On held-out training pictures.", _average_over_quick(rows)]
    pilots += ["<details><summary>Table</summary>", _pilots(rows), "</details>"]
    cost = f"{len(rows)} runs, {sum(float(row['core_seconds']) for row in rows) / 3600:.1f} core-hours."
    return "\n\n".join([*filter(None, tables), *pilots, cost])


def _values(rows: Rows, cell: str, minutes: str, way: str, score: str, variant: str = "") -> dict[str, float]:
    """A score by seed."""
    wanted = (cell, minutes, way, variant)
    found = [row for row in rows if (row["cell"], row["minutes"], row["way"], row["variant"]) == wanted]
    if way == "features":  # every way but timm's begins with it, whatever the budget
        found = [row for row in rows if row["cell"] == cell]
    return {row["seed"]: float(row[score]) for row in found if row[score]}


def _budget(rows: Rows, minutes: str, cells: list[str]) -> str:
    """Means over seeds, and the gain over the default."""
    default = _default(minutes)
    tested = {row["cell"]: int(row["test"]) for row in rows}
    lines: list[tuple[str, ...]] = [("", "passes", *cells, "over the default")]
    lines.append(("---", "--:", *["--:"] * len(cells), "---"))
    for way, score, words, passes in ANSWERS:
        found = {name: _values(rows, name, minutes, way, score) for name in cells}
        if any(found.values()):
            shown = [_mean(list(values.values()), tested[name]) for name, values in found.items()]
            last = "the default" if (way, score) == default else _gain(rows, minutes, found)
            lines.append((words, str(passes), *shown, last))
    return _markdown(lines)


def _default(minutes: str) -> tuple[str, str]:
    return DEFAULTS.get(minutes, TUNED)


def _goal(rows: Rows, minutes: str, cells: list[str]) -> str:
    """In which columns the default's interval has the best row, and what SLA adds to the best without it."""
    best, missed, sla = [], [], []
    tested = {row["cell"]: int(row["test"]) for row in rows}
    for cell in cells:
        default = _values(rows, cell, minutes, *_default(minutes))
        gains = _over(rows, cell, minutes, default)
        if len(gains) < 2:  # nothing but the default
            continue
        best.append(max(gains.values()))
        own = _accuracy(list(default.values()), tested[cell])
        if own.mean + best[-1] > own.high:
            missed.append(cell)
        ours = [gain for way, gain in gains.items() if way[0] in SLA_WAYS]
        if ours:
            sla.append(max(ours) - max(gain for way, gain in gains.items() if way[0] not in SLA_WAYS))
    if not best:
        return ""
    text = (
        f"The best row of each column, chosen on test pictures and so in part by luck, is {fmean(best):.1f} "
        "points above the default, on average, and within the default's 95% interval in "
        f"{len(best) - len(missed)} of {len(best)} columns"
    )
    text += f" (not in {', '.join(missed)})." if missed else "."
    if len(sla) > 1:
        one = interval(sla)
        ends = f" ({one.ends('+.1f')})" if len(sla) > 2 else ""
        text += (
            f" The best row with SLA against the best without, chosen likewise: {one.mean:+.1f} points{ends}."
        )
    return text


def _over_seeds(rows: Rows, minutes: str, cells: list[str]) -> str:
    """What SLA gains over fine-tuning, both averaged, where a cell has several seeds, with their interval."""
    said = []
    for score, words in (("averaged", "single"), ("averaged_views", "aggregated")):
        found = []
        for cell in cells:
            ours, plain = _values(rows, cell, minutes, "sla", score), _values(rows, cell, minutes, *TUNED)
            gains = [ours[seed] - plain[seed] for seed in sorted(ours.keys() & plain.keys())]
            if len(gains) > 1:
                one = interval(gains)
                found.append(f"{cell} {one.mean:+.1f} ({one.ends('+.1f')})")
        if found:
            said.append(f"{words} {', '.join(found)}")
    if not said:
        return ""
    words = "SLA over fine-tuning, both averaged, paired by seed, with the interval over seeds"
    return f"{words}: {'; '.join(said)}."


def _over(rows: Rows, cell: str, minutes: str, default: dict[str, float]) -> dict[tuple[str, str], float]:
    """By way and score the mean gain over the default, on the seeds that both have."""
    gains = {}
    for way, score, _, _ in ANSWERS:
        values = _values(rows, cell, minutes, way, score)
        if seeds := values.keys() & default.keys():
            gains[way, score] = fmean(values[seed] - default[seed] for seed in seeds)
    return gains


def _mean(values: list[float], tested: int) -> str:
    if not values:
        return ""
    found = _accuracy(values, tested)
    seeds = f", {len(values)} seeds" if len(values) > 1 else ""
    return f"{found.mean:.1f} ± {(found.high - found.low) / 2:.1f}{seeds}"


def _accuracy(values: list[float], tested: int) -> Interval:
    """With the 95% interval over the test pictures; the seeds of a cell share these."""
    return share(fmean(values) / 100 * tested, tested)


def _gain(rows: Rows, minutes: str, found: dict[str, dict[str, float]]) -> str:
    """The mean over columns of the difference, paired by seed; its interval is over the columns."""
    usual = {name: _values(rows, name, minutes, *_default(minutes)) for name in found}
    gains = [
        fmean(values[seed] - usual[name][seed] for seed in seeds)
        for name, values in found.items()
        if (seeds := values.keys() & usual[name].keys())
    ]
    if not gains:
        return ""
    one = interval(gains)
    ends = f" ({one.ends('+.1f')})" if len(gains) > 2 else ""  # of two columns it would say nothing
    return f"{one.mean:+.1f}{ends}, {len(gains)} column{'s' if len(gains) > 1 else ''}"


def _pilots(rows: Rows) -> str:
    tried = {(row["cell"], row["minutes"]) for row in rows if row["cell"] in PILOTS}
    columns = sorted(tried, key=lambda column: (float(column[1]), column[0]))
    lines: list[tuple[str, ...]] = [
        ("method", "settings", "inference", *(f"{cell}, {_time(minutes)}" for cell, minutes in columns)),
        ("---", "---", "---", *["--:"] * len(columns)),
    ]
    for variant, (way, more) in VARIANTS.items():
        settings = ", ".join(f"{key.partition('.')[2] or key} {value}" for key, value in more.items())
        for score in SCORES:
            found = [_values(rows, cell, minutes, way, score, variant) for cell, minutes in columns]
            if any(found) and (score != "quick" or not variant):
                shown = (f"{fmean(values.values()):.1f}" if values else "" for values in found)
                lines.append((way, settings, score.replace("_", ", "), *shown))
    return _markdown(lines)


def _average_over_quick(rows: Rows) -> str:
    """What averaging gained over the quick model in the pilots of fine-tuning, by minutes."""
    gains: dict[str, list[str]] = {}
    for row in rows:
        if row["cell"] in PILOTS and row["way"] == "plain" and not row["variant"]:
            gain = float(row["averaged"]) - float(row["quick"])
            gains.setdefault(row["minutes"], []).append(f"{gain:+.1f}")
    said = (f"{_time(minutes)} {', '.join(gains[minutes])}" for minutes in sorted(gains, key=float))
    return f"Fine-tuning, averaged, over the quick model, in points: {'; '.join(said)}."


def _time(minutes: str) -> str:
    return f"{minutes} minute{'s' * (minutes != '1')}"


def _markdown(lines: Iterable[tuple[str, ...]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def draw(rows: Rows, path: Path) -> None:
    """The gain over the quick model by budget: a faint dot for each column, their mean with its interval."""
    from matplotlib.figure import Figure

    budgets = sorted({row["minutes"] for row in rows if row["cell"] in CELLS}, key=float)
    figure = Figure(figsize=(9, 2.6), layout="constrained")
    panels = figure.subplots(1, len(budgets), sharex=True, sharey=True, squeeze=False)[0]
    for panel, minutes in zip(panels, budgets, strict=True):
        for place, (way, score, _) in enumerate(DRAWN):
            gains = [
                fmean(values[seed] - quick[seed] for seed in values)
                for cell in CELLS
                if (values := _values(rows, cell, minutes, way, score))
                and (quick := _values(rows, cell, minutes, *QUICK))
            ]
            if not gains:
                continue
            panel.plot(gains, [place] * len(gains), "o", ms=4, alpha=0.3, color="#2a6f97", mew=0)
            found = interval(gains)
            if len(gains) > 2:  # of two columns it would be wider than the picture
                panel.plot([found.low, found.high], [place] * 2, color="#2a6f97")
            panel.plot(found.mean, place, "o", ms=7, color="#2a6f97")
            panel.annotate(f"{found.mean:+.1f}", (found.mean, place), (0, 6), "data", "offset points", size=8)
        panel.axvline(0, ls="--", lw=0.8, color="#999999")
        panel.set_title(_time(minutes), fontsize=9)
        panel.set_yticks(range(len(DRAWN)), [words for *_, words in DRAWN], fontsize=8)
        panel.tick_params(labelsize=8)
        panel.grid(alpha=0.3, axis="x")
    panels[0].set_ylim(len(DRAWN) - 0.5, -0.7)
    figure.supxlabel("points over the linear classifier on features", fontsize=8)
    figure.savefig(path, dpi=90)
