"""Accuracy over episodes: every image and view is embedded once, then episodes cost next to nothing."""

import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sla.augment.ops import Pipeline
from sla.disk import check_space
from sla.errors import InputError
from sla.images.store import Dataset
from sla.progress import QUIET, Progress
from sla.runs.evaluation import evaluating, iterate_eval
from sla.sampling.episodes import Episodes
from sla.stats import Interval
from sla.tasks.fewshot.config import EpisodeConfig
from sla.tasks.fewshot.model import FewShotModel

MEMORY_LIMIT = 2 << 30  # bytes of embeddings that are held in memory; more lie in a file that nobody sees
AT_A_TIME = 1 << 24  # numbers of the features of the episodes that are scored at a time
Z = 1.96  # of a 95% interval, as few-shot tables have it


@torch.inference_mode()
def embed(model: FewShotModel, dataset: Dataset, pipeline: Pipeline, **passing: Any) -> Tensor:
    """The features of every view of every image, float32 (n, M, D), on the CPU.

    `passing`: batch_size, workers, progress and what, as `iterate_eval` has them.
    """
    found = torch.empty(0)
    for batch in iterate_eval(model, dataset, **passing):
        images = pipeline(batch.images, batch.draws, batch.aspect)
        features = model.view_features(images.contiguous(memory_format=torch.channels_last))
        if not len(found):
            found = _place_for((len(dataset), *features.shape[1:]))
        found[batch.indices] = features.cpu()
    return found


def _place_for(shape: tuple[int, ...]) -> Tensor:
    need = 4 * math.prod(shape)
    if need <= MEMORY_LIMIT:
        return torch.empty(shape)
    file = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the array, and has no name to clear up
    check_space(Path(tempfile.gettempdir()), need, "keeping the features of every image")
    return torch.from_numpy(np.memmap(file, np.float32, "w+", shape=shape))


@torch.inference_mode()
def episode_accuracies(
    model: FewShotModel, embedded: Tensor, episodes: Episodes, count: int
) -> dict[str, np.ndarray]:
    """Accuracy in percent of each of the first `count` episodes, (count,), by inference.

    `embedded` is what `embed` made of the dataset that the episodes are drawn from.
    """
    device, size = next(model.parameters()).device, embedded.shape[1] * embedded.shape[2]
    images = episodes.way * (episodes.shot + episodes.num_query)
    at_a_time = max(AT_A_TIME // (images * size), 1)
    found: dict[str, list[Tensor]] = {inference: [] for inference in model.inferences}
    with evaluating(model):
        for first in range(0, count, at_a_time):
            batch = episodes.batch(first, min(at_a_time, count - first))
            support, targets, query, wanted = map(torch.from_numpy, batch)
            shown, asked = embedded[support].to(device), embedded[query].to(device)
            joint = model.joint_logits(shown, targets.to(device), asked, episodes.way)
            for inference, logits in model.class_logits(joint).items():
                found[inference].append(100 * (logits.argmax(2).cpu() == wanted).double().mean(1))
    return {inference: torch.cat(parts).numpy() for inference, parts in found.items()}


def evaluate_episodes(
    model: FewShotModel,
    dataset: Dataset,
    settings: EpisodeConfig,
    *,
    shots: Sequence[int] | None = None,
    episodes: int | None = None,
    way: int | None = None,
    query: int | None = None,
    seed: int = 0,
    workers: int = 0,
    progress: Progress = QUIET,
) -> dict[int, dict[str, np.ndarray]]:
    """Accuracy in percent of each episode, by shot and inference; the same episodes for every model.

    What is not given is as `settings` has it.
    """
    named = ("--way", "--shot", "--query")
    drawn = {
        shot: Episodes(dataset, way or settings.way, shot, query or settings.test_query, seed, named)
        for shot in shots or settings.test_shots
    }
    pipeline, what = model.preprocessing.eval_pipeline(), "embedding test images"
    embedded = embed(model, dataset, pipeline, workers=workers, progress=progress, what=what)
    count = episodes or settings.test_episodes
    return {shot: episode_accuracies(model, embedded, some, count) for shot, some in drawn.items()}


def episode_interval(accuracies: np.ndarray) -> Interval:
    """The mean over episodes with its 95% interval, 1.96 * std / sqrt(n) to each side."""
    if len(accuracies) < 2:
        raise InputError("an interval needs at least 2 episodes")
    mean, half = float(accuracies.mean()), Z * float(accuracies.std()) / math.sqrt(len(accuracies))
    return Interval(mean, mean - half, mean + half)


def paired_interval(accuracies: np.ndarray, baseline: np.ndarray) -> Interval:
    """The mean difference of two models on the same episodes, with its 95% interval."""
    if len(accuracies) != len(baseline):
        raise InputError(f"{len(accuracies)} and {len(baseline)} episodes cannot be paired")
    return episode_interval(accuracies - baseline)
