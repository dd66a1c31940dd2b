"""What is taken for what: the confusion matrix, its most frequent mistakes, each class's accuracy."""

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

import torch
from torch import Tensor

from sla.report import html
from sla.report.pictures import picture
from sla.stats import share

MOST_IN_TABLE = 25  # classes, above which a picture shows what a table of numbers cannot
SHORT = 4  # letters of a name that can head a narrow column
MOST_PIXELS = 400  # of the picture's edge; more classes share a pixel
RIGHT, WRONG = (46, 160, 67), (218, 54, 51)  # seen on light and on dark


class Confusion(NamedTuple):
    """How many images of one class were given another."""

    true: int
    given: int
    images: int


def confusions(targets: Tensor, predicted: Tensor) -> list[Confusion]:
    """Every pair of a class and a wrong one it was given, the most frequent first."""
    wrong = predicted != targets
    pairs, counts = torch.stack([targets, predicted], 1)[wrong].unique(dim=0, return_counts=True)
    found = [
        Confusion(true, given, n) for (true, given), n in zip(pairs.tolist(), counts.tolist(), strict=True)
    ]
    return sorted(found, key=lambda one: (-one.images, one.true, one.given))


def count_pairs(targets: Tensor, predicted: Tensor, size: int) -> Tensor:
    """The matrix (size, size) of how many images of class i were given class j."""
    return torch.bincount(targets * size + predicted, minlength=size * size).view(size, size)


def matrix_part(targets: Tensor, predicted: Tensor, classes: Sequence[str], most: int = 15) -> str:
    """The confusion matrix, as a table of numbers or as a picture, and the most frequent mistakes."""
    found = confusions(targets, predicted)
    few = len(classes) <= MOST_IN_TABLE
    shown = _numbers(targets, predicted, classes) if few else _picture(targets, predicted, classes, found)
    if not found:
        return shown + html.paragraph("No image was given a wrong class.")
    totals = torch.bincount(targets, minlength=len(classes)).tolist()
    rows = [
        (
            classes[one.true],
            classes[one.given],
            f"{one.images:,}",
            f"{100 * one.images / totals[one.true]:.0f}%",
        )
        for one in found[:most]
    ]
    header = ("class", "taken for", "images", "of the class")
    return (
        shown
        + "<h3>Most often confused</h3>"
        + html.table(header, rows, "Most often confused", "scroll words")
    )


def _numbers(targets: Tensor, predicted: Tensor, classes: Sequence[str]) -> str:
    matrix = count_pairs(targets, predicted, len(classes)).tolist()
    # Short names head the columns themselves; long ones would not fit.
    short = all(len(name) <= SHORT for name in classes)
    heads = classes if short else [str(number) for number in range(1, len(classes) + 1)]
    head = "".join(
        f'<th scope="col" aria-label="given {escape(name)}" title="{escape(name)}">{escape(text)}</th>'
        for name, text in zip(classes, heads, strict=True)
    )
    lines = []
    for number, (name, row) in enumerate(zip(classes, matrix, strict=True)):
        total = max(sum(row), 1)
        cells = [
            html.Shaded(f"{n:,}", n / total, "cell right" if given == number else "cell wrong") if n else ""
            for given, n in enumerate(row)
        ]
        first = "" if short else f"<span>{number + 1}</span> "
        heading = f'<th scope="row" title="{escape(name)}">{first}{escape(name)}</th>'
        lines.append(f"<tr>{heading}{''.join(map(html.cell, cells))}</tr>")
    return html.paragraph(
        f"A row for each true class, a column for each class given{'' if short else ', by its number'}; the "
        "deeper the colour, the larger the share of the row.",
        "soft",
    ) + (
        '<div class="scroll" tabindex="0" role="region" aria-label="Confusion matrix">'
        f'<table class="matrix"><thead><tr><th scope="col">true class</th>{head}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def _picture(targets: Tensor, predicted: Tensor, classes: Sequence[str], found: Sequence[Confusion]) -> str:
    together = -(-len(classes) // MOST_PIXELS)
    size = -(-len(classes) // together)
    counts = count_pairs(targets // together, predicted // together, size)
    shares = counts / counts.sum(1, keepdim=True).clamp(min=1)
    # A single mistake must be seen: a pixel starts at a quarter of its colour.
    depth = torch.where(counts > 0, 0.25 + 0.75 * shares.sqrt(), torch.zeros(()))
    colours = torch.tensor(WRONG).repeat(size, size, 1)
    colours[range(size), range(size)] = torch.tensor(RIGHT)
    pixels = torch.cat([colours, (255 * depth).round().long().unsqueeze(2)], 2).permute(2, 0, 1)
    right = 100 * (targets == predicted).double().mean().item()
    words = f"Confusion matrix of {len(classes):,} classes: {right:.1f}% of the images are on the diagonal"
    if found:
        worst = found[0]
        words += (
            f"; {classes[worst.true]} was taken for {classes[worst.given]} most often, {worst.images} times"
        )
    each = "class" if together == 1 else f"{together} classes"
    explained = (
        f"A pixel row for each true {each} from the top, a column for each given one from the left, in their "
        "order. Green is right, red is wrong; the deeper, the larger the share of the row."
    )
    return html.paragraph(explained, "soft") + f'<div class="heat">{picture(pixels, words)}</div>'


def classes_part(targets: Tensor, predicted: Tensor, classes: Sequence[str]) -> str:
    """The accuracy of every class with its interval, the worst first; classes without images come last."""
    totals = torch.bincount(targets, minlength=len(classes)).tolist()
    hits = torch.bincount(targets[targets == predicted], minlength=len(classes)).tolist()
    mistakes = {one.true: one for one in reversed(confusions(targets, predicted))}
    rows: list[list[str | html.Shaded]] = []
    order = sorted(range(len(classes)), key=lambda c: (not totals[c], hits[c] / max(totals[c], 1), c))
    for c in order:
        if not totals[c]:
            rows.append([classes[c], "0", "", "", "", ""])
            continue
        reached, low, high = share(hits[c], totals[c])
        other = mistakes.get(c)
        rows.append(
            [
                classes[c],
                f"{totals[c]:,}",
                f"{hits[c]:,}",
                html.Shaded(f"{reached:.1f}%", reached / 100),
                f"{low:.0f} to {high:.0f}",
                f"{classes[other.given]} ({other.images:,})" if other else "",
            ]
        )
    header = ("class", "images", "right", "accuracy", "95% interval", "most often taken for")
    table = html.table(header, rows, "Accuracy of each class", "scroll tall")
    return html.details(f"All {len(classes):,} classes, the worst first", table, opened=True)
