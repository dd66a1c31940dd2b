"""Calibration: does 80% confidence mean 80% accuracy? Before and after temperature scaling."""

from collections.abc import Sequence

import torch
from torch import Tensor

from sla.report.charts import Bin
from sla.runs.metrics import BINS, calibration_error, confidences

Calibration = tuple[str, float, list[Bin]]  # its name, ECE in percent, bins


def calibrations(
    logits: Tensor, targets: Tensor, temperature: float | None, interval: Sequence[float] = ()
) -> list[Calibration]:
    """Without temperature scaling and, if a temperature was fitted, with it and, if known, its interval."""
    used = {"Without temperature scaling": 1.0}
    if temperature is not None:
        sure = f" ({interval[0]:.2f} to {interval[1]:.2f})" if len(interval) == 2 else ""
        used[f"With temperature {temperature:.3f}{sure}"] = temperature
    return [
        (name, calibration_error(logits, targets, value), reliability(logits, targets, value))
        for name, value in used.items()
    ]


def reliability(logits: Tensor, targets: Tensor, temperature: float = 1.0) -> list[Bin]:
    """The non-empty bins of the calibration error, in order."""
    confidence, predicted = confidences(logits, temperature)
    correct = (predicted == targets).double()
    places = (confidence * BINS).long().clamp(max=BINS - 1)
    found = []
    for place in places.unique().tolist():
        inside = places == place
        means = confidence[inside].mean().item(), correct[inside].mean().item()
        found.append(Bin(place / BINS, (place + 1) / BINS, int(inside.sum()), *means))
    return found


def most_confident_mistakes(
    logits: Tensor, targets: Tensor, temperature: float, most: int
) -> list[tuple[int, float]]:
    """The rows of wrong predictions with their probability, most confident first."""
    confidence, predicted = confidences(logits, temperature)
    wrong = (predicted != targets).nonzero().squeeze(1)
    first = wrong[torch.argsort(confidence[wrong], descending=True, stable=True)][:most]
    return list(zip(first.tolist(), confidence[first].tolist(), strict=True))
