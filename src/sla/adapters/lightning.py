"""A Lightning module around a classifier."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from sla.classifier import Classifier
from sla.errors import MissingExtraError

try:
    from lightning.pytorch import LightningModule
except ImportError:
    raise MissingExtraError("the Lightning module", "lightning") from None

Configure = Callable[[nn.Module], Any]  # what configure_optimizers returns, from the module it optimises


class SLAModule(LightningModule):
    """Train with `Trainer.fit`: logs the loss and its parts, and the accuracy of every kind of inference.

    Args:
        model: any classifier.
        configure: from the classifier to what Lightning's `configure_optimizers` returns; SGD by default.
    """

    def __init__(self, model: Classifier, configure: Configure | None = None) -> None:
        super().__init__()
        self.model = model
        self.configure = configure or (lambda m: torch.optim.SGD(m.parameters(), 0.1, 0.9, weight_decay=1e-4))

    def forward(self, input: Tensor) -> Tensor:
        """The best class logits in one pass."""
        return self.model(input)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """The method's loss of one base batch."""
        losses = self.model(*batch)
        self.log_dict({f"train/{name}": value for name, value in losses.items() if name != "output"})
        return losses["loss"]

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """`val/single`, `val/aggregated`, `val/distilled`: accuracies, as far as the method has them."""
        input, target = batch
        for inference, logits in self.model.logits_by_inference(input).items():
            right = (logits.argmax(-1) == target).float().mean()
            self.log(f"val/{inference}", right, batch_size=len(target), prog_bar=True)

    def configure_optimizers(self) -> Any:
        """What `configure` makes of the classifier."""
        return self.configure(self.model)
