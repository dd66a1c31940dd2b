"""`sla compare`: runs side by side on the same images."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sla.cli.output import say
from sla.cli.predict import Agreement
from sla.cli.settings import Allow, Checkpoint, OnBadImage
from sla.errors import shown

if TYPE_CHECKING:
    from sla.compare.comparison import Comparison


def compare(
    runs: Annotated[list[str], typer.Argument(help="Run folders, or RUN:INFERENCE to select the inference.")],
    inference: Annotated[
        str | None,
        typer.Option(help="single, aggregated, anytime or distilled. Default: what each answers with."),
    ] = None,
    agreement: Agreement = None,
    data: Annotated[str | None, typer.Option(help="Compare on this data instead of the test images.")] = None,
    checkpoint: Checkpoint = "chosen",
    on_bad_image: OnBadImage = None,
    out: Annotated[Path, typer.Option(help="HTML file to write.")] = Path("compare.html"),
    json_: Annotated[bool, typer.Option("--json", help="Print JSON, with every image that flipped.")] = False,
    allow: Allow = None,
) -> None:
    """Compare runs on the same images: accuracies, differences, flipped images, costs and settings."""
    import json

    from sla.cli.output import check_writable, showing_progress
    from sla.compare.comparison import as_tree
    from sla.compare.comparison import compare as compare_runs
    from sla.report.compare import write_compare_page

    check_writable(out, ".html")
    with showing_progress(patience=2) as progress:
        found = compare_runs(
            runs,
            inference=inference,
            agreement=agreement,
            checkpoint=checkpoint,
            data=data,
            on_bad_image=on_bad_image,
            progress=progress,
        )
    write_compare_page(found, out)
    if json_:
        say(json.dumps({**as_tree(found), "page": str(out)}))
        return
    _print(found)
    say(f"report: {shown(out)}")


def _print(found: "Comparison") -> None:
    from sla.cli.display import print_table
    from sla.compare.comparison import format_p

    say(f"{len(found.dataset):,} {found.what}")
    for note in found.notes:
        say(f"note: {note}")
    rows = []
    for place, (entry, top1) in enumerate(zip(found.entries, found.accuracies, strict=True)):
        cells = [entry.name, f"{top1.mean:.2f}", top1.ends()]
        if place:
            one = found.differences[place - 1]
            interval = one.points.ends("+.1f")
            p = format_p(one.adjusted).removeprefix("= ")
            cells += [f"{one.points.mean:+.2f}", interval, f"{one.gained:,}", f"{one.lost:,}", p, one.verdict]
        else:
            cells += ["", "", "", "", "", "reference"]
        rows.append(cells)
    header = (
        "run",
        "accuracy %",
        "95% interval",
        "points",
        "95% interval",
        "gained",
        "lost",
        "p",
        "verdict",
    )
    print_table(header, rows)
    say(
        "Points, gained and lost are relative to the first run, on the same images. The verdict follows from "
        "p < 0.05 (McNemar's exact test"
        + (", adjusted for the number of runs by Holm" if len(rows) > 2 else "")
        + "), not from the interval. It is about these images and these models: other seeds may differ."
    )
    for group in found.groups:
        mean, sd = group.spread
        one_by_one = group.difference(found.groups[0]) if group is not found.groups[0] else None
        words = f"over seeds {', '.join(map(str, sorted(group.seeds)))}: mean {mean:.2f}"
        words += f", sd {sd:.2f}" if len(group.seeds) > 1 else ""
        if one_by_one is not None:
            words += f", to the first {one_by_one.mean:+.2f} ({one_by_one.ends('+.1f')})"
        say(f"{found.entries[group.places[0]].name}, {words}")
