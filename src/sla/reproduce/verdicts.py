"""The sections about claims: verdicts, and comparisons one by one."""

from collections import Counter
from collections.abc import Iterable, Sequence
from math import isfinite
from statistics import fmean

from sla.reproduce.paper import experiment
from sla.reproduce.results import Results
from sla.reproduce.rule import (
    FAILS,
    HOLDS,
    OPEN,
    UNTESTED,
    Judgement,
    Part,
    Single,
    pool,
    rates,
)
from sla.reproduce.section import Section
from sla.stats import Interval

HEADER = (
    "claim",
    "verdict (p, Holm)",
    "effect in points, 95% interval",
    "by dataset (paper)",
    "against 4 C",
    "seeds",
)
VERDICTS = (
    "Verdicts are at equal iterations, as in the paper: a step of SLA with four views takes four times the "
    "training FLOP of a step of the baseline, six colour orders six times. The column against 4 C has the "
    "same comparison with a baseline that trains for four times the steps, 4 C; it decides nothing. The "
    "paper's effects are behind ours, in brackets; datasets that were not run are missing."
)
RULE = (
    "A claim is judged by one pooled comparison. Each of its cells gives a paired difference per seed, where "
    "more is better for the claim. Cells of one column, or of columns that share a run, are averaged per "
    "seed. The effect is the mean over columns; its error comes from the spread over seeds (Student's t, "
    "Welch-Satterthwaite degrees of freedom). The claim holds if the effect is above its threshold (0, or "
    "what its text says) and does not hold if it is below, where the two-sided p, adjusted by Holm for all "
    "claims tested at this scale, is below 0.05; otherwise it is undecided. A claim of several "
    "parts (both, each, largest) holds if every part does, and does not hold if one part fails, at a p "
    "multiplied by their number; the weakest part is shown. The 95% interval is not adjusted. A cell with "
    "one seed does not enter. The verdict is about the average over the cells that were run: single cells "
    "and other datasets may differ."
)
SEEDS = (
    "Intervals are over seeds, on one set of test images. Other test images would add about half a point, "
    "so a very narrow interval over three seeds is chance. Differences are over the seeds that both rows "
    "have: levels of rows with other numbers of seeds cannot be subtracted. Seeds: five where a run takes "
    "less than five core-minutes, else three, as far as the budget goes; ensembles of SLA have two, which "
    "the error rates below do not cover, and cost four times the FLOP of those they are compared with. Most "
    "rows of Tables 1, 3 and 11, and SLA at 4 C with one view per step, had three at first, and their "
    "claims had verdicts before the others were run; the error rates below are for fixed numbers of seeds."
)
SIMULATED = (
    "How often the rule is wrong, by simulation (`benchmarks/verdict_rule.py`): 20 claims judged together, "
    "10 of them null, 5 with an effect of 1 standard deviation (sd) of a paired difference, 5 with 3. The "
    "risk of one wrong verdict or more is below 5%, and slightly above where one column is much noisier. "
    "Taken for verdicts about datasets in general, whose effects differ by 1 sd, they are wrong far more "
    "often."
)
ORIENTED = "More is better for the first named; errors count as negative."
MOST_COLUMNS = 4  # datasets that a row of the table of claims names


def claims_section(scale: str, judged: Sequence[Judgement], results: Results) -> Section:
    """Every claim that has numbers with its verdict, and why where it does not hold."""
    count = Counter(one.verdict for one in judged)
    ordered = [one for verdict in (HOLDS, FAILS, OPEN) for one in judged if one.verdict == verdict]
    left_out = [c.label for one in ordered for part in one.parts for c in part.left_out]
    counts = ", ".join(f"{verdict} {count[verdict]}" for verdict in (HOLDS, FAILS, OPEN, UNTESTED))
    own = sum(one.claim.ours for one in judged)
    words = f"Verdicts on {len(judged)} claims, {own} of them not in the paper: {counts}."
    untested = [sentence(one) for one in judged if one.verdict == UNTESTED]
    return Section(
        f"The claims of the paper at {scale} scale",
        [words, VERDICTS],
        [("Claims", HEADER, [_row(one, results) for one in ordered])],
        [
            *(f"{one.claim.text}: {one.verdict}. {one.claim.reading}" for one in ordered if _explained(one)),
            *([f"Left out, too few seeds: {'; '.join(left_out)}."] if left_out else []),
            *([f"Not tested: {'; '.join(untested)}."] if untested else []),
        ],
    )


def sentence(one: Judgement) -> str:
    """The claim, marked if it is not the paper's."""
    return one.claim.text + (" (not in the paper)" if one.claim.ours else "")


def points(found: Interval, without: str = "one seed") -> str:
    """A difference with its interval."""
    return f"{found.mean:+.2f} ({found.ends('+.2f') if isfinite(found.low) else without})"


def opposite_section(scale: str, compared: Sequence[Single]) -> Iterable[Section]:
    """Single comparisons on the other side than the paper's, or whose interval excludes its effect."""
    printed = [one for one in compared if one.contrast.paper is not None]
    differing = [one for one in printed if not _contains(one)]
    if differing:
        opposite = sum(one.opposite for one in differing)
        words = (
            f"Of {len(printed)} single comparisons that the paper prints too, {len(differing)} have a 95% "
            f"interval without the paper's effect, {opposite} of them on the other side of 0. "
            f"Other networks, fewer images and shorter runs change effects. {ORIENTED}"
        )
        yield compared_section(f"Different from the paper at {scale} scale", words, differing)


def compared_section(title: str, words: str, several: Sequence[Single], folded: bool = False) -> Section:
    """A table of single comparisons."""
    header = ("comparison", "points, 95% interval", "paper", "seeds", "p", "p, Holm")
    rows = []
    for one in several:
        paper = "" if one.contrast.paper is None else f"{one.contrast.paper:+.2f}"
        effect = points(one.effect.interval, "no spread")
        rows.append((one.contrast.label, effect, paper, str(one.seeds), _p(one.p), _p(one.adjusted)))
    return Section(title, [words], [(title, header, rows)], folded=folded)


def rule_section() -> Section:
    """How claims are judged, and how often that is wrong."""
    header = ("columns, seeds", "any wrong, all null", "any wrong", "null holds", "null does not hold")
    rows = []
    for row in rates():
        name = f"{row['columns']}, {row['seeds']}"
        name += ", each claim of 2 parts" if row["parts"] != "1" else ""
        name += f", one column {row['noise']} times as noisy" if row["noise"] != "1" else ""
        name += ", about datasets in general" if row["columns_differ"] != "0" else ""
        keys = ("one_false_all_null", "one_false", "false_holds", "false_fails", "power_1", "power_3")
        rows.append((name, *(f"{100 * float(row[key]):.{1 if key[0] in 'op' else 2}f}%" for key in keys)))
    table = ("Error rates of the rule", (*header, "1 sd holds", "3 sd holds"), rows)
    return Section("How a claim is judged", [RULE, SEEDS, SIMULATED], [table], folded=True)


def _explained(one: Judgement) -> bool:
    return bool(one.claim.reading) and one.verdict in (FAILS, OPEN)


def _row(one: Judgement, results: Results) -> tuple[str, ...]:
    part, run = one.weakest, [part for part in one.parts if part.effect]
    effect = points(part.effect.interval, "no spread") if part.effect else "too few seeds"
    if len(one.parts) > 1:
        untested = f", {len(one.parts) - len(run)} not run" if len(run) < len(one.parts) else ""
        effect += f", weakest of {len(one.parts)} parts{untested}"
    equal = pool(one.claim.equal, results).effect
    seeds = " to ".join(map(str, sorted({min(part.seeds), max(part.seeds)}))) if part.seeds else ""
    verdict = one.verdict if one.p is None else f"{one.verdict} ({_p(one.p)})"
    costed = points(equal.interval, "no spread") if equal else ""
    return sentence(one), verdict, effect, _by_dataset(part, results), costed, seeds


def _by_dataset(part: Part, results: Results) -> str:
    """Our mean and the paper's in each column of a part; of many columns only their number."""
    found = []
    for column in dict.fromkeys(contrast.column for contrast in part.entered):
        own = [contrast for contrast in part.entered if contrast.column == column]
        ours = fmean(fmean(contrast.values(results).values()) for contrast in own)
        printed = [contrast.paper for contrast in own if contrast.paper is not None]
        theirs = f" ({fmean(printed):+.2f})" if len(printed) == len(own) else ""
        label = experiment(own[0].places[0].experiment).columns[column].label
        found.append(f"{label} {ours:+.2f}{theirs}")
    if len(found) <= MOST_COLUMNS:
        return ", ".join(found)
    paper = f" ({part.paper[0]:+.2f} on average)" if part.paper else ""
    return f"{len(found)} columns{paper}"


def _contains(one: Single) -> bool:
    paper, found = one.contrast.paper, one.effect.interval
    return paper is None or found.low <= paper <= found.high


def _p(p: float) -> str:
    return f"{p:.3f}" if p >= 0.001 else "< 0.001"
