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
    "losses": (
        "consistency_loss",
        "data_augmentation_loss",
        "distillation_loss",
        "marginal_view_loss",
        "multi_task_loss",
        "sla_loss",
    ),
    "contrastive": ("nt_xent_loss",),
    "methods": (
        "SLA",
        "Baseline",
        "DataAugmentation",
        "Method",
        "MultiTask",
        "StepContext",
        "Unlabelled",
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

__all__ = sorted({"__version__", *_MODULE_OF})

if TYPE_CHECKING:  # `as` says that a name is exported; type checkers cannot compute `__all__`
    from sla.allocator import keep_memory as keep_memory
    from sla.anytime import AnytimeRule as AnytimeRule
    from sla.backbones import create_backbone as create_backbone
    from sla.backbones import list_backbones as list_backbones
    from sla.classifier import Classifier as Classifier
    from sla.classifier import Prediction as Prediction
    from sla.contrastive import nt_xent_loss as nt_xent_loss
    from sla.criteria import CrossEntropy as CrossEntropy
    from sla.criteria import cross_entropy as cross_entropy
    from sla.datasets.objects import Objects as Objects
    from sla.errors import InputError as InputError
    from sla.errors import MissingExtraError as MissingExtraError
    from sla.errors import SLAError as SLAError
    from sla.errors import SLAWarning as SLAWarning
    from sla.factory import create as create
    from sla.factory import load as load
    from sla.factory import save as save
    from sla.heads import JointHead as JointHead
    from sla.heads import PlainHead as PlainHead
    from sla.hooks import follow_step as follow_step
    from sla.hooks import init_from_data as init_from_data
    from sla.imbalance import LDAM as LDAM
    from sla.imbalance import Focal as Focal
    from sla.imbalance import LogitAdjusted as LogitAdjusted
    from sla.imbalance import class_balanced_weights as class_balanced_weights
    from sla.imbalance import focal_loss as focal_loss
    from sla.imbalance import ldam as ldam
    from sla.imbalance import ldam_margins as ldam_margins
    from sla.imbalance import logit_adjusted_loss as logit_adjusted_loss
    from sla.inference import aggregate_views as aggregate_views
    from sla.inference import average_views as average_views
    from sla.inference import select_view as select_view
    from sla.labels import MixedTarget as MixedTarget
    from sla.labels import join_labels as join_labels
    from sla.labels import split_labels as split_labels
    from sla.losses import consistency_loss as consistency_loss
    from sla.losses import data_augmentation_loss as data_augmentation_loss
    from sla.losses import distillation_loss as distillation_loss
    from sla.losses import marginal_view_loss as marginal_view_loss
    from sla.losses import multi_task_loss as multi_task_loss
    from sla.losses import sla_loss as sla_loss
    from sla.methods import SLA as SLA
    from sla.methods import Baseline as Baseline
    from sla.methods import DataAugmentation as DataAugmentation
    from sla.methods import Method as Method
    from sla.methods import MultiTask as MultiTask
    from sla.methods import StepContext as StepContext
    from sla.methods import Unlabelled as Unlabelled
    from sla.methods import create_method as create_method
    from sla.methods import register_method as register_method
    from sla.plugins import allow as allow
    from sla.progress import Progress as Progress
    from sla.session import fit as fit
    from sla.session import open_run as open_run
    from sla.tasks.classifier.run import Run as Run
    from sla.views import ColorPermutation as ColorPermutation
    from sla.views import CustomViews as CustomViews
    from sla.views import Identity as Identity
    from sla.views import Rotation as Rotation
    from sla.views import Views as Views
    from sla.views import expand_views as expand_views
    from sla.views import parse_views as parse_views
    from sla.views import take_views as take_views


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'sla' has no attribute {name!r}")
    value = getattr(import_module(f"sla.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
