"""Class logits of held-out and test images, kept beside the checkpoint that gave them, so that nothing is
evaluated twice.

A file has, for each inference, the logits (n, N) of n images, which are known by the content of their stored
pixels. Where that would be too large, it has the TOP largest logits of each image and the sum of the others.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sla.model_file import read_model_file, write_model_file
from sla.runs.checkpoint import WEIGHTS, file_checksum

MAX_BYTES = 100 << 20
MAX_DENSE = 4 << 30  # bytes of logits that are made of the largest ones
TOP = 16
ROWS = 64  # images at a time, where a copy of all in float64 would be large


@dataclass(frozen=True)
class Scores:
    """Class logits (n, N) by inference, and the content keys (n,) of the images, on the CPU."""

    logits: dict[str, Tensor]
    keys: np.ndarray

    def of(self, keys: np.ndarray) -> dict[str, Tensor] | None:
        """The logits of the images with these keys, in their order; None where one is missing."""
        places, logits = self.find(keys)
        return logits if len(self.keys) and len(places) == len(keys) else None

    def find(self, keys: np.ndarray) -> tuple[np.ndarray, dict[str, Tensor]]:
        """The places of those of these keys that have scores, in their order, and their logits."""
        order = np.argsort(self.keys, kind="stable")
        near = np.searchsorted(self.keys[order], keys).clip(max=max(len(order) - 1, 0))
        places = np.flatnonzero(self.keys[order[near]] == keys) if len(order) else np.empty(0, np.int64)
        rows = torch.from_numpy(order[near[places]])
        if np.array_equal(rows, np.arange(len(self.keys))):
            return places, dict(self.logits)  # as they are: a copy may be large
        return places, {inference: logits[rows] for inference, logits in self.logits.items()}


def scores_file(checkpoint: Path, split: str) -> Path:
    """Where the scores of a split lie, in the folder of a checkpoint."""
    return checkpoint / f"scores-{split}.safetensors"


def write_scores(path: Path, scores: Scores) -> None:
    """Write the file, whole or not at all."""
    tensors = {"keys": torch.from_numpy(scores.keys.view(np.int64).copy())}
    size = sum(4 * logits.numel() for logits in scores.logits.values())
    for inference, logits in scores.logits.items():
        count = logits.shape[1]
        if size <= MAX_BYTES or count <= 2 * TOP:
            tensors[f"logits.{inference}"] = logits.float()
            continue
        best = logits.float().topk(TOP, 1)
        rest = _sum_of_others(logits, best.indices) - math.log(count - TOP)
        tensors[f"top.{inference}"], tensors[f"classes.{inference}"] = best.values, best.indices.int()
        tensors[f"rest.{inference}"] = rest.float()
        tensors["count"] = torch.tensor(count)
    write_model_file(path, tensors, {"weights": weights_beside(path)}, "scores", checksum=True)


def _sum_of_others(logits: Tensor, kept: Tensor) -> Tensor:
    """log sum exp of the logits (n, N) but for those of the classes (n, k), float64 (n,)."""
    parts = zip(logits.split(ROWS), kept.split(ROWS), strict=True)
    return torch.cat([some.double().scatter(1, own, -math.inf).logsumexp(1) for some, own in parts])


def weights_beside(path: Path) -> str:
    """A checksum of the weights that gave the scores; empty where there are none."""
    weights = path.parent / WEIGHTS
    return file_checksum(weights) if weights.is_file() else ""


def read_scores(path: Path, inferences: Collection[str] | None = None) -> Scores | None:
    """What `write_scores` wrote; None where there is no file, or a damaged one: evaluating gives it again.

    Of logits that were not kept, each has the one value with which they sum to what they did: probabilities
    of the kept ones are exact at temperature 1. `inferences`: only these, of those that are there.
    """
    try:
        about, tensors = read_model_file(path, "scores", "scores", checksum=True)
        if about["weights"] != weights_beside(path):
            return None  # of another model
        if tensors["keys"].dtype != torch.int64 or tensors["keys"].ndim != 1:
            return None
        keys = tensors["keys"].numpy().view(np.uint64)
        found = {}
        for name, value in tensors.items():
            kind, _, inference = name.partition(".")
            if inferences is not None and inference not in inferences:
                continue
            if kind == "logits":
                found[inference] = value
            elif kind == "top":
                rest, count = tensors[f"rest.{inference}"].unsqueeze(1), int(tensors["count"])
                if 4 * len(rest) * count > MAX_DENSE:
                    return None
                dense = rest.repeat(1, count)
                found[inference] = dense.scatter_(1, tensors[f"classes.{inference}"].long(), value)
    except (OSError, KeyError, IndexError, TypeError, ValueError, RuntimeError):  # ours is a ValueError
        return None
    whole = all(
        logits.ndim == 2 and len(logits) == len(keys) and logits.is_floating_point()
        for logits in found.values()
    )
    return Scores(found, keys) if whole else None
