import numpy as np
import pytest
import torch
from torch import nn

from sla.runs import metrics
from sla.runs.ema import Ema
from sla.runs.metrics import (
    MetricsFile,
    at_limit,
    balanced_accuracy,
    calibration_error,
    fit_temperature,
    negative_log_likelihood,
    temperature_interval,
    top_k_accuracy,
)


@pytest.fixture
def outputs():
    torch.manual_seed(0)
    logits = 3 * torch.randn(400, 7)
    targets = torch.where(torch.rand(400) < 0.5, logits.argmax(1), torch.randint(0, 7, (400,)))
    return logits, targets


def test_top_k_by_hand(outputs):
    logits, targets = outputs
    for k in (1, 5, 50):
        right = sum(
            int(t) in sorted(range(7), key=lambda c: -row[c])[:k]
            for row, t in zip(logits.tolist(), targets, strict=True)
        )
        assert top_k_accuracy(logits, targets, k) == pytest.approx(100 * right / 400)


def test_calibration_error_by_hand(outputs):
    logits, targets = outputs
    bins = [[] for _ in range(15)]
    for row, target in zip(logits.double().softmax(1), targets, strict=True):
        confidence, label = row.max(0)
        bins[min(int(confidence * 15), 14)].append((float(confidence), float(label == target)))
    gap = sum(abs(sum(r for _, r in b) - sum(c for c, _ in b)) for b in bins) / 400
    assert calibration_error(logits, targets) == pytest.approx(100 * gap)


def test_the_temperature_is_the_one_of_best_likelihood(outputs):
    optimize = pytest.importorskip("scipy.optimize")
    logits, targets = outputs
    best = optimize.minimize_scalar(
        lambda t: nn.functional.cross_entropy(logits.double() / t, targets).item(),
        bounds=(0.05, 20),
        method="bounded",
    )
    found = fit_temperature(logits, targets)
    assert found == pytest.approx(best.x, rel=1e-3)
    assert negative_log_likelihood(logits, targets, found) < negative_log_likelihood(logits, targets)
    assert negative_log_likelihood(logits, targets) == pytest.approx(
        nn.functional.cross_entropy(logits, targets).item(), rel=1e-5
    )


def golden_section(logits, targets):
    """Another search, every likelihood by torch's cross entropy."""
    low, high, shrink = 1 / 20, 20.0, (5**0.5 - 1) / 2
    while high - low > 1e-4 * low:
        left, right = high - shrink * (high - low), low + shrink * (high - low)
        a, b = (nn.functional.cross_entropy(logits.double() * x, targets) for x in (left, right))
        low, high = (low, right) if a < b else (left, high)
    return 2 / (low + high)


@pytest.mark.parametrize("scale", [1e-3, 0.05, 0.5, 3.0, 30.0, 1000.0])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 1.0])
def test_the_temperature_is_that_of_a_golden_section_search(scale, share, monkeypatch):
    calls, derivatives = [], metrics._derivatives
    monkeypatch.setattr(metrics, "_derivatives", lambda *values: calls.append(0) or derivatives(*values))
    torch.manual_seed(0)
    logits = scale * torch.randn(60, 40)
    targets = torch.where(torch.rand(60) < share, logits.argmax(1), torch.randint(0, 40, (60,)))
    found = fit_temperature(logits, targets)
    assert found == pytest.approx(golden_section(logits, targets), rel=1e-4)
    assert len(calls) < 40  # passes, also where every step is a bisection
    assert at_limit(found) == (found < 0.0501 or found > 19.9)


def test_the_average_by_hand():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    average = Ema(model, 0.5)
    expected = {name: value.clone() for name, value in model.state_dict().items()}
    for step in range(12):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter))
        model(torch.randn(4, 2))
        average.update(model, step)
        decay = min(0.5, (1 + step) / (10 + step))
        for name, value in model.named_parameters():
            expected[name] = decay * expected[name] + (1 - decay) * value.detach()
    for name, _ in model.named_parameters():
        torch.testing.assert_close(average.weights[name], expected[name])
    assert torch.equal(average.weights["1.running_mean"], model[1].running_mean)
    own = {name: value.clone() for name, value in model.state_dict().items()}
    with average.applied(model):
        torch.testing.assert_close(model[0].weight, expected["0.weight"])
    assert all(torch.equal(value, own[name]) for name, value in model.state_dict().items())


def test_metrics_are_cut_back_to_where_a_run_goes_on(tmp_path):
    table = MetricsFile(tmp_path / "metrics.csv", ["loss", "val"])
    table.start(0)
    for step in (1, 2, 3):
        table.add(step, {"loss": 1 / step})
    with open(table.path, "a") as file:
        file.write("4,0.2")  # a line that a killed run did not finish
    table.start(2)
    table.add(3, {"loss": 0.5, "val": 90.0})
    assert table.path.read_text() == "step,loss,val\n1,1,\n2,0.5,\n3,0.5,90\n"


def test_balanced_accuracy_is_the_mean_over_the_classes_that_are_there():
    targets = torch.tensor([0, 0, 0, 0, 1, 1, 3])
    predicted = torch.tensor([0, 0, 0, 1, 1, 2, 0])
    logits = torch.nn.functional.one_hot(predicted, 4).float()
    assert balanced_accuracy(logits, targets) == pytest.approx(100 * (3 / 4 + 1 / 2 + 0) / 3)
    metrics = pytest.importorskip("sklearn.metrics")
    expected = 100 * metrics.balanced_accuracy_score(targets[:6], predicted[:6].clamp(max=1))
    clamped = torch.nn.functional.one_hot(predicted[:6].clamp(max=1), 2).float()
    assert balanced_accuracy(clamped, targets[:6]) == pytest.approx(expected)


def test_the_interval_of_a_temperature_covers_the_true_one():
    """Labels drawn from probabilities at temperature 2: about 95 of 100 intervals contain it."""
    draw, covered, widths = torch.Generator().manual_seed(0), 0, []
    for _ in range(100):
        logits = 3 * torch.randn(150, 4, generator=draw, dtype=torch.float64)
        targets = torch.multinomial((logits / 2).softmax(1), 1, generator=draw).squeeze(1)
        low, high = temperature_interval(logits, targets, fit_temperature(logits, targets))
        covered += low <= 2 <= high
        widths.append(high / low)
    assert 88 <= covered <= 100
    assert 1.2 < np.mean(widths) < 3
    few = temperature_interval(logits[:12], targets[:12], fit_temperature(logits[:12], targets[:12]))
    assert few[1] / few[0] > 1.5 * np.mean(widths)
    right = torch.eye(4)[:3]
    assert temperature_interval(right, torch.arange(3), 0.05)[0] == pytest.approx(0.05)
