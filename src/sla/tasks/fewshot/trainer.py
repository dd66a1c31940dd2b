"""What a few-shot model learns in each step of the loop, and how it is judged."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sla.images.store import Dataset
from sla.runs.distributed import Group
from sla.runs.folder import last_checkpoint
from sla.runs.loop import Loop
from sla.runs.plan import Plan
from sla.runs.preprocessing import preprocessing_of
from sla.runs.weights import with_first_weights
from sla.sampling.episodes import Episodes
from sla.sampling.loader import Batch, EpisodeLoader
from sla.tasks.fewshot.config import FewShotConfig
from sla.tasks.fewshot.evaluate import embed, episode_accuracies
from sla.tasks.fewshot.model import FewShotModel, build_model, load_model, save_model


class FewShotTrainer(Loop):
    """A few-shot run: its steps are of some episodes each."""

    model: FewShotModel
    config: FewShotConfig

    def __init__(self, plan: Plan[FewShotConfig], folder: Path) -> None:
        config, part, self.plan = plan.config, plan.config.episodes, plan
        assert part.per_step is not None
        self.per_step = part.per_step
        model = build_first_model(plan, first=last_checkpoint(folder) is None)
        names = model.inferences
        super().__init__(
            model, config, plan.train, folder, Group(), losses=(), inferences=names, headline=names[-1]
        )
        self.episodes = Episodes(plan.train, part.way, part.shot, part.query, config.run.seed)
        self.targets = [
            torch.arange(part.way, device=self.device).repeat_interleave(count).expand(self.per_step, -1)
            for count in (part.shot, part.query)
        ]

    def batches(self, train: Dataset, start_step: int) -> EpisodeLoader:
        """The support images of all episodes of a step, then their queries."""
        return EpisodeLoader(
            train,
            self.episodes,
            self.per_step,
            steps=self.steps,
            start_step=start_step,
            workers=self.config.data.workers,
            device=self.device,
        )

    def learn(self, batch: Batch) -> None:
        """One step of the optimiser, from the images of its episodes, in as many parts as are asked for."""
        images = self.train_pipeline(batch.images, batch.draws, batch.aspect)
        if self.config.run.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        targets, wanted = self.targets
        support, query = images.split((targets.numel(), wanted.numel()))
        self.optimizer.zero_grad(set_to_none=True)
        parts = min(self.config.optimizer.accumulate, self.per_step)
        whole = support.unflatten(0, targets.shape), targets, query.unflatten(0, wanted.shape), wanted
        way, smoothing = self.config.episodes.way, self.config.method.label_smoothing
        for seen, labels, asked, wanted in zip(*(part.tensor_split(parts) for part in whole), strict=True):
            share = len(seen) / self.per_step
            losses = self.model.losses(seen, labels, asked, wanted, way, smoothing)
            self.scaler.scale(losses["loss"] * share).backward()
            self.meter.add(losses, wanted.flatten(), share)
        self.update(batch.step)

    def evaluate(self) -> dict[str, float] | None:
        """Accuracies on the episodes of the validation classes."""
        val, part = self.plan.val, self.config.episodes
        if val is None:
            return None
        # The same for every method and seed, so that runs are chosen on the same tasks.
        episodes = Episodes(val, part.way, part.val_shot or 1, part.test_query)
        said: dict[str, Any] = {"progress": self.progress, "what": "evaluating held-out images"}
        embedded = embed(self.model, val, self.eval_pipeline, workers=self.config.data.workers, **said)
        scores = episode_accuracies(self.model, embedded, episodes, part.val_episodes)
        return {inference: float(values.mean()) for inference, values in scores.items()}

    def write_weights(self, path: Path) -> None:
        """A model for `load_model`."""
        save_model(self.model, path, step=self.position.step)

    def read_weights(self, path: Path) -> tuple[Sequence[str] | None, dict[str, Tensor]]:
        """Classes and weights of a saved model."""
        saved = load_model(path, self.device)
        return saved.about["classes"], saved.state_dict()


def build_first_model(plan: Plan[FewShotConfig], first: bool = True) -> FewShotModel:
    """A new model; see `with_first_weights`."""
    config = plan.config
    about = {
        "backbone": config.model.backbone,
        "backbone_options": dict(config.model.options),
        "head": config.method.name,
        "head_options": dict(config.method.options),
        "views": config.method.views,
        "reading": config.model.reading,
        "classes": list(plan.train.classes),
        "preprocessing": preprocessing_of(config).to_dict(),
    }
    return with_first_weights(partial(build_model, about), config, first)
