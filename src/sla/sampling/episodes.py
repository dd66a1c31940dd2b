"""Few-shot episodes: small tasks of `way` classes, determined by seed and number alone."""

from typing import NamedTuple

import numpy as np

from sla.errors import InputError
from sla.images.store import Dataset
from sla.sampling.draws import seed_of
from sla.sampling.protocols import places_by_class


class Episode(NamedTuple):
    """One task, or several stacked along a first axis: places in the dataset, and classes 0 to way - 1.

    Class-major: the images of class 0 first. No image is in both support and query.
    """

    support: np.ndarray  # int64 (way * shot,)
    support_targets: np.ndarray  # int64 (way * shot,)
    query: np.ndarray  # int64 (way * query,)
    query_targets: np.ndarray  # int64 (way * query,)


class Episodes:
    """The endless list of episodes of a dataset: the same for every method, so comparisons are paired.

    named: the names of way, shot and query in messages, such as configuration keys.
    """

    def __init__(
        self,
        dataset: Dataset,
        way: int,
        shot: int,
        query: int,
        seed: int = 0,
        named: tuple[str, str, str] = ("way", "shot", "query"),
    ) -> None:
        if min(shot, query) < 1 or way < 2:
            given = f"{way}, {shot}, {query}: raise {' or '.join(named)}"
            raise InputError(f"an episode needs at least 2 classes, 1 shot and 1 query, not {given}")
        if (count := dataset.num_classes) < way:
            raise InputError(f"{way}-way episodes need {way} classes; there are {count}: lower {named[0]}")
        counts = dataset.counts()
        if counts.min() < shot + query:
            label = int(counts.argmin())
            need = f"{shot} shots and {query} queries need {shot + query}: lower {named[1]} or {named[2]}"
            raise InputError(f"class {dataset.classes[label]!r} has {counts[label]} images; {need}")
        self.way, self.shot, self.num_query, self.seed = way, shot, query, seed
        self._places = places_by_class(dataset)

    def episode(self, number: int) -> Episode:
        """Episode `number`, determined by it and the seed alone."""
        stream = np.random.default_rng(seed_of(self.seed, "episode", number))
        labels = stream.choice(len(self._places), self.way, replace=False)
        size = self.shot + self.num_query
        images = np.stack([stream.choice(self._places[label], size, replace=False) for label in labels])
        support, query = images[:, : self.shot], images[:, self.shot :]
        targets, wanted = (np.repeat(np.arange(self.way), part.shape[1]) for part in (support, query))
        return Episode(support.ravel(), targets, query.ravel(), wanted)

    def batch(self, first: int, count: int) -> Episode:
        """Episodes first to first + count - 1, stacked: every array gets a first axis of `count`."""
        if count < 1:
            raise InputError(f"a batch needs at least 1 episode, not {count}")
        parts = zip(*(self.episode(first + i) for i in range(count)), strict=True)
        return Episode(*(np.stack(part) for part in parts))
