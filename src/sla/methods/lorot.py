"""LoRot-E (Moon, Kim and Heo, ECCV 2022): one quadrant of the image is rotated, and the network says which
quadrant, and by how much, beside the class."""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from sla.criteria import Criterion, cross_entropy
from sla.errors import InputError
from sla.imbalance import check_head
from sla.labels import Target
from sla.losses import data_augmentation_loss, view_loss
from sla.methods.base import NO_CONTEXT, Method, StepContext, option, register_method
from sla.views import Views

TURNS = 4


class QuadrantRotation(Views):
    """View 4*q + r has quadrant q (row by row) rotated by r * 90 degrees; four of the 16 change nothing."""

    text = "quadrants"
    names = tuple(
        f"{place}, {90 * turns}°"
        for place in ("top left", "top right", "bottom left", "bottom right")
        for turns in range(TURNS)
    )

    def apply(self, input: Tensor, view: int) -> Tensor:
        """(..., S, S) with one of its quarters rotated; of an odd S, the middle row and column stay."""
        quadrant, turns = divmod(view, TURNS)
        side = input.shape[-1]
        if input.shape[-2] != side:
            raise InputError(
                f"rotation needs square images, not a batch of {tuple(input.shape)}: crop or resize them"
            )
        if turns == 0:
            return input
        half = side // 2
        top, left = ((side - half) * (quadrant // 2), (side - half) * (quadrant % 2))
        output = input.clone()
        patch = input[..., top : top + half, left : left + half]
        output[..., top : top + half, left : left + half] = torch.rot90(patch, turns, (-2, -1))
        return output


@register_method("lorot")
@dataclass(frozen=True)
class LoRot(Method):
    """L = CE(class) + w * CE(quadrant and rotation), both of the changed image; one pass per image.

    The view of each image is drawn by the caller, `context.views` (B, 1).

    Args:
        place_weight: w, 0.1 in the paper.
        criterion: for the classes.
        head: of the classes, "linear" or "cosine".
    """

    place_weight: float = option(0.1, "lorot: weight of the loss of quadrant and rotation", ge=0)
    criterion: Criterion = cross_entropy
    head: str = "linear"
    views: Views = field(default=QuadrantRotation(), init=False, repr=False)

    parts = ("class", "place")
    usual_views = 1

    def __post_init__(self) -> None:
        check_head(self.head, self.criterion)
        if not 0 <= self.place_weight < math.inf:
            raise InputError(f"place_weight must be at least 0, not {self.place_weight}")

    def build_heads(self, in_features: int, num_classes: int) -> nn.ModuleDict:
        """A plain head for the class and one for the 16 places and rotations."""
        heads = super().build_heads(in_features, num_classes)
        heads["place"] = nn.Linear(in_features, len(self.views))
        return heads

    def losses(
        self, heads: nn.ModuleDict, features: Tensor, target: Target, context: StepContext = NO_CONTEXT
    ) -> dict[str, Tensor]:
        """`loss`, its parts `class` and `place`, and `output`."""
        if context.views is None:  # all 16 would be 16 passes per image
            raise InputError(
                "lorot trains on a random view of each image: StepContext(views=torch.randint(16, (B, 1))); "
                "sla.fit draws it"
            )
        count = context.views.shape[1]
        logits = heads["plain"](features)
        of_class = data_augmentation_loss(logits, target, count, self.criterion)
        place = view_loss(heads["place"](features), context.views)
        return {
            "loss": of_class + self.place_weight * place,
            "class": of_class.detach(),
            "place": place.detach(),
            "output": logits[::count].detach(),
        }
