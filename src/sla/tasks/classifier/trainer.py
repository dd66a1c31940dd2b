"""What a classifier learns in each step of the loop, and how it is judged."""

import os
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sla.augment.mixing import parse_mix
from sla.classifier import Classifier
from sla.errors import InputError
from sla.factory import check_view_names, read_saved, save
from sla.images.cache_paths import cache_dir
from sla.images.store import Dataset
from sla.labels import MixedTarget, Target, split_target
from sla.methods import Method, StepContext, Unlabelled
from sla.methods.checks import create_memory
from sla.methods.unlabelled import rising_trust
from sla.runs.distributed import Group
from sla.runs.evaluation import answering
from sla.runs.folder import last_checkpoint
from sla.runs.loop import Loop
from sla.runs.plan import Plan
from sla.runs.preprocessing import build_train_pipeline, preprocessing_of
from sla.sampling.draws import seed_of
from sla.sampling.loader import Batch
from sla.tasks.classifier.build import build_model, draw_views
from sla.tasks.classifier.config import ClassifierConfig
from sla.tasks.classifier.evaluation import accuracies
from sla.tasks.classifier.unlabelled import pair_batches, split_unlabelled

EVAL_BATCH = 256
COMPILED_CODE = "TORCHINDUCTOR_CACHE_DIR"


class Trainer(Loop):
    """A classifier's run, alone or among the processes of a group."""

    model: Classifier
    config: ClassifierConfig
    step_module: nn.Module  # made by `prepare`
    teacher: Classifier | None = None  # that is in the result beside this one
    old_classes = 0  # of the run that this one adds classes to

    def __init__(self, plan: Plan[ClassifierConfig], folder: Path, group: Group) -> None:
        config, self.plan = plan.config, plan
        self.config = config
        assert config.run.batch_size is not None
        self.batch_size = config.run.batch_size
        starts = last_checkpoint(folder) is None
        model = build_model(config, plan.train.classes, plan.train.counts(), first=starts)
        method = model.method
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_of(config.run.seed, "memory"))
            memory = create_memory(method, len(plan.train), len(plan.train.classes))
        if memory is not None:
            _check_memory(config, group)
        super().__init__(
            model,
            config,
            plan.train,
            folder,
            group,
            losses=self.columns(method),
            inferences=method.inferences,
            headline=method.headline,
            precision=config.run.precision or "float32",
            memory=memory,
        )
        self.mix = parse_mix(config.mix)
        self.unlabelled = plan.unlabelled if method.unlabelled_parts else None
        strong = config.strong_augment if method.wants_answers else None
        self.strong_pipeline = build_train_pipeline(config, strong) if strong else self.train_pipeline

    def columns(self, method: Method) -> tuple[str, ...]:
        """The parts of the loss, for metrics.csv."""
        return (*method.parts, *(method.unlabelled_parts if self.plan.unlabelled is not None else ()))

    def batches(self, train: Dataset, start_step: int) -> Iterable[Batch]:
        """This process's part of each batch."""
        run, sampling = self.config.run, self.config.data.sampling
        labelled = self.train_loader(train, self.batch_size, run.seed, start_step, sampling)
        if self.unlabelled is None:
            return labelled
        seed, count = seed_of(run.seed, "unlabelled"), run.unlabelled_batch_size or self.batch_size
        unlabelled = self.on_device(self.unlabelled)
        return pair_batches(labelled, self.train_loader(unlabelled, count, seed, start_step, sampling))

    def prepare(self, frozen: bool) -> None:
        """The step to call too: compiled, and wrapped for many processes."""
        super().prepare(frozen)
        step = self.group.wrap(self.model)
        if self.config.run.compile:
            self.progress.message("compiling: a minute or two, less when its code is still in the cache")
            keep_compiled_code()
            step = torch.compile(step)  # type: ignore[assignment]
        self.step_module = step

    def learn(self, batch: Batch) -> None:
        """One step of the optimiser, from one batch in as many parts as are asked for."""
        optimizer = self.config.optimizer
        images = self.train_pipeline(batch.images, batch.draws, batch.aspect)
        target: Target = batch.targets
        if self.mix is not None:
            images, partner, lam = self.mix(images, batch.draws)
            target = MixedTarget(batch.targets, batch.targets[partner], lam)
        images = self._laid_out(images)
        views = self._draw_views(batch)
        self.optimizer.zero_grad(set_to_none=True)
        least = min(len(images), len(images) if batch.unlabelled is None else len(batch.unlabelled.images))
        parts = min(optimizer.accumulate, least)
        chosen = [None] * parts if views is None else views.tensor_split(parts)
        places = batch.indices.to(self.device).tensor_split(parts)
        target, taught = self.teach(images, target, batch)
        answers = [None] * parts if taught is None else taught.tensor_split(parts)
        seen_in = images.tensor_split(parts)
        more = split_unlabelled(self.see_unlabelled(batch), [len(part) / len(images) for part in seen_in])
        columns = (seen_in, split_target(target, parts), chosen, places, answers, more)
        pieces = list(zip(*columns, strict=True))
        for number, (piece, targets, seen, indices, answer, unlabelled) in enumerate(pieces):
            share = len(piece) / len(images)
            context = StepContext(seen, indices, batch.step, self.steps, self.memory, answer, unlabelled)
            context = self.complete(context, piece)
            with self._unsynchronised(until_last=number == len(pieces) - 1):
                with self._autocast():
                    losses = self.step_module(piece, targets, context)
                self.scaler.scale(losses["loss"] * share).backward()
            self.meter.add(losses, targets, share)
        self.update(batch.step)

    def teach(self, images: Tensor, target: Target, batch: Batch) -> tuple[Target, Tensor | None]:
        """The targets of a step, and a teacher's class logits (b, N) of its images where there is one."""
        return target, None

    def see_unlabelled(self, batch: Batch) -> Unlabelled | None:
        """The step's images without labels, augmented, in as many views as the labelled ones.

        Where the method wants answers, they are aggregated ones by the weights as they are on the weakly
        augmented images; the images themselves are then augmented strongly.
        """
        more, method = batch.unlabelled, self.model.method
        if more is None:
            return None
        images = self._laid_out(self.strong_pipeline(more.images, more.draws, more.aspect))
        views, answers = self._draw_views(more), None
        trust: Tensor | float = 1.0
        if method.wants_answers:
            draws = replace(more.draws, seed=seed_of(more.draws.seed, "weak"))
            weak = self._laid_out(self.train_pipeline(more.images, draws, more.aspect))
            with torch.no_grad(), answering(self.model), self._autocast():
                answers = self.model.logits(weak, "aggregated").float()
            # A tensor: with another number in every step, compiled code would be compiled again.
            trust = torch.tensor(rising_trust(batch.step, self.steps), device=self.device)
        return Unlabelled(images, views, answers, trust=trust)

    def complete(self, context: StepContext, images: Tensor) -> StepContext:
        """The context of a part of a step, with what a kind of run adds to it."""
        return context

    def evaluate(self) -> dict[str, float] | None:
        """Accuracies on the held-out images, every process taking its share."""
        if self.plan.val is None:
            return None
        workers = self.config.data.workers or 0
        return accuracies(
            self.model, self.plan.val, self.eval_pipeline, EVAL_BATCH, workers, self.group, self.progress
        )

    def cost(self) -> dict[str, Any]:
        """What the result's cost has besides, or instead of, that of the steps."""
        return {}

    def about(self) -> dict[str, Any]:
        """What the result says besides."""
        return {}

    def write_weights(self, path: Path) -> None:
        """A classifier for `sla.load`."""
        about = {"step": self.position.step, "preprocessing": preprocessing_of(self.config).to_dict()}
        save(self.model, path, **about)

    def read_weights(self, path: Path) -> tuple[Sequence[str] | None, dict[str, Tensor]]:
        """Classes and weights of a saved classifier."""
        described, weights = read_saved(path)
        check_view_names(described, self.model.method.views)
        return described["classes"], weights

    def _draw_views(self, batch: Batch) -> Tensor | None:
        """The views of each image of this step, (b, k), or None for all."""
        method = self.model.method
        count = self.config.method.views_per_step or len(method.views)
        views = draw_views(batch.draws, len(method.views), count, method.least_views > 1)
        return None if views is None else views.to(self.device)

    def _laid_out(self, images: Tensor) -> Tensor:
        """Images in the memory layout of the weights."""
        if self.config.run.channels_last and images.ndim == 4:
            return images.contiguous(memory_format=torch.channels_last)
        return images

    def _unsynchronised(self, until_last: bool) -> AbstractContextManager:
        """Gradients of a part are averaged over the processes only with those of the last part."""
        alone = until_last or self.group.world_size == 1
        return nullcontext() if alone else self.step_module.no_sync()  # type: ignore[operator]


def _check_memory(config: ClassifierConfig, group: Group) -> None:
    """Refuse mixed images and several processes for a method that keeps a memory of its images."""
    what = f"method {config.method.name} keeps a memory of each training image"
    if parse_mix(config.mix) is not None:
        raise InputError(f"{what}: mixed images have no place in it; leave out mix ({config.mix})")
    if group.world_size > 1:
        raise InputError(f"{what}, which {group.world_size} processes would not share: train with one")


def keep_compiled_code() -> None:
    """Later runs find what torch compiled in the cache folder; a folder that torch was given stays."""
    if COMPILED_CODE not in os.environ:
        folder = cache_dir() / "compiled"
        with suppress(OSError):  # it cannot be written: torch uses its own, temporary one
            folder.mkdir(parents=True, exist_ok=True)
            os.environ[COMPILED_CODE] = str(folder)
