"""A Lightning module around a classifier."""

import contextlib
import math
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from sla.backbones.torchvision_import import import_torchvision
from sla.classifier import Classifier
from sla.errors import InputError, MissingExtraError
from sla.factory import build, describe
from sla.hooks import follow_step, init_from_data, wants_data
from sla.methods import StepContext
from sla.methods.checks import refuse_teacher
from sla.plugins import is_passed

if "lightning" not in sys.modules:  # an import that failed leaves its parts
    for name in [name for name in sys.modules if name.startswith("lightning.")]:
        del sys.modules[name]
with contextlib.suppress(MissingExtraError):  # Lightning does without
    import_torchvision()  # its metrics import it, and fail where it does not fit the installed torch
try:
    from lightning.pytorch import LightningModule
except ImportError:
    raise MissingExtraError("the Lightning module", "lightning") from None

Configure = Callable[[nn.Module], Any]  # what configure_optimizers returns, from the module it optimises


class SLAModule(LightningModule):
    """Train with `Trainer.fit`: logs the loss and its parts, and the accuracy of every kind of inference.

    `SLAModule.load_from_checkpoint(path)` builds the classifier again from its description in the checkpoint;
    one with a backbone, method or views of your own needs `load_from_checkpoint(path, model=...)`.

    Args:
        model: any classifier.
        configure: from the classifier to what Lightning's `configure_optimizers` returns; SGD by default.
        description: what a checkpoint says about its classifier; not for you to pass.
    """

    def __init__(
        self,
        model: Classifier | None = None,
        configure: Configure | None = None,
        description: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if model is None and description is None:
            raise InputError("a Lightning module needs a classifier: SLAModule(sla.create(...))")
        if not isinstance(model, Classifier | None):
            kind = type(model).__name__
            raise InputError(f"a Lightning module wraps a Classifier, not a {kind}: sla.create(module, ...)")
        self.model = _rebuild(description or {}) if model is None else model
        refuse_teacher(self.model.method, "the Lightning module")
        self.configure = configure or _sgd
        self.save_hyperparameters({"description": describe(self.model)})

    def forward(self, input: Tensor) -> Tensor:
        """The best class logits in one pass."""
        return self.model(input)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """The method's loss of one base batch."""
        step, steps = self._position()
        input, target = _pair(batch)
        context = StepContext(self._draw_views(input), step=step, steps=steps)
        losses = self.model(input, target, context)
        self.log_dict({f"train/{name}": value for name, value in losses.items() if name != "output"})
        return losses["loss"]

    def _draw_views(self, input: Tensor) -> Tensor | None:
        """(B, k) random views, of a method that trains on k views of each image; else None, all of them."""
        method = self.model.method
        if method.usual_views is None:
            return None
        order = torch.rand(len(input), len(method.views), device=input.device).argsort(1)
        return order[:, : method.usual_views]

    def on_train_batch_start(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """The hooks of the classifier's modules: `init_from_data` gets the first batch, of all processes."""
        step, steps = self._position()
        if not step and not batch_idx and wants_data(self.model):
            input, _ = _pair(batch)
            images: Any = self.all_gather(input)  # the same in every process: weights must not differ
            init_from_data(self.model, images.flatten(0, images.ndim - input.ndim))
        follow_step(self.model, step, steps)

    def on_train_end(self) -> None:
        """The last call of `on_step`, after the last step."""
        follow_step(self.model, *self._position())

    def _position(self) -> tuple[int, int]:
        """The number of this step and of all, which is 0 where the trainer does not know it."""
        if self._trainer is None:  # a step that is called by hand
            return 0, 0
        steps = self.trainer.estimated_stepping_batches
        return self.trainer.global_step, int(steps) if 0 < steps < math.inf else 0

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """`val/single`, `val/aggregated`, `val/distilled`: accuracies, as far as the method has them."""
        input, target = _pair(batch)
        for inference, logits in self.model.logits_by_inference(input).items():
            right = (logits.argmax(-1) == target).float().mean()
            self.log(f"val/{inference}", right, batch_size=len(target), prog_bar=True)

    def configure_optimizers(self) -> Any:
        """What `configure` makes of the classifier."""
        return self.configure(self.model)


def _rebuild(description: dict[str, Any]) -> Classifier:
    """The classifier that a checkpoint describes, if it has no objects of your own."""
    method = description.get("method", {})
    names = (description.get("backbone"), method.get("name"), method.get("views"))
    if any(is_passed(str(name)) for name in names):
        raise InputError(
            "the checkpoint's classifier has objects that were passed from Python: "
            "SLAModule.load_from_checkpoint(path, model=...), with a classifier of the same objects"
        )
    return build(description, "the checkpoint")


def _pair(batch: Any) -> tuple[Tensor, Tensor]:
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        size = f" of {len(batch)}" if isinstance(batch, tuple | list) else ""
        raise InputError(f"a batch is (images, labels), not a {type(batch).__name__}{size}")
    return batch[0], batch[1]


def _sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 0.1, 0.9, weight_decay=1e-4)
