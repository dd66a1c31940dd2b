"""The page of `sla demo`: accuracies, the differences to the baseline, and the views of a few digits."""

import shlex
import sys
from pathlib import Path

from sla import __version__
from sla.datasets.load import load
from sla.demo import METHODS, PER_CLASS, ROWS, Results, summary
from sla.report.charts import Strip
from sla.report.page import render, write
from sla.stats import interval, mean_sd
from sla.views import Rotation

DIGITS = (1, 4, 6, 9)  # those of the paper's own example


def write_page(results: Results, path: Path) -> None:
    """Write the page of a finished demo."""
    digits, views = load("digits").train, Rotation()
    images = views.stack(digits.read([int((digits.targets == digit).argmax()) for digit in DIGITS]).images)
    captions = [
        [f"{digit} at {name}: label {digit * len(views) + j}" for j, name in enumerate(views.names)]
        for digit in DIGITS
    ]
    text = render(
        "demo.html",
        title="Five training images per digit: the methods compared",
        summary=summary(results),
        per_class=PER_CLASS,
        strips=[Strip(row.label, results.values(row), interval(results.values(row))) for row in ROWS],
        rows=[(row, *mean_sd(results.values(row)), results.difference(row)) for row in ROWS],
        columns=[f"view {j}" for j in range(len(views))],
        samples=[("", list(line), texts) for line, texts in zip(images, captions, strict=True)],
        command=shlex.join(["sla", *sys.argv[1:]]),
        version=__version__,
        results=results,
        trained=results.seeds * len(METHODS),
    )
    write(path, text)
