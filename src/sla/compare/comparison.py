"""Runs side by side on the same images: who is right where the other is not, and what chance explains."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sla.compare.shared_images import SharedImages, open_runs
from sla.datasets.download import Progress
from sla.errors import shown
from sla.images.storage import OnBadImage
from sla.images.store import Dataset
from sla.runs.config import Config, keys
from sla.stats import Interval, holm, mcnemar, mean_sd, paired, paired_shares, share
from sla.tasks.classifier.run import Run
from sla.tasks.classifier.split import same_classes

MOST_SAID = 3  # differences told one by one in the summary
RISK = 0.05  # a difference is called clear when chance alone would give it less often than this


@dataclass(frozen=True)
class Entry:
    """A run with one kind of inference, and what it answered: classes (n,), and how sure it was (n,)."""

    run: Run
    inference: str
    given: Tensor
    confidence: Tensor

    @property
    def name(self) -> str:
        """The folder as it was typed, and the kind."""
        return f"{shown(self.run.folder)}, {self.inference}"


class Difference(NamedTuple):
    """An entry against the first one, on the same images: counts, points with their interval, p-values."""

    both_right: int
    gained: int  # right where the first was wrong
    lost: int  # wrong where the first was right
    both_wrong: int
    points: Interval
    p: float  # McNemar's, exact
    adjusted: float  # by Holm, for as many differences as there are

    @property
    def outcome(self) -> str:
        """In one word or three, as the p-value decides."""
        if self.adjusted >= RISK:
            return "no clear difference"
        return "better" if self.gained > self.lost else "worse"

    @property
    def verdict(self) -> str:
        """The outcome, and a remark where the interval alone would have said something else."""
        if (self.points.sign != 0) == (self.adjusted < RISK):
            return self.outcome
        return f"{self.outcome} (p decides; the interval {'excludes' if self.points.sign else 'includes'} 0)"


@dataclass(frozen=True)
class SeedGroup:
    """Entries that differ in their seed alone: places in the comparison, seeds, accuracies in percent."""

    places: list[int]
    seeds: list[int]
    values: list[float]

    @property
    def spread(self) -> tuple[float, float]:
        """Mean and standard deviation over the seeds."""
        return mean_sd(self.values)

    def difference(self, first: "SeedGroup") -> Interval | None:
        """Paired by seed, by Student's t; None unless both have the same seeds, two at least, each once."""
        seeds = sorted(self.seeds)
        if seeds != sorted(first.seeds) or len(set(seeds)) < max(len(seeds), 2):
            return None
        ours, theirs = (dict(zip(one.seeds, one.values, strict=True)) for one in (self, first))
        return paired([ours[seed] for seed in seeds], [theirs[seed] for seed in seeds])


@dataclass(frozen=True)
class Comparison:
    """Entries on the images that all of them can be judged by; the first is what the others are held to."""

    dataset: Dataset  # its classes in the first run's order
    what: str  # the images' name
    entries: list[Entry]
    notes: list[str]

    @cached_property
    def right(self) -> list[Tensor]:
        """For each entry whether it was right, bool (n,)."""
        targets = torch.as_tensor(self.dataset.targets)
        return [entry.given == targets for entry in self.entries]

    @cached_property
    def accuracies(self) -> list[Interval]:
        """For each entry the share of right answers in percent, by Wilson."""
        return [share(int(right.sum()), len(right)) for right in self.right]

    @cached_property
    def differences(self) -> list[Difference]:
        """Of every entry but the first to the first."""
        first, counts = self.right[0], []
        for right in self.right[1:]:
            gained, lost = int((right & ~first).sum()), int((~right & first).sum())
            counts.append((int((right & first).sum()), gained, lost, int((~right & ~first).sum())))
        raw = [mcnemar(gained, lost) for _, gained, lost, _ in counts]
        return [
            Difference(both, gained, lost, neither, paired_shares(gained, lost, len(first)), p, adjusted)
            for (both, gained, lost, neither), p, adjusted in zip(counts, raw, holm(raw), strict=True)
        ]

    def flipped(self, place: int) -> tuple[list[int], list[int]]:
        """The images that an entry gained and lost against the first; the surest wrong answer comes first."""
        first, other = self.entries[0], self.entries[place]
        gained, lost = self.right[place] & ~self.right[0], ~self.right[place] & self.right[0]

        def surest(checkpoint: Tensor, wrong: Entry) -> list[int]:
            found = checkpoint.nonzero().squeeze(1)
            return found[wrong.confidence[found].argsort(descending=True, stable=True)].tolist()

        return surest(gained, first), surest(lost, other)

    @cached_property
    def groups(self) -> list[SeedGroup]:
        """Entries by configuration but for the seed, in order; none where no seed was repeated."""
        found: dict[str, list[int]] = {}
        for place, entry in enumerate(self.entries):
            config = _values(entry.run.config)
            del config["run.seed"]
            found.setdefault(json.dumps([entry.inference, config], default=str), []).append(place)
        if all(len(places) == 1 for places in found.values()):
            return []
        return [
            SeedGroup(
                places,
                [self.entries[place].run.config.run.seed for place in places],
                [self.accuracies[place].mean for place in places],
            )
            for places in found.values()
        ]

    @cached_property
    def settings(self) -> dict[str, list[Any]]:
        """The keys of the configuration that are not alike, with the value of each entry."""
        trees = [_values(entry.run.config) for entry in self.entries]
        columns = {key: [tree[key] for tree in trees] for key in keys()}
        return {key: values for key, values in columns.items() if any(v != values[0] for v in values)}

    def summary(self) -> str:
        """What the numbers show, in words that follow from them."""
        first, top1 = self.entries[0], self.accuracies[0].mean
        words = [f"On {len(self.dataset):,} {self.what}, {first.name} is right on {top1:.1f}%."]
        others = list(zip(self.entries[1:], self.differences, strict=True))
        for entry, one in others if len(others) <= MOST_SAID else []:
            mean, low, high = one.points
            words.append(
                f"{entry.name}: {mean:+.1f} points (95% interval {low:+.1f} to {high:+.1f}; "
                f"{one.gained:,} gained, {one.lost:,} lost, p {format_p(one.adjusted)}), {one.verdict}."
            )
        if len(others) > MOST_SAID:
            said = Counter(one.outcome for _, one in others)
            parts = [f"{n} {what.replace('no ', 'without ', 1)}" for what, n in said.items()]
            words.append(f"Of {len(others)} others: {', '.join(parts)}.")
        for group in self.groups[1:]:
            if found := group.difference(self.groups[0]):
                name, points = self.entries[group.places[0]].name, f"{found.mean:+.1f} points"
                ends = f"{found.low:+.1f} to {found.high:+.1f}"
                words.append(f"Over {len(group.seeds)} seeds, {name} and its like: {points} ({ends}).")
        return " ".join(words)


def format_p(p: float) -> str:
    """`= 0.031`, or `< 0.001`."""
    return "< 0.001" if p < 0.001 else f"= {p:.3f}"


def _values(config: Config) -> dict[str, Any]:
    """Every key of a configuration with its value, as plain values."""
    tree, found = config.model_dump(mode="json"), {}
    for key in keys():
        part, _, name = key.rpartition(".")
        found[key] = (tree[part] if part else tree)[name]
    return found


def compare(
    names: Sequence[str],
    *,
    inference: str | None = None,
    checkpoint: str = "last",
    data: str | Path | None = None,
    on_bad_image: OnBadImage | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Open runs, each `FOLDER` or `FOLDER:KIND`, and put the same images to all of them.

    The images are the first run's own test images (or held-out ones), or those of `data`; the kind of
    inference is the one named, else `how`, else each run's headline.
    """
    runs, kinds = open_runs(names, inference, checkpoint)
    images = SharedImages(list(dict.fromkeys(runs)), data, on_bad_image, progress)
    outputs = {
        run: run.evaluate(
            images.of[run],
            partial(progress, f"looking at the images with {shown(run.folder)}") if progress else None,
            inferences=tuple(kind for one, kind in zip(runs, kinds, strict=True) if one is run),
        )
        for run in images.of
    }
    entries, classes = [], runs[0].classes
    for run, kind in zip(runs, kinds, strict=True):
        place = torch.tensor([classes.index(name) for name in run.classes])  # of its classes in the first's
        logits = outputs[run].logits[kind].double() / run.temperatures.get(kind, 1.0)
        confidence, given = logits.softmax(1).max(1)
        entries.append(Entry(run, kind, place[given], confidence))
    return Comparison(same_classes(images.of[runs[0]], classes), images.what, entries, images.notes)


def as_tree(comparison: Comparison) -> dict[str, Any]:
    """The whole comparison as plain values, for JSON; shares and differences in percent and points."""
    entries = []
    for place, (entry, top1) in enumerate(zip(comparison.entries, comparison.accuracies, strict=True)):
        tree = {
            "run": str(entry.run.folder),
            "how": entry.inference,
            "method": entry.run.config.method.name,
            "seed": entry.run.config.run.seed,
            "right": int(comparison.right[place].sum()),
            "top1": top1._asdict(),
            "cost": entry.run.result.get("cost"),
        }
        if place:
            one = comparison.differences[place - 1]
            gained, lost = (
                [_flip(comparison, place, image) for image in images] for images in comparison.flipped(place)
            )
            tree["difference"] = {**one._asdict(), "points": one.points._asdict(), "verdict": one.outcome}
            tree["flipped"] = {"gained": gained, "lost": lost}
        entries.append(tree)
    groups = []
    for group in comparison.groups:
        mean, sd = group.spread
        paired_by_seed = group.difference(comparison.groups[0]) if group is not comparison.groups[0] else None
        groups.append(
            {
                "entries": group.places,
                "seeds": group.seeds,
                "mean": mean,
                "sd": sd if len(group.seeds) > 1 else None,
                "paired_by_seed": paired_by_seed and paired_by_seed._asdict(),
            }
        )
    return {
        "images": len(comparison.dataset),
        "what": comparison.what,
        "notes": comparison.notes,
        "entries": entries,
        "seed_groups": groups,
        "settings": comparison.settings,
    }


def _flip(comparison: Comparison, place: int, image: int) -> dict[str, str]:
    classes = comparison.dataset.classes
    return {
        "image": comparison.dataset.name(image),
        "class": classes[int(comparison.dataset.targets[image])],
        "first": classes[int(comparison.entries[0].given[image])],
        "this": classes[int(comparison.entries[place].given[image])],
    }
