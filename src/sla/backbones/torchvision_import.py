"""torchvision, also where its compiled part does not fit the installed torch."""

import importlib
import sys
from types import ModuleType

import torch

from sla.errors import InputError, MissingExtraError

_BOXES = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def import_torchvision() -> ModuleType:
    """The module `torchvision`.

    A torchvision built for CUDA cannot load its operators beside a torch without CUDA, and fails as it
    describes two of them. Once they are declared, transforms and models work; box operators do not.
    """
    try:
        return importlib.import_module("torchvision")
    except ModuleNotFoundError as error:
        if error.name != "torchvision":
            raise
        raise MissingExtraError("torchvision", "timm") from None
    except (RuntimeError, OSError, ImportError) as error:
        if "operator torchvision::nms does not exist" not in str(error):
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise InputError(
                f"torchvision does not fit torch {torch.__version__}: install the torchvision of the same "
                f"build, CPU or CUDA, as torch ({reason})"
            ) from error
    # Only now: to declare what the real library then declares as well ends the process.
    for operator in ("nms", "qnms"):
        torch.library.define(f"torchvision::{operator}", _BOXES)
    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        del sys.modules[name]
    return importlib.import_module("torchvision")
