"""Randomness: every draw is determined by seed, step and the image's position in the global batch."""

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor


def seed_of(*parts: int | str) -> int:
    """A 63-bit seed determined by the parts alone."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def generator(*parts: int | str) -> torch.Generator:
    """A generator whose stream is determined by the parts alone."""
    return torch.Generator().manual_seed(seed_of(*parts))


@dataclass(frozen=True)
class Draws:
    """The random numbers of one step, for this process's part of the global batch.

    Numbers are drawn for the whole global batch and then cut to `start:stop`, so the number of processes
    and workers, and an interruption, change nothing. Each use has a name of its own, so adding one
    augmentation does not change the draws of another.
    """

    seed: int
    step: int
    batch_size: int  # of the global batch
    start: int = 0  # this process's part of it
    stop: int | None = None

    def uniform(self, name: str, size: int = 1) -> Tensor:
        """float32 in [0, 1), (b, size), one row per image; on the CPU."""
        stream = generator(self.seed, self.step, name)
        return torch.rand(self.batch_size, size, generator=stream)[self.start : self.stop]

    def integers(self, name: str, high: int, size: int = 1) -> Tensor:
        """int64 in [0, high), (b, size), one row per image; on the CPU. `high` up to a million or so."""
        # float32 has 24 bits: u * high never rounds up to high, and is uniform enough for image positions
        return (self.uniform(name, size) * high).long()

    def batch(self, name: str) -> torch.Generator:
        """A generator for draws that the whole batch shares (a permutation, one box)."""
        return generator(self.seed, self.step, name, "batch")
