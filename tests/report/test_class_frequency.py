"""Frequent and rare classes: groups, accuracies and counts as counted by hand."""

import pytest
import torch

import sla
from sla.report.class_frequency import frequencies, shot_groups, train_counts
from sla.report.run import run_page
from sla.stats import share
from sla.tasks.classifier.evaluation import Outputs


def found(counts, targets, predicted):
    """For a method with two inferences, the second of which is always right."""
    targets, one_hot = torch.tensor(targets), torch.nn.functional.one_hot
    logits = {"single": one_hot(torch.tensor(predicted), 4), "aggregated": one_hot(targets, 4)}
    outputs = Outputs({name: one.float() for name, one in logits.items()}, targets)
    return frequencies({"train_counts": counts}, outputs, "single", ["ant", "bee", "cat", "dog"])


@pytest.mark.parametrize(
    ("counts", "groups"),
    [
        ([101, 100, 20, 19], [[0], [1, 2], [3]]),
        ([5, 500, 50, 150, 7], [[1, 3], [2], [0, 4]]),
        ([500, 50, 20], [[0], [1], [2]]),  # none below 20: thirds
        ([10, 30, 20, 40, 60, 50, 70], [[4, 5, 6], [1, 3], [0, 2]]),  # the first third has one more
        ([3, 9], [[1], [0]]),
        ([1, 0, 1], [[0], [2], [1]]),
    ],
)
def test_groups_are_those_of_the_benchmarks_or_thirds(counts, groups):
    found = shot_groups(counts)
    assert list(found.values()) == groups
    by_count = all([max(counts) > 100, any(20 <= n <= 100 for n in counts), min(counts) < 20])
    assert next(iter(found)).startswith("many-shot") == by_count


def test_accuracies_are_counted_by_hand():
    targets = [0, 0, 0, 0, 1, 1, 2, 3, 3, 3]
    predicted = [0, 0, 0, 1, 1, 0, 2, 0, 0, 3]
    one = found([200, 100, 20, 3], targets, predicted)
    many, medium, few = one.groups
    assert many == ("many-shot, over 100", 1, "200", 4, [75, 100], share(3, 4))
    assert medium[:5] == ("medium-shot, 20 to 100", 2, "20 to 100", 3, pytest.approx([200 / 3, 100]))
    assert few[:5] == ("few-shot, below 20", 1, "3", 3, pytest.approx([100 / 3, 100]))
    mean = 100 * (3 / 4 + 1 / 2 + 1 / 1 + 1 / 3) / 4
    assert one.balanced[:4] == ("balanced (mean over classes)", 4, "3 to 200", 10)
    assert one.balanced[4:] == (pytest.approx([mean, 100]), None)
    assert one.counts == [("ant", 200), ("bee", 100), ("cat", 20), ("dog", 3)]
    assert (one.equal, one.thirds) == (False, False)


def test_groups_without_images_have_no_accuracy():
    one = found([9, 8, 7, 6], [0, 1, 2, 2], [0, 1, 2, 0])
    assert one.thirds
    assert [row.name for row in one.groups] == ["most frequent third", "middle third", "rarest third"]
    assert [row.accuracies[0] for row in one.groups] == [100, 50, None]
    assert one.groups[2].interval is None
    assert one.balanced.accuracies[0] == pytest.approx(250 / 3)  # (1 + 1 + 1/2) / 3


@pytest.mark.parametrize("counts", [None, [1, 2], [1, 2, 3, "4"], [1, 2, 3, -4], [1, 2, 3, True], "1234"])
def test_damaged_or_missing_counts_are_unknown(counts):
    assert train_counts({"train_counts": counts}, 4) is None
    one = found(counts, [0, 1], [0, 0])
    assert one.counts is None
    assert one.groups == []
    assert one.balanced.accuracies == [50, 100]


@pytest.mark.parametrize(("counts", "each"), [([7, 7, 7, 7], "7"), ([110, 120, 105, 100], "100 to 120")])
def test_equal_counts_are_recognised(counts, each):
    one = found(counts, [0, 0, 0, 1], [0, 0, 1, 1])
    assert one.equal
    assert one.balanced.train_images == each
    assert one.balanced.accuracies == pytest.approx([250 / 3, 100])


def test_the_page_of_a_run_on_a_long_tail_shows_them(tmp_path, tiny_settings, parse):
    tail = {"data__long_tail": 20, "data__long_tail_max": 120, "method__imbalance": "cb"}
    run = sla.fit("digits", tmp_path / "run", method__name="sla+sd", **tiny_settings | tail)
    dataset = run.dataset()
    outputs = run.evaluate(dataset)
    page = parse(run_page(run, dataset, outputs, "test images"))
    head, *rows = page.tables["Accuracy by class frequency"]
    assert head[4:] == ["single", "aggregated", "distilled *", "95% interval *"]
    counts = run.result["train_counts"]
    groups = (sum(n > 100 for n in counts), sum(20 <= n <= 100 for n in counts), sum(n < 20 for n in counts))
    assert [row[1] for row in rows[:3]] == [str(count) for count in groups]
    predicted = outputs.logits["distilled"].argmax(1)
    recalls = [(predicted[dataset.targets == c] == c).double().mean().item() for c in range(10)]
    assert rows[3][6] == f"{100 * sum(recalls) / 10:.2f}%"
    assert [int(row[1]) for row in page.tables["Training images per class"][1:]] == sorted(counts)[::-1]
    assert "method.imbalance is cb" in page.words
