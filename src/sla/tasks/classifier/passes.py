"""What training costs: the forward passes of a step and of a student, and their FLOP."""

import torch

from sla.backbones.cost import count_flops
from sla.classifier import Classifier
from sla.runs.plan import Plan
from sla.tasks.classifier.build import build_model, plan_method
from sla.tasks.classifier.config import DISTIL, ClassifierConfig, student_share


def step_passes(config: ClassifierConfig) -> int:
    """Forward passes of a training step, over all processes; a backward pass counts as two."""
    method = plan_method(config)
    num_views, run = len(method.views), config.run
    count = min(config.method.views_per_step or num_views, num_views)
    passes = (run.batch_size or 1) * 3 * count
    if config.data.unlabelled is None or not method.unlabelled_parts:
        return passes
    return passes + (run.unlabelled_batch_size or 0) * (
        3 * count + (num_views if method.wants_answers else 0)
    )


def forward_flop(config: ClassifierConfig, model: Classifier, training: bool = False) -> int:
    """FLOP of one image through the backbone, at its size at test time or in training."""
    return count_flops(model.backbone, config.model.input_shape(training))


def step_flop(plan: Plan[ClassifierConfig]) -> int:
    """FLOP of one step of training, as a run's cost counts them."""
    config = plan.config
    with torch.random.fork_rng(devices=[]):
        model = build_model(config, plan.train.classes, plan.train.counts(), first=False)
    return forward_flop(config, model, training=True) * step_passes(config)


def distil_cost(config: ClassifierConfig, images: int) -> tuple[float, float]:
    """What distillation costs for each step of training, and once; in steps of training, by passes.

    A backward pass counts as two forward ones.
    """
    if not config.has_stage(DISTIL):
        return 0.0, 0.0
    method, batch, step = plan_method(config), config.run.batch_size or 1, step_passes(config)
    answers = config.distil.teacher_passes(method, images=0, seen=batch)
    once = config.distil.teacher_passes(method, images, seen=0)
    return student_share(config) * (3 * batch + answers) / step, once / step
