"""A part of the results page, and the page as Markdown."""

from collections.abc import Sequence
from dataclasses import dataclass

from sla.report.charts import Series

Table = tuple[str, Sequence[str], Sequence[Sequence[str]]]  # caption, header, rows


@dataclass(frozen=True)
class Section:
    """A heading, text, tables, notes, and perhaps a figure."""

    title: str
    words: Sequence[str] = ()
    tables: Sequence[Table] = ()
    notes: Sequence[str] = ()
    lines: Sequence[Series] = ()  # of a figure
    axis: tuple[str, str] = ("", "")
    picture: str = ""  # file name in images/ next to the document
    folded: bool = False  # its tables are shown on request


def markdown(title: str, intro: str, sections: Sequence[Section]) -> str:
    """The page, with GitHub's tables and folds."""
    lines = [f"# {title}", "", intro]
    for section in sections:
        lines += ["", f"## {section.title}"]
        for words in section.words:
            lines += ["", words]
        lines += ["", f"![{section.title}](images/{section.picture})"] if section.picture else []
        lines += ["", "<details><summary>Table</summary>"] if section.folded else []
        for _, header, rows in section.tables:
            lines += ["", *markdown_table(header, rows)]
        lines += ["", "</details>"] if section.folded else []
        lines += ["", *(f"- {note}" for note in section.notes)] if section.notes else []
    return "\n".join(lines) + "\n"


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Its lines."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    return [line(header), line(["---"] * len(header)), *(line(row) for row in rows)]
