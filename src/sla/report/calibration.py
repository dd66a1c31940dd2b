"""Is a model that says 80% right four times in five? Reliability before and after temperature scaling."""

from html import escape

import torch
from torch import Tensor

from sla.report import html
from sla.report.charts import Bin, reliability_chart
from sla.runs.metrics import BINS, calibration_error


def reliability(logits: Tensor, targets: Tensor, temperature: float = 1.0) -> list[Bin]:
    """The bins of the calibration error that hold images, in order."""
    confidence, predicted = (logits.double() / temperature).softmax(1).max(1)
    right = (predicted == targets).double()
    places = (confidence * BINS).long().clamp(max=BINS - 1)
    found = []
    for place in places.unique().tolist():
        inside = places == place
        means = confidence[inside].mean().item(), right[inside].mean().item()
        found.append(Bin(place / BINS, (place + 1) / BINS, int(inside.sum()), *means))
    return found


def calibration_part(logits: Tensor, targets: Tensor, temperature: float | None) -> str:
    """The reliability diagrams, and their numbers in a table."""
    ways = [("As the logits say", 1.0)]
    if temperature is not None:
        ways.append((f"Divided by the temperature {temperature:.3f}", temperature))
    panels, tables = [], []
    for name, value in ways:
        bins, error = reliability(logits, targets, value), calibration_error(logits, targets, value)
        spoken = f"{name}: expected calibration error {error:.2f}%"
        panels.append(
            f"<div><h3>{escape(name)}</h3>{html.paragraph(f'ECE {error:.2f}%', 'soft')}"
            f"{reliability_chart(bins, spoken)}</div>"
        )
        rows = [
            (
                f"{100 * one.low:.0f} to {100 * one.high:.0f}%",
                f"{one.images:,}",
                f"{100 * one.confidence:.1f}%",
                f"{100 * one.accuracy:.1f}%",
            )
            for one in bins
        ]
        header = ("confidence", "images", "mean confidence", "accuracy")
        tables.append(html.table(header, rows, name))
    return (
        html.paragraph(
            "Bars: how many of the images were right, by how sure the model was. On the dashed line it is as "
            "sure as it should be; the tinted end of a bar is the gap, and ECE its mean over the images.",
            "soft",
        )
        + f'<div class="pair">{"".join(panels)}</div>'
        + html.details("The same in numbers", f'<div class="pair">{"".join(tables)}</div>')
    )


def most_confident_mistakes(
    logits: Tensor, targets: Tensor, temperature: float, most: int
) -> list[tuple[int, float]]:
    """The places of the wrong answers with their probability, the surest first."""
    confidence, predicted = (logits.double() / temperature).softmax(1).max(1)
    wrong = (predicted != targets).nonzero().squeeze(1)
    first = wrong[torch.argsort(confidence[wrong], descending=True, stable=True)][:most]
    return list(zip(first.tolist(), confidence[first].tolist(), strict=True))
