"""The training loop, top to bottom."""

import math
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from sla.data.draws import seed_of
from sla.data.loader import Batch, TrainLoader, resident
from sla.errors import MissingExtraError, SLAError
from sla.factory import read_saved, save
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
from sla.training.metrics import MetricsFile
from sla.training.plan import Plan
from sla.training.schedules import rate_factor
from sla.training.step import Step

ROWS = 200  # of training losses in metrics.csv, about
CHECKPOINT_SECONDS = 60.0

Watch = Callable[[int, int, dict[str, float]], None]  # steps done, steps in all, the newest numbers


class Stop:
    """Ctrl-C or SIGTERM: the first asks the loop to end after its step, a second Ctrl-C ends at once."""

    def __init__(self) -> None:
        self.requested = False

    @contextmanager
    def listening(self) -> Iterator["Stop"]:
        """Take the signals over, inside the block; only a main thread can."""
        kept = {}
        try:
            for number in (signal.SIGINT, signal.SIGTERM):
                kept[number] = signal.signal(number, self._ask)
        except ValueError:
            pass
        try:
            yield self
        finally:
            for number, handler in kept.items():
                signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.requested = True


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
        self.model = build_model(self.config, plan.train.classes).to(self.device)
        if run.channels_last:
            self.model = self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.optimizer = build_optimizer(self.config, self.model)
        ema = self.config.optimizer.ema
        self.average = Average(self.model, ema) if ema else None
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=run.precision == "float16")
        self.train_pipeline, self.eval_pipeline = build_pipelines(self.config)
        self.position = Position()
        self.sums: dict[str, Tensor] = {}  # of losses and hits since the last row of metrics
        kinds = self.model.method.kinds
        parts = {"sla": ["joint"], "sla+sd": ["joint", "distillation", "student"], "mt": ["class", "view"]}
        columns = ["epoch", "learning_rate", "loss", *parts.get(self.config.method.name, ()), "train"]
        self.metrics = MetricsFile(folder / "metrics.csv", [*columns, *(f"val_{how}" for how in kinds)])

    # ---- the loop ----

    def fit(self, stop: Stop, watch: Watch | None = None) -> bool:
        """Train from where the run stands to its end; False when it was asked to stop before."""
        run, start = self.config.run, time.monotonic()
        before, saved, frozen = self.position.seconds, time.monotonic(), None
        wrapped: nn.Module = Step(self.model)
        board = self._open_board() if self.group.leads and run.tensorboard else None
        if self.group.leads:
            self.metrics.start(self.position.step)
        train = self.plan.train
        if train.images.in_memory and self.device.type != "cpu":
            train = resident(train, self.device)
        loader = TrainLoader(
            train,
            self.batch_size,
            seed=run.seed,
            steps=self.steps,
            start_step=self.position.step,
            rank=self.group.rank,
            world_size=self.group.world_size,
            workers=self.config.data.workers or 0,
            device=self.device,
            sampling=self.config.data.sampling,
        )
        evaluate_at = spaced(self.steps, run.evaluations or 1)
        snapshot_at = spaced(self.steps, run.snapshots)
        row_every = max(self.steps // ROWS, 1)
        for batch in loader:
            step = batch.step
            if frozen != (step < self.config.optimizer.frozen * self.steps):
                frozen = step < self.config.optimizer.frozen * self.steps
                wrapped = self._prepare(frozen)
            factor = rate_factor(self.config.optimizer, step, self.steps)
            for group in self.optimizer.param_groups:
                group["lr"] = group["base_lr"] * factor
            # Dropout too follows from seed, step and process, so a resumed run needs no random state.
            torch.manual_seed(seed_of(run.seed, "step", step, self.group.rank))
            self._learn(wrapped, batch)
            if self.average is not None:
                self.average.update(self.model, step)

            done = step + 1
            self.position.step, self.position.seconds = done, before + time.monotonic() - start
            at_row, at_evaluation = done % row_every == 0 or done == self.steps, done in evaluate_at
            stopping = self.group.any(stop.requested)
            due = time.monotonic() - saved > CHECKPOINT_SECONDS
            if run.checkpoint_every:
                due = done % run.checkpoint_every == 0
            elif self.group.world_size > 1:
                due = self.group.any(due)
            if at_row or at_evaluation:
                row = self._close_row(done, factor)
                if at_evaluation and self.plan.val is not None:
                    row |= self._evaluate(done)
                if self.group.leads:
                    self.metrics.add(done, row)
                    if board is not None:
                        for name, value in row.items():
                            board.add_scalar(name, value, done)
                if watch is not None:
                    watch(done, self.steps, row)
            elif watch is not None:
                watch(done, self.steps, {})
            if due or at_evaluation or stopping or done == self.steps:
                self._checkpoint("last")
                saved = time.monotonic()
            if done in snapshot_at:
                self._snapshot(done)
            if stopping and done < self.steps:
                return False
        return True

    def _learn(self, wrapped: nn.Module, batch: Batch) -> None:
        """One step of the optimiser, from one batch in as many parts as are asked for."""
        optimizer, method = self.config.optimizer, self.config.method
        images = self.train_pipeline(batch.images, batch.draws, batch.aspect)
        if self.config.run.channels_last and images.ndim == 4:
            images = images.contiguous(memory_format=torch.channels_last)
        views = None
        if self.config.method.name != "baseline":
            count = method.views_per_step or len(self.model.method.views)
            views = choose_views(batch.draws, len(self.model.method.views), count, method.name == "sla+sd")
            views = None if views is None else views.to(self.device)
        self.optimizer.zero_grad(set_to_none=True)
        parts = min(optimizer.accumulate, len(images))
        chosen = views.tensor_split(parts) if views is not None else [None] * parts
        pieces = list(zip(images.tensor_split(parts), batch.targets.tensor_split(parts), chosen, strict=True))
        for number, (piece, targets, seen) in enumerate(pieces):
            last = number == len(pieces) - 1
            waits = nullcontext() if last or self.group.world_size == 1 else wrapped.no_sync()  # type: ignore[operator]
            with waits:
                with self._autocast():
                    losses = wrapped(piece, targets, seen)
                share = len(piece) / len(images)
                self.scaler.scale(losses["loss"] * share).backward()
            self._add(losses, targets, share)
        if self.device.type == "cpu":
            self._refuse_nan(batch.step)
        if optimizer.clip is not None:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), optimizer.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()

    # ---- its parts ----

    def _prepare(self, frozen: bool) -> nn.Module:
        """The step to call: the backbone fixed or learning, compiled and wrapped for many processes."""
        self.model.train()
        self.model.backbone.requires_grad_(not frozen)
        if frozen:
            self.model.backbone.eval()
        step: nn.Module = self.group.wrap(Step(self.model))
        return torch.compile(step) if self.config.run.compile else step  # type: ignore[return-value]

    def _open_board(self) -> Any:
        """TensorBoard's writer; rows that a stopped run wrote after its checkpoint are hidden."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise MissingExtraError("run.tensorboard", "track") from None
        return SummaryWriter(self.folder / "tensorboard", purge_step=self.position.step)

    def _autocast(self) -> Any:
        precision = self.config.run.precision
        if precision in (None, "float32"):
            return nullcontext()
        return torch.autocast(self.device.type, dtype=getattr(torch, precision))

    def _add(self, losses: dict[str, Tensor], targets: Tensor, share: float) -> None:
        """Add a batch's losses and hits to the sums of the row."""
        hits = (losses["output"].argmax(1) == targets).sum()
        batch_size = self.batch_size / self.group.world_size
        values = {name: value.detach() * share for name, value in losses.items() if name != "output"}
        for name, value in (
            values | {"train": 100 * hits / batch_size, "steps": torch.tensor(share)}
        ).items():
            old = self.sums.get(name)
            value = value.double().to(self.device)
            self.sums[name] = value if old is None else old + value

    def _refuse_nan(self, step: int) -> None:
        if not bool(self.sums["loss"].isfinite()):
            found = find_checkpoint(self.folder / "checkpoint", "last")
            kept = f"; {found.name} is kept" if found else ""
            raise SLAError(f"the loss is no number at step {step + 1}{kept}: a lower learning rate may help")

    def _close_row(self, done: int, factor: float) -> dict[str, float]:
        """The means since the last row, over all processes."""
        self._refuse_nan(done - 1)
        names = sorted(self.sums)
        totals = self.group.sum(torch.stack([self.sums[name] for name in names]))
        means = dict(zip(names, totals.tolist(), strict=True))
        count = means.pop("steps")
        self.sums = {}
        row = {name: value / count for name, value in means.items()}
        rate = (self.config.optimizer.learning_rate or 0.0) * factor
        return {"epoch": done * self.batch_size / len(self.plan.train), "learning_rate": rate, **row}

    def _evaluate(self, done: int) -> dict[str, float]:
        """Accuracy on the held-out images; the best checkpoint so far is kept."""
        assert self.plan.val is not None
        workers = self.config.data.workers or 0
        with self.average.applied(self.model) if self.average else nullcontext():
            found = accuracies(self.model, self.plan.val, self.eval_pipeline, 256, workers, self.group)
        headline = found[self.model.method.headline]
        if headline > self.position.best_accuracy:
            self.position.best_accuracy, self.position.best_step = headline, done
            self.position.best_val = found
            self._checkpoint("best")
        if self.config.optimizer.frozen * self.steps > done:
            self.model.backbone.eval()
        return {f"val_{how}": value for how, value in found.items()}

    def _checkpoint(self, kind: str) -> None:
        self._gather_sums()
        if not self.group.leads:
            return
        if not all(bool(value.isfinite().all()) for value in self.model.parameters()):
            raise SLAError(f"weights became no numbers at step {self.position.step}: nothing was overwritten")
        tensors = optimizer_tensors(self.optimizer) | {f"sum.{n}": v for n, v in self.sums.items()}
        if self.average is not None:
            tensors |= {f"model.{name}": value for name, value in self.model.state_dict().items()}
            tensors |= self.average.tensors()
        if kind == "best":
            tensors = {}
        save_checkpoint(self.folder / "checkpoint", kind, self.position, self._write_weights, tensors)

    def _gather_sums(self) -> None:
        """The leading process takes over the sums of all, so that its checkpoint has the whole of them."""
        if self.group.world_size > 1 and self.sums:
            names = sorted(self.sums)
            totals = self.group.sum(torch.stack([self.sums[name] for name in names]))
            kept = totals if self.group.leads else torch.zeros_like(totals)
            self.sums = dict(zip(names, kept, strict=True))

    def _write_weights(self, path: Path) -> None:
        config = self.config
        with self.average.applied(self.model) if self.average else nullcontext():
            save(
                self.model,
                path,
                step=self.position.step,
                preprocessing={
                    "augment": config.augment,
                    "resolution": config.model.resolution,
                    "stored_size": config.data.stored_size,
                    "mean": config.model.mean,
                    "std": config.model.std,
                },
            )

    def _snapshot(self, done: int) -> None:
        if self.group.leads:
            folder = self.folder / "snapshots"
            folder.mkdir(exist_ok=True)
            self._write_weights(folder / f"{done:08d}.safetensors")

    def resume(self) -> None:
        """Take everything back from the last checkpoint."""
        found = find_checkpoint(self.folder / "checkpoint", "last")
        if found is None:
            return
        self.position, tensors = read_state(found)
        if self.average is not None:
            own = {n.removeprefix("model."): v for n, v in tensors.items() if n.startswith("model.")}
            self.average.restore(tensors)
        else:
            own = read_saved(found / WEIGHTS)[1]
        self.model.load_state_dict(own)
        restore_optimizer(self.optimizer, tensors)
        sums = {
            name.removeprefix("sum."): value for name, value in tensors.items() if name.startswith("sum.")
        }
        keep = 1.0 if self.group.leads else 0.0  # the leading process has the sums of all
        self.sums = {name: keep * value.to(self.device) for name, value in sums.items()}


def spaced(steps: int, count: int) -> set[int]:
    """`count` evenly spaced numbers of steps done, the last of them all."""
    return {math.ceil(steps * (i + 1) / count) for i in range(count)}


def measure_seconds(plan: Plan, group: Group) -> float:
    """Seconds of one training step, from a few steps of a model that is then thrown away."""
    config = plan.config
    throwaway = config.model_copy(
        update={"run": config.run.model_copy(update={"iterations": 1, "compile": False})}
    )
    trainer = Trainer(Plan(throwaway, plan.train, None, None, ()), Path(), group)
    wrapped = trainer._prepare(frozen=False)
    loader = TrainLoader(plan.train, trainer.batch_size, seed=0, steps=12, workers=0, device=trainer.device)
    times: list[float] = []
    for batch in loader:
        start = time.monotonic()
        trainer._learn(wrapped, batch)
        if trainer.device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.monotonic() - start)
        if sum(times) > 10:
            break
    useful = sorted(times[2:] or times)  # the first ones warm up
    return useful[len(useful) // 2]
