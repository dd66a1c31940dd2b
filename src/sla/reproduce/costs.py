"""Floating-point operations of a run and of a table, computed from settings; and the rate of this machine."""

import math
import time
from functools import cache
from typing import Any, NamedTuple

import torch

from sla.backbones import create_backbone
from sla.backbones.cost import count_flops
from sla.datasets.catalogue import CATALOGUE
from sla.methods import create_method
from sla.recipes.load import Settings
from sla.reproduce.jobs import cells_of, jobs_of
from sla.sampling.protocols import long_tailed_counts
from sla.views import parse_views

BACKWARD = 2  # what the backward pass costs, in forward passes
TOY_PASSES = 200  # over the images by the solver of a linear classifier, roughly


class Cost(NamedTuple):
    """Of training: floating-point operations, and images through the network, every view counted."""

    flop: float
    images: int


def cost(name: str, scale: str, seeds: int = 3) -> Cost:
    """Of all distinct runs of a table or figure; rows that only differ in their score share a run."""
    runs = [dict(job.settings) for job in jobs_of(cells_of(name, scale, seeds)) if not job.members]
    return Cost(sum(map(flop_of, runs)), sum(map(images_of, runs)))


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


def machine_rate(seconds: float = 1.5) -> float:
    """Floating-point operations per second in training on this machine: ResNet-8, batch 128, not compiled."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    backbone = create_backbone("resnet8").to(device).train()
    backbone = backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    images = torch.zeros(128, 3, 32, 32, device=device).contiguous(memory_format=torch.channels_last)
    times: list[float] = []
    while sum(times) < seconds:
        start = time.monotonic()
        backbone(images).square().mean().backward()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.monotonic() - start)
    # The shortest time: other work on the machine now says nothing about the hours a table takes.
    return (1 + BACKWARD) * len(images) * count_flops(backbone, (3, 32, 32)) / min(times)


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
