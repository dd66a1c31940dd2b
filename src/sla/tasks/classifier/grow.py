"""Adding classes to a finished run: its heads grow, its answers on old classes are kept by distillation.

The result is a run of its own (`sla grow RUN DATA`) with the same backbone, method and views; its classes are
the old ones, then the new. What it trains on is in `growth_images.py`.
"""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sla.classifier import Classifier
from sla.errors import InputError, shown
from sla.factory import load
from sla.methods import Before, Method, StepContext, method_options
from sla.methods.unlabelled import JointUnlabelled
from sla.runs.defaults import override
from sla.runs.distributed import Group
from sla.runs.folder import last_checkpoint, read_result
from sla.runs.images_record import TRAIN
from sla.runs.plan import Plan
from sla.sampling.draws import seed_of
from sla.tasks.classifier.config import ClassifierConfig, EarlierData, GrowConfig
from sla.tasks.classifier.earlier_run import read_finished_config, with_keys
from sla.tasks.classifier.growth_images import earlier_file, embedded_images, read_earlier_record
from sla.tasks.classifier.passes import forward_flop, step_passes
from sla.tasks.classifier.trainer import Trainer

RATE = 0.5  # of the learning rate of the first run


def configure_growth(folder: Path, source: str, given: dict[str, Any]) -> ClassifierConfig:
    """The configuration of a run that adds the classes of this data to the finished run in the folder.

    It makes as many passes over its images as the run before it. Logits are adjusted by the images of each
    class, so that old classes with few or none are not unlearnt; weight 0 and keep 0 is plain fine-tuning.
    `given`: keys to set.
    """
    before = read_finished_config(folder, "grow")
    if before.is_distilled or before.is_features:
        hint = "grow its teacher, then distil that run" if before.is_distilled else "fit it again"
        raise InputError(f"{shown(folder)}: method {before.method.name} does not grow: {hint}")
    grown = _grown_config(before, folder, source, read_result(folder)["images"]["train"])
    plain = given.get("grow.keep") == 0 and given.get("grow.weight") == 0
    if before.method.imbalance == "none" and before.method.criterion is None and not plain:
        grown = override(grown, "method", imbalance="logit-adjust")
    return with_keys(grown, given)


def _grown_config(before: ClassifierConfig, folder: Path, source: str, images: int) -> ClassifierConfig:
    data, run, method = before.data, before.run, before.method
    earlier = EarlierData(source=data.source, root=data.root, classes=data.classes)
    own: dict[str, Any] = {"source": source, "classes": None, "earlier": (*data.earlier, earlier)}
    own |= {"long_tail": None, "long_tail_max": None, "unlabelled": None, "unlabelled_count": None}
    epochs = (run.iterations or 1) * (run.batch_size or 1) / images
    length = {"iterations": None, "epochs": epochs, "minutes": None, "snapshots": 0, "compile_reason": None}
    rate = (before.optimizer.learning_rate or 0.1) * (1.0 if before.is_grown else RATE)
    options = {name: type(method).model_fields[name].default for name in method_options(JointUnlabelled)}
    return before.model_copy(
        update={
            "data": data.model_copy(update=own),
            "model": before.model.model_copy(update={"weights": "none"}),
            "method": method.model_copy(update=options),
            "optimizer": before.optimizer.model_copy(update={"learning_rate": rate, "frozen": 0.0}),
            "run": run.model_copy(update=length | {"unlabelled_batch_size": None}),
            "strong_augment": None,
            "stages": ("train",),
            "grow": GrowConfig(run=str(folder.absolute())),
        }
    )


class Grower(Trainer):
    """Trains a model with more classes, which begins with the weights of the model before."""

    before: Classifier

    def __init__(self, plan: Plan[ClassifierConfig], folder: Path, group: Group) -> None:
        super().__init__(plan, folder, group)
        weights, _ = earlier_file(self.config)
        self.before = load(weights, self.device).requires_grad_(False)
        self.old_classes = self.before.num_classes
        if last_checkpoint(folder) is None:
            self._begin()

    def columns(self, method: Method) -> tuple[str, ...]:
        """With the loss of the answers that are kept."""
        return (*super().columns(method), *(("kept",) if self.config.grow.weight else ()))

    def _begin(self) -> None:
        """The weights of the model before, with new rows for the new classes."""
        grown = copy.deepcopy(self.before)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_of(self.config.run.seed, "grow"))
            grown.grow(self.model.num_classes - self.old_classes)
        own, given = (_weights(model) for model in (self.model, grown))
        if {n: v.shape for n, v in own.items()} != {n: v.shape for n, v in given.items()}:
            raise InputError(
                f"{shown(self.config.grow.run or '')}: its weights do not fit: a run grows with its own "
                "backbone, method, views and head"
            )
        self.model.load_state_dict(self.model.state_dict() | given)
        self.restart_ema()

    def complete(self, context: StepContext, images: Tensor) -> StepContext:
        """With what the model before answers on these views, in eval mode."""
        part, method = self.config.grow, self.before.method
        if not part.weight:
            return context
        with torch.no_grad(), self._autocast():
            features = self.before.features(method.expand(images, context.views))
            logits = method.growing_logits(self.before.heads, features)
        return replace(context, before=Before(logits, part.weight, part.temperature))

    def cost(self) -> dict[str, Any]:
        """FLOP and seconds of the whole: the run before, its answers, the choice of images, and its own."""
        part, config = self.config.grow, self.config
        record, forward = read_earlier_record(config), forward_flop(config, self.model)
        trained = forward_flop(config, self.model, training=True)
        num_views = len(self.before.method.views)
        views = min(config.method.views_per_step or num_views, num_views)
        counts = torch.bincount(torch.from_numpy(record.targets[TRAIN]).long()).numpy()
        before = read_result(Path(part.run or ""))["cost"]
        parts = {
            "before_flop": before["training_flop"],
            "answers_flop": trained * self.steps * self.batch_size * views if part.weight else 0,
            "kept_flop": forward * embedded_images(counts, part.keep) if config.data.earlier else 0,
            "growth_flop": trained * step_passes(config) * self.steps,
        }
        seconds = {"before_seconds": before["seconds"]}
        total = round(before["seconds"] + self.position.seconds, 2)
        return {"training_flop": sum(parts.values()), "seconds": total, **parts, **seconds}

    def about(self) -> dict[str, Any]:
        """What the result says of the growth."""
        new = self.model.num_classes - self.old_classes
        grown = {"run": self.config.grow.run, "old_classes": self.old_classes, "new_classes": new}
        return {"grown": grown}


def _weights(model: Classifier) -> dict[str, Tensor]:
    """Without what a criterion has of the classes: it is that of the new run."""
    return {name: value for name, value in model.state_dict().items() if not name.startswith("criterion.")}
