"""Floating-point operations of a run and of a table, computed from settings; and how long that takes here."""

import math
import time
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch

from sla.backbones import create_backbone
from sla.backbones.cost import count_flops
from sla.datasets.catalogue import CATALOGUE
from sla.methods import create_method
from sla.methods.base import Method
from sla.recipes.load import Settings
from sla.reproduce.jobs import Job, cells_of, growth_of, jobs_of
from sla.reproduce.records import Record, parse_machine
from sla.runs.loop import using_threads
from sla.sampling.protocols import long_tailed_counts
from sla.tasks.classifier.config import ClassifierConfig, GrowConfig, student_steps
from sla.tasks.classifier.growth_images import embedded_images
from sla.views import parse_views

BACKWARD = 2  # what the backward pass costs, in forward passes
TOY_PASSES = 200  # over the images by the solver of a linear classifier, roughly
PROBES, WARM_UP, PROBE_IMAGES = 9, 2, 32
SLICES, SIDE = 40, 384  # matrix products, each short enough to run undisturbed on a busy machine
FLOOR = 0.25  # of the matrix-multiply rate of one core: training a CIFAR network is never slower for long
LEAST_ROWS, LEAST_SECONDS = 3, 20.0  # finished runs that say more than probes, and how long each took
LATEST = 20  # of them that count


class Cost(NamedTuple):
    """Of training: floating-point operations, and images through the network, every view counted."""

    flop: float
    images: int


class Rate(NamedTuple):
    """Floating-point operations per second in training here, and what that rests on."""

    flop_per_second: float  # of one thread
    basis: str
    threads: int = 1  # of a run whose recipe sets none

    def seconds(self, job: Job) -> float:
        """Estimated seconds of a job; threads are taken to share its work evenly."""
        return cost_of(job).flop / self.flop_per_second / (job.threads or self.threads)


def runs_of(name: str, scale: str, seeds: int = 3) -> list[Job]:
    """The distinct training runs of a table or figure; rows that only differ in their score share one."""
    return [job for job in jobs_of(cells_of(name, scale, seeds)) if job.trains]


def cost(name: str, scale: str, seeds: int = 3) -> Cost:
    """Of all distinct runs of a table or figure."""
    costs = [cost_of(job) for job in runs_of(name, scale, seeds)]
    return Cost(sum(one.flop for one in costs), sum(one.images for one in costs))


def cost_of(job: Job) -> Cost:
    """Of a job without that of its members; nothing where it only evaluates them."""
    if job.kind == "distil":
        return _student_cost(job)
    if job.kind == "grow":
        return _growth_cost(job)
    settings = dict(job.settings)
    return Cost(flop_of(settings), images_of(settings)) if job.trains else Cost(0.0, 0)


def _student_cost(job: Job) -> Cost:
    """Of a student's training, with the forward passes of its teacher's answers."""
    settings = dict(job.members[0].settings)
    own = {key.removeprefix("distil."): value for key, value in job.settings.items()}
    tree = {
        "data": {"source": settings["data.source"]},
        "run": {"iterations": _steps(settings)},
        "distil": own,
    }
    config = ClassifierConfig.model_validate(tree)
    part, images = config.distil, student_steps(config) * settings["run.batch_size"]
    answers = part.teacher_passes(_method(settings), _trained_on(settings), images)
    return Cost(float(_forward_of(settings) * ((1 + BACKWARD) * images + answers)), images)


def _growth_cost(job: Job) -> Cost:
    """Of a run that grows several times: its steps, the answers of the model before, the choice of images."""
    settings = dict(job.members[0].settings)
    own = {key: value for key, value in job.settings.items() if key != "times"}
    part = GrowConfig.model_validate({key.removeprefix("grow."): value for key, value in own.items()})
    first, batch, per_class = _classes(settings), settings["run.batch_size"], settings["data.per_class"]
    available = CATALOGUE[settings["data.source"]].num_classes
    each, known = growth_of(first, available, job.settings["times"])
    steps, images, counts = _steps(settings), first * per_class, [per_class] * first
    views = min(settings.get("method.views_per_step") or available, len(_method(settings).views))
    passes, seen = 0, 0
    for _ in known:
        passes += embedded_images(np.array(counts), part.keep)
        counts = [min(part.keep, count) for count in counts] + [per_class] * each
        steps, images = math.ceil(steps * batch / images * sum(counts) / batch), sum(counts)
        seen += steps * batch * views
        passes += steps * batch * views * (1 + BACKWARD + (1 if part.weight else 0))
    return Cost(float(_forward_of(settings) * passes), seen)


def _classes(settings: Settings) -> int:
    """Classes of a run: those of its dataset, or of a range of them."""
    chosen = settings.get("data.classes")
    if chosen is None:
        return CATALOGUE[settings["data.source"]].num_classes
    low, high = str(chosen).split("-")
    return int(high) - int(low) + 1


def seconds_of(runs: Iterable[Job], rate: Rate, finished: Mapping[str, Record]) -> float:
    """Of training these runs one after the other; a finished one took what its record says."""
    return sum(recorded_seconds(job, finished) or rate.seconds(job) for job in runs)


def recorded_seconds(job: Job, finished: Mapping[str, Record]) -> float | None:
    """What training took by the job's record; a student's record has its teacher's seconds too."""
    known = [finished[one.key].seconds if one.key in finished else None for one in (job, *job.members)]
    return None if known[0] is None else known[0] - sum(seconds or 0 for seconds in known[1:])


def estimate_rate(records: Iterable[Record], machine: str) -> Rate:
    """From the latest finished runs on such a machine, by the median, where there are some; else by probes.

    Per thread, so that runs with any number of threads count. The latest: a name is that of many machines,
    and one that was busy then may not be so now.
    """
    here, threads = parse_machine(machine)
    rates = [
        record.training_flop / record.seconds / parse_machine(record.machine)[1]
        for record in sorted(records, key=lambda one: one.finished)
        if parse_machine(record.machine)[0] == here and not record.members
        if record.training_flop and record.seconds and record.seconds >= LEAST_SECONDS
    ][-LATEST:]
    if len(rates) >= LEAST_ROWS:
        return Rate(median(rates), f"the median of the {len(rates)} latest runs on such a machine", threads)
    return probe_rate()._replace(threads=threads)


def flop_of(settings: Settings) -> float:
    """Floating-point operations of a training run: the backbone's, forward and backward; heads add little."""
    if "toy.digits" in settings:
        pixels = math.prod(CATALOGUE[settings["data.source"]].shape)
        return 2.0 * (1 + BACKWARD) * pixels * images_of(settings) * 2  # a linear map to two labels
    passes = (1 + BACKWARD) * images_of(settings)
    if not {"episodes.way", "method.projection"} & settings.keys():  # answers from all views, forward only
        method = _method(settings)
        answered = _unlabelled(settings) if method.wants_answers else 0
        passes += _steps(settings) * answered * len(method.views)
    return float(_forward_of(settings) * passes)


def images_of(settings: Settings) -> int:
    """Images that a training run passes through its network, every view counted."""
    if "toy.digits" in settings:
        entry = CATALOGUE[settings["data.source"]]
        turned = 1 if settings["toy.labels"] == "upright" else 4
        return TOY_PASSES * turned * entry.splits["train"] * 2 // entry.num_classes
    if "episodes.way" in settings:
        episode = settings["episodes.way"] * (settings["episodes.shot"] + settings["episodes.query"])
        base = settings["run.iterations"] * settings["episodes.per_step"] * episode
        return base * len(parse_views(settings["method.views"]))
    if "method.projection" in settings:  # SimCLR: two views of each image
        return 2 * _steps(settings) * settings["run.batch_size"]
    method = _method(settings)
    views = settings.get("method.views_per_step") or method.usual_views or len(method.views)
    per_step = settings["run.batch_size"] + _unlabelled(settings)
    return _steps(settings) * per_step * min(views, len(method.views))


def _method(settings: Settings) -> Method:
    key = "method.consistency_weight"
    weight = {"consistency_weight": settings[key]} if key in settings else {}
    return create_method(settings["method.name"], parse_views(settings["method.views"]), **weight)


def _unlabelled(settings: Settings) -> int:
    """Unlabelled images per step."""
    if settings.get("data.unlabelled") is None:
        return 0
    return settings.get("run.unlabelled_batch_size") or settings["run.batch_size"]


def _steps(settings: Settings) -> int:
    steps: int | None = settings.get("run.iterations")
    return steps or math.ceil(settings["run.epochs"] * _trained_on(settings) / settings["run.batch_size"])


def _forward_of(settings: Settings) -> int:
    options = settings.get("model.options") or {}
    channels = options.get("in_channels", 3)
    size = settings.get("model.train_resolution") or settings["model.resolution"]
    return _forward(settings["model.backbone"], tuple(sorted(options.items())), size, channels)


def probe_rate() -> Rate:
    """The median of some training steps of ResNet-8, eager, on one thread; at least a share of products.

    Other work on the machine now says little about the hours a table takes: where it makes threads wait for
    each other, steps take a hundred times as long, while some of many short products still run undisturbed.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    backbone = create_backbone("resnet8").to(device).train()
    backbone = backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    images = torch.zeros(PROBE_IMAGES, 3, 32, 32, device=device).contiguous(memory_format=torch.channels_last)
    with using_threads(1):
        times = [
            _seconds(lambda: backbone(images).square().mean().backward()) for _ in range(WARM_UP + PROBES)
        ]
    step = (1 + BACKWARD) * len(images) * count_flops(backbone, (3, 32, 32))
    measured, floor = step / median(times[WARM_UP:]), FLOOR * matrix_rate(1)
    if measured >= floor:
        return Rate(measured, f"the median of {PROBES} eager training steps of ResNet-8 now")
    return Rate(
        floor,
        f"{100 * FLOOR:.0f}% of one core's matrix products: the machine is busy, training steps reach "
        f"{measured / 1e9:.1f} GFLOP/s now",
    )


def matrix_rate(threads: int | None = None) -> float:
    """Floating-point operations per second of float32 matrix products: the best of many short ones."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    matrix = torch.ones(SIDE, SIDE, device=device)
    with using_threads(threads):
        return 2 * SIDE**3 / min(_seconds(lambda: matrix @ matrix) for _ in range(SLICES))


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start


def _trained_on(settings: dict[str, Any]) -> int:
    """Images per epoch: the catalogue's count, reduced as the settings say."""
    entry = CATALOGUE[settings["data.source"]]
    if settings.get("data.long_tail"):
        most = settings.get("data.long_tail_max") or entry.splits["train"] // entry.num_classes
        return int(long_tailed_counts(entry.num_classes, most, settings["data.long_tail"]).sum())
    if settings.get("data.images"):
        return settings["data.images"]
    if settings.get("data.per_class"):
        return settings["data.per_class"] * _classes(settings)
    return round(entry.splits["train"] * (1 - settings["data.hold_out"]))


@cache
def _forward(backbone: str, options: tuple[tuple[str, Any], ...], resolution: int, channels: int) -> int:
    with torch.device("meta"):  # counting needs shapes only
        module = create_backbone(backbone, **dict(options))
    return count_flops(module, (channels, resolution, resolution))
