"""Frequent and rare classes on a run's page: groups, accuracies and counts as counted by hand."""

import re
from types import SimpleNamespace

import pytest
import torch

import sla
from sla.report.imbalance import frequency_part, shot_groups, train_counts
from sla.report.run import run_page
from sla.stats import share
from sla.tasks.classifier.evaluation import Outputs

CLASSES = ["ant", "bee", "<cat>", "dog"]


def rows_of(text, caption):
    """The cells of the table in the region of this name, row by row, without their tags."""
    table = re.search(rf'aria-label="{re.escape(caption)}"><table.*?</table>', text, re.S)[0]
    return [
        [re.sub("<.*?>", "", cell).strip() for cell in re.findall(r"<t[hd].*?</t[hd]>", row, re.S)]
        for row in re.findall(r"<tr>.*?</tr>", table, re.S)
    ]


def part(counts, targets, predicted):
    """The section for a method of two kinds of inference; the second is always right."""
    targets = torch.tensor(targets)
    one_hot = torch.nn.functional.one_hot
    logits = {
        "single": one_hot(torch.tensor(predicted), 4).float(),
        "aggregated": one_hot(targets, 4).float(),
    }
    method = SimpleNamespace(headline="single")
    config = SimpleNamespace(method=SimpleNamespace(imbalance="cb"))
    run = SimpleNamespace(
        result={"train_counts": counts}, model=SimpleNamespace(method=method), config=config
    )
    return frequency_part(run, Outputs(logits, targets), CLASSES)


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
    assert [group.classes for group in found] == groups
    by_count = all([max(counts) > 100, any(20 <= n <= 100 for n in counts), min(counts) < 20])
    assert found[0].name.startswith("many-shot") == by_count


def test_accuracies_are_counted_by_hand():
    targets = [0, 0, 0, 0, 1, 1, 2, 3, 3, 3]
    predicted = [0, 0, 0, 1, 1, 0, 2, 0, 0, 3]
    text = part([200, 100, 20, 3], targets, predicted)
    header, many, medium, few, balanced = rows_of(text, "Accuracy by frequency")
    assert header[4:] == ["single *", "aggregated", "95% interval *"]
    low, high = share(3, 4)[1:]
    interval = f"{low:.1f} to {high:.1f}"
    assert many == ["many-shot, over 100", "1", "200", "4", "75.00%", "100.00%", interval]
    assert medium[:6] == ["medium-shot, 20 to 100", "2", "20 to 100", "3", "66.67%", "100.00%"]
    assert few[:6] == ["few-shot, below 20", "1", "3", "3", "33.33%", "100.00%"]
    # (3/4 + 1/2 + 1/1 + 1/3) / 4
    assert balanced[:6] == ["balanced: mean over classes", "4", "3 to 200", "10", "64.58%", "100.00%"]
    assert rows_of(text, "Training images of each class")[1:] == [
        ["ant", "200"],
        ["bee", "100"],
        ["&lt;cat&gt;", "20"],
        ["dog", "3"],
    ]
    assert "method.imbalance is cb" in text
    assert "parts of equal size" not in text


def test_thirds_are_said_and_classes_without_images_stay_empty():
    text = part([9, 8, 7, 6], [0, 1, 2, 2], [0, 1, 2, 0])
    assert "parts of equal size" in text
    rows = rows_of(text, "Accuracy by frequency")[1:]
    assert [row[0] for row in rows[:3]] == ["most frequent third", "middle third", "rarest third"]
    assert [row[4] for row in rows] == ["100.00%", "50.00%", "", "83.33%"]  # (1 + 1 + 1/2) / 3


@pytest.mark.parametrize("counts", [None, [1, 2], [1, 2, 3, "4"], [1, 2, 3, -4], [1, 2, 3, True], "1234"])
def test_damaged_or_absent_counts_are_not_known(counts):
    assert train_counts({"train_counts": counts}, 4) is None
    text = part(counts, [0, 1], [0, 0])
    assert "is not known" in text
    assert rows_of(text, "Accuracy by frequency")[1][4] == "50.00%"


@pytest.mark.parametrize(("counts", "each"), [([7, 7, 7, 7], "7"), ([110, 120, 105, 100], "100 to 120")])
def test_equal_counts_are_one_line(counts, each):
    text = part(counts, [0, 0, 0, 1], [0, 0, 1, 1])
    line = f"Every class has {each} training images. Balanced accuracy, the mean over classes: "
    assert text == f'<p class="soft">{line}single 83.33%, aggregated 100.00%.</p>'


def test_the_page_of_a_run_on_a_long_tail_shows_them(tmp_path):
    settings = {"data__long_tail": 20, "data__long_tail_max": 120, "data__workers": 0, "run__compile": False}
    settings |= {"model__backbone": "convnet4", "model__options": {"width": 8}, "run__iterations": 4}
    run = sla.fit("digits", tmp_path / "run", method__imbalance="cb", run__evaluations=1, **settings)
    dataset = run.dataset()
    outputs = run.evaluate(dataset)
    text = run_page(run, dataset, outputs, "test images")
    rows = rows_of(text, "Accuracy by frequency")
    counts = run.result["train_counts"]
    assert [row[1] for row in rows[1:4]] == [
        str(sum(n > 100 for n in counts)),
        str(sum(20 <= n <= 100 for n in counts)),
        str(sum(n < 20 for n in counts)),
    ]
    predicted = outputs.logits["distilled"].argmax(1)
    recalls = [(predicted[dataset.targets == c] == c).double().mean().item() for c in range(10)]
    assert rows[4][6] == f"{100 * sum(recalls) / 10:.2f}%"
    assert outputs.scores()["distilled"]["balanced"] == pytest.approx(10 * sum(recalls))
