"""What a SimCLR model learns in each step of the loop, and how its features are judged."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sla.images.store import Dataset, spread
from sla.runs.distributed import Group
from sla.runs.folder import last_checkpoint
from sla.runs.loop import Loop
from sla.runs.plan import Plan
from sla.runs.preprocessing import preprocessing_of
from sla.runs.weights import with_first_weights
from sla.sampling.loader import Batch, TrainLoader
from sla.tasks.simclr.config import SimCLRConfig
from sla.tasks.simclr.model import SimCLRModel, build_model, load_model, save_model
from sla.tasks.simclr.scores import KNN, LINEAR, embed, score_within

VIEWS = 2  # of each image
SCORED = 2000  # held-out images that are judged in an evaluation, evenly spaced
EVAL_BATCH = 256


class SimCLRTrainer(Loop):
    """A SimCLR run, alone or among the processes of a group. Its images' labels are never read."""

    model: SimCLRModel
    config: SimCLRConfig
    step_module: nn.Module  # made by `prepare`

    def __init__(self, plan: Plan[SimCLRConfig], folder: Path, group: Group) -> None:
        config, self.plan = plan.config, plan
        assert config.run.batch_size is not None
        self.batch_size = config.run.batch_size
        model = build_first_model(plan, first=last_checkpoint(folder) is None)
        model.group = group
        super().__init__(
            model,
            config,
            plan.train,
            folder,
            group,
            losses=(),
            inferences=(KNN, LINEAR),
            headline=KNN,
            precision=config.run.precision or "float32",
        )

    def batches(self, train: Dataset, start_step: int) -> TrainLoader:
        """This process's part of each batch."""
        config = self.config
        return self.train_loader(train, self.batch_size, config.run.seed, start_step, config.data.sampling)

    def prepare(self, frozen: bool) -> None:
        """The step to call too, wrapped for many processes."""
        super().prepare(frozen)
        self.step_module = self.group.wrap(self.model)

    def learn(self, batch: Batch) -> None:
        """One step of the optimiser, from two views of each image."""
        views = self.two_views(batch)
        self.optimizer.zero_grad(set_to_none=True)
        with self._autocast():
            losses = self.step_module(views)
        target = losses.pop("target")
        self.scaler.scale(losses["loss"]).backward()
        self.meter.add(losses, target, 1.0)
        self.update(batch.step)

    def two_views(self, batch: Batch) -> Tensor:
        """(b, C, H, W) -> (2b, C, h, w), interleaved: each row is a picture with draws of its own."""
        draws = batch.draws
        stop = draws.batch_size if draws.stop is None else draws.stop
        twice = replace(
            draws, batch_size=VIEWS * draws.batch_size, start=VIEWS * draws.start, stop=VIEWS * stop
        )
        images, aspect = (part.repeat_interleave(VIEWS, 0) for part in (batch.images, batch.aspect))
        views = self.train_pipeline(images, twice, aspect)
        return views.contiguous(memory_format=torch.channels_last) if self.config.run.channels_last else views

    def evaluate(self) -> dict[str, float] | None:
        """Accuracies on the held-out labelled images; the leading process computes them for all."""
        val = self.plan.val
        if val is None:
            return None
        return self.group.share(self._score(val) if self.group.leads else None)

    def _score(self, val: Dataset) -> dict[str, float]:
        some = val.subset(spread(len(val), SCORED))
        passing: dict[str, Any] = {"batch_size": EVAL_BATCH, "workers": self.config.data.workers or 0}
        passing |= {"progress": self.progress, "what": "evaluating held-out images"}
        features = embed(self.model, some, self.eval_pipeline, **passing)
        return score_within(features, torch.from_numpy(some.targets), some.num_classes)

    def write_weights(self, path: Path) -> None:
        """A model for `load_model`, and for `model.weights` of other runs."""
        save_model(self.model, path, step=self.position.step)

    def read_weights(self, path: Path) -> tuple[Sequence[str] | None, dict[str, Tensor]]:
        """Classes and weights of a saved model."""
        saved = load_model(path, self.device)
        return saved.about["classes"], saved.state_dict()


def build_first_model(plan: Plan[SimCLRConfig], first: bool = True) -> SimCLRModel:
    """A new model; see `with_first_weights`."""
    config = plan.config
    about = {
        "backbone": config.model.backbone,
        "options": dict(config.model.options),
        "method": config.method.model_dump(),
        "classes": list(plan.train.classes),
        "preprocessing": preprocessing_of(config).to_dict(),
    }
    return with_first_weights(partial(build_model, about), config, first)
