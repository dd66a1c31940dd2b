"""What a joint head learns from images without labels: their view, and its own confident answers."""

import math
from dataclasses import dataclass

from torch import Tensor, nn

from sla.errors import InputError
from sla.losses import consistency_loss, marginal_view_loss
from sla.methods.base import Method, StepContext, option


def rising_trust(step: int, steps: int) -> float:
    """exp(-5 (1 - t)^2), where t rises from 0 to 1 in the first half of the steps (Laine and Aila, 2017).

    A model that has just begun is confident and wrong at times. Learning that, it stays so.
    """
    return math.exp(-5 * (1 - min(2 * step / max(steps, 1), 1.0)) ** 2)


@dataclass(frozen=True, kw_only=True)
class JointUnlabelled(Method):
    """The options and losses of images without labels, for methods with a joint head.

    L = w/M sum_j -log sum_i P(i, j | x_j) + [max_i p_i >= c] v/M sum_j -log P(argmax_i p_i, j | x_j)

    P is the joint head's softmax and p that of the aggregated answer on the weakly augmented image; with the
    second term (v > 0) x is augmented strongly, else weakly.

    Args:
        view_weight: w.
        consistency_weight: v; 0 for no second term.
        confidence: c.
    """

    view_weight: float = option(1.0, "unlabelled images: weight of the loss of their view", ge=0)
    consistency_weight: float = option(
        0.0, "unlabelled images: weight of the loss of confident aggregated answers", ge=0
    )
    confidence: float = option(
        0.95, "unlabelled images: the least probability of a confident answer", ge=0, le=1
    )

    @property
    def unlabelled_parts(self) -> tuple[str, ...]:  # type: ignore[override]
        """The loss of the view; that of confident answers, and their share."""
        more = ("unlabelled_consistency", "unlabelled_confident") if self.wants_answers else ()
        return ("unlabelled_view", *more)

    @property
    def wants_answers(self) -> bool:  # type: ignore[override]
        """Whether confident answers are learnt."""
        return self.consistency_weight > 0

    def check_unlabelled(self) -> None:
        """Raise an error for weights and a confidence that cannot be."""
        if not (0 <= self.view_weight < math.inf and 0 <= self.consistency_weight < math.inf):
            given = f"{self.view_weight} and {self.consistency_weight}"
            raise InputError(f"view_weight and consistency_weight must be at least 0, not {given}")
        if not 0 <= self.confidence <= 1:
            raise InputError(f"confidence must be from 0 to 1, not {self.confidence}")

    def unlabelled_losses(
        self, heads: nn.ModuleDict, features: Tensor, context: StepContext
    ) -> dict[str, Tensor]:
        """`loss`, its parts `unlabelled_view` and, with confident answers, their loss and their share."""
        more = context.unlabelled
        if more is None:
            raise InputError(
                "the loss of images without labels needs StepContext(unlabelled=Unlabelled(...))"
            )
        if not len(more.images):
            raise InputError("a batch of images without labels has no image")
        logits, num_views = heads["joint"](features), len(self.views)
        view = marginal_view_loss(logits, num_views, more.views)
        loss, parts = self.view_weight * view, {"unlabelled_view": view.detach()}
        if self.wants_answers:
            if more.answers is None:
                raise InputError("consistency_weight needs the answers: Unlabelled(images, answers=...)")
            self._check_answers(more.answers, more.trust, len(more.images), logits.shape[1] // num_views)
            consistency, confident = consistency_loss(
                logits, more.answers, num_views, self.confidence, more.views
            )
            loss = loss + self.consistency_weight * more.trust * consistency
            parts |= {"unlabelled_consistency": consistency.detach(), "unlabelled_confident": confident}
        return {"loss": loss, **parts}

    @staticmethod
    def _check_answers(answers: Tensor, trust: Tensor | float, images: int, classes: int) -> None:
        if tuple(answers.shape) != (images, classes) or not answers.is_floating_point():
            given = f"{answers.dtype} {tuple(answers.shape)}"
            raise InputError(f"answers must be class logits, float ({images}, {classes}), not {given}")
        if not isinstance(trust, Tensor) and not 0 <= trust < math.inf:
            raise InputError(f"trust must be a number of at least 0, not {trust!r}")
