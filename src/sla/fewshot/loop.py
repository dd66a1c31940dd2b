"""The few-shot training loop, top to bottom."""

import math
import time
from pathlib import Path

import torch
from torch import Tensor

from sla.backbones.dropblock import advance_step
from sla.data.draws import seed_of
from sla.data.episodes import Episodes
from sla.data.loader import Batch, EpisodeLoader, resident
from sla.data.recipe import eval_pipeline, train_pipeline
from sla.errors import InputError, SLAError
from sla.fewshot.config import FewShotOptimizer
from sla.fewshot.evaluate import embed, episode_accuracies
from sla.fewshot.model import FewShotModel, build_model, load_model, save_model
from sla.fewshot.plan import FewShotPlan
from sla.training.build import load_backbone
from sla.training.checkpoint import (
    WEIGHTS,
    Position,
    find_checkpoint,
    optimizer_tensors,
    read_state,
    restore_optimizer,
    save_checkpoint,
)
from sla.training.distributed import Group
from sla.training.loop import CHECKPOINT_SECONDS, ROWS, Watch, spaced
from sla.training.metrics import Meter, MetricsFile
from sla.training.stop import Stop


class FewShotTrainer:
    """One run: what it is made of, and the loop over its steps, each of some episodes."""

    def __init__(self, plan: FewShotPlan, folder: Path) -> None:
        self.plan, self.config, self.folder = plan, plan.config, folder
        run, part = self.config.run, self.config.episodes
        assert part.per_step is not None
        self.steps, self.per_step, self.device = (
            run.iterations,
            part.per_step,
            torch.device(run.device or "cpu"),
        )
        self.model = build_first_model(plan).to(self.device)
        self.model = self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        optimizer = self.config.optimizer
        self.optimizer = torch.optim.SGD(
            self.model.parameters(),
            lr=optimizer.learning_rate or 0.1,
            momentum=optimizer.momentum,
            nesterov=optimizer.nesterov and optimizer.momentum > 0,
            weight_decay=optimizer.weight_decay,
        )
        text, model = self.config.augment or "none", self.config.model
        assert model.resolution is not None
        assert model.mean is not None
        assert model.std is not None
        self.train_pipeline = train_pipeline(text, model.resolution, model.mean, model.std)
        self.eval_pipeline = eval_pipeline(text, model.resolution, model.mean, model.std)
        self.episodes = Episodes(plan.train, part.way, part.shot, part.query, run.seed)
        # The same for every method and seed, so that runs are chosen on the same tasks.
        self.val_episodes: Episodes | None = None
        if plan.val is not None:
            self.val_episodes = Episodes(plan.val, part.way, part.val_shot or 1, part.test_query)
        self.targets = [
            torch.arange(part.way, device=self.device).repeat_interleave(count).expand(self.per_step, -1)
            for count in (part.shot, part.query)
        ]
        self.position, self.meter = Position(images=len(plan.train)), Meter()
        columns = ["learning_rate", "loss", "train", *(f"val_{kind}" for kind in self.model.kinds)]
        self.metrics = MetricsFile(folder / "metrics.csv", columns)

    def fit(self, stop: Stop, watch: Watch | None = None) -> bool:
        """Train from where the run stands to its end; False when it was asked to stop before."""
        run, group = self.config.run, Group()
        self.metrics.start(self.position.step)
        evaluate_at, row_every = (
            spaced(self.steps, min(run.evaluations, self.steps)),
            max(self.steps // ROWS, 1),
        )
        started = saved = time.monotonic()
        seconds_before = self.position.seconds
        self.model.train()
        for batch in self._batches():
            rate = (self.config.optimizer.learning_rate or 0.1) * rate_factor(
                self.config.optimizer, batch.step, self.steps
            )
            for parameters in self.optimizer.param_groups:
                parameters["lr"] = rate
            # Dropout too follows from seed and step, so a resumed run needs no random state.
            torch.manual_seed(seed_of(run.seed, "step", batch.step, 0))
            self.learn(batch)

            done, now = batch.step + 1, time.monotonic()
            self.position.step, self.position.seconds = done, seconds_before + now - started
            row: dict[str, float] = {}
            if done % row_every == 0 or done in evaluate_at:
                if not self.meter.finite:
                    raise SLAError(f"the loss is no number at step {done}: a lower learning rate may help")
                row = {"learning_rate": rate, **self.meter.close(group)}
                if done in evaluate_at and self.val_episodes is not None:
                    row |= self._evaluate(done)
                self.metrics.add(done, row)
            if watch is not None:
                watch(done, self.steps, row)
            due = (
                done % run.checkpoint_every == 0 if run.checkpoint_every else now - saved > CHECKPOINT_SECONDS
            )
            if due or stop.requested or done in evaluate_at:
                self._checkpoint("last")
                saved = time.monotonic()
            if stop.requested and done < self.steps:
                return False
        return True

    def learn(self, batch: Batch) -> None:
        """One step of the optimiser, from the images of all its episodes at once."""
        images = self.train_pipeline(batch.images, batch.draws, batch.aspect)
        images = images.contiguous(memory_format=torch.channels_last)
        part, (targets, query_targets) = self.config.episodes, self.targets
        support, query = images.split([targets.numel(), query_targets.numel()])
        losses = self.model.losses(
            support.unflatten(0, targets.shape),
            targets,
            query.unflatten(0, query_targets.shape),
            query_targets,
            part.way,
            self.config.method.label_smoothing,
        )
        self.optimizer.zero_grad(set_to_none=True)
        losses["loss"].backward()
        self.optimizer.step()
        advance_step(self.model)
        self.meter.add(losses, query_targets.flatten(), 1.0)

    def resume(self) -> None:
        """Take everything back from the last checkpoint."""
        found = find_checkpoint(self.folder / "checkpoint", "last")
        if found is None:
            return
        position, tensors = read_state(found)
        saved = load_model(found / WEIGHTS, self.device)
        if saved.about["classes"] != list(self.plan.train.classes) or position.images != len(self.plan.train):
            was = f"{len(saved.about['classes'])} classes, {position.images:,} images to train on"
            raise InputError(f"{self.folder}: the data is not what it was when the run began: {was}")
        self.position = position
        self.model.load_state_dict(saved.state_dict())
        restore_optimizer(self.optimizer, tensors)
        self.meter.sums = {
            name.removeprefix("sum."): value.to(self.device)
            for name, value in tensors.items()
            if name.startswith("sum.")
        }

    def _batches(self) -> EpisodeLoader:
        train = self.plan.train
        if train.images.in_memory and self.device.type != "cpu":
            train = resident(train, self.device)
        return EpisodeLoader(
            train,
            self.episodes,
            self.per_step,
            steps=self.steps,
            start_step=self.position.step,
            workers=self.config.data.workers,
            device=self.device,
        )

    def _evaluate(self, done: int) -> dict[str, float]:
        """Accuracy on the episodes of the validation classes; the best checkpoint so far is kept."""
        assert self.plan.val is not None
        assert self.val_episodes is not None
        embedded = embed(self.model, self.plan.val, self.eval_pipeline, workers=self.config.data.workers)
        scores = episode_accuracies(
            self.model, embedded, self.val_episodes, self.config.episodes.val_episodes
        )
        found = {kind: float(values.mean()) for kind, values in scores.items()}
        if found[self.model.kinds[-1]] > self.position.best_accuracy:
            self.position.best_accuracy, self.position.best_step = found[self.model.kinds[-1]], done
            self._checkpoint("best")
        return {f"val_{kind}": value for kind, value in found.items()}

    def _checkpoint(self, kind: str) -> None:
        """Write `last`, with all that a resumed run needs, or `best`, with the weights alone."""
        if not all(bool(value.isfinite().all()) for value in self.model.parameters()):
            raise SLAError(f"weights became no numbers at step {self.position.step}: nothing was overwritten")
        tensors: dict[str, Tensor] = {}
        if kind == "last":
            tensors = optimizer_tensors(self.optimizer) | {f"sum.{n}": v for n, v in self.meter.sums.items()}
        save_checkpoint(self.folder / "checkpoint", kind, self.position, self._write_weights, tensors)

    def _write_weights(self, path: Path) -> None:
        save_model(self.model, path, step=self.position.step)


def build_first_model(plan: FewShotPlan) -> FewShotModel:
    """A new model, its random weights from the seed, its first weights where they are asked for."""
    config = plan.config
    about = {
        "backbone": config.model.backbone,
        "backbone_options": dict(config.model.options),
        "head": config.method.name,
        "head_options": dict(config.method.options),
        "views": config.method.views,
        "reading": config.model.reading,
        "classes": list(plan.train.classes),
        "preprocessing": {
            "augment": config.augment,
            "resolution": config.model.resolution,
            "stored_size": config.data.stored_size,
            "mean": config.model.mean,
            "std": config.model.std,
        },
    }
    weights = config.model.weights or "none"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.run.seed)
        model = build_model(about, pretrained=weights == "pretrained")
    if weights not in ("none", "pretrained"):
        load_backbone(model, weights)  # type: ignore[arg-type]  # it looks at the backbone alone
    return model


def rate_factor(config: FewShotOptimizer, step: int, steps: int) -> float:
    """What the learning rate is multiplied with at `step` of `steps`; steps count from 0."""
    if config.schedule == "constant":
        return 1.0
    if config.schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * step / steps))
    passed = sum(step >= share * steps for share in config.milestones)
    return (1.0, *config.factors)[passed]
