"""`sla predict`: what is on these pictures?"""

import csv
import json
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer


def predict(
    run: Annotated[Path, typer.Argument(help="A run's folder.")],
    files: Annotated[list[Path], typer.Argument(help="Pictures, or folders of them.")],
    how: Annotated[str | None, typer.Option(help="single, aggregated or distilled.")] = None,
    which: Annotated[str, typer.Option(help="Checkpoint: last, or best on the held-out images.")] = "last",
    on_bad_image: Annotated[
        Literal["refuse", "skip"], typer.Option(help="refuse, or skip what cannot be read, with a note.")
    ] = "refuse",
    top: Annotated[int, typer.Option(min=1, help="How many classes to name.")] = 3,
    json_: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    csv_: Annotated[bool, typer.Option("--csv", help="A CSV with every class's probability.")] = False,
) -> None:
    """Class names with calibrated probabilities."""
    from sla.cli.display import print_table
    from sla.data.files import readable_rows
    from sla.errors import InputError
    from sla.training.run import Run

    if json_ and csv_:
        raise InputError("--json or --csv, not both")
    opened, paths = Run(run, which), find_pictures(files)
    if on_bad_image == "skip":
        paths = [paths[row] for row in readable_rows(opened.pictures(paths))]
    labels, probabilities = opened.predict(paths, how)
    classes = opened.classes
    if csv_:
        writer = csv.writer(sys.stdout)
        writer.writerow(["file", "class", *classes])
        for path, label, row in zip(paths, labels.tolist(), probabilities.tolist(), strict=True):
            writer.writerow([path, classes[label], *(f"{value:.6f}" for value in row)])
        return
    best = probabilities.topk(min(top, len(classes)), 1)
    rows = []
    for path, values, places in zip(paths, best.values.tolist(), best.indices.tolist(), strict=True):
        named = [(classes[place], value) for place, value in zip(places, values, strict=True)]
        if json_:
            found_classes = [{"class": name, "probability": round(value, 6)} for name, value in named]
            print(json.dumps({"file": str(path), "class": named[0][0], "classes": found_classes}))
        rows.append((path, *(f"{name} {100 * value:.1f}%" for name, value in named)))
    if not json_:
        print_table(("file", *(f"{i + 1}." for i in range(best.values.shape[1]))), rows)


def find_pictures(files: list[Path]) -> list[Path]:
    """The files, and the pictures in those that are folders."""
    from sla.data.scan import EXTENSIONS
    from sla.errors import InputError

    paths: list[Path] = []
    for file in files:
        found = [file]
        if file.is_dir():
            found = sorted(path for path in file.rglob("*") if path.suffix[1:].lower() in EXTENSIONS)
        if not found:
            raise InputError(f"{file}: no pictures in it")
        paths += found
    return paths
