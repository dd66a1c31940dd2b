"""`sla predict`: classify pictures."""

import csv
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sla.cli.output import say
from sla.cli.settings import Allow, Checkpoint, RefuseOrSkip
from sla.errors import InputError, shown
from sla.progress import QUIET, Progress
from sla.runs.answers import answer_of

if TYPE_CHECKING:
    from torch import Tensor

    from sla.tasks.classifier.run import Run

Agreement = Annotated[
    float | None,
    typer.Option(help="Share of images on which anytime agrees with aggregated inference. Default: 0.99."),
]
SKIP_HINT = "`sla predict --on-bad-image skip` leaves such files out"
UNLIKE = "unlike the training pictures"


def predict(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    files: Annotated[list[Path], typer.Argument(help="Image files, or folders of them.")],
    inference: Annotated[
        str | None,
        typer.Option(
            help="single, aggregated, anytime, distilled or flips. Default: what the run answers with."
        ),
    ] = None,
    agreement: Agreement = None,
    checkpoint: Checkpoint = "chosen",
    on_bad_image: RefuseOrSkip = "refuse",
    top: Annotated[
        int, typer.Option(min=1, help="Number of classes to show; on a narrow terminal as many as fit.")
    ] = 3,
    min_confidence: Annotated[
        float,
        typer.Option(min=0, max=1, help="Answer 'unsure' below this probability, and for unlike pictures."),
    ] = 0.0,
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
    csv_: Annotated[bool, typer.Option("--csv", help="Print a CSV with all probabilities.")] = False,
    allow: Allow = None,
) -> None:
    """Classify pictures, with calibrated probabilities."""
    from sla.images.decode import BadImageError
    from sla.images.files import readable_rows
    from sla.tasks.classifier.run import Run

    form = choose_form(json_, csv_)
    opened, paths = Run(run, checkpoint), find_pictures(files, form)
    inference = choose_agreement(opened, inference, agreement)
    if on_bad_image == "skip":
        paths = [paths[row] for row in readable_rows(opened.pictures(paths))]
    try:
        found = opened.predict(paths, inference)
    except BadImageError as error:
        raise BadImageError(error.path, error.reason, SKIP_HINT) from None
    if not (json_ or csv_) and (inference or opened.headline) in opened.uncalibrated:
        say(
            "sla: note: calibration failed (temperature at its limit): probabilities are unreliable", err=True
        )
    unlike = None if found.unlike is None else found.unlike.tolist()
    print_answers(paths, found.probabilities, opened.classes, top, form, min_confidence, unlike)


def choose_agreement(
    run: "Run", inference: str | None, agreement: float | None, progress: Progress | None = None
) -> str | None:
    """The kind of inference: anytime if an agreement is asked for; the run then uses that rule."""
    from sla.anytime import AGREEMENT

    if agreement is not None and inference not in (None, "anytime"):
        raise InputError(f"--agreement is for anytime inference, not {inference}")
    if agreement is None and inference != "anytime":
        return inference
    run.use_agreement(AGREEMENT if agreement is None else agreement, progress or QUIET)
    return "anytime"


def choose_form(as_json: bool, as_csv: bool) -> str:
    """How answers are written: table, json or csv."""
    if as_json and as_csv:
        raise InputError("--json or --csv, not both")
    return "json" if as_json else "csv" if as_csv else "table"


def print_answers(
    paths: Sequence[Path],
    probabilities: "Tensor",
    classes: Sequence[str],
    top: int,
    form: str,
    least: float = 0.0,
    unlike: Sequence[bool] | None = None,
) -> None:
    """The best classes of each picture with their probabilities (n, N); all of them in a CSV.

    The answer is `unsure` where the best probability is below `least`, and, with a `least`, where a picture
    is unlike the training pictures. `unlike`: which are, where that is known.
    """
    marks = [False] * len(paths) if unlike is None else unlike
    best = probabilities.topk(min(top, len(classes)), 1)
    named = [
        [(classes[place], value) for place, value in zip(places, values, strict=True)]
        for places, values in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]
    answers = [answer_of(*each[0], least, mark) for each, mark in zip(named, marks, strict=True)]
    if form == "table":
        _print_table(paths, answers if least else None, named, marks)
    elif form == "json":
        for path, answer, each, mark in zip(paths, answers, named, marks, strict=True):
            found = [{"class": name, "probability": round(value, 6)} for name, value in each]
            line = {"file": str(path), "class": answer, "classes": found}
            say(json.dumps(line if unlike is None else line | {"unlike": mark}))
    else:
        writer = csv.writer(sys.stdout)
        writer.writerow(["file", "class", *map(_cell, classes), *([] if unlike is None else ["unlike"])])
        for path, answer, row, mark in zip(paths, answers, probabilities.tolist(), marks, strict=True):
            cells = [f"{value:.6f}" for value in row]
            more = [] if unlike is None else ["yes" if mark else "no"]
            writer.writerow([_cell(str(path)), _cell(answer), *cells, *more])


def _print_table(
    paths: Sequence[Path],
    answers: Sequence[str] | None,
    named: Sequence[Sequence[tuple[str, float]]],
    marks: Sequence[bool],
) -> None:
    """On a terminal as many classes of each picture as fit on a line, at least one; elsewhere all."""
    from sla.cli.display import fits, narrow, print_table

    before = ["file"] if answers is None else ["file", "answer"]
    count, noted = len(named[0]), any(marks)
    header = [*before, *(f"{place + 1}." for place in range(count)), *(["note"] if noted else [])]
    for words in (UNLIKE, "unlike"):  # the shorter one where the other leaves too little even for one class
        rows = []
        for number, path in enumerate(paths):
            answer = [] if answers is None else [answers[number]]
            shares = (f"{name} {100 * value:.1f}%" for name, value in named[number])
            note = [words if marks[number] else ""] if noted else []
            rows.append((path, *answer, *shares, *note))
        table = narrow(header, rows, range(len(before) + 1, len(before) + count))
        if fits(*table):
            break
    print_table(*table)


def _cell(text: str) -> str:
    """Text for a CSV: one printable line, and no formula of a spreadsheet. JSON has names as they are."""
    from sla.datasets.spreadsheet_cells import escape_cell

    return escape_cell(shown(text))


def find_pictures(files: list[Path], form: str = "table") -> list[Path]:
    """The files, and the pictures in those that are folders.

    A missing file that is named like one of the `form` in which answers are printed was to be written.
    """
    from sla.datasets.scan import images_in

    paths: list[Path] = []
    for file in files:
        if file.suffix.lower() == f".{form}" and not os.path.exists(file):
            hint = f"--{form} prints to standard output: --{form} > {shown(file)} writes it to a file"
            raise InputError(f"{shown(file)}: no such file or directory; {hint}")
        # A name that is too long is that of a missing file: `Path.is_dir` raises.
        found = images_in(file) if os.path.isdir(file) else [file]
        if not found:
            raise InputError(f"{file}: no pictures in it")
        paths += found
    return paths
