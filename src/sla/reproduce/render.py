"""The results as Markdown and HTML: the paper's numbers next to ours, and a verdict on every claim."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from sla.disk import replacing
from sla.report.charts import Series
from sla.report.page import render as render_page
from sla.report.page import write as write_page
from sla.reproduce.answers import HEADER as ANSWERS_HEADER
from sla.reproduce.answers import answers_rows
from sla.reproduce.claims import claims, row_contrasts
from sla.reproduce.figures import AXES, draw, series_of
from sla.reproduce.names import EXPERIMENTS, PAPER, STUDIES
from sla.reproduce.paper import Column, Experiment, Row, experiment
from sla.reproduce.records import Record
from sla.reproduce.results import Place, Results, collect
from sla.reproduce.rule import FAILS, HOLDS, OPEN, RISK, UNTESTED, Judgement, Single, judge, rates, singles
from sla.reproduce.summary import summary_rows
from sla.stats import Interval, interval, mean_sd

PAPER_HEADER = ("", "paper", "gain", "ours", "seeds", "gain", "difference, 95% interval")
# Smaller scales: gains are compared, levels are not. A small run's accuracy says nothing beside the paper's.
HEADER = ("", "ours", "seeds", "training accuracy", "our difference, 95% interval", "the paper's difference")
STUDY_HEADER = ("", "accuracy", "seeds", "training accuracy", "difference, 95% interval")
FITTED = 95.0  # percent of the training labels; below it a network has not learnt its task
SHOWN = ("paper", "small")  # scales; smoke only checks that everything runs
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
SIMULATED = (
    "How often that is wrong, by simulation (`benchmarks/verdict_rule.py`): 20 claims judged together, 10 of "
    "them null, 5 with an effect of 1 standard deviation (sd) of a paired difference, 5 with 3. The risk of "
    "one wrong verdict or more is below 5%, and slightly above where one column is much noisier. Taken for "
    "verdicts about datasets in general, whose effects differ by 1 sd, they are wrong far more often."
)
ANSWERS = (
    "Means over seeds, in percent of the test images. The calibration error is the expected one (15 bins), "
    "at the temperature that held-out images gave. Gained are images that only the average over the views "
    "has right, lost those that only the plain view has right."
)
ORIENTED = "More is better for the first named; errors count as negative."

Table = tuple[str, Sequence[str], Sequence[Sequence[str]]]  # caption, header, rows


@dataclass(frozen=True)
class Section:
    """A heading, text, tables, and perhaps a figure."""

    title: str
    words: Sequence[str] = ()
    tables: Sequence[Table] = ()
    notes: Sequence[str] = ()
    lines: Sequence[Series] = ()  # of a figure
    axis: tuple[str, str] = ("", "")
    picture: str = ""  # file name in images/ next to the document


def render(records: Mapping[str, Record]) -> tuple[str, str]:
    """(Markdown, HTML) of all records."""
    sections = list(_sections(records))
    page = render_page("results.html", title="Results: the paper's and ours", sections=sections)
    return _markdown(sections), page


def _sections(records: Mapping[str, Record]) -> Iterable[Section]:
    found = {scale: collect(records, scale) for scale in SHOWN}
    found = {scale: results for scale, results in found.items() if results.values}
    compared = {scale: singles(claims(), row_contrasts(), results) for scale, results in found.items()}
    untested: list[str] = []
    if "small" in found:
        yield from _in_short(found["small"])
    for scale, results in found.items():
        judged = judge(claims(), results)
        if any(one.verdict != UNTESTED for one in judged):
            yield _verdicts(scale, judged)
            untested += [f"{_sentence(one)} ({scale} scale)" for one in judged if one.verdict == UNTESTED]
        if compared[scale]:
            yield _surprises(scale, compared[scale])
    if "small" in found and (rows := answers_rows(found["small"])):
        title = "Calibration, and what aggregation gains and loses, small scale"
        yield Section(title, [ANSWERS], [(title, ANSWERS_HEADER, rows)])
    for scale, several in compared.items():
        if several:
            yield _compared(f"Single comparisons at {scale} scale", ORIENTED, several)
    yield Section("What was run", [_summary(records, found)])
    shown: list[set[str]] = []
    for part in (PAPER, STUDIES):
        for results in found.values():
            for name in (name for name in results.tested if name in part):
                keys = results.keys(name)
                if keys not in shown:  # the toy experiment is the same at both scales
                    shown.append(keys)
                    yield _table(results, name)
    yield Section("How a claim is judged", [RULE, SIMULATED], [("Error rates of the rule", *_rates())])
    tested = {name for results in found.values() for name in results.tested}
    missing = [title.partition(":")[0] for name, title in PAPER.items() if name not in tested]
    words = f"Tables and figures without any number: {', '.join(missing) or 'none'}."
    yield Section("Not run yet", [words], notes=[f"Claim not tested: {claim}" for claim in untested])


def _summary(records: Mapping[str, Record], found: Mapping[str, Results]) -> str:
    used = [record for record in records.values() if record.scale in SHOWN]
    flop = sum(record.training_flop or 0 for record in used if not record.members)
    hours = sum(record.seconds or 0 for record in used) / 3600
    commits = sorted({(record.commit or "unknown")[:12] for record in used})
    machines = sorted({record.machine for record in used})
    return (
        f"{len(used):,} runs and evaluations at the scales {', '.join(found) or 'none'}; "
        f"{flop / 1e15:.3g} PFLOP of training, {hours:.3g} hours, on {'; '.join(machines) or 'nothing'}; "
        f"commits {', '.join(commits) or 'none'}. Everything below is computed from the table of results. "
        "Accuracies are percent on the test images at the last checkpoint; nothing was selected on test "
        "images. Differences are in points, to the row that the paper compares with, paired by seed, with "
        "Student's 95% interval. At small scale the paper's levels are not shown: other networks, fewer "
        "images and shorter runs make them another experiment; what can be compared is the difference. "
        f"Training accuracy is on clean training images in evaluation mode, of SLA over joint labels; below "
        f"{FITTED:g} the network has not learnt its task."
    )


def _in_short(results: Results) -> Iterable[Section]:
    """Does it work, how much, at what cost."""
    header, rows = summary_rows(results)
    if rows:
        words = (
            "Test accuracy in percent of a plain classifier and of SLA at the same training cost, and the "
            "gain in points with its 95% interval over paired seeds. Each step uses one random view "
            "of each image unless the row says otherwise. C is the training FLOP of a plain classifier "
            "trained until it just fits its training images. Few training images, a ResNet-9 with 0.4 "
            "million parameters, crops and flips."
        )
        yield Section("In short", [words], [("In short", header, rows)])


def _verdicts(scale: str, judged: Sequence[Judgement]) -> Section:
    """The section with the headline gains and all verdicts."""
    count = Counter(one.verdict for one in judged)
    ordered = [one for verdict in (HOLDS, FAILS, OPEN) for one in judged if one.verdict == verdict]
    header = ("claim", "verdict", "effect in points, 95% interval", "paper", "cells", "seeds", "p, Holm")
    left_out = [c.label for one in ordered for part in one.parts for c in part.left_out]
    counts = ", ".join(f"{verdict} {count[verdict]}" for verdict in (HOLDS, FAILS, OPEN, UNTESTED))
    words = (
        f"Verdicts on {len(judged)} claims: {counts} (listed at the end). "
        "The paper's effect is over the same cells."
    )
    return Section(
        f"The claims of the paper at {scale} scale",
        [words],
        [("Claims", header, [_judgement(one) for one in ordered])],
        [
            *(f"{one.claim.text}: {one.verdict}. {one.claim.reading}" for one in ordered if _explained(one)),
            *([f"Left out, too few seeds: {'; '.join(left_out)}."] if left_out else []),
        ],
    )


def _explained(one: Judgement) -> bool:
    return bool(one.claim.reading) and one.verdict in (FAILS, OPEN)


def _surprises(scale: str, compared: Sequence[Single]) -> Section:
    clear = [one for one in compared if one.surprising]
    sure = [one.contrast.label for one in clear if one.adjusted < RISK]
    words = (
        f"Of {len(compared)} single comparisons, {len(clear)} have a 95% interval that excludes 0 and "
        f"either go against the paper or are not in it; by chance alone about {len(compared) / 20:.1f} "
        f"intervals would exclude 0, on either side. Clear after Holm over all {len(compared)}: "
        f"{'; '.join(sure) or 'none'}. {ORIENTED}"
    )
    return _compared(f"Against the paper, or not in it, at {scale} scale", words, clear)


def _sentence(one: Judgement) -> str:
    return one.claim.text + (" (not in the paper)" if one.claim.ours else "")


def _judgement(one: Judgement) -> tuple[str, ...]:
    part, run = one.weakest, [part for part in one.parts if part.effect]
    effect = _points(part.effect.interval, "no spread") if part.effect else "too few seeds"
    if len(one.parts) > 1:
        untested = f", {len(one.parts) - len(run)} not run" if len(run) < len(one.parts) else ""
        effect += f", weakest of {len(one.parts)} parts{untested}"
    paper = f"{part.paper[0]:+.2f}" if part.paper else ""
    if part.paper and part.paper[1] < len(part.entered):
        paper += f" ({part.paper[1]} of {len(part.entered)} cells)"
    cells = f"{sum(len(part.entered) for part in run)} of {len(one.claim.contrasts)}"
    seeds = " to ".join(map(str, sorted({min(part.seeds), max(part.seeds)}))) if part.seeds else ""
    return _sentence(one), one.verdict, effect, paper, cells, seeds, "" if one.p is None else _p(one.p)


def _compared(title: str, words: str, several: Sequence[Single]) -> Section:
    header = ("comparison", "points, 95% interval", "paper", "seeds", "p", "p, Holm")
    rows = []
    for one in several:
        paper = "" if one.contrast.paper is None else f"{one.contrast.paper:+.2f}"
        points = _points(one.effect.interval, "no spread")
        rows.append((one.contrast.label, points, paper, str(one.seeds), _p(one.p), _p(one.adjusted)))
    return Section(title, [words], [(title, header, rows)] if rows else [])


def _rates() -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    header = ("columns, seeds", "any wrong, all null", "any wrong", "null holds", "null does not hold")
    rows = []
    for row in rates():
        name = f"{row['columns']}, {row['seeds']}"
        name += ", each claim of 2 parts" if row["parts"] != "1" else ""
        name += f", one column {row['noise']} times as noisy" if row["noise"] != "1" else ""
        name += ", about datasets in general" if row["columns_differ"] != "0" else ""
        keys = ("one_false_all_null", "one_false", "false_holds", "false_fails", "power_1", "power_3")
        rows.append((name, *(f"{100 * float(row[key]):.{1 if key[0] in 'op' else 2}f}%" for key in keys)))
    return (*header, "1 sd holds", "3 sd holds"), rows


def _p(p: float) -> str:
    return f"{p:.3f}" if p >= 0.001 else "< 0.001"


def _points(found: Interval, without: str = "one seed") -> str:
    ends = found.ends("+.2f") if isfinite(found.low) else without
    return f"{found.mean:+.2f} ({ends})"


def _table(results: Results, name: str) -> Section:
    """Of the paper's experiments with its numbers; of a study of our own, which has none, without."""
    found, at_paper_scale = experiment(name), results.scale == "paper"
    header: tuple[str, ...] = PAPER_HEADER if at_paper_scale else HEADER
    shown = _with_levels if at_paper_scale else _with_gains
    words = "Errors in percent." if found.metric == "error" else "Accuracies in percent."
    if name in STUDIES:
        header, shown, words = STUDY_HEADER, _with_training, f"Not in the paper. {words}"
    sized = any(row.kind == "ensemble" for row in found.rows.values())  # parameters matter there
    rows = []
    for column, place in found.columns.items():
        for row_name, row in found.rows.items():
            cell = Place(name, row_name, column)
            printed = at_paper_scale and column in found.printed.get(row_name, {})
            if column not in (row.columns or found.columns) or not (printed or results.of(cell)):
                continue
            size = (_parameters(results, cell),) if sized else ()
            rows.append((_label(place, row), *shown(results, found, cell), *size))
    title = f"{EXPERIMENTS[name]}, {results.scale} scale"
    lines = list(series_of(results, name).values())
    picture = f"{name}-{results.scale}.png" if lines else ("toy.png" if name == "toy" else "")
    header = (*header, "parameters") if sized else header
    axis = AXES.get(name, ("", ""))
    return Section(title, [words], [(title, header, rows)], found.notes, lines, axis, picture)


def _label(column: Column, row: Row) -> str:
    marks = (" (not in the paper)" if row.ours else "") + (" (removed from the code)" if row.removed else "")
    return f"{column.label}: {row.label}{marks}"


def _with_levels(results: Results, found: Experiment, cell: Place) -> tuple[str, ...]:
    """The paper's number and gain, then ours."""
    printed = found.printed.get(cell.row, {}).get(cell.column)
    cited = ", cited" if found.rows[cell.row].cited else ""
    theirs = (printed.text + cited, printed.gain_text) if printed else ("", "")
    return (*theirs, *_ours(results, found, cell))


def _with_gains(results: Results, found: Experiment, cell: Place) -> tuple[str, ...]:
    """Our number with its training accuracy, then our difference and the paper's, each to its own row."""
    theirs, against = "", found.rows[cell.row].against
    numbers = [found.printed.get(row, {}).get(cell.column) for row in (cell.row, against or "")]
    if numbers[0] is not None and numbers[1] is not None:
        theirs = f"{numbers[0].value - numbers[1].value:+.2f}"
    return (*_with_training(results, found, cell), theirs)


def _with_training(results: Results, found: Experiment, cell: Place) -> tuple[str, ...]:
    """Our number with its training accuracy, and our difference."""
    ours, seeds, _, difference = _ours(results, found, cell)
    return ours, seeds, _training_accuracy(results, cell), difference


def _training_accuracy(results: Results, place: Place) -> str:
    records = results.records[place].values()
    found = [value for record in records if (value := record.score("train")) is not None]
    if not found:
        return ""
    mean = mean_sd(found)[0]
    return f"{mean:.2f}" + (f", below {FITTED:g}" if mean < FITTED else "")


def _ours(results: Results, found: Experiment, place: Place) -> tuple[str, ...]:
    """Mean and sd, number of seeds, relative gain, and paired difference to the row it is compared with."""
    numbers = results.of(place)
    if not numbers:
        return "", "", "", ""
    mean, sd = mean_sd(numbers)
    ours = f"{mean:.2f}" + (f" ± {sd:.2f}" if len(numbers) > 1 else "")
    against = found.rows[place.row].against
    pairs = results.by_seed(place, place._replace(row=against)).values() if against else ()
    if not pairs:
        return ours, str(len(numbers)), "", ""
    over = sum(b for _, b in pairs)
    gain = f"{100 * (sum(a for a, _ in pairs) - over) / over:+.2f}%" if over else ""
    return ours, str(len(numbers)), gain, _points(interval([a - b for a, b in pairs]))


def _parameters(results: Results, place: Place) -> str:
    counted = {record.parameters for record in results.records.get(place, {}).values()}
    return " to ".join(f"{count:,}" for count in sorted(count for count in counted if count))


def _markdown(sections: Sequence[Section]) -> str:
    lines = ["# Results", "", "Generated by `sla reproduce render`; do not edit."]
    for section in sections:
        lines += ["", f"## {section.title}"]
        for words in section.words:
            lines += ["", words]
        for _, header, rows in section.tables:
            lines += ["", *_markdown_table(header, rows)]
        lines += ["", *(f"- {note}" for note in section.notes)] if section.notes else []
        if section.picture:
            lines += ["", f"![{section.title}](images/{section.picture})"]
    return "\n".join(lines) + "\n"


def _markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    return [line(header), line(["---"] * len(header)), *(line(row) for row in rows)]


def write(records: Mapping[str, Record], document: Path, page: Path, toy: Path) -> None:
    """Write the Markdown with its pictures, and the HTML; `toy` is the figure of the toy experiment."""
    markdown, text = render(records)
    images = document.parent / "images"
    for scale in SHOWN:
        results = collect(records, scale)
        for name in AXES:
            draw(results, name, images / f"{name}-{scale}.png")
    if toy.is_file():
        with replacing(images / "toy.png") as file:
            file.write(toy.read_bytes())
    with replacing(document) as file:
        file.write(markdown.encode())
    write_page(page, text)
