"""Labels worth checking, as a page with the pictures and as a CSV."""

import csv
import io
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from sla.datasets.spreadsheet_cells import escape_cell
from sla.disk import replacing
from sla.errors import InputError, shown
from sla.report.page import render, write
from sla.report.pictures import Card, short_name
from sla.tasks.classifier.label_doubts import Doubt, LabelCheck

SHOWN = 60  # pictures on the page
PAIRS = 15  # of label and suggestion, by their number
COLUMNS = ("file", "split", "label", "suggested", "label_probability", "suggested_probability")


def write_label_page(check: LabelCheck, page: Path, name: str) -> Path:
    """Write both, the CSV beside the page; returns its path."""
    table = page.with_suffix(".csv")
    write_label_table(check, table)
    write(page, label_page(check, name, table.name))
    return table


def label_page(check: LabelCheck, name: str, table: str) -> str:
    """The whole page on the data of this name; `table` is the name of its CSV."""
    pairs = Counter((one.label, one.suggested) for one in check.doubts).most_common(PAIRS)
    classes = [shown(one) for one in check.classes]
    return render(
        "labels.html",
        title=f"{shown(name)}: labels worth checking",
        check=check,
        lead=lead(check),
        table_name=shown(table),
        pictures=label_cards(check.doubts[:SHOWN], classes),
        pairs=[(classes[label], classes[other], count) for (label, other), count in pairs],
    )


def refuse_other_table(path: Path) -> None:
    """A CSV that is not a table of doubted labels is somebody's: it is not written over."""
    if not path.exists():
        return
    with open(path, newline="", encoding="utf-8", errors="replace") as file:
        if tuple(next(csv.reader(file), ())) != COLUMNS:
            raise InputError(f"{shown(path)}: exists, and is not a table of this command: name another --out")


def write_label_table(check: LabelCheck, path: Path) -> None:
    """A row for every doubted label, the most doubted first."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for one in check.doubts:
        words = one.name, one.split, check.classes[one.label], check.classes[one.suggested]
        numbers = f"{one.label_probability:.6f}", f"{one.probability:.6f}"
        writer.writerow([*map(escape_cell, words), *numbers])
    with replacing(path) as file:
        file.write(text.getvalue().encode(errors="surrogateescape"))


def lead(check: LabelCheck) -> str:
    """How many labels are doubted, and how far to trust that."""
    doubted, agreement = len(check.doubts), check.agreement
    if not doubted:
        return f"No label of {check.images:,} pictures is doubted."
    return (
        f"The labels of {doubted:,} of {check.images:,} pictures are doubted. A model that had not learnt "
        f"from a picture gives its label in {agreement.percent()} of all pictures: some of these "
        "labels are right, and the model is wrong."
    )


def label_cards(doubts: Sequence[Doubt], classes: Sequence[str]) -> list[Card]:
    """Pictures with their label and the class suggested instead; `classes`: their names as shown."""
    found = []
    for one in doubts:
        pixels, name = one.dataset.read([one.place]), short_name(one.name)
        label, suggested = classes[one.label], classes[one.suggested]
        instead, given = f"{100 * one.probability:.1f}%", f"{100 * one.label_probability:.1f}%"
        lines = (f"{suggested}? {instead}", f"label {label}, {given}", name)
        description = f"{name}: label {label}, suggested {suggested}"
        found.append(Card(pixels.images[0], float(pixels.aspect[0]), description, lines))
    return found
