"""The toy experiment of the paper: linear classifiers on digits that look alike when rotated."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sla.datasets.load import load
from sla.disk import replacing
from sla.errors import InputError, MissingExtraError
from sla.images.store import Dataset
from sla.sampling.protocols import class_subset, limited

LABELS = ("upright", "kept", "joint")
ROTATIONS = 4
PER_DIGIT = 150  # images in a panel
ITERATIONS = 3000  # at most; it stops at convergence
PANELS = ((("1", "4", "6", "9"), 1), (("1", "9"), 4), (("4", "9"), 4), (("6", "9"), 4))  # digits, rotations
COLORS = {"1": "#1f6feb", "4": "#2a9d4a", "6": "#d9822b", "9": "#b0307a"}


def toy_error(settings: Mapping[str, Any]) -> float:
    """The test error in percent of logistic regression on the raw pixels of two digits.

    `toy.labels` is upright, kept (all rotations, labelled by the digit) or joint (one label per digit and
    rotation; the digit of the most likely of the eight labels is the prediction).
    """
    try:
        from sklearn.linear_model import LogisticRegression
    except ImportError:
        raise MissingExtraError("the toy experiment", "report") from None
    kind, digits = settings["toy.labels"], [str(digit) for digit in settings["toy.digits"]]
    if kind not in LABELS:
        raise InputError(f"toy.labels must be one of {', '.join(LABELS)}, not {kind!r}")
    splits = load(settings["data.source"], root=settings.get("data.root"))
    assert splits.test is not None
    count = 1 if kind == "upright" else ROTATIONS
    pixels, labels, rotations = rotated(class_subset(splits.train, digits), count)
    test_pixels, truth, _ = rotated(class_subset(splits.test, digits), count)
    target = labels * ROTATIONS + rotations if kind == "joint" else labels
    model = LogisticRegression(max_iter=ITERATIONS).fit(pixels, target)
    predicted = model.predict(test_pixels)
    predicted = predicted // ROTATIONS if kind == "joint" else predicted
    return 100 * float((predicted != truth).mean())


def rotated(dataset: Dataset, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Every image in `count` rotations by 90 degrees: pixels in [0, 1] (n * count, D), labels, rotations."""
    images = dataset.read(range(len(dataset))).images[:, 0].numpy().astype(np.float32) / 255
    turned = np.stack([np.rot90(images, turn, (1, 2)) for turn in range(count)], 1)
    labels = np.repeat(dataset.targets, count)
    return turned.reshape(len(labels), -1), labels, np.tile(np.arange(count), len(dataset))


def draw_toy(path: Path, source: str, root: str | None = None) -> None:
    """The four panels of Figure 2 by t-SNE of the pixels: colour is the digit, shape the rotation."""
    try:
        from matplotlib.figure import Figure
        from sklearn.manifold import TSNE
    except ImportError:
        raise MissingExtraError("the figure of the toy experiment", "report") from None
    train = load(source, root=root).train
    figure = Figure(figsize=(16, 4.6), layout="constrained")
    for axis, (digits, count) in zip(figure.subplots(1, len(PANELS)), PANELS, strict=True):
        subset = class_subset(train, digits)
        subset = limited(subset, min(PER_DIGIT, int(subset.counts().min())))
        pixels, labels, turns = rotated(subset, count)
        points = TSNE(init="pca", random_state=0).fit_transform(pixels)
        for number, digit in enumerate(digits):
            for turn, marker in enumerate("o^sD"[:count]):
                chosen = (labels == number) & (turns == turn)
                name = digit if count == 1 else f"{digit}, {90 * turn} degrees"
                color = COLORS[digit]
                axis.scatter(*points[chosen].T, s=10, c=color, marker=marker, linewidths=0, label=name)
        axis.set(xticks=[], yticks=[])
        axis.set_title("Upright" if count == 1 else f"{digits[0]} vs. {digits[1]}, rotated")
        columns = 2 if count > 1 else 4
        axis.legend(fontsize="small", ncols=columns, loc="upper center", bbox_to_anchor=(0.5, 0))
    with replacing(path) as file:
        figure.savefig(file, format=path.suffix[1:] or "png", dpi=80)
