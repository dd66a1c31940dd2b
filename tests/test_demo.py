"""The demo: what it trains, in which order, and the summary and the page of its numbers."""

import random
import re
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from sla import demo
from sla.demo import METHODS, ROWS, Results, summary, train_one
from sla.progress import Progress
from sla.report.demo import write_page
from sla.stats import mean_sd


def made_up(shift, seeds=6):
    """A baseline of 80 with small changes from seed to seed; every other row off it by `shift`, almost."""
    chance = random.Random(0)
    base = [80 + chance.random() for _ in range(seeds)]
    accuracy = {("baseline", "single"): base}
    for row in ROWS[1:]:
        accuracy[row.method, row.inference] = [b + shift + 0.1 * chance.random() for b in base]
    return Results(accuracy, seeds, 12.0)


def test_keeping_labels_of_rotated_digits_costs_accuracy():
    """The paper's observation, far from noise on digits; five seeds, and MT, are among the slow tests."""
    baseline, augmented = (train_one(method, 0)["single"] for method in ("baseline", "da"))
    assert baseline > 75
    assert augmented < baseline - 3


def fake_training(method, seed):
    """Numbers that identify method and seed, after a random delay."""
    time.sleep(random.random() / 100)
    inferences = {row.inference for row in ROWS if row.method == method}
    return {inference: 100 * METHODS.index(method) + seed + len(inference) / 100 for inference in inferences}


@pytest.fixture
def trained(monkeypatch):
    """Runs the demo with threads and a training of one's own."""

    def run(training, *settings, workers=2, **options):
        monkeypatch.setattr(demo, "ProcessPoolExecutor", lambda *_: ThreadPoolExecutor(workers))
        monkeypatch.setattr(demo, "train_one", training)
        return demo.run(*settings, **options)

    return run


@pytest.mark.parametrize("workers", [1, 2, 7])
def test_seeds_are_in_order_whatever_the_number_of_workers(workers, trained):
    done = []

    class Counts(Progress):
        def advance(self, what, count, total):
            assert total == 4 * len(METHODS)
            done.append(count)

    results = trained(fake_training, 1.0, workers=workers, seeds=4, progress=Counts())
    assert results.seeds == 4
    for row in ROWS:
        first = 100 * METHODS.index(row.method) + len(row.inference) / 100
        assert results.values(row) == [first + seed for seed in range(4)]
    assert done == sorted(done)
    assert done[-1] == 4 * len(METHODS)


def test_at_least_five_seeds_however_short_the_time(trained):
    assert trained(fake_training, 0.0).seeds == 5


def test_a_failed_training_is_not_hidden(trained):
    def fail(method, seed):
        raise RuntimeError("no such digit")

    with pytest.raises(RuntimeError, match="no such digit"):
        trained(fail, 1.0, seeds=2)


@pytest.mark.parametrize(
    ("shift", "word"), [(3.0, "Better"), (-3.0, "Worse"), (-0.05, "No clear difference")]
)
def test_summary_words_follow_the_numbers(shift, word):
    results = made_up(shift)
    others = {"Better", "Worse", "No clear difference"} - {word}
    text = summary(results)
    assert f"{word}: " in text
    assert not any(f"{other}:" in text for other in others)
    assert all(f"{row.label} {results.difference(row).mean:+.1f}" in text for row in ROWS[1:])
    assert f"{mean_sd(results.values(ROWS[0]))[0]:.1f}% over 6 seeds" in text


def test_summary_sorts_each_row_by_its_own_interval():
    results = made_up(-3.0)
    results.accuracy["sla", "aggregated"] = [value + 5 for value in results.values(ROWS[0])]
    _, better, worse = re.split("(?=Better|Worse)", summary(results))
    assert "aggregated +5.0" in better
    assert "+5.0" not in worse
    assert worse.startswith("Worse: ")


def test_page_has_every_number_of_the_table(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["sla", "demo", "--out", "<b>&.html"])
    results = made_up(2.0)
    write_page(results, tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]  # nothing half-written beside it
    assert text.startswith("<!doctype html>")
    assert text.endswith("</html>\n")
    lines = re.findall(r"<tr>.*?</tr>", text, re.S)
    lines = [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", line) for line in lines]
    rows = {line[0]: line[1:] for line in lines}
    for row in ROWS:
        mean, sd = mean_sd(results.values(row))
        difference = results.difference(row)
        wanted = [f"{difference.mean:+.1f}", f"{difference.low:+.1f} to {difference.high:+.1f}"]
        gain = ["", ""] if row is ROWS[0] else wanted
        cost = [str(row.passes), f"{row.cost:.2g}"]
        assert rows[row.label] == [f"{mean:.1f}", *gain, f"{sd:.1f}", *cost]
    assert "6 at 90°: label 25" in text
    assert "<b>" not in re.search(r"<code>(.*?)</code>", text)[1]  # the command as it was typed, as text


def test_training_cost_of_the_student_is_what_torch_counts():
    """FLOP of a step of the student, its teacher's answers included, over those of a step of the baseline."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from sla.factory import create
    from sla.methods import StepContext, create_method

    def flop_of(method, teacher=None):
        model = create("convnet4", 10, create_method(method), in_channels=1, width=32)
        images, targets, context = torch.rand(8, 1, 8, 8), torch.arange(8), StepContext()
        with FlopCounterMode(display=False) as counter:
            if teacher is not None:
                with torch.no_grad():
                    context = StepContext(teacher=teacher.logits(images, "aggregated"))
            model(images, targets, context)["loss"].backward()
        return counter.get_total_flops()

    baseline = flop_of("baseline")
    costs = {row.label: row.cost for row in ROWS}
    assert flop_of("sla") / baseline == pytest.approx(costs["joint labels (SLA), aggregated"], rel=0.1)
    teacher = create("convnet4", 10, create_method("sla"), in_channels=1, width=32)
    student = flop_of("distilled", teacher) / baseline
    assert 4 + student == pytest.approx(costs["student of SLA"], rel=0.1)


@pytest.mark.slow
def test_real_run_is_the_same_on_one_process_and_on_two(monkeypatch):
    """Trained in processes of their own, as many as there are cores, and here: the same numbers."""
    found = []
    for cores in (1, 2):
        monkeypatch.setattr("os.sched_getaffinity", lambda _, cores=cores: set(range(cores)), raising=False)
        found.append(demo.run(1.0, seeds=2).accuracy)
    assert found[0] == found[1]
    assert found[0]["sla", "aggregated"][1] == train_one("sla", 1)["aggregated"]


@pytest.mark.slow
def test_mean_over_five_seeds_shows_the_papers_order():
    results = demo.run(1.0, seeds=5)
    means = {row.label: mean_sd(results.values(row))[0] for row in ROWS}
    assert means["augmentation (DA), single"] < means["baseline"] - 3
    assert means["multi-task (MT)"] < means["baseline"] - 3
    assert means["joint labels (SLA), aggregated"] > means["augmentation (DA), aggregated"]
    assert means["student of SLA"] > means["baseline"] + 1
    assert means["student of SLA"] > means["joint labels (SLA), single"] + 2
