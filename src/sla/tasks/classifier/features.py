"""The quick model: a linear classifier on frozen features of pretrained weights, judged by cross-validation.

It is the first stage of a run (`stages: features, train`), or a run of its own (method `features`). Every
picture goes through the backbone once, at the resolution of the weights. Training then begins with its head.
"""

import copy
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sla.accelerate import accelerate
from sla.backbones import find_weights
from sla.classifier import Classifier
from sla.errors import InputError
from sla.factory import load, save
from sla.heads import JointHead
from sla.images.content import content_keys
from sla.images.store import spread
from sla.progress import QUIET, Progress
from sla.runs.checkpoint import check_file, step_of
from sla.runs.distributed import Group
from sla.runs.evaluation import evaluating, iterate_eval
from sla.runs.folder import MAIN_STAGE, find_model_file, last_checkpoint
from sla.runs.loop import CHECKPOINT_SECONDS, set_train
from sla.runs.metrics import MetricsFile, cautious_temperature, temperature_interval, top_k_accuracy
from sla.runs.plan import Plan
from sla.runs.preprocessing import preprocessing_of
from sla.runs.scores import Scores, read_scores, scores_file, write_scores
from sla.runs.signals import Stop
from sla.sampling.draws import Draws, seed_of
from sla.stats import share
from sla.tasks.classifier.config import FEATURES, ClassifierConfig
from sla.tasks.classifier.evaluation import accuracies
from sla.tasks.classifier.linear_fit import CrossValidated, Reduced, cross_validate, fit_reduced, reduce
from sla.tasks.classifier.passes import forward_flop
from sla.tasks.classifier.trainer import EVAL_BATCH, Trainer
from sla.tasks.classifier.unlike import UnlikeRule, leave_one_out_rule, write_unlike

CHUNK = 64  # pictures per step
MIRRORED = 600  # training pictures up to which their mirror images are tried too
TIMED = 16  # pictures whose features are computed to see how long that takes
CROSS_VALIDATED = "cross-validated"  # scores of training pictures that were held out in turn
SAMPLE = 64  # pictures whose features' mean length scales the first weights of a head


def features_steps(images: int) -> int:
    """One for each chunk of pictures, and one for the classifier."""
    return math.ceil(images / CHUNK) + 1


def own_resolution(config: ClassifierConfig) -> int | None:
    """The resolution that published weights expect, else that of the run."""
    known = find_weights(config.model.backbone or "") if config.model.weights == "pretrained" else None
    return config.model.resolution if known is None else known.input.resolution


def _copies(images: int) -> int:
    return 2 if images <= MIRRORED else 1


def features_flop(config: ClassifierConfig, model: Classifier, images: int) -> int:
    """FLOP of the first stage of a run: so many pictures, mirrored too where that is tried."""
    return forward_flop(features_config(config, images), model) * images * _copies(images)


def features_config(config: ClassifierConfig, images: int) -> ClassifierConfig:
    """The configuration of the first stage, from that of its run."""
    method = type(config.method)(name=FEATURES, views="none", views_per_step=1)
    length = {"iterations": features_steps(images), "compile": False, "evaluations": 1, "snapshots": 0}
    return config.model_copy(
        update={
            "model": config.model.model_copy(
                update={"resolution": own_resolution(config), "train_resolution": None}
            ),
            "method": method,
            "optimizer": config.optimizer.model_copy(update={"ema": None}),
            "run": config.run.model_copy(update=length | {"precision": "float32", "tensorboard": False}),
            "mix": None,
            "stages": ("train",),
        }
    )


def features_seconds(plan: Plan[ClassifierConfig]) -> float:
    """About how long the first stage takes, by the time of one small batch."""
    config = features_config(plan.config, len(plan.train))
    with torch.random.fork_rng(devices=[]):
        trial = FeatureFit(replace(plan, config=config), Path("none"), Group())
    places = spread(len(plan.train), TIMED)
    start = time.monotonic()
    images, aspect = (part.to(trial.device) for part in plan.train.read(places))
    with evaluating(trial.model):
        trial._embed(trial.eval_pipeline(images, Draws(0, 0, len(places)), aspect))
    return (time.monotonic() - start) * len(plan.train) / len(places)


def check_features(config: ClassifierConfig) -> None:
    """Features are of weights that were trained before, and their classifier has one loss."""
    what = "method features" if config.is_features else "stages: features"
    if config.model.weights in (None, "none"):
        raise InputError(f"{what}: features need trained weights: --weights pretrained, or a file")
    if config.is_features and (config.method.criterion or config.method.imbalance not in ("none", "auto")):
        raise InputError(f"{what}: no criterion or imbalance: it is fitted by logistic regression")


class Embedded(nn.Module):
    """The features (n, c, D) and content keys (n,) of training pictures so far; c is 2 with mirror images."""

    features: Tensor

    keys: Tensor

    def __init__(self, images: int, copies: int, width: int) -> None:
        super().__init__()
        self.register_buffer("features", torch.zeros(images, copies, width))
        self.register_buffer("keys", torch.zeros(images, dtype=torch.int64))


class FeatureFit(Trainer):
    """Embeds the training pictures, chunk by chunk, and fits the head to them. One process does it."""

    memory: Embedded | None

    def __init__(self, plan: Plan[ClassifierConfig], folder: Path, group: Group) -> None:
        check_features(plan.config)
        super().__init__(plan, folder, group)
        self.steps = features_steps(len(plan.train))  # whatever the configuration says
        self.copies = _copies(len(plan.train))
        self.memory = Embedded(len(plan.train), self.copies, self.model.num_features)
        self.metrics = MetricsFile(folder / "metrics.csv", ["train", "val_cross_validated", "val_single"])
        self.fast: Classifier | None = None  # a copy of the model that makes the passes
        self.found: dict[str, Any] = {}  # by cross-validation, for the model's file
        # Scores of training pictures when they were held out, and the rule: beside the weights, at the end.
        self.held_out: Scores | None = None
        self.rule: UnlikeRule | None = None

    def fit(self, stop: Stop, progress: Progress = QUIET) -> bool:
        """The leading process works, the others wait for it."""
        finished = self.group.share(self._work(stop, progress) if self.group.leads else None)
        self.position.step = self.steps if finished else self.position.step
        return finished

    def resume(self) -> None:
        """From the features so far; a finished one has none left."""
        found = last_checkpoint(self.folder)
        if found is not None and step_of(found) >= self.steps:
            self.memory = None
        super().resume()

    def bytes_needed(self) -> int:
        """For the weights and the features, an old and a new checkpoint."""
        kept = 0 if self.memory is None else self.memory.features.numel() * 4
        return super().bytes_needed() + 2 * kept

    def write_weights(self, path: Path) -> None:
        """A classifier for `sla.load`; `about` has what cross-validation found."""
        about = {"step": self.position.step, "preprocessing": preprocessing_of(self.config).to_dict()}
        save(self.model, path, **about, cross_validation=self.found)
        # Here, so that the checkpoint appears with them.
        if self.held_out is not None:
            write_scores(scores_file(path.parent, CROSS_VALIDATED), self.held_out)
        if self.rule is not None:
            write_unlike(path.parent, self.rule)

    def cost(self) -> dict[str, Any]:
        """Forward passes alone."""
        seen = len(self.train) * self.copies
        return {"images_seen": seen, "training_flop": forward_flop(self.config, self.model) * seen}

    def _work(self, stop: Stop, progress: Progress) -> bool:
        if self.position.step >= self.steps:
            return True
        assert self.memory is not None
        before, started = self.position.seconds, time.monotonic()
        saved, first = started, self.position.step * CHUNK
        left = self.train.subset(range(first, len(self.train)))
        workers = self.config.data.workers or 0
        if len(left):
            pixels = self.config.model.resolution
            progress.message(f"computing the features of {len(left):,} pictures, at {pixels} pixels")
        for batch in iterate_eval(self.model, left, CHUNK, workers) if len(left) else ():
            images = self.eval_pipeline(batch.images, batch.draws, batch.aspect)
            self.memory.features[first : first + len(images)] = self._embed(images)
            keys = content_keys(batch.images).view(np.int64)
            self.memory.keys[first : first + len(images)] = torch.from_numpy(keys.copy())
            first += len(images)
            now = time.monotonic()
            self.position.step, self.position.seconds = self.position.step + 1, before + now - started
            progress.advance("features of pictures", first, len(self.train))
            if stop.requested or now - saved > CHECKPOINT_SECONDS:
                self._checkpoint("last")
                saved = now
            if stop.requested:
                return False
        row, self.held_out = self._solve(progress)
        plain, targets = self.memory.features[:, 0].cpu(), torch.from_numpy(self.train.targets)
        self.rule = leave_one_out_rule(plain, targets, self.model.num_classes)
        self.memory, self.position.step = None, self.steps
        self.position.seconds = before + time.monotonic() - started
        self.metrics.start(0)
        self.metrics.add(self.steps, row)
        self._checkpoint("last")
        return True

    @torch.inference_mode()
    def _embed(self, images: Tensor) -> Tensor:
        """(B, c, D), the picture and its mirror image."""
        if self.config.run.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        # The same copy whenever it resumes, so never by onnxruntime.
        self.fast = self.fast or accelerate(self.model, images[:2])
        shown = [images, images.flip(-1)][: self.copies]
        return torch.stack([self.fast.features(each).float().cpu() for each in shown], 1)

    def _solve(self, progress: Progress) -> tuple[dict[str, float], Scores]:
        """Fit the head; the row of metrics.csv, and the scores of pictures that were held out in turn."""
        assert self.memory is not None
        targets, num_classes = torch.from_numpy(self.train.targets), self.model.num_classes
        unit = F.normalize(self.memory.features.double(), dim=-1)
        tried: list[tuple[Reduced, CrossValidated]] = []
        for copies in range(1, self.copies + 1):
            reduced = reduce(unit[:, :copies])
            tried.append((reduced, cross_validate(reduced, targets, num_classes, progress=progress)))
        # Without cross-validation (nan) it is the first: nothing speaks for mirror images.
        best = min(range(len(tried)), key=lambda place: tried[place][1].nll)
        reduced, chosen = tried[best]
        linear = reduced.restore(fit_reduced(reduced, targets, num_classes, chosen.penalty))
        head = self.model.heads["plain"]
        with torch.no_grad():
            head.weight.copy_(linear.weight)  # type: ignore[operator]
            head.bias.copy_(linear.bias)  # type: ignore[operator]
        self.found = {"penalty": chosen.penalty, "mirrored": best > 0}
        row = {"train": top_k_accuracy(linear.logits(unit[:, 0]), targets)}
        if len(chosen.logits):
            wanted = targets[chosen.held]
            right = int((chosen.logits.argmax(1) == wanted).sum())
            temperature = cautious_temperature(chosen.logits, wanted)
            self.found |= {"images": len(wanted), "right": right, "temperature": temperature}
            self.found["temperature_interval"] = temperature_interval(chosen.logits, wanted, temperature)
            row["val_cross_validated"] = 100 * right / len(wanted)
        progress.message(describe_quick(self.found))
        if self.plan.val is not None:
            workers, alone = self.config.data.workers or 0, Group()
            passing = (self.eval_pipeline, EVAL_BATCH, workers, alone, progress)
            held = accuracies(self.model, self.plan.val, *passing)
            row["val_single"] = held["single"]
        keys = self.memory.keys[chosen.held].cpu().numpy().view(np.uint64)
        return row, Scores({"single": chosen.logits.float()}, keys)


def cross_validated_accuracy(found: dict[str, Any]) -> str:
    """What cross-validation found of the quick model; empty where it had too few pictures."""
    if "right" not in found:
        return ""
    right, images = found["right"], found["images"]
    accuracy = share(right, images).percent()
    return f"cross-validated accuracy {accuracy}, right on {right:,} of {images:,} training images"


def describe_quick(found: dict[str, Any]) -> str:
    """What cross-validation found, in a line about the quick model."""
    unknown = "no class has two pictures, so its accuracy is unknown"
    return f"quick model: frozen features; {cross_validated_accuracy(found) or unknown}"


def find_quick(folder: Path, device: torch.device | str = "cpu") -> Classifier | None:
    """The model of the first stage of the run in this folder; None where it has none."""
    if last_checkpoint(folder, FEATURES) is None:
        return None
    weights = find_model_file(folder, "last", FEATURES)
    check_file(weights)
    return load(weights, device)


def read_cross_validated(folder: Path) -> Scores | None:
    """The quick model's scores of training pictures of the run in this folder, when they were held out."""
    for stage in (FEATURES, MAIN_STAGE):
        found = last_checkpoint(folder, stage)
        scores = None if found is None else read_scores(scores_file(found, CROSS_VALIDATED))
        if scores is not None:
            return scores
    return None


def features_stage(plan: Plan[ClassifierConfig], group: Group, folder: Path) -> FeatureFit:
    """The first stage of a run, in its folder below the run's."""
    config = features_config(plan.config, len(plan.train))
    return FeatureFit(replace(plan, config=config), folder, group)


def training_after(plan: Plan[ClassifierConfig], group: Group, folder: Path) -> Trainer:
    """The training after it, in the run's folder: its class heads begin as that of the quick model."""
    trainer = Trainer(plan, folder, group)
    quick = find_quick(folder, trainer.device) if last_checkpoint(folder) is None else None
    if quick is not None:
        start_heads(trainer, trainer.model, quick)
        trainer.restart_ema()
    return trainer


@torch.no_grad()
def start_heads(trainer: Trainer, model: Classifier, quick: Classifier) -> bool:
    """Give a model's class heads the quick model's rows, divided by the mean length of its features.

    The quick head is for features of length 1, a linear head for features as they are: those of augmented
    pictures in training mode, where batch norm makes others than in evaluation. In a joint head every
    view's block begins with the same rows: it says nothing about the view yet, and the same about the class.
    A cosine head stays as it is: its weights have no scale of their own. False where a class head is one.
    """
    places = spread(len(trainer.train), SAMPLE)
    images, aspect = (part.to(trainer.device) for part in trainer.train.read(places))
    images = trainer.train_pipeline(images, Draws(trainer.config.run.seed, 0, len(places)), aspect)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of(trainer.config.run.seed, "first heads"))  # for dropout
        twin = copy.deepcopy(model)  # a pass in training mode may move the running statistics
        set_train(twin, trainer.config.optimizer)
        features = twin.features(images)
    length = features.norm(dim=1).mean().clamp(min=1e-6)
    given = quick.heads["plain"]
    assert isinstance(given, JointHead)
    assert given.bias is not None
    heads = [head for name, head in model.heads.items() if name in ("joint", "plain")]
    linear = [head for head in heads if isinstance(head, JointHead) and head.bias is not None]
    for head in linear:
        head.weight.copy_((given.weight / length).repeat_interleave(head.num_views, 0))
        head.bias.copy_(given.bias.repeat_interleave(head.num_views))  # type: ignore[union-attr]
    return len(linear) == len(heads)
