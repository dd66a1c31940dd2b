"""Distillation after training: a student in one pass learns the best answer of a trained teacher.

That is the aggregated one, if it has several views. It is the last stage of a run (`stages: train, distil`),
or a run of its own (`sla distill RUN`, method `distilled`). The student begins with the teacher's weights,
its head with the block of view 0, unless it has another backbone.
"""

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sla.classifier import Classifier
from sla.datasets.objects import source_name
from sla.errors import InputError, SLAWarning, shown
from sla.factory import load, read_saved
from sla.heads import JointHead
from sla.images.content import dataset_keys
from sla.labels import MixedTarget, Target
from sla.methods import METHODS, method_options
from sla.progress import QUIET, Progress
from sla.runs.checkpoint import read_state
from sla.runs.distributed import Group
from sla.runs.folder import find_known_weights, last_checkpoint
from sla.runs.images_record import read_record, with_recorded_images
from sla.runs.plan import Plan
from sla.sampling.loader import Batch
from sla.tasks.classifier.build import draw_views, plan_method
from sla.tasks.classifier.config import (
    DISTIL,
    DISTILLED,
    FEATURES,
    OPTION_FIELDS,
    ClassifierConfig,
    DataConfig,
    GrowConfig,
    student_steps,
)
from sla.tasks.classifier.earlier_run import read_classifier_config, read_finished_config, with_keys
from sla.tasks.classifier.evaluation import infer
from sla.tasks.classifier.passes import forward_flop, step_passes
from sla.tasks.classifier.trainer import Trainer
from sla.tasks.classifier.unlabelled import join_datasets

# Images are found again by content.
NOT_SELECTING = {
    "source",
    "root",
    "on_bad_image",
    "workers",
    "cache",
    "sampling",
    "unlabelled",
    "unlabelled_count",
}
RATE = 0.5  # of the teacher's learning rate, for a student with its weights


def student_config(config: ClassifierConfig, teacher: Path, backbone: str | None = None) -> ClassifierConfig:
    """The configuration of a student, from that of its teacher's run, which has the keys `distil.*`."""
    part, run, optimizer = config.distil, config.run, config.optimizer
    if run.iterations is None or optimizer.learning_rate is None:
        raise InputError(f"{shown(teacher)}: its configuration is incomplete: it has not begun to train")
    fresh = backbone not in (None, config.model.backbone)
    steps = student_steps(config, fresh)
    rate = part.learning_rate or optimizer.learning_rate * (1.0 if fresh else RATE)
    model: dict[str, Any] = {"weights": "none"} | ({"backbone": backbone, "options": {}} if fresh else {})
    length = {"iterations": steps, "epochs": None, "flop": None, "minutes": None, "snapshots": 0}
    length |= {"compile_reason": None}
    foreign = OPTION_FIELDS.keys() - method_options(METHODS[DISTILLED].make).keys()
    method = {name: type(config.method).model_fields[name].default for name in foreign}
    learns = bool(plan_method(config).unlabelled_parts)  # else its images without labels were left out
    data = {} if learns else {"unlabelled": None, "unlabelled_count": None}
    own = {"teacher": str(teacher.absolute()), "share": None, "learning_rate": None}
    return config.model_copy(
        update={
            "data": config.data.model_copy(update=data),
            "model": config.model.model_copy(update=model),
            "method": config.method.model_copy(
                update=method | {"name": DISTILLED, "views_per_step": 1, "options": {}}
            ),
            "optimizer": optimizer.model_copy(update={"learning_rate": rate, "frozen": 0.0}),
            "run": run.model_copy(update=length | {"evaluations": min(run.evaluations or 1, steps)}),
            "mix": part.mix,
            "stages": ("train",),
            "distil": part.model_copy(update=own),
            "grow": GrowConfig(),
        }
    )


def configure_student(folder: Path, given: dict[str, Any], backbone: str | None = None) -> ClassifierConfig:
    """The configuration of a run that distils the finished run in this folder; `given`: keys to set."""
    teacher = read_finished_config(folder, "are distilled")
    check_teacher(teacher, folder, None)
    of_both = {key: value for key, value in given.items() if key.partition(".")[0] == DISTIL}
    student = student_config(with_keys(teacher, of_both), folder, backbone)
    return with_keys(student, {key: value for key, value in given.items() if key not in of_both})


def teacher_file(config: ClassifierConfig) -> tuple[Path, str]:
    """The weights of the teacher that a student's configuration names, and their checksum."""
    part = config.distil
    if part.teacher is None:
        raise InputError("method distilled learns from another run: `sla distill RUN`")
    return find_known_weights(Path(part.teacher), part.checkpoint, part.teacher_checksum)


def check_teacher(config: ClassifierConfig, folder: Path, count: int | None) -> None:
    """A teacher was trained step by step, is no student itself, and answers from the views asked for."""
    if config.method.name in (FEATURES, DISTILLED):
        kind = "a quick model" if config.method.name == FEATURES else "itself a student"
        raise InputError(f"{shown(folder)}: {kind}: a student needs a teacher trained by another method")
    _, passes = plan_method(config).teaching
    if count is not None and count > passes:
        raise InputError(f"distil.teacher_views: {count} of {passes} views")


def _training_cost(folder: Path, model: Classifier) -> tuple[int, float]:
    """FLOP and seconds of the stage `train` of a run, which has come to its end."""
    config = read_classifier_config(folder)
    last = last_checkpoint(folder)
    assert last is not None
    position, _ = read_state(last)
    flop = forward_flop(config, model, training=True) * step_passes(config) * position.taken
    return flop, position.seconds


def plan_student(plan: Plan[ClassifierConfig], progress: Progress = QUIET) -> Plan[ClassifierConfig]:
    """The plan of a run that distils another: with its teacher by content, on its teacher's images."""
    config, part = plan.config, plan.config.distil
    if config.run.iterations is None:
        raise InputError("method distilled needs run.iterations or run.epochs, not run.minutes")
    weights, checksum = teacher_file(config)
    folder = Path(part.teacher or "")
    before = read_classifier_config(folder)
    check_teacher(before, folder, part.teacher_views)
    if list(plan.train.classes) != read_saved(weights)[0]["classes"]:
        raise InputError(
            f"{shown(source_name(config.data.source))}: its classes are not those of {shown(folder)}"
        )
    names = [name for name in DataConfig.model_fields if name not in NOT_SELECTING]
    if changed := [name for name in names if getattr(before.data, name) != getattr(config.data, name)]:
        raise InputError(
            f"{', '.join(f'data.{name}' for name in changed)}: cannot differ from {shown(folder)}: "
            "the student could train on images that its teacher held out"
        )
    if (record := read_record(folder)) is not None:
        plan = with_recorded_images(plan, record, folder, progress)
    else:
        warnings.warn(
            f"{shown(folder)}: written before runs recorded their images: if these have changed since, the "
            "student may train on images that its teacher held out",
            SLAWarning,
        )
    known = part.model_copy(update={"teacher_checksum": checksum})
    return replace(plan, config=config.model_copy(update={"distil": known}))


class Answers(nn.Module):
    """What a distillation keeps in its checkpoints: cached answers, and which unlabelled images it has."""

    logits: Tensor
    keys: Tensor

    def __init__(self, logits: Tensor, keys: np.ndarray) -> None:
        super().__init__()
        self.register_buffer("logits", logits)  # float16 (n, N); (0, N) without a cache
        self.register_buffer("keys", torch.from_numpy(keys.view(np.int64).copy()))  # (u,)


class Distiller(Trainer):
    """Trains a student on the answers of its teacher, under the ordinary augmentation."""

    memory: Answers
    teacher: Classifier

    def __init__(self, plan: Plan[ClassifierConfig], folder: Path, group: Group) -> None:
        begins, part = last_checkpoint(folder) is None, plan.config.distil
        if part.cached and part.teacher_views is not None:
            raise InputError("distil.teacher_views: cached answers are of all views: leave one of them out")
        if plan.config.mix and (part.cached or part.unlabelled or plan.config.data.unlabelled):
            raise InputError(
                "distil.mix: mixed images need answers of their own, and labels: leave out distil.cached and "
                "images without labels"
            )
        more = plan.taught or plan.unlabelled  # its own, else those that its teacher learnt from
        keys = np.empty(0, np.uint64) if more is None else dataset_keys(more)
        super().__init__(plan, folder, group)
        self.labelled = len(plan.train)
        if more is not None:
            self.train = join_datasets(plan.train, more)
            self.position.images = len(self.train)
        weights, _ = teacher_file(self.config)
        self.teacher = load(weights, self.device).requires_grad_(False)
        if begins:
            copy_weights(self.teacher, self.model)
            self.restart_ema()
        count = len(self.train) if self.config.distil.cached else 0
        logits = torch.zeros(count, self.model.num_classes, dtype=torch.float16)
        if begins and count:
            workers = self.config.data.workers or 0
            name, _ = self.teacher.method.teaching
            outputs = infer(self.teacher, self.train, self.eval_pipeline, inferences=(name,), workers=workers)
            logits = outputs.logits[name].half()
        self.memory = Answers(logits, keys).to(self.device)

    def resume(self) -> None:
        """Take everything back; refused where the unlabelled images are others."""
        keys = self.memory.keys.clone()
        super().resume()
        if not torch.equal(keys, self.memory.keys):
            source = shown(self.config.distil.unlabelled or self.config.data.unlabelled or "")
            raise InputError(f"{source}: its images are not those that the run began with: restore them")

    def teach(self, images: Tensor, target: Target, batch: Batch) -> tuple[Target, Tensor | None]:
        """The teacher's logits; its class is the target of an image without a label."""
        answers = self._answers(images, batch)
        if isinstance(target, MixedTarget):  # of labelled images alone
            return target, answers
        unknown = batch.indices.to(self.device) >= self.labelled
        return torch.where(unknown, answers.argmax(1), target), answers

    @torch.no_grad()
    def _answers(self, images: Tensor, batch: Batch) -> Tensor:
        teacher, part = self.teacher, self.config.distil
        if part.cached:
            return self.memory.logits[batch.indices.to(self.device)].float()
        inference, passes = teacher.method.teaching
        views = draw_views(batch.draws, passes, part.teacher_views or passes, False)
        with self._autocast():
            if views is None:
                return teacher.logits(images, inference).float()
            views = views.to(self.device)
            features = teacher.features(teacher.method.expand(images, views))
            return teacher.method.classify_views(teacher.heads, features, views).mean(1).float()

    def cost(self) -> dict[str, Any]:
        """FLOP and seconds of the whole: the teacher's training, its answers, and the student's training."""
        part, method = self.config.distil, self.teacher.method
        taken = self.steps - self.position.skipped
        _, passes = method.teaching
        asked = part.teacher_passes(method, len(self.train), taken * self.batch_size)
        forward = forward_flop(self.config, self.teacher)
        answering = forward if part.cached else forward_flop(self.config, self.teacher, training=True)
        teacher_flop, teacher_seconds = _training_cost(Path(part.teacher or ""), self.teacher)
        answers = answering * asked
        own = 3 * forward_flop(self.config, self.model, training=True) * taken * self.batch_size
        return {
            "training_flop": teacher_flop + answers + own,
            "teacher_flop": teacher_flop,
            "answers_flop": answers,
            "student_flop": own,
            "inference_flop": {
                kind: forward * (passes if kind == "aggregated" else 1) for kind in method.inferences
            }
            | {"distilled": forward_flop(self.config, self.model)},
            "seconds": round(teacher_seconds + self.position.seconds, 2),
            "teacher_seconds": round(teacher_seconds, 2),
        }


def distil_stage(plan: Plan[ClassifierConfig], group: Group, folder: Path) -> Distiller:
    """The last stage of a run, in its folder below the run's: its teacher is what the run trained."""
    return Distiller(replace(plan, config=student_config(plan.config, folder.parent)), folder, group)


@torch.no_grad()
def copy_weights(teacher: Classifier, student: Classifier) -> None:
    """The teacher's backbone, and the block of view 0 of its class head, where the student is alike."""
    if teacher.spec != student.spec:
        return
    student.backbone.load_state_dict(teacher.backbone.state_dict())
    given = teacher.heads["joint"] if "joint" in teacher.heads else teacher.heads["plain"]
    own = student.heads["plain"]
    if not (isinstance(given, JointHead) and isinstance(own, JointHead) and given.kind == own.kind):
        return
    own.weight.copy_(given.weight[:: given.num_views])
    if own.bias is not None and given.bias is not None:
        own.bias.copy_(given.bias[:: given.num_views])
