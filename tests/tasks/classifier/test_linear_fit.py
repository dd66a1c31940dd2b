"""Logistic regression on fixed features against scikit-learn, and cross-validation against a loop."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegression

from sla.tasks.classifier.linear_fit import (
    MANY,
    PENALTIES,
    assign_folds,
    cross_validate,
    fit_reduced,
    reduce,
)


def made(count, width, classes=4):
    draw = torch.Generator().manual_seed(count)
    targets = torch.arange(count) % classes
    centres = torch.randn(classes, width, generator=draw)
    features = 0.5 * centres[targets] + torch.randn(count, width, generator=draw).abs() + 1
    return F.normalize(features.double(), dim=1), targets


def fit_logistic(features, targets, num_classes, penalty):
    reduced = reduce(features.unsqueeze(1))
    return reduced.restore(fit_reduced(reduced, targets, num_classes, penalty))


@pytest.mark.parametrize(("count", "width"), [(60, 12), (24, 40)])  # more images than features, and fewer
@pytest.mark.parametrize("penalty", [1e-2, 1e-4])
def test_the_classifier_is_that_of_scikit_learn(count, width, penalty):
    features, targets = made(count, width)
    ours = fit_logistic(features, targets, 4, penalty)
    theirs = LogisticRegression(C=1 / (penalty * count), tol=1e-9, max_iter=10000)
    theirs.fit(features.numpy(), targets.numpy())
    assert ours.weight.numpy() == pytest.approx(theirs.coef_, abs=5e-3)
    expected = theirs.predict_log_proba(features.numpy())
    assert ours.logits(features).log_softmax(1).numpy() == pytest.approx(expected, abs=1e-3)


def test_the_gradient_of_the_objective_is_zero():
    features, targets = made(24, 40)
    found = fit_logistic(features, targets, 4, 1e-3)
    wrong = found.logits(features).softmax(1) - F.one_hot(targets, 4)
    assert (wrong.T @ features / 24 + 1e-3 * found.weight).abs().max() < 1e-5
    assert wrong.mean(0).abs().max() < 1e-5


def test_a_copy_of_every_image_changes_nothing():
    features, targets = made(24, 40)
    once, twice = reduce(features.unsqueeze(1)), reduce(torch.stack([features, features], 1))
    one = once.restore(fit_reduced(once, targets, 4, 1e-3))
    two = twice.restore(fit_reduced(twice, targets, 4, 1e-3))
    assert one.weight.numpy() == pytest.approx(two.weight.numpy(), abs=1e-3)


def test_cross_validation_is_a_loop_over_folds_and_penalties():
    features, targets = made(60, 4)
    mirrored = F.normalize(features + 0.05 * made(61, 4)[0][:60], dim=1)
    rows = torch.stack([features, mirrored], 1)
    found, fold = cross_validate(reduce(rows), targets, 4), assign_folds(targets.numpy())
    entropies = []
    for penalty in PENALTIES:
        logits = torch.zeros(60, 4, dtype=torch.float64)
        for number in range(int(fold.max()) + 1):
            out = torch.from_numpy(fold == number)
            both, wanted = rows[~out].flatten(0, 1), targets[~out].repeat_interleave(2)
            logits[out] = fit_logistic(both, wanted, 4, penalty).logits(features[out])
        entropies.append(F.cross_entropy(logits, targets).item())
        if penalty == found.penalty:
            expected = logits.log_softmax(1).numpy()
            assert found.logits.log_softmax(1).numpy() == pytest.approx(expected, rel=0.05, abs=0.1)
        if len(entropies) > 1 and entropies[-1] >= entropies[-2]:
            break
    assert found.penalty == PENALTIES[int(np.argmin(entropies))]
    assert found.nll == pytest.approx(min(entropies), abs=5e-3)


def test_folds_spread_every_class():
    targets = np.repeat([0, 1, 2], [20, 11, 1])
    fold = assign_folds(targets)
    assert set(fold) == set(range(10))
    for label, count in ((0, 20), (1, 11)):
        assert np.ptp(np.bincount(fold[targets == label], minlength=10)) <= 1
        assert len(fold[targets == label]) == count
    assert np.array_equal(fold, assign_folds(targets))
    many = assign_folds(np.arange(MANY) % 2)
    assert set(many) == {-1, 0}
    assert (many == 0).sum() == MANY // 5
    assert set(assign_folds(np.arange(3))) == {-1}  # one image of each class: nothing can be held out
    assert cross_validate(reduce(made(3, 5, 3)[0].unsqueeze(1)), torch.arange(3), 3).penalty in PENALTIES
