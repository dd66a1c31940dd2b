"""Searching an augmentation policy by density matching (Fast AutoAugment): no policy is ever trained with.

For each of a few folds a network learns on one part of the training images, without policies. Then candidate
policies are tried on the other part: the network should still know the images they make. A candidate is
scored by the loss of each image's best of a few draws, averaged over images; TPE proposes the next one. The
best candidates of all folds, joined, are the policy. What is finished is kept in a folder: a search that was
stopped continues where it was.
"""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sla.augment.ops import Pipeline
from sla.augment.pipelines import refuse_policy
from sla.augment.policy import SCALES, make_policy
from sla.disk import exclusive, reason, replacing
from sla.errors import InputError, MissingExtraError, shown
from sla.images.store import Dataset, Splits
from sla.progress import QUIET, Progress, StepsOnly
from sla.runs.config import read_config, validate
from sla.runs.preprocessing import build_pipelines
from sla.runs.signals import StoppedError
from sla.sampling.draws import Draws, generator, seed_of
from sla.sampling.protocols import hold_out
from sla.session import train
from sla.tasks.classifier.config import ClassifierConfig
from sla.tasks.classifier.plan import make_plan
from sla.tasks.classifier.run import Run
from sla.trees import parse_json

OPERATIONS = tuple(name for name in SCALES if not name.endswith(("Abs", "2")) and name != "Identity")
SCORED_AT_ONCE = 250  # images
TRAINING_SHARE = 0.5  # of the minutes, for the networks of the folds


@dataclass(frozen=True)
class SearchSettings:
    """How large the search is; the defaults are those of Fast AutoAugment but for folds and images."""

    folds: int = 2
    held_out: float = 0.4  # of the training images, to score on
    images: int = 1000  # at most, of them
    trials: int = 200  # candidates a fold
    sub_policies: int = 5  # of a candidate
    operations: int = 2  # of a sub-policy
    draws: int = 5  # of each image under a candidate
    best: int = 10  # candidates kept of each fold
    minutes: float | None = None  # for everything; trials is then not a limit
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("folds", "images", "trials", "sub_policies", "operations", "draws", "best"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, not {getattr(self, name)}")
        if not 0 < self.held_out < 1:
            raise InputError(f"the share to score on must be between 0 and 1, not {self.held_out}")
        if self.minutes is not None and not self.minutes > 0:
            raise InputError(f"minutes must be above 0, not {self.minutes}")


def search_policy(
    config: ClassifierConfig,
    settings: SearchSettings,
    folder: Path,
    command: str,
    *,
    splits: Splits | None = None,
    progress: Progress = QUIET,
) -> dict[str, Any]:
    """The content of a policy file: the best sub-policies and what made them.

    config says which images and which network; its held-out and test images are never used. folder
    keeps what is finished.
    """
    try:
        import optuna
    except ImportError:
        raise MissingExtraError("searching a policy", "search") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with _alone_in(folder):
        plan = make_plan(config, splits, progress)
        refuse_policy(plan.config.augment or "none")
        _refuse_other_search(folder, plan.config, settings)
        parts = [hold_out(plan.train, settings.held_out, seed=fold) for fold in range(settings.folds)]
        folds, kept = [], []
        for fold, (learnt, scored) in enumerate(parts):
            some = torch.randperm(len(scored), generator=generator(settings.seed, "search", fold))
            scored = scored.subset(some[: settings.images].sort().values.numpy())
            run = _learn(plan.config, settings, learnt, folder / f"fold-{fold}", progress)
            scorer = _Scorer(run, scored, settings)
            plain = scorer.score(None)
            numbers = f"loss {plain['loss']:.3f}, accuracy {plain['accuracy']:.1f}%"
            progress.message(f"fold {fold}: without a policy, {numbers}")
            trials = _try_candidates(
                optuna, scorer, settings, fold, folder / f"trials-{fold}.jsonl", progress
            )
            ranked = sorted(trials, key=lambda trial: trial["loss"])[: settings.best]
            kept += [sub_policy for trial in ranked for sub_policy in trial["policy"]]
            best, worst = ranked[0], ranked[-1]
            folds.append(
                {
                    "learnt_on": len(learnt),
                    "scored_on": len(scored),
                    "without_policy": plain,
                    "trials": len(trials),
                    "kept_losses": [best["loss"], worst["loss"]],
                    "kept_accuracies": [best["accuracy"], worst["accuracy"]],
                }
            )
        return {
            "about": "found by density matching on held-out training images; see docs/augmentation.md",
            "command": command,
            "data": config.data.source,
            "images": len(plan.train),
            "backbone": plan.config.model.backbone,
            "augment": plan.config.augment,
            "settings": asdict(settings),
            "folds": folds,
            "sub_policies": kept,
        }


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """One search at a time; one that was refused before its first network leaves nothing behind."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with exclusive(folder / ".lock", wait=False):
            try:
                yield
            finally:
                there = list(folder.iterdir())
                if {path.name for path in there} <= {".lock", "search.json"}:
                    for path in there:
                        path.unlink()
                    folder.rmdir()
    except BlockingIOError:
        raise InputError(f"{shown(folder)}: in use by another search") from None
    except OSError as error:
        raise InputError(f"{shown(folder)}: {reason(error)}") from None


def _refuse_other_search(folder: Path, config: ClassifierConfig, settings: SearchSettings) -> None:
    """Refuse a folder of another search: its trials would not be comparable."""
    path, own = folder / "search.json", asdict(settings) | {"minutes": None, "trials": 0}
    named = {"config": config.model_dump(mode="json"), "settings": own}
    text = json.dumps(named, indent=1, sort_keys=True)
    if not path.exists():
        with replacing(path) as file:
            file.write(text.encode())
    elif path.read_text(encoding="utf-8") != text:
        raise InputError(f"{shown(folder)}: a search with other settings; remove it or choose another --work")


def _learn(
    config: ClassifierConfig, settings: SearchSettings, images: Dataset, folder: Path, progress: Progress
) -> Run:
    """The network of a fold: an ordinary run, so it is resumed like one."""
    if (folder / "result.json").is_file():
        return Run(folder)
    begun = (folder / "config.yaml").is_file() and (folder / "checkpoint").is_dir()
    tree = config.model_dump(mode="json")
    tree["data"] |= {"hold_out": 0.0, "per_class": None}
    if settings.minutes is not None:
        minutes = TRAINING_SHARE * settings.minutes / settings.folds
        tree["run"] |= {"minutes": minutes, "iterations": None, "epochs": None}
    config = validate(ClassifierConfig, read_config(folder / "config.yaml") if begun else tree, str(folder))
    progress.message(f"{folder.name}: training on {len(images):,} images")
    splits = Splits(config.data.source, images)
    try:
        train(config, folder, resume=begun, splits=splits, progress=StepsOnly(progress))
    except StoppedError:
        raise StoppedError("stopped; what is finished is kept: the same command continues") from None
    return Run(folder)


class _Scorer:
    """A network, the images it has not seen, and how well it knows what policies make of them."""

    def __init__(self, run: Run, images: Dataset, settings: SearchSettings) -> None:
        self.model = run.model.eval()
        training, _ = build_pipelines(run.config)
        self.ops, self.settings = training.ops, settings
        pixels, self.aspect = images.read(range(len(images)))
        self.images, self.targets = pixels, torch.from_numpy(images.targets)

    def score(self, policy: list[Any] | None) -> dict[str, float]:
        """Under a candidate, or with crops and flips alone: loss and accuracy of each image's best draw."""
        first = (make_policy(policy, "candidate"),) if policy else ()
        pipeline = Pipeline((*first, *self.ops))
        passes = [self._pass(pipeline, number) for number in range(self.settings.draws)]
        losses = torch.stack([found[0] for found in passes]).amin(0)
        right = torch.stack([found[1] for found in passes]).any(0)
        return {"loss": losses.mean().item(), "accuracy": 100 * right.float().mean().item()}

    @torch.inference_mode()
    def _pass(self, pipeline: Pipeline, number: int) -> tuple[Tensor, Tensor]:
        """(n,) losses and (n,) whether right. Every candidate sees the same crops and flips."""
        losses, right = [], []
        for start in range(0, len(self.images), SCORED_AT_ONCE):
            part = slice(start, start + SCORED_AT_ONCE)
            draws = Draws(self.settings.seed, number, len(self.images), start, part.stop)
            logits = self.model(pipeline(self.images[part], draws, self.aspect[part]))
            losses.append(F.cross_entropy(logits, self.targets[part], reduction="none"))
            right.append(logits.argmax(1) == self.targets[part])
        return torch.cat(losses), torch.cat(right)


def _try_candidates(
    optuna: Any, scorer: _Scorer, settings: SearchSettings, fold: int, log: Path, progress: Progress
) -> list[dict[str, Any]]:
    """The trials of a fold: those in the log, then new ones, each written down as it ends."""
    space = _space(optuna, settings)
    study = optuna.create_study(direction="minimize")
    trials = _read_log(log)
    for trial in trials:
        known = {"params": trial["params"], "distributions": space, "value": trial["loss"]}
        study.add_trial(optuna.trial.create_trial(**known))
    wanted, seconds = settings.trials, None
    if settings.minutes is not None:
        seconds = 60 * settings.minutes * (1 - TRAINING_SHARE) / settings.folds
    spent, last_report = sum(trial["seconds"] for trial in trials), time.monotonic()
    best = min((trial["loss"] for trial in trials), default=float("inf"))
    while (len(trials) < wanted) if seconds is None else (spent < seconds or not trials):
        began = time.monotonic()
        # A sampler that follows from seed, fold and number: a search that was stopped proposes the same.
        number = seed_of(settings.seed, fold, len(trials)) % 2**32
        study.sampler = optuna.samplers.TPESampler(seed=number, n_startup_trials=20)
        asked = study.ask(space)
        policy = _policy(asked.params, settings)
        found = scorer.score(policy)
        study.tell(asked, found["loss"])
        taken = time.monotonic() - began
        trials.append({"params": asked.params, "policy": policy, **found, "seconds": taken})
        with open(log, "a", encoding="utf-8") as file:
            file.write(json.dumps(trials[-1]) + "\n")
        spent, best = spent + taken, min(best, found["loss"])
        done, total, unit = len(trials), wanted, "candidates"
        if seconds is not None:
            done, total, unit = int(spent), int(seconds), "seconds"
        progress.advance(f"fold {fold}: {unit}", done, total)
        if time.monotonic() - last_report > 10 or len(trials) == 1:
            last_report = time.monotonic()
            progress.message(f"fold {fold}: {len(trials)} candidates, best loss {best:.3f}")
    return trials


def _space(optuna: Any, settings: SearchSettings) -> dict[str, Any]:
    """What TPE chooses: for each operation of each sub-policy which, how often and how much."""
    which = optuna.distributions.CategoricalDistribution(OPERATIONS)
    number = optuna.distributions.FloatDistribution(0.0, 1.0)
    kinds = {"operation": which, "probability": number, "magnitude": number}
    return {f"{key}.{name}": kind for key in _keys(settings) for name, kind in kinds.items()}


def _keys(settings: SearchSettings) -> list[str]:
    return [f"{i}.{j}" for i in range(settings.sub_policies) for j in range(settings.operations)]


def _policy(params: dict[str, Any], settings: SearchSettings) -> list[Any]:
    entries = []
    for key in _keys(settings):
        numbers = (round(params[f"{key}.{name}"], 4) for name in ("probability", "magnitude"))
        entries.append([params[f"{key}.operation"], *numbers])
    return [entries[i : i + settings.operations] for i in range(0, len(entries), settings.operations)]


def _read_log(log: Path) -> list[dict[str, Any]]:
    """Finished trials; a last line that was cut off does not count and is written over."""
    if not log.exists():
        return []
    trials, kept = [], ""
    for line in log.read_text(encoding="utf-8").splitlines(keepends=True):
        try:
            trials.append(parse_json(line))
            kept += line
        except ValueError:
            break
    with replacing(log) as file:
        file.write(kept.encode())
    return trials
