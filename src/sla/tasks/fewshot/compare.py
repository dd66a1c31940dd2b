"""One or two few-shot models on many episodes of unseen classes; of two, the difference too."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from sla.errors import InputError
from sla.images.storage import OnBadImage
from sla.images.store import Dataset
from sla.progress import QUIET, Progress
from sla.runs.defaults import override, same_source
from sla.stats import Interval
from sla.tasks.fewshot.evaluate import episode_interval, evaluate_episodes, paired_interval
from sla.tasks.fewshot.run import open_tested, other_test_set

Value = TypeVar("Value")
MOST_QUERIES = 15  # of each class, where neither a run nor an option says how many


@dataclass(frozen=True)
class Score:
    """The accuracy of a model over episodes, in percent; `run` as it was named."""

    run: str
    shot: int
    inference: str
    accuracy: Interval


@dataclass(frozen=True)
class Difference:
    """Points of the second model above the first, each by its best inference, episode by episode."""

    shot: int
    inferences: tuple[str, str]
    points: Interval


@dataclass(frozen=True)
class EpisodeScores:
    """How many episodes of which kind, of which images, and what came out."""

    episodes: int
    way: int
    query: int
    dataset: Dataset
    scores: list[Score]
    differences: list[Difference]  # none for one model


def score_episodes(
    names: Sequence[str],
    *,
    data: str | None = None,
    shots: Sequence[int] | None = None,
    way: int | None = None,
    query: int | None = None,
    episodes: int | None = None,
    seed: int = 0,
    method: str | None = None,
    views: str | None = None,
    checkpoint: str = "last",
    on_bad_image: OnBadImage | None = None,
    progress: Progress = QUIET,
) -> EpisodeScores:
    """Test runs by their folders, or pretrained backbones by their names, with `method` and `views`.

    On the runs' own test classes, or on other `data`. What is not given is as in the runs' configurations,
    which must then agree; on other data there are as many ways and queries as its classes allow.
    """
    if len(names) > 2:
        raise InputError(f"one run, or two to compare, not {len(names)}")
    if (method or views) and all(Path(name).is_dir() for name in names):
        raise InputError("--method and --views are for pretrained backbones: a run has its own")
    chosen = [(None, None) if Path(name).is_dir() else (method, views) for name in names]
    models = [open_tested(name, checkpoint, *some) for name, some in zip(names, chosen, strict=True)]
    own = [model.config.episodes for model in models]
    shots = _agreed("--shot", shots, [part.test_shots for part in own])
    ways = _agreed("--way", way, [part.way for part in own])
    if not data or query is not None:
        query = _agreed("--query", query, [part.test_query for part in own])
    count = _agreed("--episodes", episodes, [part.test_episodes for part in own])
    tests = []
    for model in models:
        if on_bad_image is not None:
            model.config = override(model.config, "data", on_bad_image=on_bad_image)
        tests.append(other_test_set(model, data, models, progress) if data else model.test_set(progress))
    alike = data or same_source(models[0].config.data.source, models[-1].config.data.source)
    if not alike or len({(test.classes, len(test)) for test in tests}) > 1:
        raise InputError(f"{names[0]} and {names[1]} are tested on different images: name some by --data")
    if way is None and data:
        ways = min(ways, tests[0].num_classes)
    query = _most_queries(tests, max(shots)) if query is None else query
    same: dict[str, Any] = {"shots": shots, "episodes": count, "way": ways, "query": query, "seed": seed}
    found = []
    for model, test in zip(models, tests, strict=True):
        settings, same["workers"] = model.config.episodes, model.config.data.workers
        found.append(evaluate_episodes(model.model, test, settings, progress=progress, **same))
    scores = [
        Score(name, shot, inference, episode_interval(accuracies[shot][inference]))
        for name, model, accuracies in zip(names, models, found, strict=True)
        for shot in shots
        for inference in model.model.inferences
    ]
    differences = []
    if len(models) == 2:
        first, second = best = models[0].model.inferences[-1], models[1].model.inferences[-1]
        for shot in shots:
            points = paired_interval(found[1][shot][second], found[0][shot][first])
            differences.append(Difference(shot, best, points))
    return EpisodeScores(count, ways, query, tests[0], scores, differences)


def _most_queries(tests: Sequence[Dataset], shot: int) -> int:
    """As many query images as the smallest class leaves."""
    smallest = min(int(test.counts().min()) for test in tests)
    if smallest <= shot:
        left = f"{shot} shots leave no queries; lower --shot"
        raise InputError(f"the smallest class has {smallest} pictures: {left}")
    return min(smallest - shot, MOST_QUERIES)


def _agreed(option: str, given: Value | None, own: Sequence[Value]) -> Value:
    """What was given, or what the runs were set to, which must be the same: else nothing could be paired."""
    if given is not None:
        return given
    if len(set(own)) > 1:
        raise InputError(f"these runs were set to {own[0]} and {own[1]}: give {option}")
    return own[0]
