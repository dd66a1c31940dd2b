"""The training loop, top to bottom; what a step learns is up to the task."""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from sla.errors import InputError, SLAError, shown
from sla.hooks import follow_step, init_from_data, wants_data
from sla.images.store import Dataset, spread
from sla.progress import QUIET, Progress
from sla.runs.board import Board
from sla.runs.checkpoint import (
    STATE,
    WEIGHTS,
    Position,
    check_file,
    optimizer_tensors,
    read_state,
    restore_optimizer,
    save_checkpoint,
)
from sla.runs.config import OptimizerConfig, TrainingConfig
from sla.runs.deadline import Pace, parse_record
from sla.runs.distributed import Group
from sla.runs.ema import Ema
from sla.runs.folder import last_checkpoint
from sla.runs.marks import landing, passed, spaced
from sla.runs.metrics import Meter, MetricsFile
from sla.runs.optimizer import build_optimizer
from sla.runs.preprocessing import build_pipelines
from sla.runs.schedules import rate_factor
from sla.runs.signals import LeftError, Stop
from sla.sampling.draws import Draws, seed_of
from sla.sampling.loader import Batch, TrainLoader, resident

SAMPLE = 2048  # training images for modules that are initialised from data
ROWS = 200  # of training losses in metrics.csv, about
CHECKPOINT_SECONDS = 60.0
CANNOT_RESUME = "the run cannot be resumed from it: train again in another folder, or use --checkpoint best"


class Loop(ABC):
    """A model and its optimiser over the steps of a run: rates, rows, checkpoints, stopping and resuming.

    Args:
        model: has a `backbone`; the rest is heads.
        train: the images of the run; a resumed one must find the same number and classes.
        folder: of the run or of one of its stages: checkpoints, metrics and snapshots are written there.
        losses: columns of metrics.csv between the rate and the accuracies.
        inferences: those that `evaluate` measures; the best checkpoint goes by `headline`.
        precision: float16 needs its losses scaled.
        memory: state over the training images, kept in checkpoints.
    """

    def __init__(
        self,
        model: nn.Module,
        config: TrainingConfig,
        train: Dataset,
        folder: Path,
        group: Group,
        *,
        losses: Sequence[str],
        inferences: Sequence[str],
        headline: str,
        precision: str = "float32",
        memory: nn.Module | None = None,
    ) -> None:
        self.config, self.train, self.folder, self.group = config, train, folder, group
        self.headline, self.precision = headline, precision
        run, name = config.run, config.run.device or "cpu"
        assert run.iterations is not None
        self.steps = run.iterations
        self.device = torch.device(f"cuda:{group.local_rank}" if name == "cuda" else name)
        self.model = model.to(self.device)
        if run.channels_last:
            self.model = self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.train_pipeline, self.eval_pipeline = build_pipelines(config)
        self.memory = None if memory is None else memory.to(self.device)
        # Those of the backbone that are not fixed by its design.
        self.learning = [p for p in self.model.backbone.parameters() if p.requires_grad]  # type: ignore[union-attr]
        self.optimizer = build_optimizer(config.optimizer, self.model)
        self.restart_ema()
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=precision == "float16")
        self.position, self.meter = Position(images=len(train)), Meter()
        self.pace = Pace(self.steps)  # of a run with a deadline it is another one
        self.progress = QUIET
        measured = [f"val_{inference}" for inference in inferences]
        columns = ["epoch", "learning_rate", "loss", *losses, "train", *measured]
        self.metrics = MetricsFile(folder / "metrics.csv", columns)

    @abstractmethod
    def batches(self, train: Dataset, start_step: int) -> Iterable[Batch]:
        """The batches of the steps from `start_step` on."""

    @abstractmethod
    def learn(self, batch: Batch) -> None:
        """One step: losses, backward, the meter, and `update`."""

    @abstractmethod
    def evaluate(self) -> dict[str, float] | None:
        """Accuracies in percent on what was held out, by kind; None where nothing was."""

    @abstractmethod
    def write_weights(self, path: Path) -> None:
        """The model as it would be used; where there is a moving average, it has those weights now."""

    @abstractmethod
    def read_weights(self, path: Path) -> tuple[Sequence[str] | None, dict[str, Tensor]]:
        """The classes and weights that `write_weights` wrote."""

    def fit(self, stop: Stop, progress: Progress = QUIET) -> bool:
        """Train from the current step to the last; False when it was asked to stop before."""
        if not (self.group.leads and self.config.run.tensorboard):
            return self._fit(stop, progress, None)
        with closing(Board(self.folder / "tensorboard")) as board:
            return self._fit(stop, progress, board)

    def _fit(self, stop: Stop, progress: Progress, board: Board | None) -> bool:
        run, optimizer, position = self.config.run, self.config.optimizer, self.position
        self.progress = progress
        evaluate_at = spaced(self.steps, min(run.evaluations or 1, self.steps))
        snapshot_at = spaced(self.steps, run.snapshots)
        row_every = max(self.steps // ROWS, 1)
        rows_at = evaluate_at.union(range(row_every, self.steps + 1, row_every))
        if self.group.leads:
            written = position.step - 1 if position.row else position.step
            self.metrics.start(written, landing(rows_at, parse_record(position.pace)))
        if board is not None:
            board.start(self.metrics.read())
        self.pace.start(position, self.folder if self.group.leads else None)
        if position.row:  # the last session left its evaluation
            left, position.row = position.row, {}
            if not self._evaluate_row(left, stop, board):
                return False
        if position.step >= self.steps:
            return True
        started = saved = time.monotonic()
        seconds_before, frozen = position.seconds, None
        if not position.step and wants_data(self.model):
            self._init_from_data()
        follow_step(self.model, position.step, self.steps)
        for batch in self.batches(self.on_device(self.train), position.taken):
            step = position.step
            # A batch is numbered by the steps that were taken before, a step by the schedule.
            batch = replace(batch, step=step)
            if frozen != (step < optimizer.frozen * self.steps):
                frozen = step < optimizer.frozen * self.steps
                self.prepare(frozen)
            factor = rate_factor(optimizer, step, self.steps)
            for group in self.optimizer.param_groups:
                group["lr"] = group["base_lr"] * factor
            # Dropout too follows from seed, step and process, so a resumed run needs no random state.
            torch.manual_seed(seed_of(run.seed, "step", step, self.group.rank))
            self.learn(batch)
            if self.ema is not None:
                self.ema.update(self.model, position.taken)

            now = time.monotonic()
            position.step, position.seconds = step + 1, seconds_before + now - started
            if self.pace.follow(position, sum(mark > step for mark in evaluate_at), self.group):
                follow_step(self.model, position.step, self.steps)
            done = position.step
            evaluates, reached = passed(evaluate_at, step, done), passed(rows_at, step, done)
            row: dict[str, float] = {}
            # Before any checkpoint: a resumed run does not return to this step.
            if passed(snapshot_at, step, done) and self.group.leads:
                self._write_with_ema(self.folder / "snapshots" / f"{done:08d}.safetensors")
            if reached:
                row = self._close_row(done, batch.draws.batch_size, factor)
                self.pace.note(position)
                if not evaluates:
                    self._add_row(row, board)
                elif not self._evaluate_row(row, stop, board):
                    return False
            # Without the steps that there is no time for: as many more as the schedule's share so far says.
            expected = round(self.steps * position.taken / done) if position.skipped else self.steps
            progress.step(position.taken, expected, row)
            every = run.checkpoint_every
            due = not position.taken % every if every else now - saved > CHECKPOINT_SECONDS
            stopping, due = self.group.any(stop.requested, due)
            if due or stopping or evaluates:
                self._checkpoint("last")
                saved = time.monotonic()
            if done >= self.steps:
                break
            if stopping:
                return False
        if position.skipped:
            progress.message(f"{position.taken:,} steps taken in the given time")
        return True

    def prepare(self, frozen: bool) -> None:
        """The model ready to learn, its backbone fixed or learning too."""
        set_train(self.model, self.config.optimizer, frozen)
        for parameter in self.learning:
            parameter.requires_grad_(not frozen)

    def update(self, step: int) -> None:
        """The end of a step: the gradients that were gathered move the weights."""
        if self.device.type == "cpu":  # elsewhere reading it would wait for the device: rows do it
            self._refuse_nan(step)
        clip = self.config.optimizer.clip
        if clip is not None:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        follow_step(self.model, step + 1, self.steps)

    def resume(self) -> None:
        """Take everything back from the last checkpoint."""
        found = last_checkpoint(self.folder)
        if found is None:
            return
        for name in (STATE, WEIGHTS):
            check_file(found / name, CANNOT_RESUME)
        position, tensors = read_state(found)
        classes, weights = self.read_weights(found / WEIGHTS)
        if list(classes or ()) != list(self.train.classes) or position.images != len(self.train):
            was = f"{len(classes or ())} classes, {position.images:,} images to train on"
            raise InputError(f"{self.folder}: the data has changed since the run began: {was}")
        self.position = position
        try:
            self._restore(weights, tensors)
        except (RuntimeError, ValueError, TypeError, LookupError, AttributeError) as error:
            # Of a file that was edited, checksum and all; torch's reasons have many lines.
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            raise InputError(f"{shown(found / STATE)}: not the state of this run: {reason}") from error

    def _restore(self, weights: dict[str, Tensor], tensors: dict[str, Tensor]) -> None:
        """The tensors of a checkpoint; whatever does not fit raises."""
        if self.ema is not None:
            self.ema.restore(tensors)
            weights = _below("model.", tensors)
        criterion = {n: v for n, v in tensors.items() if n.startswith("criterion.")}
        self.model.load_state_dict(weights | criterion)
        restore_optimizer(self.optimizer, tensors)
        if self.memory is not None:
            self.memory.load_state_dict(_below("memory.", tensors))
        if self.scaler.is_enabled():
            self.scaler.load_state_dict({n: v.item() for n, v in _below("scaler.", tensors).items()})
        keep = 1.0 if self.group.leads else 0.0  # the leading process has the sums of all
        sums = _below("sum.", tensors)
        if any(value.ndim for value in sums.values()) or (sums and not {"steps", "loss"} <= set(sums)):
            raise ValueError("the sums since the last row are incomplete")
        self.meter.sums = {name: keep * value.to(self.device) for name, value in sums.items()}

    def bytes_needed(self) -> int:
        """For weights, two moments at the most, two copies for a moving average: old, new and best.

        The best one has no memory.
        """
        parts = (self.model, self.memory or nn.Module())
        size, memory = (sum(value.nbytes for value in part.state_dict().values()) for part in parts)
        return 3 * size * (5 if self.ema else 3) + 2 * memory

    def _init_from_data(self) -> None:
        """Show evenly spaced training images to the modules that are initialised from data."""
        places = spread(len(self.train), SAMPLE)
        images, aspect = (part.to(self.device) for part in self.train.read(places))
        init_from_data(self.model, self.eval_pipeline(images, Draws(0, 0, len(places)), aspect))
        self.restart_ema()

    def restart_ema(self) -> None:
        """The moving average, where the run has one, begins at the weights as they are now."""
        decay = self.config.optimizer.ema
        self.ema = Ema(self.model, decay) if decay else None

    def train_loader(
        self, dataset: Dataset, batch_size: int, seed: int, start_step: int, sampling: str
    ) -> TrainLoader:
        """This process's part of each batch of a dataset, from a step on."""
        return TrainLoader(
            dataset,
            batch_size,
            seed=seed,
            steps=self.steps,
            start_step=start_step,
            rank=self.group.rank,
            world_size=self.group.world_size,
            workers=self.config.data.workers or 0,
            device=self.device,
            sampling=sampling,
        )

    def on_device(self, dataset: Dataset) -> Dataset:
        """The images, on the device where they are in memory anyway."""
        here = dataset.images.in_memory and self.device.type != "cpu"
        return resident(dataset, self.device) if here else dataset

    def _refuse_nan(self, step: int) -> None:
        if not self.meter.finite:
            found = last_checkpoint(self.folder)
            kept = f"{found.name} is kept" if found else "there is no checkpoint yet"
            raise SLAError(
                f"the loss is NaN or infinite at step {step + 1}; {kept}: a lower learning rate may help"
            )

    def _close_row(self, done: int, batch_size: int, factor: float) -> dict[str, float]:
        self._refuse_nan(done - 1)
        rate = (self.config.optimizer.learning_rate or 0.0) * factor
        epoch = self.position.taken * batch_size / len(self.train)
        means = self.meter.close(self.group)
        if wrong := [name for name, value in means.items() if not math.isfinite(value)]:
            raise SLAError(f"{wrong[0]!r}, a part of the loss, is NaN or infinite at step {done}")
        return {"epoch": epoch, "learning_rate": rate, **means}

    def _evaluate_row(self, row: dict[str, float], stop: Stop, board: Board | None) -> bool:
        """Complete a row with accuracies; False where a signal came, with a checkpoint still to be evaluated.

        The processes of a group end their evaluation together: they are not stopped in it.
        """
        before, progress, position = replace(self.position), self.progress, self.position
        try:
            if self.group.world_size > 1:
                row |= self._evaluate(position.step)
            else:
                with stop.leaving(progress) as self.progress:
                    row |= self._evaluate(position.step)
        except LeftError:
            self.position = replace(before, row=row)
            self._checkpoint("last")
            return False
        finally:
            self.progress = progress
        self.pace.end_evaluation(position)
        self._add_row(row, board)
        return True

    def _add_row(self, row: dict[str, float], board: Board | None) -> None:
        if self.group.leads:
            self.metrics.add(self.position.step, row)
        if board is not None:
            board.add(self.position.step, row)

    def _evaluate(self, done: int) -> dict[str, float]:
        """Accuracy on what was held out; the best checkpoint so far is kept."""
        with self._with_ema():
            found = self.evaluate()
        if found is None:
            return {}
        if found[self.headline] > self.position.best_accuracy:
            self.position.best_accuracy, self.position.best_step = found[self.headline], done
            self._checkpoint("best")
        return {f"val_{kind}": value for kind, value in found.items()}

    def _checkpoint(self, kind: str) -> None:
        """Write `last`, with all that a resumed run needs, or `best`, with the weights alone."""
        self.meter.gather(self.group)
        if not self.group.leads:
            return
        if not all(bool(value.isfinite().all()) for value in self.model.parameters()):
            raise SLAError(
                f"weights are NaN or infinite at step {self.position.step}: nothing was overwritten"
            )
        if self.pace.deadline is not None:
            self.position.clock = self.pace.deadline.elapsed
        tensors = {}
        if kind == "last":
            tensors = optimizer_tensors(self.optimizer) | {f"sum.{n}": v for n, v in self.meter.sums.items()}
            tensors |= {f"scaler.{n}": torch.tensor(v) for n, v in self.scaler.state_dict().items()}
            states = self.model.state_dict().items()
            tensors |= {name: value for name, value in states if name.startswith("criterion.")}
            if self.memory is not None:
                tensors |= {f"memory.{name}": value for name, value in self.memory.state_dict().items()}
            if self.ema is not None:
                tensors |= {f"model.{name}": value for name, value in self.model.state_dict().items()}
                tensors |= self.ema.tensors()
        save_checkpoint(self.folder / "checkpoint", kind, self.position, self._write_with_ema, tensors)

    def _write_with_ema(self, path: Path) -> None:
        with self._with_ema():
            self.write_weights(path)

    def _autocast(self) -> AbstractContextManager:
        """What computes losses in the precision of the run."""
        if self.precision == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=getattr(torch, self.precision))

    def _with_ema(self) -> AbstractContextManager:
        return self.ema.applied(self.model) if self.ema is not None else nullcontext()


@contextmanager
def using_threads(count: int | None) -> Iterator[None]:
    """The block computes with this many threads on the CPU; None for those that torch has."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def set_train(model: nn.Module, part: OptimizerConfig, frozen: bool = False) -> None:
    """Train mode, but for the backbone where it is frozen, or for its batch norm where that is fixed."""
    model.train()
    for module in model.backbone.modules():  # type: ignore[union-attr]
        if frozen or (part.fixed_norms and isinstance(module, _BatchNorm)):
            module.training = False


def _below(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {n.removeprefix(prefix): value for n, value in tensors.items() if n.startswith(prefix)}
