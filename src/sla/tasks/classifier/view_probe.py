"""Before training: a small network learns to predict views, to find which are recognisable at all."""

import re
import time
from collections.abc import Iterator, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sla.augment.ops import CenterCrop
from sla.augment.pipelines import eval_pipeline, train_pipeline
from sla.backbones import PRETRAINED, create_backbone, find_weights
from sla.datasets.load import load
from sla.errors import InputError
from sla.images.files import in_threads
from sla.images.storage import OnBadImage
from sla.images.store import ArrayImages, Dataset, spread
from sla.progress import QUIET, Progress
from sla.runs.defaults import TINY, has_pretrained, native_size
from sla.sampling.draws import Draws, seed_of
from sla.sampling.loader import EvalLoader, TrainLoader
from sla.sampling.protocols import hold_out
from sla.tasks.classifier.view_accuracy import ENOUGH, ViewAccuracy, count_views
from sla.views import Views, expand_views, parse_views, take_views

CANDIDATES = ("rot4", "rot2", "rgb3", "rgb6", "rot4*rgb3")
SMALL, LARGE = 32, 64  # pixels a side of photographs: from scratch, pretrained
IMAGES = 20_000  # training images used, at most
HELD_OUT = 100  # images, at least where there are three times as many
FROZEN_STEPS, FROZEN_HELD_OUT, HEAD_STEPS = 32, 250, 150
WIDTHS, BATCH, STEPS, RATE = (24, 48, 96), 64, 300, 0.1


def probe_data(
    data: str,
    candidates: Sequence[str] = CANDIDATES,
    *,
    seed: int = 0,
    minutes: float | None = None,
    on_bad_image: OnBadImage = "refuse",
    progress: Progress = QUIET,
) -> list[ViewAccuracy]:
    """How recognisable each set of views is in a folder, a CSV or a known dataset; test images are not used.

    Pictures are decoded small, and no more of them than are used.
    """
    # Twice the size that the network sees: the centre of a long picture keeps its detail.
    size = min(native_size(data), 2 * LARGE)
    splits = load(data, size=size, memory_limit=0, on_bad_image=on_bad_image)
    train, held_out = splits.train, splits.val
    if held_out is None:
        train, held_out = _hold_out(train)
    views = fitting(candidates, train.images.shape[0])
    return probe_views(train, held_out, views, seed=seed, minutes=minutes, progress=progress)


def _hold_out(images: Dataset) -> tuple[Dataset, Dataset]:
    """A tenth of every class, or of all images where no class can spare one: views have no classes.

    Of less than a thousand images it is more, up to a third: a tenth of them says nothing.
    """
    if len(images) >= 10 and images.counts().max() > 1:
        return hold_out(images, max(0.1, min(HELD_OUT / len(images), 1 / 3)))
    alike = Dataset(images.images, np.zeros_like(images.targets), ("any",), images.rows)
    return hold_out(alike, per_class=max(len(images) // 10, 1))


def split_candidates(text: str) -> tuple[str, ...]:
    """`rot4, rgb(RGB,BGR)` -> ("rot4", "rgb(RGB,BGR)"): commas inside brackets do not part."""
    return tuple(part.strip() for part in re.split(r",(?![^(]*\))", text) if part.strip())


def fitting(candidates: Sequence[str], channels: int) -> list[Views]:
    """The candidates that images of so many channels have; colours need three."""
    parsed = [parse_views(text) for text in candidates]
    found = [views for views in parsed if len(views) > 1 and views.channels in (None, channels)]
    if not found:
        raise InputError(f"no views to try: {', '.join(candidates)} on images of {channels} channel(s)")
    return found


def probe_views(
    train: Dataset,
    held_out: Dataset,
    candidates: Sequence[Views],
    *,
    seed: int = 0,
    steps: int | None = None,
    minutes: float | None = None,
    progress: Progress = QUIET,
) -> list[ViewAccuracy]:
    """How well a small network, trained on `train`, predicts each candidate's views on held-out images.

    One backbone learns all candidates, each by a head of its own. With `minutes`, a few steps are timed and
    as many are made as fit. Classes are not used.
    """
    shape = train.images.shape
    probe = _Probe(shape, candidates, seed)
    many = IMAGES if minutes is not None or not probe.frozen else FROZEN_STEPS * BATCH
    train = _small(train, many, probe.size, progress)
    held_out = _small(held_out, FROZEN_HELD_OUT if probe.frozen else ENOUGH, probe.size, progress)
    if minutes is not None:
        timed, start = _Probe(shape, candidates, seed), time.monotonic()
        timed.learn(train, 3, seed, QUIET)
        steps = max(int(60 * minutes / (time.monotonic() - start) * 3), 3)
    probe.learn(train, steps or (FROZEN_STEPS if probe.frozen else STEPS), seed, progress)
    return probe.measure(held_out, progress)


class _Probe:
    """A backbone and a head for each candidate set of views.

    Photographs go through a pretrained backbone as it is, where there is one: only the heads learn.
    """

    def __init__(self, shape: tuple[int, int, int], candidates: Sequence[Views], seed: int) -> None:
        channels, tiny = shape[0], max(shape[1:]) <= TINY and shape[1] == shape[2]
        self.candidates, self.frozen = candidates, not tiny and channels == 3 and has_pretrained()
        self.size = max(shape[1:]) if tiny else LARGE if self.frozen else SMALL
        mean, std = (0.5,) * channels, (0.25,) * channels
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_of(seed, "probe"))
            if self.frozen:
                self.backbone = create_backbone(PRETRAINED, pretrained=True)
                weights = find_weights(PRETRAINED)
                assert weights is not None
                mean, std = weights.input.mean, weights.input.std
            else:
                self.backbone = _network(channels)
            width = int(self.backbone.num_features)  # type: ignore[arg-type]
            self.heads = nn.ModuleList(nn.Linear(width, len(views)) for views in candidates)
        self.backbone = self.backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        # A mirrored picture is as upright as it was; mirrored letters, which are mostly grey, are others.
        augment = f"crop({max(self.size // 8, 1)})" + (", flip" if channels == 3 else "")
        self.train_pipeline = train_pipeline(augment, self.size, mean, std)
        self.eval_pipeline = eval_pipeline(augment, self.size, mean, std)

    def learn(self, train: Dataset, steps: int, seed: int, progress: Progress) -> None:
        """Every step shows each image through one random view of each candidate."""
        if self.frozen:
            return self._learn_heads(train, steps, seed, progress)
        module = nn.ModuleList([self.backbone, self.heads]).train()
        optimizer = torch.optim.SGD(module.parameters(), lr=RATE, momentum=0.9, nesterov=True)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, max(steps, 2), cycle_momentum=False)
        for step, (seen, index) in enumerate(self._batches(train, steps, seed)):
            features = self.backbone(seen).chunk(len(self.candidates))
            losses = [
                F.cross_entropy(head(some), numbers)
                for head, some, numbers in zip(self.heads, features, index, strict=True)
            ]
            optimizer.zero_grad()
            torch.stack(losses).sum().backward()
            optimizer.step()
            schedule.step()
            progress.advance("learning views", step + 1, steps)

    def _learn_heads(self, train: Dataset, steps: int, seed: int, progress: Progress) -> None:
        """Each image is used once for each candidate; then the heads learn from all features at once."""
        found, index_of = [], []
        self.backbone.eval()
        with torch.no_grad():
            for step, (seen, index) in enumerate(self._batches(train, steps, seed)):
                found.append(self.backbone(seen).unflatten(0, (len(self.candidates), -1)))
                index_of.append(torch.stack(index))
                progress.advance("learning views", step + 1, steps)
        features, numbers = torch.cat(found, 1), torch.cat(index_of, 1)  # (k, n, D) and (k, n)
        for head, some, true in zip(self.heads, features, numbers, strict=True):
            optimizer = torch.optim.AdamW(head.parameters(), 1e-3, weight_decay=0.1)
            for _ in range(HEAD_STEPS):
                optimizer.zero_grad()
                F.cross_entropy(head(some), true).backward()
                optimizer.step()

    def _batches(self, train: Dataset, steps: int, seed: int) -> Iterator[tuple[Tensor, list[Tensor]]]:
        """Images (k*B, ...), through a random view for each of k candidates, and its number, k of (B,)."""
        for batch in TrainLoader(train, min(BATCH, len(train)), seed=seed, steps=steps):
            images = self.train_pipeline(batch.images, batch.draws, batch.aspect)
            index = [batch.draws.integers(f"probe.{views.text}", len(views)) for views in self.candidates]
            pairs = zip(self.candidates, index, strict=True)
            seen = torch.cat([take_views(images, views, numbers) for views, numbers in pairs])
            seen = seen.contiguous(memory_format=torch.channels_last)
            yield seen, [numbers.flatten() for numbers in index]

    @torch.inference_mode()
    def measure(self, held_out: Dataset, progress: Progress) -> list[ViewAccuracy]:
        """Every held-out image through every view of every candidate."""
        self.backbone.eval()
        answers: list[list[Tensor]] = [[] for _ in self.candidates]
        for batch in EvalLoader(held_out, BATCH):
            images = self.eval_pipeline(batch.images, batch.draws, batch.aspect)
            for views, head, predicted in zip(self.candidates, self.heads, answers, strict=True):
                predicted.append(head(self.backbone(expand_views(images, views))).argmax(1))
            progress.advance("measuring views", int(batch.indices[-1]) + 1, len(held_out))
        return [count_views(torch.cat(parts), v) for v, parts in zip(self.candidates, answers, strict=True)]


def _network(channels: int) -> nn.Module:
    """(B, C, H, W) -> (B, 96): every layer halves the picture, so a step costs little at any width."""
    layers: list[nn.Module] = []
    for width in WIDTHS:
        layers += [nn.Conv2d(channels, width, 3, 2, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        channels = width
    network = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    network.num_features = channels  # type: ignore[assignment]
    return network


def _small(dataset: Dataset, most: int, size: int, progress: Progress) -> Dataset:
    """At most so many of the images, evenly spaced, in memory and small; photographs lose their margins."""
    places = spread(len(dataset), most)
    parts = []
    threads = 1 if dataset.images.in_memory else None
    for part, (images, aspect) in in_threads(dataset.read, places, threads=threads, progress=progress):
        if images.shape[2:] != (size, size):
            images = CenterCrop(size)(images, Draws(0, 0, len(part)), aspect)
        parts.append(images)
    return Dataset(ArrayImages(torch.cat(parts)), dataset.targets[places], dataset.classes)
