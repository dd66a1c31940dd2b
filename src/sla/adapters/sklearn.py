"""A scikit-learn style estimator: `fit`, `predict`, `predict_proba` and `score` on arrays of images."""

import copy
import math
from collections.abc import Callable
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sla.augment.ops import Pipeline
from sla.augment.pipelines import eval_pipeline, train_pipeline
from sla.backbones import count_features, find_weights
from sla.classifier import Classifier
from sla.errors import InputError, MissingExtraError
from sla.factory import create
from sla.heads import check_device, is_whole
from sla.hooks import follow_step, init_from_data, wants_data
from sla.images.store import spread
from sla.inference import check_inference
from sla.methods import Method, StepContext, check_method, create_method
from sla.methods.checks import create_memory, refuse_teacher
from sla.sampling.draws import Draws
from sla.views import Views, check_views, parse_views

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.exceptions import NotFittedError
    from sklearn.utils import check_array, check_random_state, column_or_1d
    from sklearn.utils.multiclass import check_classification_targets
except ImportError:
    raise MissingExtraError("the scikit-learn estimator", "report") from None

LEVELS = 255
SAMPLE = 2048  # training images for modules that are initialised from data


class _NotFittedError(InputError, NotFittedError):
    """Both what this package and what scikit-learn raises."""


class SLAClassifier(ClassifierMixin, BaseEstimator):
    """Images (n, H, W), (n, H, W, C) or (n, C, H, W) and labels of any kind in, a classifier out.

    Pixels are standardised by mean and deviation of the training images, or as pretrained weights expect. To
    augment or resize images, pixels of any range are first scaled to 256 levels. Can be cloned,
    cross-validated, searched over and pickled.

    Args:
        method: a name (`sla+sd`, `sla`, `baseline`, ...) or a method object; none that needs a teacher.
        views: a text such as `rot4`, or an object such as `Rotation()`; of a method given by name.
        backbone: a name, or a module from images to features; a copy of it is trained.
        weights: none, or pretrained: published weights of the named backbone.
        augment: label-preserving augmentation, e.g. `crop(1)`, `crop(4), flip`, or none.
        resolution: pixels a side that the backbone sees; default: of the images.
        image_shape: of images that are rows of a two-dimensional X: (H, W), (C, H, W) or (H, W, C).
        inference: single, aggregated or distilled; default: the best in one pass.
        epochs: passes over the images.
        batch_size: images per step, before views.
        learning_rate: the highest one of the one-cycle schedule.
        device: cpu, cuda, mps, ...
        random_state: the seed of weights, order and augmentation.

    Attributes:
        classes_: the labels, sorted, in the order of `predict_proba`.
        model_: the trained classifier.
    """

    def __init__(
        self,
        method: str | Method = "sla+sd",
        views: str | Views = "rot4",
        backbone: str | nn.Module = "resnet8",
        weights: str = "none",
        augment: str = "none",
        resolution: int | None = None,
        image_shape: tuple[int, ...] | None = None,
        inference: str | None = None,
        epochs: int = 30,
        batch_size: int = 64,
        learning_rate: float = 0.05,
        device: str = "cpu",
        random_state: int = 0,
    ) -> None:
        self.method = method
        self.views = views
        self.backbone = backbone
        self.weights = weights
        self.augment = augment
        self.resolution = resolution
        self.image_shape = image_shape
        self.inference = inference
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.device = device
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> "SLAClassifier":  # noqa: N803
        """Train on all of X, from the first weights on."""
        self._check_parameters()
        images = self._images(X)
        labels = _labels(y, len(images))
        self.classes_, numbers = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise InputError("a classifier needs at least two classes; these labels have one class")
        self.input_shape_ = tuple(images.shape[1:])
        self.n_features_in_ = int(np.prod(self.input_shape_))
        self._choose_scale(images)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(_seed(self.random_state))
            self.model_ = self._build(len(self.classes_), images).to(self.device)
            check_inference(self.inference or self.model_.best_inference, self.model_.inferences)
            self.n_iter_ = self._train(images, torch.as_tensor(numbers))
        self.model_.class_names = [str(label) for label in self.classes_]
        self.model_.eval()
        return self

    def predict_proba(self, X: Any) -> np.ndarray:  # noqa: N803
        """(n, N) probabilities in the order of `classes_`."""
        if not hasattr(self, "model_"):
            raise _NotFittedError("this SLAClassifier is not fitted yet: call fit first")
        images = self._images(X)
        if (found := int(np.prod(images.shape[1:]))) != self.n_features_in_:
            raise InputError(
                f"X has {found} features, but SLAClassifier is expecting {self.n_features_in_} features as "
                "input, the pixels of the images it was fitted to"
            )
        if (shape := tuple(images.shape[1:])) != self.input_shape_:
            raise InputError(f"images are {shape}, but those that it was fitted to {self.input_shape_}")
        prepare = self._pipeline(eval_pipeline)
        parts = []
        for batch in images.split(256):
            seen = prepare(batch, Draws(0, 0, len(batch))).to(self.device)
            parts.append(self.model_.predict(seen, self.inference).probabilities.cpu())
        return torch.cat(parts).numpy()

    def predict(self, X: Any) -> np.ndarray:  # noqa: N803
        """(n,) labels, as `fit` got them."""
        best = self.predict_proba(X).argmax(1)
        return self.classes_[best]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = self.image_shape is not None
        tags.input_tags.three_d_array = True
        tags.classifier_tags.poor_score = True  # on rows of numbers, which are no images
        return tags

    def _check_parameters(self) -> None:
        """Raise an error for what only `fit` may refuse: scikit-learn sets parameters to anything."""
        for name in ("epochs", "batch_size"):
            if not is_whole(getattr(self, name), 1):
                raise InputError(f"{name} must be a whole number from 1, not {getattr(self, name)!r}")
        rate, shape = self.learning_rate, self.image_shape
        if isinstance(rate, bool) or not isinstance(rate, Real) or not 0 < rate < math.inf:
            raise InputError(f"learning_rate must be a number above 0, not {rate!r}")
        if self.resolution is not None and not is_whole(self.resolution, 1):
            raise InputError(f"resolution must be None or a whole number from 1, not {self.resolution!r}")
        sides = shape if isinstance(shape, tuple | list) else ()
        if shape is not None and (len(sides) not in (2, 3) or not all(is_whole(side, 1) for side in sides)):
            raise InputError(f"image_shape must be (H, W), (C, H, W) or (H, W, C), not {shape!r}")
        if not isinstance(self.backbone, str | nn.Module):
            raise InputError(f"a backbone is a name or a module, not {self.backbone!r}")
        if not isinstance(self.augment, str):
            raise InputError(f"augment is a text such as 'crop(4), flip', or 'none', not {self.augment!r}")
        if self.weights not in ("none", "pretrained"):
            raise InputError(f"weights are none or pretrained, not {self.weights!r}")
        if self.weights == "pretrained" and isinstance(self.backbone, nn.Module):
            raise InputError("weights='pretrained' is for a named backbone: a module keeps those that it has")
        if not isinstance(self.views, str):
            check_views(self.views)
        check_device(self.device)

    def _build(self, num_classes: int, images: Tensor) -> Classifier:
        method = copy.deepcopy(self.method)  # a criterion may be a module, which learns
        if isinstance(method, str):
            views = parse_views(self.views) if isinstance(self.views, str) else self.views
            method = create_method(method, views)
        check_method(method)
        refuse_teacher(method, "the estimator")
        if isinstance(self.backbone, nn.Module):
            backbone = copy.deepcopy(self.backbone)
            width = count_features(backbone, self.image_shape_)
            return create(backbone, num_classes, method, num_features=width)
        options = {"pretrained": True} if self.weights == "pretrained" else {}
        return create(self.backbone, num_classes, method, in_channels=images.shape[1], **options)

    def _train(self, images: Tensor, targets: Tensor) -> int:
        size = min(int(self.batch_size), len(images))
        steps = int(self.epochs) * (len(images) // size)
        optimizer = torch.optim.SGD(
            self.model_.parameters(), self.learning_rate, momentum=0.9, nesterov=True, weight_decay=5e-4
        )
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, self.learning_rate, total_steps=steps)
        prepare, seed = self._pipeline(train_pipeline), torch.initial_seed()
        method = self.model_.method
        memory = create_memory(method, len(images), len(self.classes_))
        memory = memory and memory.to(self.device)
        if wants_data(self.model_):
            some = images[spread(len(images), SAMPLE)]
            seen = self._pipeline(eval_pipeline)(some, Draws(0, 0, len(some)))
            init_from_data(self.model_, seen.to(self.device))
        for step in range(steps):
            place = step % (len(images) // size)
            if not place:
                # Batch norm needs more than one image: the rest of an epoch that fills no batch waits.
                order = torch.randperm(len(images))[: len(images) // size * size].split(size)
            rows = order[place]
            draws, views = Draws(seed, step, size), None
            seen = prepare(images[rows], draws).to(self.device)
            if method.usual_views is not None:
                order_of_views = draws.uniform("views", len(method.views)).argsort(1)
                views = order_of_views[:, : method.usual_views].to(self.device)
            context = StepContext(views, rows.to(self.device), step, steps, memory)
            follow_step(self.model_, step, steps)
            optimizer.zero_grad()
            self.model_(seen, targets[rows].to(self.device), context)["loss"].backward()
            optimizer.step()
            schedule.step()
        follow_step(self.model_, steps, steps)
        return steps

    def _choose_scale(self, images: Tensor) -> None:
        """The range of pixels that becomes 0 to 255, mean and deviation, and the size that the model sees."""
        low, high = float(images.min()), float(images.max())
        if low >= 0 and high <= LEVELS:  # levels, or shares of the brightest
            low, high = 0.0, 1.0 if high <= 1 else LEVELS
        self.low_, self.span_ = low, high - low or 1.0
        self.mean_, self.std_ = float(images.mean()), float(images.std()) or 1.0
        height, width = images.shape[2:]
        self.image_shape_ = images.shape[1], self.resolution or height, self.resolution or width
        # Nothing to do to a pixel but standardise it: then images need not be square.
        self.is_plain_ = self.augment == self.weights == "none" and self.resolution is None
        if not self.is_plain_ and self.image_shape_[1] != self.image_shape_[2]:
            raise InputError(f"images of {height} x {width} pixels are not square: set resolution too")

    def _pipeline(self, make: Callable[..., Pipeline]) -> Callable[[Tensor, Draws], Tensor]:
        """From pixels as they are given to what the model sees, in training or in evaluation."""
        low, span, mean, std = self.low_, self.span_, self.mean_, self.std_
        if self.is_plain_:
            return lambda images, draws: (images - mean) / std
        channels, size, _ = self.image_shape_
        moments = ((mean - low) / span,) * channels, (std / span,) * channels
        if self.weights == "pretrained" and (known := find_weights(str(self.backbone))):
            moments = known.input.mean, known.input.std
        pipeline = make(self.augment, size, *moments)

        def prepare(images: Tensor, draws: Draws) -> Tensor:
            levels = ((images - low) / span * LEVELS).round().clamp(0, LEVELS).to(torch.uint8)
            return pipeline(levels, draws, torch.ones(len(images)))

        return prepare

    def _images(self, array: Any) -> Tensor:
        """Any of the layouts -> float32 (n, C, H, W)."""
        array = np.asarray(array) if isinstance(array, Tensor) else array
        try:
            found = check_array(
                array,
                dtype=np.float32,
                allow_nd=True,
                ensure_2d=False,
                ensure_all_finite=False,
            )
        except (TypeError, ValueError) as error:
            raise InputError(" ".join(str(error).split())) from None
        shape = self.image_shape
        if found.ndim == 2 and shape is not None:
            if found.shape[1] != np.prod(shape):
                raise InputError(
                    f"X has {found.shape[1]} features, but an image {shape} has {np.prod(shape)}"
                )
            found = found.reshape(len(found), *shape)
        images = torch.from_numpy(np.ascontiguousarray(found))
        if images.ndim == 3:
            images = images.unsqueeze(1)
        elif images.ndim == 4 and images.shape[3] in (1, 3) and images.shape[1] not in (1, 3):
            images = images.permute(0, 3, 1, 2)
        if images.ndim != 4 or not len(images):
            raise InputError(
                f"images must be (n, H, W), (n, H, W, C) or (n, C, H, W), not {tuple(found.shape)}; for rows "
                "of pixels pass image_shape=(H, W)"
            )
        if not bool(torch.isfinite(images).all()):
            raise InputError("the images have pixels that are NaN or infinite")
        return images


def _seed(random_state: Any) -> int:
    """A seed from what scikit-learn takes as `random_state`."""
    if is_whole(random_state, 0):
        return int(random_state)
    try:
        return int(check_random_state(random_state).randint(2**31))
    except ValueError as error:
        raise InputError(f"random_state: {error}") from None


def _labels(y: Any, count: int) -> np.ndarray:
    """(n,) labels of classes."""
    if y is None:
        raise InputError("SLAClassifier requires y to be passed, but the target y is None")
    labels = np.asarray(y)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = column_or_1d(labels, warn=True)  # with scikit-learn's own warning
    if labels.shape != (count,):
        raise InputError(f"{count} images but labels of shape {labels.shape}")
    try:
        check_classification_targets(labels)
    except ValueError as error:
        raise InputError(" ".join(str(error).split())) from None
    return labels
