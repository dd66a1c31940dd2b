"""`sla data`: the datasets there are, getting one, looking one through."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sla.cli.output import showing_progress
from sla.errors import listed

if TYPE_CHECKING:
    from sla.datasets.check import Check

app = typer.Typer(help="Datasets: what there is, getting one, looking one through.", no_args_is_help=True)

Root = Annotated[
    Path | None, typer.Option(help="Folder to look in, instead of SLA_DATA or the cache folder.")
]


@app.command("list")
def list_datasets() -> None:
    """Every dataset by name: what it holds, and whether it is on this machine."""
    from sla.cli.display import print_table
    from sla.datasets.catalogue import CATALOGUE
    from sla.datasets.load import find

    rows = []
    for entry in CATALOGUE.values():
        images = " + ".join(f"{count:,}" for count in entry.splits.values())
        here = "yes" if find(entry.name) else "no"
        rows.append((entry.name, f"{entry.num_classes:,}", images, _download(entry), here))
    print_table(("name", "classes", "images", "download", "here"), rows)


@app.command()
def info(name: Annotated[str, typer.Argument(help="A dataset's name.")]) -> None:
    """All that is known of one dataset: source, size, checksums, licence, splits, preprocessing."""
    from sla.cli.display import print_table
    from sla.datasets.catalogue import find_entry, source_of
    from sla.datasets.entry import Web
    from sla.datasets.load import find

    entry, found = find_entry(name), find(name)
    rows = [
        ("title", entry.title),
        ("home", entry.homepage),
        ("licence", entry.licence),
        ("agreement", entry.agreement or "none needed"),
        ("classes", f"{entry.num_classes:,}"),
        ("splits", ", ".join(f"{split} {count:,}" for split, count in entry.splits.items())),
        ("stored as", " x ".join(str(edge) for edge in entry.shape)),
        ("mean", f"{_numbers(entry.mean)} ({entry.statistics})"),
        ("std", _numbers(entry.std)),
        (
            "paper, train",
            f"{entry.paper.train}; mean {_numbers(entry.paper.mean)}, std {_numbers(entry.paper.std)}",
        ),
        ("paper, test", f"{entry.paper.test}; the network sees {entry.paper.size} x {entry.paper.size}"),
    ]
    for route in source_of(entry).routes:
        if isinstance(route, Web):
            for file in route.files:
                size = f"{file.bytes:,} bytes" if file.bytes else "size not known"
                rows.append((route.title, f"{file.url}, {size}, {file.checksum or 'checksum not known'}"))
        else:
            rows.append(("mirror", f"{route.title}, {route.bytes:,} bytes, {route.checksum}"))
    if entry.note:
        rows.append(("note", entry.note))
    rows.append(("here", str(found[0]) if found else "no"))
    print_table(None, rows)


@app.command()
def get(name: Annotated[str, typer.Argument(help="A dataset's name.")], root: Root = None) -> None:
    """Get a dataset, unless it is there: the official address first, then the mirrors."""
    from sla.datasets.load import get as get_dataset

    with showing_progress() as progress:
        got = get_dataset(name, root=root, progress=progress)
    typer.echo(f"{name}: {got.folder} ({got.route})")


@app.command()
def check(
    data: Annotated[str, typer.Argument(help="A dataset's name, a folder of images, or a CSV.")],
    root: Root = None,
    sheet: Annotated[Path | None, typer.Option(help="Write a sheet of pictures to this PNG.")] = None,
    pixels: Annotated[
        bool, typer.Option(help="Decode every picture: finds broken and repeated ones.")
    ] = True,
) -> None:
    """Counts, checksums, class balance, broken images, images that are in both train and test."""
    from sla.cli.output import check_writable
    from sla.datasets.check import check as check_dataset

    if sheet is not None:
        check_writable(sheet)
    with showing_progress() as progress:
        found = check_dataset(data, root=root, sheet=sheet, pixels=pixels, progress=progress)
    for line in _check_lines(found):
        typer.echo(line)
    if sheet is not None:
        typer.echo(f"sheet: {sheet}")
    if not found.sound:
        raise typer.Exit(1)


def _check_lines(found: "Check") -> Iterator[str]:
    yield f"{found.name}: {found.folder}"
    if found.checksums:
        yield f"checksums: {len(found.checksums)} files agree with their owner's"
    for split in found.splits:
        whole = f" of {split.expected:,}" if split.expected not in (None, split.images) else ""
        low, high = split.fewest, split.most
        balance = (
            f"{low[1]:,} a class"
            if low[1] == high[1]
            else f"{low[1]:,} ({low[0]}) to {high[1]:,} ({high[0]})"
        )
        yield f"{split.name}: {split.images:,}{whole} images, {split.classes:,} classes, {balance}"
        if split.mean and split.std:
            yield f"{split.name}: mean {_numbers(split.mean)}, std {_numbers(split.std)}"
        if found.decoded:
            yield f"{split.name}: {len(split.broken):,} broken images{_some(split.broken)}"
            other = f", {split.mislabelled:,} with another label" if split.mislabelled else ""
            yield f"{split.name}: {len(split.repeated):,} repeated images{other}{_some(split.repeated)}"
    for (first, second), pairs in found.shared.items():
        if found.decoded:
            yield f"{first} and {second}: {len(pairs):,} images are in both{_some(pairs)}"
    if not found.sound:
        counts = (f"{count:,} {what}" for what, count in found.problems.items() if count)
        yield f"problems: {', '.join(counts)}"


def _some(pairs: list[tuple[str, str]]) -> str:
    """`: a (b), ...` for the first few."""
    return f": {listed([f'{first} ({second})' for first, second in pairs])}" if pairs else ""


def _download(entry: Any) -> str:
    if entry.made_of:
        return f"as {entry.made_of}"
    if not entry.routes:
        return "by agreement" if entry.agreement else "none needed"
    return f"{entry.bytes / 1e6:,.0f} MB" if entry.bytes else "size not known"


def _numbers(values: tuple[float, ...]) -> str:
    return " ".join(f"{value:.4f}" for value in values)
