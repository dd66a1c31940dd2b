"""The methods: each is one loss and one set of heads. They work on features, never on the backbone.

A method is declared once, in a file of this package: `register_method` names it, and its fields are its
options. The configuration, the command line, plans, model files and costs are derived from that.
"""

# Names are listed in the order of registration: the paper's first.
from sla.methods.paper import SLA, Baseline, DataAugmentation, MultiTask

# isort: split
from sla.methods.base import (
    METHODS,
    NO_CONTEXT,
    Before,
    Declared,
    Method,
    StepContext,
    Unlabelled,
    check_method,
    create_method,
    find_method,
    method_options,
    option,
    register_method,
    takes_views,
)
from sla.methods.distilled import Distilled
from sla.methods.features import Features
from sla.methods.lorot import LoRot
from sla.methods.remembered import RememberedSLA

__all__ = [
    "METHODS",
    "NO_CONTEXT",
    "SLA",
    "Baseline",
    "Before",
    "DataAugmentation",
    "Declared",
    "Distilled",
    "Features",
    "LoRot",
    "Method",
    "MultiTask",
    "RememberedSLA",
    "StepContext",
    "Unlabelled",
    "check_method",
    "create_method",
    "find_method",
    "method_options",
    "option",
    "register_method",
    "takes_views",
]
