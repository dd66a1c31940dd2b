"""The results as Markdown and HTML: the paper's numbers next to ours, and a verdict on every claim."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sla.disk import replacing
from sla.report.charts import Series
from sla.report.page import render as render_page
from sla.report.page import write as write_page
from sla.reproduce.claims import UNTESTED, Claim, Finding, claims
from sla.reproduce.figures import AXES, draw, series_of
from sla.reproduce.names import EXPERIMENTS
from sla.reproduce.paper import Experiment, Printed, experiment
from sla.reproduce.records import Record
from sla.reproduce.results import Place, Results, collect
from sla.stats import Interval, interval, mean_sd

HEADER = ("", "paper", "gain", "ours", "seeds", "gain", "difference, 95% interval")
SHOWN = ("paper", "small")  # scales; smoke only checks that everything runs

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
    yield Section("Overview", [_summary(records, found)])
    for results in found.values():
        if any(claim.judge(results)[0] != UNTESTED for claim in claims()):
            yield _verdicts(results)
    shown: list[set[str]] = []
    for results in found.values():
        for name in results.tested:
            keys = results.keys(name)
            if keys not in shown:  # the toy experiment is the same at both scales
                shown.append(keys)
                yield _table(results, name)
    yield Section(
        "Not run yet",
        ["Tables and figures without any number: " + (", ".join(_missing(found.values())) or "none") + "."],
    )


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
        "images. The gain is relative to the row that the paper compares with; the difference is in points, "
        "paired by seed, with Student's 95% interval. Numbers marked as cited were taken by the paper from "
        "another paper."
    )


def _missing(found: Iterable[Results]) -> list[str]:
    tested = {name for results in found for name in results.tested}
    return [title.partition(":")[0] for name, title in EXPERIMENTS.items() if name not in tested]


def _verdicts(results: Results) -> Section:
    rows: list[tuple[str, ...]] = []
    details: list[tuple[str, ...]] = []
    for claim in claims():
        verdict, findings = claim.judge(results)
        tested = [finding for finding in findings if finding.verdict != UNTESTED]
        rows.append((_sentence(claim), verdict, f"{len(tested)} of {len(findings)}"))
        details += [_finding(finding) for finding in tested]
    words = [
        "A comparison holds if the 95% interval of its paired differences lies on the side that the paper "
        "claims, does not hold if it lies on the other side, and is undecided otherwise. A claim holds if "
        "all comparisons that were run hold, and does not hold if one of them does not. One seed decides "
        "nothing."
    ]
    tables: list[Table] = [("Claims", ("claim", "verdict", "comparisons run"), rows)]
    if details:
        tables.append(("Comparisons", ("comparison", "points", "95% interval", "seeds", "verdict"), details))
    return Section(f"The claims of the paper at {results.scale} scale", words, tables)


def _sentence(claim: Claim) -> str:
    return claim.text + (" (not in the paper)" if claim.ours else "")


def _finding(finding: Finding) -> tuple[str, ...]:
    found = finding.interval
    assert found is not None
    return (
        finding.contrast.label,
        f"{found.mean:+.2f}",
        _ends(found, finding.seeds),
        str(finding.seeds),
        finding.verdict,
    )


def _table(results: Results, name: str) -> Section:
    found = experiment(name)
    sized = any(row.kind == "ensemble" for row in found.rows.values())  # parameters matter there
    rows = []
    for column, place in found.columns.items():
        for row_name, row in found.rows.items():
            printed = found.printed.get(row_name, {}).get(column)
            numbers = results.of(Place(name, row_name, column))
            if column in (row.columns or found.columns) and (printed is not None or numbers):
                label = f"{place.label}: {row.label}" + (" (not in the paper)" if row.ours else "")
                ours = _ours(results, found, Place(name, row_name, column))
                size = (_parameters(results, Place(name, row_name, column)),) if sized else ()
                rows.append((label, _printed(printed, row.cited), _gain(printed), *ours, *size))
    title = f"{EXPERIMENTS[name]}, {results.scale} scale"
    words = "Errors in percent." if found.metric == "error" else "Accuracies in percent."
    lines = list(series_of(results, name).values())
    picture = f"{name}-{results.scale}.png" if lines else ("toy.png" if name == "toy" else "")
    header = (*HEADER, "parameters") if sized else HEADER
    return Section(
        title, [words], [(title, header, rows)], found.notes, lines, AXES.get(name, ("", "")), picture
    )


def _printed(printed: Printed | None, cited: bool) -> str:
    if printed is None:
        return ""
    spread = f" ± {printed.spread:g}" if printed.spread is not None else ""
    return f"{printed.value:.2f}{spread}" + (", cited" if cited else "")


def _gain(printed: Printed | None) -> str:
    return f"{printed.gain:+g}%" if printed is not None and printed.gain is not None else ""


def _ours(results: Results, found: Experiment, place: Place) -> tuple[str, ...]:
    """Mean and sd, number of seeds, relative gain, and paired difference to the row it is compared with."""
    numbers = results.of(place)
    if not numbers:
        return "", "", "", ""
    mean, sd = mean_sd(numbers)
    ours = f"{mean:.2f}" + (f" ± {sd:.2f}" if len(numbers) > 1 else "")
    against = found.rows[place.row].against
    pairs = results.paired(place, place._replace(row=against)) if against else []
    if not pairs:
        return ours, str(len(numbers)), "", ""
    over = sum(b for _, b in pairs)
    gain = f"{100 * (sum(a for a, _ in pairs) - over) / over:+.2f}%" if over else ""
    change = interval([a - b for a, b in pairs])
    return ours, str(len(numbers)), gain, f"{change.mean:+.2f} ({_ends(change, len(pairs))})"


def _parameters(results: Results, place: Place) -> str:
    counted = {record.parameters for record in results.records.get(place, {}).values()}
    return " to ".join(f"{count:,}" for count in sorted(count for count in counted if count))


def _ends(found: Interval, seeds: int) -> str:
    return f"{found.low:+.2f} to {found.high:+.2f}" if seeds > 1 else "one seed"


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
