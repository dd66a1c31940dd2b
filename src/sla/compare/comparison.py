"""Runs compared on the same images: accuracies, differences, and whether chance explains them."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sla.compare.shared_images import SharedImages, open_runs
from sla.errors import shown
from sla.images.storage import OnBadImage
from sla.images.store import Dataset
from sla.progress import QUIET, Progress
from sla.runs.config import keys
from sla.runs.metrics import confidences
from sla.runs.run import CHOSEN
from sla.stats import Interval, holm, mcnemar, mean_sd, paired, paired_shares, share
from sla.tasks.classifier.choice import MODELS
from sla.tasks.classifier.config import FEATURES, ClassifierConfig
from sla.tasks.classifier.run import Run
from sla.tasks.classifier.split import same_classes

MOST_SAID = 3  # differences that the summary lists one by one
MEASURED = ("run.seed", "run.compile_reason", "run.pace")  # keys in which seeds of one configuration differ
RISK = 0.05  # significance level: a difference is clear if its p-value is below


@dataclass(frozen=True)
class Entry:
    """A run with one inference: its predicted classes (n,) and their probabilities (n,)."""

    run: Run
    inference: str
    predicted: Tensor
    confidence: Tensor

    @property
    def name(self) -> str:
        """The folder as it was typed, the model if the run has several, and the inference."""
        model = f", {self.run.model_name}" if self.run.model_name else ""
        return f"{shown(self.run.folder)}{model}, {self.inference}"


class Difference(NamedTuple):
    """An entry compared with the first on the same images; `points` is the difference of accuracies."""

    both_right: int
    gained: int  # correct where the first is wrong
    lost: int  # wrong where the first is correct
    both_wrong: int
    points: Interval
    p: float  # McNemar's, exact
    adjusted: float  # for the number of differences, by Holm

    @property
    def outcome(self) -> str:
        """better, worse, or no clear difference, as the p-value decides."""
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
    """Entries that differ only in their seed: indices in the comparison, seeds, accuracies in percent."""

    places: list[int]
    seeds: list[int]
    values: list[float]

    @property
    def spread(self) -> tuple[float, float]:
        """Mean and standard deviation over the seeds."""
        return mean_sd(self.values)

    def difference(self, first: "SeedGroup") -> Interval | None:
        """Paired by seed (Student's t); None unless both have the same seeds, at least two, each once."""
        seeds = sorted(self.seeds)
        if seeds != sorted(first.seeds) or len(set(seeds)) < max(len(seeds), 2):
            return None
        ours, theirs = (dict(zip(one.seeds, one.values, strict=True)) for one in (self, first))
        return paired([ours[seed] for seed in seeds], [theirs[seed] for seed in seeds])


@dataclass(frozen=True)
class Comparison:
    """Entries evaluated on the images that no run was trained on; the first is the reference."""

    dataset: Dataset  # its classes in the first run's order
    what: str  # what the images are, e.g. `test images`
    entries: list[Entry]
    notes: list[str]

    @cached_property
    def right(self) -> list[Tensor]:
        """For each entry whether its predictions are correct, bool (n,)."""
        targets = torch.as_tensor(self.dataset.targets)
        return [entry.predicted == targets for entry in self.entries]

    @cached_property
    def accuracies(self) -> list[Interval]:
        """For each entry the accuracy in percent, with Wilson's interval."""
        return [share(int(right.sum()), len(right)) for right in self.right]

    @cached_property
    def differences(self) -> list[Difference]:
        """Every other entry compared with the first."""
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
        """The images that an entry gained and lost against the first, most confident mistakes first."""
        first, other = self.entries[0], self.entries[place]
        gained, lost = self.right[place] & ~self.right[0], ~self.right[place] & self.right[0]

        def most_confident(flipped: Tensor, wrong: Entry) -> list[int]:
            found = flipped.nonzero().squeeze(1)
            return found[wrong.confidence[found].argsort(descending=True, stable=True)].tolist()

        return most_confident(gained, first), most_confident(lost, other)

    @cached_property
    def groups(self) -> list[SeedGroup]:
        """Entries grouped by configuration except the seed; empty if every configuration has one seed."""
        found: dict[str, list[int]] = {}
        for place, entry in enumerate(self.entries):
            config = {key: value for key, value in _values(entry.run.config).items() if key not in MEASURED}
            if config["run.minutes"] is not None:
                del config["run.iterations"]
            step = entry.run.unfinished  # what is not at its end is not one of the seeds of what is
            found.setdefault(json.dumps([entry.inference, step, config], default=str), []).append(place)
        seeds = [entry.run.config.run.seed for entry in self.entries]
        if all(len({seeds[place] for place in places}) == 1 for places in found.values()):
            return []
        top1 = [accuracy.mean for accuracy in self.accuracies]
        return [SeedGroup(own, [seeds[i] for i in own], [top1[i] for i in own]) for own in found.values()]

    @cached_property
    def settings(self) -> dict[str, list[Any]]:
        """The configuration keys that differ, with the value of each entry."""
        trees = [_values(entry.run.config) for entry in self.entries]
        columns = {key: [tree[key] for tree in trees] for key in keys(ClassifierConfig)}
        return {key: values for key, values in columns.items() if any(v != values[0] for v in values)}

    def summary(self) -> str:
        """What the numbers show, in words."""
        first, top1 = self.entries[0], self.accuracies[0].mean
        words = [f"On {len(self.dataset):,} {self.what}, {first.name} has an accuracy of {top1:.1f}%."]
        others = list(zip(self.entries[1:], self.differences, strict=True))
        for entry, one in others if len(others) <= MOST_SAID else []:
            words.append(
                f"{entry.name}: {one.points.mean:+.1f} points (95% interval {one.points.ends('+.1f')}; "
                f"{one.gained:,} gained, {one.lost:,} lost, p {format_p(one.adjusted)}), {one.verdict}."
            )
        if len(others) > MOST_SAID:
            said = Counter(one.outcome for _, one in others)
            parts = [f"{n} {what.replace('no ', 'with no ', 1)}" for what, n in said.items()]
            words.append(f"Of the {len(others)} other runs: {', '.join(parts)}.")
        for group in self.groups[1:]:
            if found := group.difference(self.groups[0]):
                name, points = self.entries[group.places[0]].name, f"{found.mean:+.1f} points"
                ends = found.ends("+.1f")
                words.append(f"Over {len(group.seeds)} seeds of {name}: {points} (95% interval {ends}).")
        return " ".join(words)


def format_p(p: float) -> str:
    """`= 0.031`, or `< 0.001`."""
    return "< 0.001" if p < 0.001 else f"= {p:.3f}"


def _values(config: ClassifierConfig) -> dict[str, Any]:
    """Every key of a configuration with its value."""
    tree, found = config.model_dump(mode="json"), {}
    for key in keys(ClassifierConfig):
        part, _, name = key.rpartition(".")
        found[key] = (tree[part] if part else tree)[name]
    return found


def compare(
    names: Sequence[str | Run],
    *,
    inference: str | None = None,
    agreement: float | None = None,
    checkpoint: str = CHOSEN,
    data: Any = None,
    on_bad_image: OnBadImage | None = None,
    progress: Progress = QUIET,
) -> Comparison:
    """Open runs, each `FOLDER`, `FOLDER:INFERENCE` or an opened `Run`, and evaluate all on the same images.

    The images are the first run's own test images (or held-out ones), or those of `data`. The inference is
    the one in the name, else `inference`, else anytime if an `agreement` is given, else each run's headline.
    `agreement`: share of images on which anytime inference agrees with aggregated inference, by default 0.99.
    """
    runs, inferences = open_runs(names, inference, checkpoint, agreement, progress)
    images = SharedImages(list(dict.fromkeys(runs)), data, on_bad_image, progress)
    images.notes += [*_describe_rules(runs, inferences), *_only_quick(runs)]
    outputs = {}
    for run, dataset in images.of.items():
        own = tuple(name for one, name in zip(runs, inferences, strict=True) if one is run)
        what = f"evaluating {shown(run.folder)}"
        outputs[run] = run.outputs(dataset, progress=progress, what=what, inferences=own)
    entries, classes = [], runs[0].classes
    places = {one: place for place, one in enumerate(classes)}
    for run, name in zip(runs, inferences, strict=True):
        # The runs may number the classes differently.
        number = torch.tensor([places[one] for one in run.classes])
        confidence, predicted = confidences(outputs[run].logits[name], run.temperatures.get(name, 1.0))
        entries.append(Entry(run, name, number[predicted], confidence))
    return Comparison(same_classes(images.of[runs[0]], classes), images.what, entries, images.notes)


def _describe_rules(runs: Sequence[Run], inferences: Sequence[str]) -> list[str]:
    """Which share of answers each run keeps by anytime inference."""
    return [
        f"{shown(run.folder)}: anytime inference agrees with aggregated inference on "
        f"{100 * rule.agreement:g}% of images, calibrated on {rule.images:,} held-out images."
        for run, name in zip(runs, inferences, strict=True)
        if name == "anytime" and (rule := run.model.anytime_rule) is not None
    ]


def _only_quick(runs: Sequence[Run]) -> list[str]:
    """A note where several runs answer by their quick models, to which methods make no difference."""
    quick = [run for run in dict.fromkeys(runs) if run.model_name == MODELS[FEATURES]]
    if len(quick) < max(2, len(set(runs))):
        return []
    return [
        "every run answers with its quick model, which no method changes; --checkpoint last compares training"
    ]


def as_tree(comparison: Comparison) -> dict[str, Any]:
    """The whole comparison for JSON; accuracies in percent, differences in percentage points."""
    entries = []
    for place, (entry, top1) in enumerate(zip(comparison.entries, comparison.accuracies, strict=True)):
        tree = {
            "run": str(entry.run.folder),
            "inference": entry.inference,
            "method": entry.run.config.method.name,
            "seed": entry.run.config.run.seed,
            "right": int(comparison.right[place].sum()),
            "top1": top1._asdict(),
            "cost": entry.run.result.get("cost"),
        }
        if place:
            one = comparison.differences[place - 1]
            tree["difference"] = {**one._asdict(), "points": one.points._asdict(), "verdict": one.outcome}
            both = zip(("gained", "lost"), comparison.flipped(place), strict=True)
            tree["flipped"] = {name: [_flip(comparison, place, i) for i in images] for name, images in both}
        entries.append(tree)
    groups = []
    for group in comparison.groups:
        mean, sd = group.spread
        tree = {"entries": group.places, "seeds": group.seeds, "mean": mean}
        found = group.difference(comparison.groups[0]) if group is not comparison.groups[0] else None
        more = {"sd": sd if len(group.seeds) > 1 else None, "paired_by_seed": found and found._asdict()}
        groups.append(tree | more)
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
        "first": classes[int(comparison.entries[0].predicted[image])],
        "this": classes[int(comparison.entries[place].predicted[image])],
    }
