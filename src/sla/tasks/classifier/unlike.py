"""Pictures unlike all training pictures: their features are far from those of every class.

The distance is one product with a matrix (N, D) of class means, of features that the prediction has anyway,
or of those of a quick model. Its threshold is calibrated on held-out pictures: the `rate` is the share of
such pictures that are marked all the same. `unlike.safetensors` beside a checkpoint's weights has both.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from sla.images.store import Dataset
from sla.model_file import read_model_file, write_model_file
from sla.runs.scores import weights_beside
from sla.sampling.protocols import places_by_class

RATE = 0.02  # of false alarms
FEWEST = 19  # pictures that calibrate a threshold: their largest distance has a rate of 1 in 20
REFERENCE = 2000  # training pictures, about, whose features make the class means


@dataclass(frozen=True)
class UnlikeRule:
    """When a picture is unlike all training pictures.

    d(z) = 1 - max_c m_c . z / |z|, the cosine distance of features z to the nearest class mean m_c, is above
    the threshold.

    Attributes:
        means: (N, D), of each class the mean of its features at length 1, at length 1.
        threshold: of the distance.
        rate: the largest share to expect of new pictures of the same kind that are marked.
        images: the number of pictures that calibrated it.
    """

    means: Tensor
    threshold: float
    rate: float
    images: int

    def marks(self, distances: Tensor) -> Tensor:
        """bool (n,) from distances (n,)."""
        return distances > self.threshold


def class_means(features: Tensor, targets: Tensor, num_classes: int) -> Tensor:
    """Directions (N, D) of the classes, from features (n, D); zero for a class without images."""
    sums = features.new_zeros(num_classes, features.shape[1])
    return F.normalize(sums.index_add(0, targets, F.normalize(features, dim=1)), dim=1)


def distances_to(means: Tensor, features: Tensor) -> Tensor:
    """The cosine distance of features (n, D) to the nearest of these directions (N, D): (n,)."""
    means = means.to(features.device, features.dtype)
    return 1 - (F.normalize(features, dim=1) @ means.T).amax(1)


def leave_one_out_distances(features: Tensor, targets: Tensor, num_classes: int) -> Tensor:
    """`distances_to` (n,) of the images (n, D) that make the means, each without its own share in them."""
    unit = F.normalize(features, dim=1)
    sums = unit.new_zeros(num_classes, unit.shape[1]).index_add(0, targets, unit)
    near = unit @ F.normalize(sums, dim=1).T
    own = F.normalize(sums[targets] - unit, dim=1)
    near.scatter_(1, targets.unsqueeze(1), (unit * own).sum(1, keepdim=True))
    return 1 - near.amax(1)


def calibrate_unlike(means: Tensor, distances: Tensor) -> UnlikeRule | None:
    """The rule by the distances (n,) of held-out pictures; None of too few.

    The threshold is the ceil((n + 1) (1 - rate))-th smallest distance: a further picture of the same kind is
    above it with a probability of at most the rate, whatever the distribution.
    """
    count = len(distances)
    if count < FEWEST:
        return None
    rate = max(RATE, 1 / (count + 1))
    place = min(math.ceil(round((count + 1) * (1 - rate), 6)), count)
    return UnlikeRule(means.float(), distances.sort().values[place - 1].item(), rate, count)


def leave_one_out_rule(features: Tensor, targets: Tensor, num_classes: int) -> UnlikeRule | None:
    """The rule of features (n, D) that were not trained on these images: they are held out in turn.

    None of too few images, and where a class has none.
    """
    if not targets.bincount(minlength=num_classes).all():
        return None
    distances = leave_one_out_distances(features, targets, num_classes)
    return calibrate_unlike(class_means(features, targets, num_classes), distances)


def reference_images(train: Dataset) -> Dataset:
    """Some training images of every class, about REFERENCE in all: the first of each, in their order."""
    each = math.ceil(REFERENCE / train.num_classes)
    return train.subset(np.concatenate([places[:each] for places in places_by_class(train)]))


def unlike_file(checkpoint: Path) -> Path:
    """Where the rule lies, in the folder of a checkpoint."""
    return checkpoint / "unlike.safetensors"


def write_unlike(checkpoint: Path, rule: UnlikeRule) -> None:
    """Write the rule beside the weights whose features it is for."""
    path = unlike_file(checkpoint)
    numbers = {"threshold": rule.threshold, "rate": rule.rate, "images": rule.images}
    about = {**numbers, "weights": weights_beside(path)}
    write_model_file(path, {"means": rule.means}, about, "unlike", checksum=True)


def read_unlike(checkpoint: Path) -> UnlikeRule | None:
    """The rule of this checkpoint; None where there is none, or a damaged one, or one for other weights."""
    path = unlike_file(checkpoint)
    try:
        about, tensors = read_model_file(path, "a rule for unlike pictures", "unlike", checksum=True)
        if about["weights"] != weights_beside(path):
            return None
        numbers = float(about["threshold"]), float(about["rate"]), int(about["images"])
        means = tensors["means"]
        return UnlikeRule(means, *numbers) if means.ndim == 2 and means.is_floating_point() else None
    except (OSError, KeyError, TypeError, ValueError, OverflowError):  # ours is a ValueError
        return None
