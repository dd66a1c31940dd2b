"""The demo's page: the accuracies, what they show, and what the views of a digit look like."""

import shlex
import sys
from pathlib import Path

from sla import __version__
from sla.datasets.load import load
from sla.demo import METHODS, PER_CLASS, ROWS, Results, summary
from sla.report import html
from sla.report.charts import Strip, strip_chart
from sla.report.pictures import sheet
from sla.stats import interval, mean_sd
from sla.views import Rotation

SHOWN = (1, 4, 6, 9)  # the digits of the paper's own example


def write_page(results: Results, path: Path) -> None:
    """Write the page of a finished demo."""
    strips = [Strip(row.label, results.values(row), interval(results.values(row))) for row in ROWS]
    lines = []
    for row in ROWS:
        mean, sd = mean_sd(results.values(row))
        line = [row.label, f"{mean:.1f}", f"{sd:.1f}"]
        difference = results.difference(row)
        if row is ROWS[0]:
            line += ["", ""]
        else:
            line += [f"{difference.mean:+.1f}", f"{difference.low:+.1f} to {difference.high:+.1f}"]
        lines.append(line)
    header = ("method", "mean", "sd", "to the baseline", "95% interval")
    trained = results.seeds * len(METHODS)
    command = shlex.join(["sla", *sys.argv[1:]])
    text = html.page(
        "Digits, five training images each: joint labels and their rivals",
        html.paragraph(summary(results), "lead"),
        html.section(
            "Test accuracy",
            html.paragraph(
                f"Each faint dot is one seed: {PER_CLASS} training images of each digit, tested on digits "
                "it never saw. The large dot is the mean with its 95% interval; the dashed line is the "
                "baseline.",
                "soft",
            ),
            strip_chart(strips),
        ),
        html.section("In numbers", html.table(header, lines, "Test accuracy in percent")),
        html.section(
            "What the model is asked",
            html.paragraph(
                "Every image is shown in four rotations, and the label says which digit in which rotation: "
                "10 digits become 40 joint labels. Nothing forces a turned 6 to be called a 6, as data "
                "augmentation and multi-task learning do. At test time the four answers are averaged, or "
                "a student has learnt their average and needs one look."
            ),
            _view_sheet(),
        ),
        html.section(
            "How this was made",
            html.code(command),
            html.paragraph(
                f"sla {__version__}; seeds 0 to {results.seeds - 1}; {trained} models trained in "
                f"{results.seconds:.0f} seconds; differences are paired by seed.",
                "soft",
            ),
        ),
    )
    html.write(path, text)


def _view_sheet() -> str:
    digits, views = load("digits").train, Rotation()
    rows = [int((digits.targets == digit).argmax()) for digit in SHOWN]
    turned = views.stack(digits.read(rows).images)
    captions = [
        [f"{digit} at {name}: label {digit * len(views) + j}" for j, name in enumerate(views.names)]
        for digit in SHOWN
    ]
    return sheet([list(line) for line in turned], [f"view {j}" for j in range(len(views))], captions)
