"""A linear classifier on fixed features: logistic regression, its penalty chosen by cross-validation."""

import math
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sla.progress import QUIET, Progress
from sla.runs.metrics import negative_log_likelihood
from sla.sampling.draws import seed_of

PENALTIES = tuple(10 ** (-k / 2) for k in range(4, 17))  # tried from the strongest on
FOLDS, FEW_FOLDS, SMALL = 10, 5, 300  # folds, or fewer with more images than SMALL
MANY = 2000  # images from which on only the first fold is held out
ROUGHLY, EXACTLY = 40, 500  # iterations of L-BFGS at most: to choose the penalty, and at the end


class Linear(NamedTuple):
    """u(x) = weight x + bias: (N, D) and (N,)."""

    weight: Tensor
    bias: Tensor

    def logits(self, features: Tensor) -> Tensor:
        """(n, D) -> (n, N)."""
        return features @ self.weight.T + self.bias


class CrossValidated(NamedTuple):
    """The chosen penalty, which images were held out, bool (n,), and their logits (held, N) by the others.

    Nothing is held out, and the cross entropy is nan, where no class has two images.
    """

    penalty: float
    held: Tensor
    logits: Tensor
    nll: float


class Reduced(NamedTuple):
    """Features along their principal axes: x = centre + basis x', without axes along which all are alike.

    `features` (n, c, d): image i has c rows, of which row 0 is the image itself.
    """

    features: Tensor
    centre: Tensor
    basis: Tensor

    def restore(self, found: Linear) -> Linear:
        """The classifier of these coordinates as one of the features themselves."""
        weight = found.weight @ self.basis.T
        return Linear(weight, found.bias - weight @ self.centre)


def reduce(features: Tensor) -> Reduced:
    """Features (n, c, D) along their principal axes, in double precision.

    The penalty |W|^2 is the same in any axes, and it is zero along those that no feature uses: every
    classifier fitted to the coordinates is that of the features.
    """
    rows = features.double().flatten(0, 1)
    centre = rows.mean(0)
    rows = rows - centre
    wide = rows.shape[0] < rows.shape[1]
    squares, axes = torch.linalg.eigh(rows @ rows.T if wide else rows.T @ rows)
    used = squares > 1e-10 * squares.max().clamp(min=1e-30)
    squares, axes = squares[used], axes[:, used]
    basis = rows.T @ axes / squares.sqrt() if wide else axes
    return Reduced((rows @ basis).unflatten(0, features.shape[:2]), centre, basis)


def fit_reduced(reduced: Reduced, targets: Tensor, num_classes: int, penalty: float) -> Linear:
    """argmin over W, b of mean_i CE(W x_i + b, y_i) + penalty / 2 |W|^2, on all rows (n, c, d) of all images.

    The bias is not penalised, so shifting all features changes nothing.
    """
    rows, copies = reduced.features.flatten(0, 1), reduced.features.shape[1]
    weights = rows.new_full((len(rows), 1), 1 / len(rows))
    found = _minimise(rows, targets.repeat_interleave(copies), weights, num_classes, penalty, EXACTLY)[0]
    return Linear(found[:-1].T, found[-1])


def cross_validate(
    reduced: Reduced,
    targets: Tensor,
    num_classes: int,
    progress: Progress = QUIET,
    *,
    every: bool = False,
) -> CrossValidated:
    """The penalty of least cross-validated cross entropy; images are held out with all their rows.

    Penalties are tried from the strongest on, until the cross entropy rises. All folds are fitted at once.
    `every` image is held out in turn, also of many.
    """
    fold = torch.from_numpy(assign_folds(targets.numpy(), every=every))
    count = int(fold.max()) + 1
    held = fold >= 0
    best = CrossValidated(
        PENALTIES[len(PENALTIES) // 2], held, reduced.features.new_zeros(0, num_classes), math.nan
    )
    if not count:
        return best
    coordinates, copies = reduced.features.float(), reduced.features.shape[1]
    trained = (fold.unsqueeze(1) != torch.arange(count)).float()  # (n, folds)
    weights = (trained / (trained.sum(0) * copies)).repeat_interleave(copies, 0)
    rows, labels, start = coordinates.flatten(0, 1), targets.repeat_interleave(copies), None
    for tried, penalty in enumerate(PENALTIES):
        start = _minimise(rows, labels, weights, num_classes, penalty, ROUGHLY, start)
        by_fold = coordinates[held, 0] @ start[:, :-1] + start[:, -1:]  # (folds, held, N)
        logits = by_fold[fold[held], torch.arange(int(held.sum()))].double()
        nll = negative_log_likelihood(logits, targets[held])
        progress.advance("cross-validating", tried + 1, len(PENALTIES))
        if nll >= best.nll:  # False for the first, where it is nan
            break
        best = CrossValidated(penalty, held, logits, nll)
    return best


def _minimise(
    rows: Tensor,
    labels: Tensor,
    weights: Tensor,
    num_classes: int,
    penalty: float,
    iterations: int,
    start: Tensor | None = None,
) -> Tensor:
    """Several regressions at once by L-BFGS: rows (n, d), their weight in each (n, k) -> (k, d + 1, N).

    The last row is the bias. Each axis is scaled by the bound X^T X / (2 n) + penalty of the curvature
    (Boehning, 1992): along principal axes the problem is then well conditioned whatever the penalty.
    """
    count = weights.shape[1]
    scale = torch.cat([(rows.square().mean(0) / 2 + penalty).rsqrt(), rows.new_ones(1)]).unsqueeze(1)
    scaled = F.pad(rows, (0, 1), value=1.0) * scale.T
    begin = rows.new_zeros(count, len(scale), num_classes) if start is None else start
    both = (begin / scale).requires_grad_()
    costs = penalty / 2 * scale[:-1].square()
    least = 10 * torch.finfo(rows.dtype).eps
    search = torch.optim.LBFGS(
        [both],
        max_iter=iterations,
        tolerance_grad=least,
        tolerance_change=least,
        line_search_fn="strong_wolfe",
    )

    def objective() -> Tensor:
        search.zero_grad()
        logits = (scaled @ both).permute(1, 2, 0)  # (n, N, k)
        losses = F.cross_entropy(logits, labels.unsqueeze(1).expand(-1, count), reduction="none")
        loss = (losses * weights).sum() + (costs * both[:, :-1].square()).sum()
        loss.backward()
        return loss

    with torch.enable_grad():
        search.step(objective)
    return both.detach() * scale


def assign_folds(targets: np.ndarray, *, every: bool = False) -> np.ndarray:
    """The fold in which each image is held out, (n,), -1 for none: every class is spread over the folds.

    The order within a class is drawn, always alike. Of many images only the first fold is held out, unless
    `every` one is asked for.
    """
    counts, total = np.bincount(targets), len(targets)
    folds = min(FOLDS if total <= SMALL else FEW_FOLDS, int(counts.max(initial=0)))
    fold, first = np.full(total, -1, np.int64), 0
    if folds < 2:
        return fold
    for label in np.flatnonzero(counts):
        places = np.flatnonzero(targets == label)
        order = np.random.default_rng(seed_of(0, "folds", int(label))).permutation(places)
        fold[order] = (first + np.arange(len(places))) % folds
        first += len(places)  # so that small classes do not all begin with fold 0
    return np.where(fold > 0, -1, fold) if total >= MANY and not every else fold
