"""The paper's ablation in three minutes: ten digits, five training images per digit, no download."""

import time
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from multiprocessing import get_context
from typing import TYPE_CHECKING, NamedTuple

from sla.progress import QUIET, Progress
from sla.stats import Interval, mean_sd, paired

if TYPE_CHECKING:
    from torch import Tensor

    from sla.augment.ops import Pipeline
    from sla.classifier import Classifier

PER_CLASS, STEPS, WIDTH = 5, 150, 32  # training images, steps, channels of the network
RATE, DECAY = 0.1, 5e-4
LEAST_SEEDS = 5


class Row(NamedTuple):
    """One row of the table: a method with one inference, and what it costs."""

    method: str
    inference: str
    label: str
    cost: float = 4  # of training, where the baseline's is 1
    passes: int = 1  # per image at test time


ROWS = (
    Row("baseline", "single", "baseline", cost=1),
    Row("da", "single", "augmentation (DA), single"),
    Row("da", "aggregated", "augmentation (DA), aggregated", passes=4),
    Row("mt", "single", "multi-task (MT)"),
    Row("sla", "single", "joint labels (SLA), single"),
    Row("sla", "aggregated", "joint labels (SLA), aggregated", passes=4),
    Row("sla+sd", "distilled", "SLA with self-distillation"),
    # As many steps again: forward and backward of one view, and four passes of the teacher.
    Row("sla", "distilled", "student of SLA", cost=4 + (3 + 4) / 3),
)
METHODS = tuple(dict.fromkeys(row.method for row in ROWS))


@dataclass
class Results:
    """Test accuracies in percent by (method, inference), one per seed, and the time they took."""

    accuracy: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    seeds: int = 0
    seconds: float = 0.0

    def values(self, row: Row) -> list[float]:
        """One accuracy per seed."""
        return self.accuracy[row.method, row.inference]

    def difference(self, row: Row) -> Interval:
        """To the baseline, paired by seed: same training images, same initial weights."""
        return paired(self.values(row), self.values(ROWS[0]))


def train_one(method: str, seed: int) -> dict[str, float]:
    """Train one method on five images per digit; test accuracy in percent by inference.

    SLA also gets a student, which learns its aggregated answers.
    """
    import torch

    from sla.augment.ops import Normalize, Pipeline, RandomCrop
    from sla.datasets.load import load
    from sla.factory import create
    from sla.methods import create_method
    from sla.sampling.draws import Draws
    from sla.sampling.protocols import limited
    from sla.tasks.classifier.distil import copy_weights

    torch.set_num_threads(1)  # the network is tiny: trainings run in parallel instead
    torch.manual_seed(seed)
    digits = load("digits")
    assert digits.test is not None
    train, test = limited(digits.train, PER_CLASS, seed), digits.test
    images, aspect = train.read(range(len(train)))
    targets = torch.as_tensor(train.targets)
    normalize = Normalize((0.5,), (0.5,))
    augment = Pipeline((RandomCrop(8, padding=1), normalize))

    def new(name: str) -> "Classifier":
        classes = digits.train.num_classes
        return create("convnet4", classes, create_method(name), in_channels=1, width=WIDTH)

    inputs = Pipeline((normalize,))(test.read(range(len(test))).images, Draws(seed, 0, len(test)), aspect)
    model = _fit(new(method), images, targets, augment, seed)
    models = [model]
    if method == "sla":
        student = new("distilled")
        copy_weights(model, student)
        models.append(_fit(student, images, targets, augment, seed, teacher=model))
    with torch.inference_mode():
        outputs = {how: logits for one in models for how, logits in one.logits_by_inference(inputs).items()}
    right = {how: (logits.argmax(1) == torch.as_tensor(test.targets)) for how, logits in outputs.items()}
    return {how: 100 * hits.double().mean().item() for how, hits in right.items()}


def _fit(
    model: "Classifier",
    images: "Tensor",
    targets: "Tensor",
    augment: "Pipeline",
    seed: int,
    teacher: "Classifier | None" = None,
) -> "Classifier":
    """Train on the labels, or at half the rate on a teacher's answers to CutMix images."""
    import torch

    from sla.augment.mixing import CutMix
    from sla.methods import StepContext
    from sla.sampling.draws import Draws

    mix, begin = CutMix(), 0 if teacher is None else STEPS  # draws of its own
    square = torch.ones(len(images))
    rate = RATE if teacher is None else RATE / 2
    optimizer = torch.optim.SGD(model.parameters(), rate, 0.9, weight_decay=DECAY, nesterov=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    for step in range(begin, begin + STEPS):
        draws = Draws(seed, step, len(images))
        batch, context = augment(images, draws, square), StepContext()
        if teacher is not None:
            batch = mix(batch, draws).images
            with torch.no_grad():
                context = StepContext(teacher=teacher.logits(batch, "aggregated"))
        optimizer.zero_grad()
        model(batch, targets, context)["loss"].backward()
        optimizer.step()
        schedule.step()
    return model.eval()


def run(minutes: float, seeds: int | None = None, progress: Progress = QUIET) -> Results:
    """Train every method on as many seeds as fit into `minutes` (at least five), or on `seeds` of them.

    Seeds are 0, 1, 2, ...; a seed counts when all its methods are trained. `progress` gets the number of
    finished trainings, of how many where `seeds` are given.
    """
    start, results = time.monotonic(), Results()
    from sla.images.files import available_cores

    cores = available_cores()
    running: dict[int, list[Future[dict[str, float]]]] = {}

    def report() -> None:
        done = sum(future.done() for futures in running.values() for future in futures)
        total = None if seeds is None else seeds * len(METHODS)
        progress.advance("models trained", results.seeds * len(METHODS) + done, total)

    with ProcessPoolExecutor(cores, get_context("spawn")) as pool:
        wanted = _seeds_to_run(start, minutes, seeds, results)
        try:
            for seed in wanted:
                running[seed] = [pool.submit(train_one, method, seed) for method in METHODS]
                # Two queued seeds keep every core busy; more would exceed the minutes.
                while len(running) >= 2:
                    _collect(running, results)
                    report()
            while running:
                _collect(running, results)
                report()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    results.seconds = time.monotonic() - start
    return results


def _seeds_to_run(start: float, minutes: float, seeds: int | None, results: Results) -> Iterator[int]:
    for seed in count() if seeds is None else range(seeds):
        elapsed = time.monotonic() - start
        # The two running seeds and one more must fit, at the pace of the finished ones.
        per_seed = elapsed / max(results.seeds, 1)
        if seeds is None and seed >= LEAST_SEEDS and elapsed + 2 * per_seed > 60 * minutes:
            return
        yield seed


def _collect(running: dict[int, list[Future[dict[str, float]]]], results: Results) -> None:
    """Wait a moment; move the oldest seed to the results once all its methods are trained."""
    seed = min(running)
    if not all(future.done() for future in running[seed]):
        time.sleep(0.1)
        return
    for method, future in zip(METHODS, running.pop(seed), strict=True):
        for inference, accuracy in future.result().items():
            results.accuracy.setdefault((method, inference), []).append(accuracy)
    results.seeds += 1


def summary(results: Results) -> str:
    """What the numbers show, in words."""
    found: dict[int, list[str]] = {1: [], -1: [], 0: []}
    for row in ROWS[1:]:
        difference = results.difference(row)
        found[difference.sign].append(f"{row.label} {difference.mean:+.1f}")
    words = {1: "Better", -1: "Worse", 0: "No clear difference"}
    parts = [f"{words[sign]}: {', '.join(rows)}." for sign, rows in found.items() if rows]
    baseline = mean_sd(results.values(ROWS[0]))[0]
    start = f"The baseline reaches {baseline:.1f}% over {results.seeds} seeds; differences are in points."
    return " ".join([start, *parts])
