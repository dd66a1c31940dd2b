"""Self-supervised label augmentation for PyTorch: more accuracy from the labels you already have.

Names load on first use, so that `import sla` costs nothing and does not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

_HOME = {
    "allocator": ("keep_memory",),
    "errors": ("InputError", "MissingExtraError", "SLAError", "SLAWarning"),
    "views": (
        "ColorPermutation",
        "CustomViews",
        "Identity",
        "Rotation",
        "Views",
        "expand_views",
        "parse_views",
        "take_views",
    ),
    "labels": ("MixedTarget", "join_labels", "split_labels"),
    "heads": ("JointHead", "PlainHead"),
    "criteria": ("CrossEntropy", "cross_entropy"),
    "imbalance": (
        "LDAM",
        "Focal",
        "LogitAdjusted",
        "class_balanced_weights",
        "focal_loss",
        "ldam",
        "ldam_margins",
        "logit_adjusted_loss",
    ),
    "losses": ("data_augmentation_loss", "distillation_loss", "multi_task_loss", "sla_loss"),
    "methods": (
        "SLA",
        "Baseline",
        "DataAugmentation",
        "Method",
        "MultiTask",
        "StepContext",
        "create_method",
        "register_method",
    ),
    "hooks": ("follow_step", "init_from_data"),
    "plugins": ("allow",),
    "progress": ("Progress",),
    "inference": ("aggregate_views", "average_views", "select_view"),
    "anytime": ("AnytimeRule",),
    "classifier": ("Classifier", "Prediction"),
    "factory": ("create", "load", "save"),
    "backbones": ("create_backbone", "list_backbones"),
    "datasets.objects": ("Objects",),
    "tasks.classifier.run": ("Run",),
    "session": ("fit", "open_run"),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

_REMOVED = {"Several": ": it is gone; write a method of your own with the heads it needs"}

# Typed out for type checkers, which cannot compute it.
__all__ = [
    "LDAM",
    "SLA",
    "AnytimeRule",
    "Baseline",
    "Classifier",
    "ColorPermutation",
    "CrossEntropy",
    "CustomViews",
    "DataAugmentation",
    "Focal",
    "Identity",
    "InputError",
    "JointHead",
    "LogitAdjusted",
    "Method",
    "MissingExtraError",
    "MixedTarget",
    "MultiTask",
    "Objects",
    "PlainHead",
    "Prediction",
    "Progress",
    "Rotation",
    "Run",
    "SLAError",
    "SLAWarning",
    "StepContext",
    "Views",
    "__version__",
    "aggregate_views",
    "allow",
    "average_views",
    "class_balanced_weights",
    "create",
    "create_backbone",
    "create_method",
    "cross_entropy",
    "data_augmentation_loss",
    "distillation_loss",
    "expand_views",
    "fit",
    "focal_loss",
    "follow_step",
    "init_from_data",
    "join_labels",
    "keep_memory",
    "ldam",
    "ldam_margins",
    "list_backbones",
    "load",
    "logit_adjusted_loss",
    "multi_task_loss",
    "open_run",
    "parse_views",
    "register_method",
    "save",
    "select_view",
    "sla_loss",
    "split_labels",
    "take_views",
]

if TYPE_CHECKING:
    from sla.allocator import keep_memory
    from sla.anytime import AnytimeRule
    from sla.backbones import create_backbone, list_backbones
    from sla.classifier import Classifier, Prediction
    from sla.criteria import CrossEntropy, cross_entropy
    from sla.datasets.objects import Objects
    from sla.errors import InputError, MissingExtraError, SLAError, SLAWarning
    from sla.factory import create, load, save
    from sla.heads import JointHead, PlainHead
    from sla.hooks import follow_step, init_from_data
    from sla.imbalance import (
        LDAM,
        Focal,
        LogitAdjusted,
        class_balanced_weights,
        focal_loss,
        ldam,
        ldam_margins,
        logit_adjusted_loss,
    )
    from sla.inference import aggregate_views, average_views, select_view
    from sla.labels import MixedTarget, join_labels, split_labels
    from sla.losses import data_augmentation_loss, distillation_loss, multi_task_loss, sla_loss
    from sla.methods import (
        SLA,
        Baseline,
        DataAugmentation,
        Method,
        MultiTask,
        StepContext,
        create_method,
        register_method,
    )
    from sla.plugins import allow
    from sla.progress import Progress
    from sla.session import fit, open_run
    from sla.tasks.classifier.run import Run
    from sla.views import (
        ColorPermutation,
        CustomViews,
        Identity,
        Rotation,
        Views,
        expand_views,
        parse_views,
        take_views,
    )


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'sla' has no attribute {name!r}{_REMOVED.get(name, '')}")
    value = getattr(import_module(f"sla.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
