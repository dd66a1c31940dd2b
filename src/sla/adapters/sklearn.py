"""A scikit-learn style estimator: `fit`, `predict`, `predict_proba` and `score` on arrays of images."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from sla.errors import InputError, MissingExtraError
from sla.factory import create
from sla.heads import is_whole
from sla.methods import create_method
from sla.views import parse_views

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
except ImportError:
    raise MissingExtraError("the scikit-learn estimator", "report") from None


class SLAClassifier(ClassifierMixin, BaseEstimator):
    """Images (n, H, W), (n, H, W, C) or (n, C, H, W) and labels of any kind in, a classifier out.

    Pixels are standardised by the training set's mean and deviation; nothing else is done to them. For crops,
    flips and schedules of your own, write a loop around the classifier.
    """

    def __init__(
        self,
        method: str = "sla+sd",
        views: str = "rot4",
        backbone: str = "resnet8",
        inference: str | None = None,
        epochs: int = 30,
        batch_size: int = 64,
        learning_rate: float = 0.05,
        random_state: int = 0,
    ) -> None:
        self.method = method
        self.views = views
        self.backbone = backbone
        self.inference = inference
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> "SLAClassifier":  # noqa: N803
        """Train from scratch on all of X."""
        for name in ("epochs", "batch_size"):
            if not is_whole(getattr(self, name), 1):
                raise InputError(f"{name} must be a whole number from 1, not {getattr(self, name)!r}")
        images, labels = _images(X), np.asarray(y)
        if labels.shape != (len(images),):
            raise InputError(f"{len(images)} images but labels of shape {labels.shape}")
        self.classes_, numbers = np.unique(labels, return_inverse=True)
        self.mean_, self.std_ = float(images.mean()), float(images.std()) or 1.0
        images, targets = (images - self.mean_) / self.std_, torch.as_tensor(numbers)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.random_state)
            method = create_method(self.method, parse_views(self.views))
            self.model_ = create(self.backbone, len(self.classes_), method, in_channels=images.shape[1])
            self._train(images, targets)
        self.model_.eval()
        return self

    def _train(self, images: Tensor, targets: Tensor) -> None:
        size = min(int(self.batch_size), len(images))
        steps = int(self.epochs) * (len(images) // size)
        optimizer = torch.optim.SGD(
            self.model_.parameters(), self.learning_rate, momentum=0.9, nesterov=True, weight_decay=5e-4
        )
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, self.learning_rate, total_steps=steps)
        for _ in range(self.epochs):
            # Batch norm needs more than one image: the rest of an epoch that fills no batch waits.
            for rows in torch.randperm(len(images))[: len(images) // size * size].split(size):
                optimizer.zero_grad()
                self.model_(images[rows], targets[rows])["loss"].backward()
                optimizer.step()
                schedule.step()

    def predict_proba(self, X: Any) -> np.ndarray:  # noqa: N803
        """(n, N) probabilities in the order of `classes_`."""
        if not hasattr(self, "model_"):
            raise InputError("this SLAClassifier is not fitted yet: call fit first")
        batches = ((_images(X) - self.mean_) / self.std_).split(256)
        found = [self.model_.predict(batch, self.inference).probabilities for batch in batches]
        return torch.cat(found).numpy()

    def predict(self, X: Any) -> np.ndarray:  # noqa: N803
        """(n,) labels, as `fit` got them."""
        best = self.predict_proba(X).argmax(1)
        return self.classes_[best]


def _images(array: Any) -> Tensor:
    """Any of the layouts -> float32 (n, C, H, W)."""
    images = torch.as_tensor(np.asarray(array, dtype=np.float32))
    if images.ndim == 3:
        images = images.unsqueeze(1)
    elif images.ndim == 4 and images.shape[3] in (1, 3) and images.shape[1] not in (1, 3):
        images = images.permute(0, 3, 1, 2)
    if images.ndim != 4 or not len(images):
        shape = np.asarray(array).shape
        raise InputError(f"images must be (n, H, W), (n, H, W, C) or (n, C, H, W), not {shape}")
    if not bool(torch.isfinite(images).all()):
        raise InputError("the images have pixels that are NaN or infinite")
    return images
