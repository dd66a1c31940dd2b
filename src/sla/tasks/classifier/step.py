"""One training step's forward pass as a module, so that DDP and torch.compile can wrap it whole."""

from torch import Tensor, nn

from sla.classifier import Classifier
from sla.labels import Target


class Step(nn.Module):
    """(input, target) -> the classifier's dict of losses.

    DDP synchronises gradients through the forward of the module it wraps: a loss taken around it would not be
    synchronised. The dict, with `loss` and `output`, is also what timm's training tasks return.
    """

    def __init__(self, model: Classifier) -> None:
        super().__init__()
        self.model = model

    def forward(self, input: Tensor, target: Target, views: Tensor | None = None) -> dict[str, Tensor]:
        """The losses of a base batch (B, ...), `loss` first."""
        return self.model.losses(input, target, views)
