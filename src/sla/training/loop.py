"""The training loop, top to bottom."""

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sla.backbones.dropblock import advance_step
from sla.criteria import CrossEntropy
from sla.data.draws import seed_of
from sla.data.loader import Batch, TrainLoader, resident
from sla.data.mixing import parse_mix
from sla.errors import InputError, MissingExtraError, SLAError
from sla.factory import read_saved, save
from sla.labels import MixedTarget, Target, split_target
from sla.training.build import build_model, build_optimizer, build_pipelines, choose_views
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
from sla.training.ema import Average
from sla.training.evaluation import accuracies
from sla.training.metrics import Meter, MetricsFile
from sla.training.plan import Plan
from sla.training.schedules import rate_factor
from sla.training.step import Step
from sla.training.stop import Stop

ROWS = 200  # of training losses in metrics.csv, about
CHECKPOINT_SECONDS = 60.0
EVAL_BATCH = 256

Watch = Callable[[int, int, dict[str, float]], None]  # steps done, steps in all, the newest numbers


class Trainer:
    """One run: what it is made of, and the loop over its steps."""

    def __init__(self, plan: Plan, folder: Path, group: Group) -> None:
        self.plan, self.config, self.folder, self.group = plan, plan.config, folder, group
        run = self.config.run
        assert run.iterations is not None
        assert run.batch_size is not None
        self.steps, self.batch_size = run.iterations, run.batch_size
        name = run.device or "cpu"
        self.device = torch.device(f"cuda:{group.local_rank}" if name == "cuda" else name)
        self.model = build_model(self.config, plan.train.classes, plan.train.counts())
        self.model = self.model.to(self.device)
        if run.channels_last:
            self.model = self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.optimizer = build_optimizer(self.config, self.model)
        ema = self.config.optimizer.ema
        self.average = Average(self.model, ema) if ema else None
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=run.precision == "float16")
        self.train_pipeline, self.eval_pipeline = build_pipelines(self.config)
        self.mix = parse_mix(self.config.mix)
        self.position, self.meter = Position(images=len(plan.train)), Meter()
        method = self.model.method
        columns = ["epoch", "learning_rate", "loss", *method.parts, "train"]
        self.metrics = MetricsFile(
            folder / "metrics.csv", [*columns, *(f"val_{how}" for how in method.kinds)]
        )

    def fit(self, stop: Stop, watch: Watch | None = None) -> bool:
        """Train from where the run stands to its end; False when it was asked to stop before."""
        run, optimizer = self.config.run, self.config.optimizer
        board = self._open_board() if self.group.leads and run.tensorboard else None
        if self.group.leads:
            self.metrics.start(self.position.step)
        evaluate_at = spaced(self.steps, run.evaluations or 1)
        snapshot_at = spaced(self.steps, run.snapshots)
        row_every = max(self.steps // ROWS, 1)
        started = saved = time.monotonic()
        seconds_before, frozen, step_module = self.position.seconds, None, None
        for batch in self._batches():
            step = batch.step
            if frozen != (step < optimizer.frozen * self.steps):
                frozen = step < optimizer.frozen * self.steps
                step_module = self.prepare(frozen)
            assert step_module is not None
            factor = rate_factor(optimizer, step, self.steps)
            for group in self.optimizer.param_groups:
                group["lr"] = group["base_lr"] * factor
            for criterion in self.model.method.criteria:
                if isinstance(criterion, CrossEntropy):
                    criterion.advance(step, self.steps)
            # Dropout too follows from seed, step and process, so a resumed run needs no random state.
            torch.manual_seed(seed_of(run.seed, "step", step, self.group.rank))
            self.learn(step_module, batch)
            if self.average is not None:
                self.average.update(self.model, step)

            done, now = step + 1, time.monotonic()
            self.position.step, self.position.seconds = done, seconds_before + now - started
            row: dict[str, float] = {}
            if done % row_every == 0 or done in evaluate_at:
                row = self._close_row(done, factor)
                if done in evaluate_at and self.plan.val is not None:
                    row |= self._evaluate(done)
                if self.group.leads:
                    self.metrics.add(done, row)
                if board is not None:
                    for name, value in row.items():
                        board.add_scalar(name, value, done)
            if watch is not None:
                watch(done, self.steps, row)
            due = (
                done % run.checkpoint_every == 0 if run.checkpoint_every else now - saved > CHECKPOINT_SECONDS
            )
            stopping, due = self.group.any(stop.requested, due)
            if due or stopping or done in evaluate_at:
                self._checkpoint("last")
                saved = time.monotonic()
            if done in snapshot_at and self.group.leads:
                self._write_weights(self.folder / "snapshots" / f"{done:08d}.safetensors")
            if stopping and done < self.steps:
                return False
        return True

    def learn(self, step_module: nn.Module, batch: Batch) -> None:
        """One step of the optimiser, from one batch in as many parts as are asked for."""
        optimizer, method = self.config.optimizer, self.model.method
        images = self.train_pipeline(batch.images, batch.draws, batch.aspect)
        target: Target = batch.targets
        if self.mix is not None:
            images, partner, lam = self.mix(images, batch.draws)
            target = MixedTarget(batch.targets, batch.targets[partner], lam)
        if self.config.run.channels_last and images.ndim == 4:
            images = images.contiguous(memory_format=torch.channels_last)
        count = self.config.method.views_per_step or len(method.views)
        views = choose_views(batch.draws, len(method.views), count, method.needs_plain)
        self.optimizer.zero_grad(set_to_none=True)
        parts = min(optimizer.accumulate, len(images))
        chosen = [None] * parts if views is None else views.to(self.device).tensor_split(parts)
        pieces = list(zip(images.tensor_split(parts), split_target(target, parts), chosen, strict=True))
        for number, (piece, targets, seen) in enumerate(pieces):
            share = len(piece) / len(images)
            with self._unsynchronised(step_module, until_last=number == len(pieces) - 1):
                with self._autocast():
                    losses = step_module(piece, targets, seen)
                self.scaler.scale(losses["loss"] * share).backward()
            self.meter.add(losses, targets, share)
        if self.device.type == "cpu":  # elsewhere a look would wait for the device: rows do it
            self._refuse_nan(batch.step)
        if optimizer.clip is not None:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), optimizer.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        advance_step(self.model)

    def prepare(self, frozen: bool) -> nn.Module:
        """The step to call: the backbone fixed or learning, compiled and wrapped for many processes."""
        self.model.train()
        self.model.backbone.requires_grad_(not frozen)
        if frozen:
            self.model.backbone.eval()
        step = self.group.wrap(Step(self.model))
        return torch.compile(step) if self.config.run.compile else step  # type: ignore[return-value]

    def resume(self) -> None:
        """Take everything back from the last checkpoint."""
        found = find_checkpoint(self.folder / "checkpoint", "last")
        if found is None:
            return
        position, tensors = read_state(found)
        described, weights = read_saved(found / WEIGHTS)
        if described["classes"] != list(self.plan.train.classes) or position.images != len(self.plan.train):
            was = f"{len(described['classes'])} classes, {position.images:,} images to train on"
            raise InputError(f"{self.folder}: the data is not what it was when the run began: {was}")
        self.position = position
        if self.average is not None:
            self.average.restore(tensors)
            weights = _below("model.", tensors)
        self.model.load_state_dict(weights)
        restore_optimizer(self.optimizer, tensors)
        if self.scaler.is_enabled():
            self.scaler.load_state_dict({n: v.item() for n, v in _below("scaler.", tensors).items()})
        keep = 1.0 if self.group.leads else 0.0  # the leading process has the sums of all
        self.meter.sums = {n: keep * v.to(self.device) for n, v in _below("sum.", tensors).items()}

    def _batches(self) -> TrainLoader:
        train = self.plan.train
        if train.images.in_memory and self.device.type != "cpu":
            train = resident(train, self.device)
        return TrainLoader(
            train,
            self.batch_size,
            seed=self.config.run.seed,
            steps=self.steps,
            start_step=self.position.step,
            rank=self.group.rank,
            world_size=self.group.world_size,
            workers=self.config.data.workers or 0,
            device=self.device,
            sampling=self.config.data.sampling,
        )

    def _unsynchronised(self, step_module: nn.Module, until_last: bool) -> AbstractContextManager:
        """Gradients of a part are averaged over the processes only with those of the last part."""
        return nullcontext() if until_last or self.group.world_size == 1 else step_module.no_sync()  # type: ignore[operator]

    def _autocast(self) -> AbstractContextManager:
        precision = self.config.run.precision or "float32"
        if precision == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=getattr(torch, precision))

    def _averaged(self) -> AbstractContextManager:
        return self.average.applied(self.model) if self.average is not None else nullcontext()

    def _open_board(self) -> Any:
        """TensorBoard's writer; rows that a stopped run wrote after its checkpoint are hidden."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise MissingExtraError("run.tensorboard", "track") from None
        return SummaryWriter(self.folder / "tensorboard", purge_step=self.position.step)

    def _refuse_nan(self, step: int) -> None:
        if not self.meter.finite:
            found = find_checkpoint(self.folder / "checkpoint", "last")
            kept = f"{found.name} is kept" if found else "there was no checkpoint yet"
            raise SLAError(
                f"the loss is no number at step {step + 1}; {kept}: a lower learning rate may help"
            )

    def _close_row(self, done: int, factor: float) -> dict[str, float]:
        self._refuse_nan(done - 1)
        rate = (self.config.optimizer.learning_rate or 0.0) * factor
        epoch = done * self.batch_size / len(self.plan.train)
        return {"epoch": epoch, "learning_rate": rate, **self.meter.close(self.group)}

    def _evaluate(self, done: int) -> dict[str, float]:
        """Accuracy on the held-out images; the best checkpoint so far is kept."""
        assert self.plan.val is not None
        workers = self.config.data.workers or 0
        with self._averaged():
            found = accuracies(self.model, self.plan.val, self.eval_pipeline, EVAL_BATCH, workers, self.group)
        if found[self.model.method.headline] > self.position.best_accuracy:
            self.position.best_accuracy = found[self.model.method.headline]
            self.position.best_step = done
            self._checkpoint("best")
        return {f"val_{how}": value for how, value in found.items()}

    def _checkpoint(self, kind: str) -> None:
        """Write `last`, with all that a resumed run needs, or `best`, with the weights alone."""
        self.meter.gather(self.group)
        if not self.group.leads:
            return
        if not all(bool(value.isfinite().all()) for value in self.model.parameters()):
            raise SLAError(f"weights became no numbers at step {self.position.step}: nothing was overwritten")
        tensors = {}
        if kind == "last":
            tensors = optimizer_tensors(self.optimizer) | {f"sum.{n}": v for n, v in self.meter.sums.items()}
            tensors |= {f"scaler.{n}": torch.tensor(v) for n, v in self.scaler.state_dict().items()}
            if self.average is not None:
                tensors |= {f"model.{name}": value for name, value in self.model.state_dict().items()}
                tensors |= self.average.tensors()
        save_checkpoint(self.folder / "checkpoint", kind, self.position, self._write_weights, tensors)

    def _write_weights(self, path: Path) -> None:
        """The classifier as it would be used: averaged where there is an average."""
        config = self.config
        preprocessing = {
            "augment": config.augment,
            "resolution": config.model.resolution,
            "stored_size": config.data.stored_size,
            "mean": config.model.mean,
            "std": config.model.std,
        }
        with self._averaged():
            save(self.model, path, step=self.position.step, preprocessing=preprocessing)


def _below(prefix: str, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {n.removeprefix(prefix): value for n, value in tensors.items() if n.startswith(prefix)}


def spaced(steps: int, count: int) -> set[int]:
    """`count` evenly spaced numbers of steps done, the last of them all."""
    return {math.ceil(steps * (i + 1) / count) for i in range(count)}


def measure_seconds(plan: Plan, steps: int = 12) -> float:
    """Seconds of one training step, from a few steps of a model that is then thrown away."""
    run = plan.config.run.model_copy(update={"iterations": 1, "compile": False})
    throwaway = plan.config.model_copy(update={"run": run})
    trainer = Trainer(Plan(throwaway, plan.train, None, None, ()), Path(), Group())
    step_module = trainer.prepare(frozen=False)
    times: list[float] = []
    for batch in TrainLoader(plan.train, trainer.batch_size, seed=0, steps=steps, device=trainer.device):
        start = time.monotonic()
        trainer.learn(step_module, batch)
        if trainer.device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.monotonic() - start)
        if sum(times) > 10:
            break
    useful = sorted(times[2:] or times)  # the first ones warm up
    return useful[len(useful) // 2]
