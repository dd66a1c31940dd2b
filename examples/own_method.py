"""A method of your own with a memory: SLA that pulls each image's prediction towards its earlier ones.

No download; takes a few seconds. The memory has a row for each training image, is saved in checkpoints, and a
resumed run continues exactly. The method was passed as an object, so whoever opens the run passes it again.
"""

from dataclasses import dataclass

import torch
from torch import nn

import sla
from sla.datasets.load import load
from sla.methods import option


class EarlierScores(nn.Module):
    """The moving average of the class scores of each training image."""

    def __init__(self, num_images, num_classes):
        super().__init__()
        self.register_buffer("scores", torch.zeros(num_images, num_classes))


@dataclass(frozen=True)
class Steady(sla.SLA):
    """SLA and the distance to earlier predictions, weighted by `pull`."""

    pull: float = option(0.1, "weight of the distance to earlier predictions", ge=0)
    parts = ("joint", "distance")  # columns of metrics.csv
    least_views = 2  # view 0, the unchanged image, is always among the views of a step

    def build_memory(self, num_images, num_classes):
        return EarlierScores(num_images, num_classes)

    def losses(self, heads, features, target, context):
        losses = super().losses(heads, features, target, context)
        earlier, places = context.memory.scores, context.indices
        plain = features[:: len(features) // len(places)]  # view 0 of each image
        scores = heads["joint"].block(plain, 0)
        seen = earlier[places].softmax(1)
        distance = nn.functional.kl_div(scores.log_softmax(1), seen, reduction="batchmean")
        earlier[places] = 0.5 * earlier[places] + 0.5 * scores.detach()
        return losses | {"loss": losses["loss"] + self.pull * distance, "distance": distance.detach()}


settings = {"backbone": "resnet8", "run__iterations": 20, "run__batch_size": 64, "run__compile": False}
run = sla.fit(load("digits"), out="runs/steady", method=Steady(pull=0.2), **settings)
print(f"aggregated: {run.result['accuracies']['last']['test']['aggregated']['top1']:.1f}%")

again = sla.open_run("runs/steady", method=Steady(pull=0.2))
print(f"opened again: pull {again.model.method.pull}")
