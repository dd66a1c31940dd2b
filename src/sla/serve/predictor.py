"""Pictures through the model of a run: probabilities, what each view says, and features, from one pass.

Whether they are unlike the training pictures takes a second one, where the run's quick model says it.
"""

import io
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from sla.images.decode import decode_array
from sla.images.store import Pixels
from sla.inference import check_inference
from sla.sampling.draws import Draws
from sla.tasks.classifier.evaluation import check_finite, infer_batch
from sla.tasks.classifier.run import Run
from sla.tasks.classifier.unlike import distances_to


class Answer(NamedTuple):
    """What the model says about one picture."""

    probabilities: Tensor  # (N,), calibrated
    views: Tensor | None  # (M, N): what each view alone says; None if the method does not aggregate views
    features: Tensor  # (D,), of length 1
    unlike: bool | None  # the training pictures; None for a run that has no rule for it


class Predictor:
    """The model of a run, in eval mode; only one thread may use it."""

    def __init__(self, run: Run, inference: str | None = None) -> None:
        self.run, self.model = run, run.model.eval()
        self.inference = inference or run.headline
        check_inference(self.inference, run.model.inferences)
        self.pipeline = run.pipeline
        self.quick = None if run.quick is None else Predictor(run.quick)

    @property
    def view_names(self) -> tuple[str, ...]:
        """Names of the views that answer separately; none if the method does not aggregate views."""
        return self.model.method.views.names if self.model.aggregates_by_view else ()

    def decode(self, data: bytes) -> Pixels:
        """The bytes of an image file as the training images were read, (1, 3, H, W); in any thread."""
        stored = self.run.preprocessing.stored_size
        pixels, aspect = decode_array(io.BytesIO(data), (stored, stored))
        return Pixels(torch.from_numpy(pixels)[None], torch.tensor([aspect]))

    @torch.inference_mode()
    def answer(self, pixels: Pixels) -> list[Answer]:
        """What the model says about each picture."""
        answers = infer_batch(
            self.model, self._prepare(pixels), (self.inference,), by_view=bool(self.view_names), plain=True
        )
        logits, by_view = check_finite(answers.logits[self.inference], self.inference), answers.by_view
        found = self._calibrated(logits, self.inference)
        views = None if by_view is None else self._calibrated(by_view, "single")
        assert answers.plain is not None
        unit = F.normalize(answers.plain.float(), dim=-1)
        unlike = self._unlike(unit if self.quick is None else self.quick.features(pixels))
        return [
            Answer(found[row], None if views is None else views[row], unit[row], unlike[row])
            for row in range(len(found))
        ]

    @torch.inference_mode()
    def features(self, pixels: Pixels) -> Tensor:
        """(B, D), each of length 1."""
        return F.normalize(self.model.features(self._prepare(pixels)).float(), dim=-1)

    def _unlike(self, features: Tensor) -> Sequence[bool | None]:
        """Whether each picture is unlike those of training, from features (B, D) of the model of the rule."""
        rule = self.run.unlike_rule
        if rule is None:
            return [None] * len(features)
        marked: list[bool] = rule.marks(distances_to(rule.means, features)).tolist()
        return marked

    def _prepare(self, pixels: Pixels) -> Tensor:
        return self.pipeline(pixels.images, Draws(0, 0, len(pixels.images)), pixels.aspect)

    def _calibrated(self, logits: Tensor, inference: str) -> Tensor:
        return (logits / self.run.temperatures.get(inference, 1.0)).softmax(-1)
