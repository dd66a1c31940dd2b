"""Floating-point operations of a run and of a table, computed from settings; and how long that takes here."""

import math
import time
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from statistics import median
from typing import Any, NamedTuple

import torch

from sla.backbones import create_backbone
from sla.backbones.cost import count_flops
from sla.datasets.catalogue import CATALOGUE
from sla.methods import create_method
from sla.recipes.load import Settings
from sla.reproduce.jobs import Job, cells_of, jobs_of
from sla.reproduce.records import Record
from sla.runs.loop import using_threads
from sla.sampling.protocols import long_tailed_counts
from sla.views import parse_views

BACKWARD = 2  # what the backward pass costs, in forward passes
TOY_PASSES = 200  # over the images by the solver of a linear classifier, roughly
PROBES, WARM_UP, PROBE_IMAGES = 9, 2, 32
SLICES, SIDE = 40, 384  # matrix products, each short enough to run undisturbed on a busy machine
FLOOR = 0.25  # of the matrix-multiply rate of one core: training a CIFAR network is never slower for long
LEAST_ROWS, LEAST_SECONDS = 3, 20.0  # finished runs that say more than probes, and how long each took


class Cost(NamedTuple):
    """Of training: floating-point operations, and images through the network, every view counted."""

    flop: float
    images: int


class Rate(NamedTuple):
    """Floating-point operations per second in training here, and what that rests on."""

    flop_per_second: float
    basis: str


def runs_of(name: str, scale: str, seeds: int = 3) -> list[Job]:
    """The distinct training runs of a table or figure; rows that only differ in their score share one."""
    return [job for job in jobs_of(cells_of(name, scale, seeds)) if not job.members]


def cost(name: str, scale: str, seeds: int = 3) -> Cost:
    """Of all distinct runs of a table or figure."""
    runs = [dict(job.settings) for job in runs_of(name, scale, seeds)]
    return Cost(sum(map(flop_of, runs)), sum(map(images_of, runs)))


def seconds_of(runs: Iterable[Job], rate: Rate, finished: Mapping[str, Record]) -> float:
    """Of training these runs one after the other; a finished one took what its record says."""
    found = 0.0
    for job in runs:
        record = finished.get(job.key)
        known = record.seconds if record is not None else None
        found += known or flop_of(dict(job.settings)) / rate.flop_per_second
    return found


def estimate_rate(records: Iterable[Record], machine: str) -> Rate:
    """From the finished runs of this machine, by the median, where there are some; else by probes now."""
    rates = [
        record.training_flop / record.seconds
        for record in records
        if record.machine == machine and not record.members
        if record.training_flop and record.seconds and record.seconds >= LEAST_SECONDS
    ]
    if len(rates) >= LEAST_ROWS:
        return Rate(median(rates), f"the median of {len(rates)} finished runs on this machine")
    return probe_rate()


def flop_of(settings: Settings) -> float:
    """Floating-point operations of a training run: the backbone's, forward and backward; heads add little."""
    if "toy.digits" in settings:
        pixels = math.prod(CATALOGUE[settings["data.source"]].shape)
        return 2.0 * (1 + BACKWARD) * pixels * images_of(settings) * 2  # a linear map to two labels
    options = settings.get("model.options") or {}
    channels, size = options.get("in_channels", 3), settings["model.resolution"]
    forward = _forward(settings["model.backbone"], tuple(sorted(options.items())), size, channels)
    return float((1 + BACKWARD) * forward * images_of(settings))


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
    batch = settings["run.batch_size"]
    steps = settings["run.iterations"] or math.ceil(settings["run.epochs"] * _trained_on(settings) / batch)
    views = len(create_method(settings["method.name"], parse_views(settings["method.views"])).views)
    return steps * batch * min(settings.get("method.views_per_step") or views, views)


def probe_rate() -> Rate:
    """The median of a few short training steps of ResNet-8, eager, but at least a share of matrix products.

    Other work on the machine now says little about the hours a table takes: where it makes threads wait for
    each other, steps take a hundred times as long, while some of many short products still run undisturbed.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    backbone = create_backbone("resnet8").to(device).train()
    backbone = backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    images = torch.zeros(PROBE_IMAGES, 3, 32, 32, device=device).contiguous(memory_format=torch.channels_last)
    times = [_seconds(lambda: backbone(images).square().mean().backward()) for _ in range(WARM_UP + PROBES)]
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
    if settings.get("data.per_class"):
        return settings["data.per_class"] * entry.num_classes
    return round(entry.splits["train"] * (1 - settings["data.hold_out"]))


@cache
def _forward(backbone: str, options: tuple[tuple[str, Any], ...], resolution: int, channels: int) -> int:
    with torch.device("meta"):  # counting needs shapes only
        module = create_backbone(backbone, **dict(options))
    return count_flops(module, (channels, resolution, resolution))
