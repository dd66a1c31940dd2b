"""`sla data`: list, describe, download and check datasets."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sla.cli.output import say, showing_progress
from sla.errors import InputError, listed, shown
from sla.progress import Progress

if TYPE_CHECKING:
    from sla.datasets.check import Check
    from sla.datasets.entry import Entry
    from sla.tasks.classifier.label_doubts import LabelCheck

SHOWN = 5  # doubted labels that are printed

app = typer.Typer(help="List, describe, download and check datasets.", no_args_is_help=True)

Root = Annotated[Path | None, typer.Option(help="Dataset folder, instead of SLA_DATA or the cache folder.")]


@app.command("list")
def list_datasets() -> None:
    """List the known datasets: size, and whether they are on this machine."""
    from sla.cli.display import print_table
    from sla.datasets.catalogue import CATALOGUE
    from sla.datasets.find import find

    rows = []
    for name, entry in CATALOGUE.items():
        images = " + ".join(f"{count:,}" for count in entry.splits.values())
        here = "yes" if find(name) else "no"
        rows.append((name, f"{entry.num_classes:,}", images, _download(entry), here))
    print_table(("name", "classes", "images", "download", "here"), rows)


@app.command()
def info(name: Annotated[str, typer.Argument(help="Name of a dataset.")]) -> None:
    """Describe a dataset: source, size, checksums, licence, splits, preprocessing."""
    from sla.cli.display import print_table
    from sla.datasets.catalogue import find_entry, source_of
    from sla.datasets.find import find

    entry, found = find_entry(name), find(name)
    rows = [
        ("title", entry.title),
        ("home", entry.homepage or "unknown"),
        ("licence", entry.licence),
        ("agreement", entry.agreement or "none needed"),
        ("classes", f"{entry.num_classes:,}"),
        ("splits", ", ".join(f"{split} {count:,}" for split, count in entry.splits.items())),
        ("stored as", " x ".join(str(edge) for edge in entry.shape)),
        ("mean", f"{_numbers(entry.mean)} ({entry.statistics})"),
        ("std", _numbers(entry.std)),
    ]
    if paper := entry.paper:
        statistics = f"mean {_numbers(paper.mean)}, std {_numbers(paper.std)}"
        rows.append(("paper, train", f"{paper.train}; {statistics}"))
        rows.append(("paper, test", f"{paper.test}; the network sees {paper.size} x {paper.size}"))
    rows += _routes(source_of(entry))
    if entry.note:
        rows.append(("note", entry.note))
    rows.append(("here", str(found[0]) if found else "no"))
    print_table(None, rows)


@app.command()
def get(name: Annotated[str, typer.Argument(help="Name of a dataset.")], root: Root = None) -> None:
    """Download a dataset if it is missing: from the official source, or else from a mirror."""
    from sla.datasets.find import get as get_dataset

    with showing_progress() as progress:
        got = get_dataset(name, root=root, progress=progress)
    say(f"{name}: {got.folder} ({got.route})")


@app.command()
def check(
    data: Annotated[str, typer.Argument(help="A folder, a CSV, or the name of a dataset.")],
    root: Root = None,
    sheet: Annotated[Path | None, typer.Option(help="Write a contact sheet to this PNG.")] = None,
    pixels: Annotated[bool, typer.Option(help="Decode images to find corrupt and duplicate ones.")] = True,
    labels: Annotated[bool, typer.Option("--labels", help="Find labels that are worth checking.")] = False,
    run: Annotated[
        Path | None,
        typer.Option(help="With --labels: judge by this run what it did not learn, not by frozen features."),
    ] = None,
    out: Annotated[
        Path, typer.Option(help="With --labels: the page to write; a CSV is written beside it.")
    ] = Path("labels.html"),
) -> None:
    """Check counts, checksums, class balance, corrupt images, duplicates, and overlap of train and test."""
    from sla.cli.output import check_writable
    from sla.datasets.check import check as check_dataset

    if sheet is not None:
        check_writable(sheet)
    judging = _open_judge(data, root, run, out) if labels else None
    if run is not None and not labels:
        raise InputError("--run is for --labels")
    with showing_progress() as progress:
        found = check_dataset(data, root=root, sheet=sheet, pixels=pixels, progress=progress)
        for line in _check_lines(found):
            say(line)
        if judging is not None:
            _check_labels(judging(progress), out, found.name)
    if sheet is not None:
        say(f"sheet: {sheet}")
    if not found.passed:
        raise typer.Exit(1)


def _open_judge(
    data: str, root: Path | None, run: Path | None, out: Path
) -> "Callable[[Progress], LabelCheck]":
    """What judges the labels, refused before any work where it cannot; corrupt pictures are skipped."""
    from sla.cli.output import check_writable
    from sla.datasets.load import load
    from sla.report.labels import refuse_other_table
    from sla.runs.defaults import override
    from sla.tasks.classifier.label_check import check_by_features, check_by_run, stored_size
    from sla.tasks.classifier.run import Run

    check_writable(out, ".html")
    check_writable(table := out.with_suffix(".csv"))
    refuse_other_table(table)
    if table.exists() and Path(data).exists() and table.samefile(data):
        raise InputError(f"{shown(data)}: the table of doubted labels would replace it: name another --out")
    if run is not None:
        opened = Run(run)
        if root is not None:
            opened.config = override(opened.config, "data", root=str(root))
        return lambda progress: check_by_run(opened, opened.load_splits(data, "skip", progress), progress)
    options: dict[str, Any] = {"root": root, "size": stored_size(), "on_bad_image": "skip", "memory_limit": 0}
    return lambda progress: check_by_features(load(data, progress=progress, **options), progress)


def _check_labels(found: "LabelCheck", out: Path, name: str) -> None:
    from sla.report.labels import lead, write_label_page

    table = write_label_page(found, out, name)
    say(f"labels: {lead(found)}")
    for note in found.notes:
        say(f"labels: {note}")
    if len(found.doubts) > SHOWN:
        say(f"labels: the first {SHOWN} of {len(found.doubts):,}:")
    for one in found.doubts[:SHOWN]:
        label, suggested = found.classes[one.label], found.classes[one.suggested]
        say(f"labels: {shown(one.name)}: {shown(label)}, or {shown(suggested)}?")
    say(f"labels: {shown(out)}, {shown(table)}")


def _check_lines(found: "Check") -> Iterator[str]:
    yield f"{found.name}: {found.folder}"
    if found.checksums:
        yield f"checksums: {len(found.checksums)} files match"
    for split in found.splits:
        whole = f" of {split.expected:,}" if split.expected not in (None, split.images) else ""
        low, high = split.fewest, split.most
        balance = f"{low[1]:,} per class"
        if low[1] != high[1]:
            balance = f"{low[1]:,} ({low[0]}) to {high[1]:,} ({high[0]}) per class"
        yield f"{split.name}: {split.images:,}{whole} images, {split.classes:,} classes, {balance}"
        if split.mean and split.std:
            yield f"{split.name}: mean {_numbers(split.mean)}, std {_numbers(split.std)}"
        if found.decoded:
            yield f"{split.name}: {len(split.corrupt):,} corrupt images{_some(split.corrupt)}"
            other = f", {split.mislabelled:,} with another label" if split.mislabelled else ""
            yield f"{split.name}: {len(split.repeated):,} repeated images{other}{_some(split.repeated)}"
    for (first, second), pairs in found.shared.items():
        if found.decoded:
            yield f"{first} and {second}: {len(pairs):,} images are in both{_some(pairs)}"
    if not found.passed:
        counts = (f"{count:,} {what}" for what, count in found.problems.items() if count)
        yield f"problems: {', '.join(counts)}"


def _some(pairs: list[tuple[str, str]]) -> str:
    """`: a (b), ...` for the first few."""
    return f": {listed([f'{first} ({second})' for first, second in pairs])}" if pairs else ""


def _routes(entry: "Entry") -> Iterator[tuple[str, str]]:
    from sla.datasets.entry import Web

    for route in entry.routes:
        if not isinstance(route, Web):
            yield "mirror", f"{route.title}, {route.bytes:,} bytes, {route.checksum}"
            continue
        for file in route.files:
            size = f"{file.bytes:,} bytes" if file.bytes else "size unknown"
            yield route.title, f"{file.url}, {size}, {file.checksum or 'checksum unknown'}"


def _download(entry: Any) -> str:
    if entry.made_of:
        return f"as {entry.made_of}"
    if not entry.routes:
        return "by agreement" if entry.agreement else "none"
    return f"{entry.bytes / 1e6:,.0f} MB" if entry.bytes else "size unknown"


def _numbers(values: tuple[float, ...]) -> str:
    return " ".join(f"{value:.4f}" for value in values)
